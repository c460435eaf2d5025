/* Rows of consumers that catch up alone: an empty handler beside a loop that only reads, a handler
 * that writes beside one round trip a statement, and sql_batch beside its statement by hand. */
#include "bench.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The events' columns as a program would fetch them, all of them. */
#define READ_SQL                                                                                   \
    "SELECT global_position, aggregate_type, aggregate_id, event_type, aggregate_version,"         \
    " event_id, event_version, payload, trace_id, correlation_id, causation_id, metadata,"         \
    " created_at FROM events WHERE global_position > $1::int8"                                     \
    " ORDER BY global_position LIMIT $2::int8"
#define SAVE_SQL                                                                                   \
    "UPDATE millrace.consumer_checkpoints SET last_position = $2::int8, updated_at = now()"        \
    " WHERE consumer_name = $1"
#define UPSERT_SQL                                                                                 \
    "INSERT INTO bench_totals AS t (id, n) VALUES ($1, 1)"                                         \
    " ON CONFLICT (id) DO UPDATE SET n = t.n + 1"
/* %s is what the batch is. */
#define SET_SQL                                                                                    \
    "INSERT INTO bench_totals AS t (id, n) SELECT aggregate_id, count(*) FROM %s GROUP BY 1"       \
    " ON CONFLICT (id) DO UPDATE SET n = t.n + excluded.n"

/* A loop by hand: its connection, its checkpoint and the texts of its parameters. */
typedef struct by_hand {
    PGconn *conn;
    const char *name;
    int64_t position;
    char at[24], limit[24];
} by_hand;

static void open_by_hand(const bench *b, by_hand *h, const char *name, int64_t start)
{
    *h = (by_hand){.conn = bench_connect(b, "bench by hand"), .name = name, .position = start};
    (void)snprintf(h->limit, sizeof(h->limit), "%d", BENCH_BATCH);
    bench_checkpoint(h->conn, name, start);
}

static void prepare(by_hand *h, const char *statement, const char *sql)
{
    PGresult *result = PQprepare(h->conn, statement, sql, 0, NULL);
    bench_must(mr_error_from_result(h->conn, result), sql);
    PQclear(result);
}

static PGresult *prepared(by_hand *h, const char *statement, int count, const char *const *values,
                          int format)
{
    PGresult *rows = PQexecPrepared(h->conn, statement, count, values, NULL, NULL, format);
    bench_must(mr_error_from_result(h->conn, rows), statement);
    return rows;
}

/* Moves on behind the last row of a binary result; the rows there were. */
static int advance(by_hand *h, const PGresult *rows)
{
    int count = PQntuples(rows);
    if (count > 0) {
        uint64_t raw;
        memcpy(&raw, PQgetvalue(rows, count - 1, 0), sizeof(raw));
        h->position = (int64_t)be64toh(raw);
    }
    (void)snprintf(h->at, sizeof(h->at), "%" PRId64, h->position);
    return count;
}

static void put_position(by_hand *h)
{
    (void)snprintf(h->at, sizeof(h->at), "%" PRId64, h->position);
}

/* ---- catch-up ------------------------------------------------------------------------------ */

static double read_and_save(const bench *b, const char *name, int64_t head)
{
    double start = bench_now();
    by_hand h;
    open_by_hand(b, &h, name, 0);
    prepare(&h, "read", READ_SQL);
    prepare(&h, "save", SAVE_SQL);
    while (h.position < head) {
        bench_exec(h.conn, "BEGIN", 0, NULL);
        put_position(&h);
        PGresult *rows = prepared(&h, "read", 2, (const char *[]){h.at, h.limit}, 1);
        (void)advance(&h, rows);
        PQclear(rows);
        PQclear(prepared(&h, "save", 2, (const char *[]){h.name, h.at}, 0));
        bench_exec(h.conn, "COMMIT", 0, NULL);
    }
    PQfinish(h.conn);
    return bench_now() - start;
}

void bench_catchup(bench *b)
{
    int64_t head = bench_log(b, b->quick ? BENCH_MILLION / 5 : BENCH_MILLION);
    bench_row row = {.name = "catch-up",
                     .what = "1M events of 200 B, empty C handler",
                     .beside = "plain libpq: read the rows, save the checkpoint, 1000 a batch",
                     .unit = "ev/s",
                     .runs = b->runs,
                     .need = BENCH_AT_LEAST,
                     .limit = 0.9};
    if (b->quick)
        row.what = "200k events of 200 B, empty C handler";
    (void)read_and_save(b, "catchup_warm", head);
    for (int i = 0; i < b->runs; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "catchup_%d", i);
        bench_consumer ours = {.name = name, .on_event = bench_nothing};
        row.ours[i] = (double)head / bench_drain(b, &ours);
        (void)snprintf(name, sizeof(name), "catchup_hand_%d", i);
        row.theirs[i] = (double)head / read_and_save(b, name, head);
    }
    bench_report_row(b, &row);
}

/* ---- handler ------------------------------------------------------------------------------- */

static void empty_totals(bench *b)
{
    bench_exec(b->conn, "CREATE TABLE IF NOT EXISTS bench_totals (id text PRIMARY KEY, n int8)", 0,
               NULL);
    bench_exec(b->conn, "TRUNCATE bench_totals", 0, NULL);
}

static void check_totals(bench *b, int64_t events)
{
    if (bench_number(b->conn, "SELECT sum(n)::int8 FROM bench_totals") != events)
        bench_die("the totals are wrong, so the times mean nothing");
}

