/* What one bad event costs a consumer that gives it up: the same events with and without it. */
#include "bench.h"

#include <inttypes.h>
#include <stdio.h>

#define COUNT_SQL                                                                                  \
    "INSERT INTO bench_poison AS t (id, n) VALUES ($1, 1)"                                         \
    " ON CONFLICT (id) DO UPDATE SET n = t.n + 1"

/* The position that cannot be handled; 0 = all can. */
static mr_error *pick(mr_tx *tx, const mr_event *event, void *user)
{
    const int64_t *bad = user;
    if (mr_event_position(event) == *bad)
        return mr_error_new(MR_E_HANDLER, false, "this one cannot be handled");
    const char *values[] = {mr_event_aggregate_id(event)};
    return mr_tx_exec(tx, COUNT_SQL, 1, values);
}

static double drain(bench *b, const char *kind, int round, int64_t from, int64_t bad)
{
    char name[32];
    (void)snprintf(name, sizeof(name), "poison_%s_%d", kind, round);
    bench_consumer consumer = {
        .name = name, .on_event = pick, .user = &bad, .start = from, .on_failure = "dead_letter"};
    bench_exec(b->conn, "TRUNCATE bench_poison", 0, NULL);
    return bench_drain(b, &consumer);
}

static void check(bench *b, int64_t handled, int64_t letters)
{
    if (bench_number(b->conn, "SELECT sum(n)::int8 FROM bench_poison") != handled ||
        bench_number(b->conn, "SELECT count(*) FROM millrace.consumer_dead_letters") != letters)
        bench_die("the totals or the dead letters are wrong, so the times mean nothing");
}

void bench_poison(bench *b)
{
    int64_t events = 100000; /* with fewer, finding the bad one is most of the time */
    int64_t head = bench_log(b, events), from = head - events;
    bench_exec(b->conn, "CREATE TABLE IF NOT EXISTS bench_poison (id text PRIMARY KEY, n int8)", 0,
               NULL);
    bench_row row = {.name = "poison",
                     .what = "100,000 events, one of them bad, one upsert an event",
                     .beside = "the same without the bad one",
                     .unit = "s",
                     .runs = b->runs,
                     .need = BENCH_AT_MOST,
                     .limit = 1.5};
    for (int i = 0; i < b->runs; i++) {
        row.theirs[i] = drain(b, "none", i, from, 0);
        check(b, events, i);
        row.ours[i] = drain(b, "one", i, from, head - events / 2);
        check(b, events - 1, i + 1);
    }
    bench_report_row(b, &row);
}
