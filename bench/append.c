/* Rows of appends: 100 events in one round trip beside one INSERT a round trip, and what NOTIFY
 * costs when 32 append at once. */
#include "bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRAFT = 100, WRITERS = 32 };

#define HEAD_SQL                                                                                   \
    "INSERT INTO aggregate_heads AS h (aggregate_type, aggregate_id, aggregate_version)"           \
    " VALUES ($1, $2, $3::int8) ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE"              \
    " SET aggregate_version = h.aggregate_version + excluded.aggregate_version,"                   \
    " updated_at = now() RETURNING aggregate_version"
#define EVENT_SQL                                                                                  \
    "INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type,"   \
    " event_version, payload) VALUES ($1, $2, $3::int8, gen_random_uuid(), $4, 1, $5::bytea)"      \
    " RETURNING global_position"

static const char *payload(void)
{
    static char text[201];
    if (text[0] == '\0')
        (void)snprintf(text, sizeof(text), "{\"text\": \"%0187d\"}", 0);
    return text;
}

/* ---- append -------------------------------------------------------------------------------- */

static double by_drafts(const bench *b, const char *stream, int drafts)
{
    PGconn *conn = bench_connect(b, "bench append");
    mr_log *log = NULL;
    bench_must(mr_log_open(conn, NULL, &log), "opening the log");
    mr_draft *draft = mr_draft_new();
    double start = bench_now();
    for (int i = 0; i < drafts; i++) {
        mr_draft_clear(draft);
        bench_must(mr_draft_stream(draft, "Append", stream, MR_EXPECT_ANY), stream);
        for (int k = 0; k < DRAFT; k++)
            bench_must(mr_draft_event(draft, "Added", payload(), strlen(payload())), stream);
        bench_must(mr_append(conn, log, draft), "appending");
    }
    double took = bench_now() - start;
    mr_draft_free(draft);
    mr_log_free(log);
    PQfinish(conn);
    return took;
}

static double by_inserts(const bench *b, const char *stream, int drafts, bool prepare)
{
    PGconn *conn = bench_connect(b, "bench by hand");
    double start = bench_now();
    if (prepare)
        PQclear(PQprepare(conn, "event", EVENT_SQL, 0, NULL));
    for (int i = 0; i < drafts; i++) {
        bench_exec(conn, "BEGIN", 0, NULL);
        bench_exec(conn, HEAD_SQL, 3, (const char *[]){"Append", stream, "100"});
        for (int k = 0; k < DRAFT; k++) {
            char version[24];
            (void)snprintf(version, sizeof(version), "%d", i * DRAFT + k + 1);
            const char *values[] = {"Append", stream, version, "Added", payload()};
            if (!prepare) {
                bench_exec(conn, EVENT_SQL, 5, values);
                continue;
            }
            PGresult *result = PQexecPrepared(conn, "event", 5, values, NULL, NULL, 0);
            bench_must(mr_error_from_result(conn, result), "inserting");
            PQclear(result);
        }
        bench_exec(conn, "COMMIT", 0, NULL);
    }
    PQfinish(conn);
    return bench_now() - start;
}

void bench_append(bench *b)
{
    int drafts = b->quick ? 50 : 200;
    double events = (double)drafts * DRAFT;
    bench_row row = {.name = "append",
                     .what = "mr_append() of 100 events, a transaction each",
                     .beside = "one INSERT a round trip, 100 a transaction",
                     .unit = "ev/s",
                     .runs = b->runs,
                     .need = BENCH_AT_LEAST,
                     .limit = 6};
    bench_row strict = row;
    strict.beside = "the same with its INSERT prepared once";
    strict.need = BENCH_INFO;
    for (int i = 0; i < b->runs; i++) {
        char stream[32];
        (void)snprintf(stream, sizeof(stream), "drafts-%d", i);
        row.ours[i] = strict.ours[i] = events / by_drafts(b, stream, drafts);
        (void)snprintf(stream, sizeof(stream), "inserts-%d", i);
        row.theirs[i] = events / by_inserts(b, stream, drafts, false);
        (void)snprintf(stream, sizeof(stream), "prepared-%d", i);
        strict.theirs[i] = events / by_inserts(b, stream, drafts, true);
    }
    bench_report_row(b, &row);
    bench_report_row(b, &strict);
}

/* ---- notify -------------------------------------------------------------------------------- */

typedef enum telling { TELL_NOBODY, TELL_WITHIN, TELL_AFTER } telling;

typedef struct writers {
    const bench *b;
    telling how;
    _Atomic int64_t appended;
    _Atomic int64_t told_at; /* microseconds, when somebody last notified */
    _Atomic int next;
    atomic_bool stop;
} writers;

/* At most one notification in this many microseconds, whoever sends it. */
enum { TELL_EVERY = 5000 };

static bool my_turn_to_tell(writers *w)
{
    int64_t now = (int64_t)(bench_now() * 1e6);
    int64_t last = atomic_load(&w->told_at);
    return now - last >= TELL_EVERY && atomic_compare_exchange_strong(&w->told_at, &last, now);
}

static void *write_events(void *argument)
{
    writers *w = argument;
    PGconn *conn = bench_connect(w->b, "bench writer");
    char stream[32];
    (void)snprintf(stream, sizeof(stream), "writer-%d", atomic_fetch_add(&w->next, 1));
    const char *channel = w->how == TELL_WITHIN ? "millrace_bench" : NULL;
    const char *values[] = {stream, "{\"type\": \"Written\", \"data\": {}}", channel};
    while (!atomic_load(&w->stop)) {
        PGresult *rows = bench_query(conn,
                                     "SELECT global_position FROM millrace.append('Write', $1, -1,"
                                     " $2::jsonb, $3)",
                                     3, values);
        int64_t position = strtoll(PQgetvalue(rows, 0, 0), NULL, 10);
        PQclear(rows);
        if (w->how == TELL_AFTER && my_turn_to_tell(w))
            bench_must(mr_log_notify(conn, "millrace_bench", position), "notifying");
        atomic_fetch_add(&w->appended, 1);
    }
    PQfinish(conn);
    return NULL;
}

static double write_for(const bench *b, telling how, double seconds)
{
    writers w = {.b = b, .how = how};
    pthread_t threads[WRITERS];
    for (int i = 0; i < WRITERS; i++)
        if (pthread_create(&threads[i], NULL, write_events, &w) != 0)
            bench_die("cannot start a thread");
    bench_sleep(0.3); /* everybody is connected */
    int64_t before = atomic_load(&w.appended);
    double start = bench_now();
    bench_sleep(seconds);
    double rate = (double)(atomic_load(&w.appended) - before) / (bench_now() - start);
    atomic_store(&w.stop, true);
    for (int i = 0; i < WRITERS; i++)
        (void)pthread_join(threads[i], NULL);
    return rate;
}

void bench_notify(bench *b)
{
    double seconds = b->quick ? 1 : 3;
    bench_row within = {.name = "notify",
                        .what = "32 appenders, NOTIFY in each transaction",
                        .beside = "no notification",
                        .unit = "tx/s",
                        .runs = b->runs};
    bench_row after = within;
    after.what = "32 appenders, NOTIFY after commit, one in 5 ms";
    for (int i = 0; i < b->runs; i++) {
        within.ours[i] = write_for(b, TELL_WITHIN, seconds);
        within.theirs[i] = after.theirs[i] = write_for(b, TELL_NOBODY, seconds);
        after.ours[i] = write_for(b, TELL_AFTER, seconds);
    }
    bench_report_row(b, &within);
    bench_report_row(b, &after);
}