static mr_error *upsert(mr_tx *tx, const mr_event *event, void *user)
{
    (void)user;
    const char *values[] = {mr_event_aggregate_id(event)};
    return mr_tx_exec(tx, UPSERT_SQL, 1, values);
}

/* One batch as the reference runs it: each statement waits for its answer. */
static void reference_batch(by_hand *h, bool prepare_upsert)
{
    bench_exec(h->conn, "BEGIN", 0, NULL);
    bench_exec(h->conn,
               "SELECT worker_id FROM millrace.consumer_assignments WHERE consumer_name = $1"
               " FOR UPDATE",
               1, &h->name);
    bench_exec(h->conn,
               "SELECT last_position FROM millrace.consumer_checkpoints WHERE consumer_name = $1"
               " FOR UPDATE",
               1, &h->name);
    put_position(h);
    PGresult *rows = prepared(h, "read", 2, (const char *[]){h->at, h->limit}, 1);
    int count = advance(h, rows);
    for (int i = 0; i < count; i++) {
        const char *values[] = {PQgetvalue(rows, i, 2)};
        if (prepare_upsert)
            PQclear(prepared(h, "upsert", 1, values, 0));
        else
            bench_exec(h->conn, UPSERT_SQL, 1, values);
    }
    PQclear(rows);
    bench_exec(h->conn, SAVE_SQL, 2, (const char *[]){h->name, h->at});
    bench_exec(h->conn, "COMMIT", 0, NULL);
}

static double reference(const bench *b, const char *name, int64_t from, int64_t head,
                        bool prepare_upsert)
{
    double start = bench_now();
    by_hand h;
    open_by_hand(b, &h, name, from);
    prepare(&h, "read", READ_SQL);
    if (prepare_upsert)
        prepare(&h, "upsert", UPSERT_SQL);
    while (h.position < head)
        reference_batch(&h, prepare_upsert);
    PQfinish(h.conn);
    return bench_now() - start;
}

void bench_handler(bench *b)
{
    int64_t events = b->quick ? 20000 : 50000;
    int64_t head = bench_log(b, events), from = head - events;
    bench_row row = {.name = "handler",
                     .what = "one upsert an event, batch 1000",
                     .beside = "the reference's protocol: one round trip a statement",
                     .unit = "ev/s",
                     .runs = b->runs,
                     .need = BENCH_AT_LEAST,
                     .limit = 7};
    bench_row strict = row;
    strict.beside = "the same with its upsert prepared once";
    strict.need = BENCH_INFO;
    for (int i = 0; i < b->runs; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "handler_%d", i);
        bench_consumer ours = {.name = name, .on_event = upsert, .start = from};
        empty_totals(b);
        row.ours[i] = strict.ours[i] = (double)events / bench_drain(b, &ours);
        check_totals(b, events);
        empty_totals(b);
        row.theirs[i] = (double)events / reference(b, "handler_hand", from, head, false);
        check_totals(b, events);
        empty_totals(b);
        strict.theirs[i] = (double)events / reference(b, "handler_prepared", from, head, true);
        check_totals(b, events);
    }
    bench_report_row(b, &row);
    bench_report_row(b, &strict);
}

/* ---- sql-batch ----------------------------------------------------------------------------- */

static double sets_by_hand(const bench *b, const char *name, int64_t head)
{
    double start = bench_now();
    by_hand h;
    char sql[512];
    open_by_hand(b, &h, name, 0);
    (void)snprintf(sql, sizeof(sql), SET_SQL,
                   "events WHERE global_position > $1::int8 AND global_position <= $2::int8");
    prepare(&h, "set", sql);
    prepare(&h, "save", SAVE_SQL);
    while (h.position < head) {
        char to[24];
        int64_t next = h.position + BENCH_BATCH < head ? h.position + BENCH_BATCH : head;
        put_position(&h);
        (void)snprintf(to, sizeof(to), "%" PRId64, next);
        bench_exec(h.conn, "BEGIN", 0, NULL);
        PQclear(prepared(&h, "set", 2, (const char *[]){h.at, to}, 0));
        PQclear(prepared(&h, "save", 2, (const char *[]){h.name, to}, 0));
        bench_exec(h.conn, "COMMIT", 0, NULL);
        h.position = next;
    }
    PQfinish(h.conn);
    return bench_now() - start;
}

void bench_sql_batch(bench *b)
{
    int64_t head = bench_log(b, BENCH_MILLION / 5);
    char sql[512];
    (void)snprintf(sql, sizeof(sql), SET_SQL, "batch");
    bench_row row = {.name = "sql-batch",
                     .what = "one INSERT ... SELECT FROM batch, 1000 events each",
                     .beside = "the same statement over the same ranges by hand",
                     .unit = "ev/s",
                     .runs = b->runs,
                     .need = BENCH_AT_LEAST,
                     .limit = 0.9};
    for (int i = 0; i < b->runs; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "sets_%d", i);
        bench_consumer ours = {.name = name, .sql_batch = sql};
        empty_totals(b);
        row.ours[i] = (double)head / bench_drain(b, &ours);
        check_totals(b, head);
        empty_totals(b);
        row.theirs[i] = (double)head / sets_by_hand(b, "sets_hand", head);
        check_totals(b, head);
    }
    bench_report_row(b, &row);
}
