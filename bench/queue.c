/* Rows of queues on a user's own table: claim and complete beside a plain loop over the same
 * statements, and what a claim touches when the table has grown old. */
#include "bench.h"

#include "cluster/names.h"
#include "queue/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AT_ONCE = 100, COST_BATCH = 10 };

static void make_table(bench *b)
{
    bench_exec(b->conn, "DROP TABLE IF EXISTS bench_work", 0, NULL);
    bench_exec(b->conn,
               "CREATE TABLE bench_work (id bigserial PRIMARY KEY, state text NOT NULL DEFAULT"
               " 'queued', failure_message text, queued_at timestamptz NOT NULL DEFAULT now(),"
               " started_at timestamptz, finished_at timestamptz, process_after timestamptz,"
               " num_resets int NOT NULL DEFAULT 0, num_failures int NOT NULL DEFAULT 0,"
               " last_heartbeat_at timestamptz, execution_logs json[], worker_hostname text NOT"
               " NULL DEFAULT '', lease_generation bigint NOT NULL DEFAULT 0, payload text)",
               0, NULL);
    bench_exec(b->conn, "CREATE INDEX ON bench_work (id) WHERE state IN ('queued', 'errored')", 0,
               NULL);
    bench_exec(b->conn, "CREATE INDEX ON bench_work (id) WHERE state = 'processing'", 0, NULL);
}

static void fill(bench *b, int64_t count)
{
    char text[24];
    (void)snprintf(text, sizeof(text), "%" PRId64, count);
    const char *values[] = {text};
    bench_exec(b->conn, "TRUNCATE bench_work", 0, NULL);
    bench_exec(b->conn,
               "INSERT INTO bench_work (payload) SELECT 'x' FROM generate_series(1, $1::int8)", 1,
               values);
    bench_exec(b->conn, "VACUUM ANALYZE bench_work", 0, NULL);
}

static void check(bench *b, int64_t count)
{
    if (bench_number(b->conn, "SELECT count(*) FROM bench_work WHERE state = 'completed'") != count)
        bench_die("not all jobs were completed, so the times mean nothing");
}

/* ---- Ours ---------------------------------------------------------------------------------- */

static mr_error *nothing(mr_job *job, void *user)
{
    (void)job;
    (void)user;
    return NULL;
}

static void option(mr_queue *queue, const char *name, const char *value)
{
    bench_must(mr_queue_set(queue, name, value), name);
}

static double by_worker(const bench *b)
{
    mr_queue *queue = mr_queue_new("bench");
    if (queue == NULL)
        bench_die("no memory");
    option(queue, "table", "bench_work");
    option(queue, "values", "id=id,payload=payload");
    option(queue, "num_handlers", "1");
    option(queue, "look_ahead", "199"); /* claims of a hundred: half of what it may hold */
    mr_queue_on_job(queue, nothing, NULL, NULL);
    mr_conf *conf = mr_conf_new();
    bench_must(mr_conf_set(conf, "database", b->conninfo), "database");
    bench_must(mr_conf_set(conf, "once", "true"), "once");
    bench_must(mr_conf_take_queue(conf, queue), "queue");
    mr_worker *worker = NULL;
    bench_must(mr_worker_new(conf, &worker), "making a worker");
    double start = bench_now();
    bench_must(mr_worker_run(worker), "running a worker");
    double took = bench_now() - start;
    mr_worker_free(worker);
    return took;
}

/* ---- By hand ------------------------------------------------------------------------------- */

static mr_queue_store *open_store(PGconn *conn)
{
    mr_names names;
    bench_must(mr__names_init(&names, "millrace"), "names");
    mr_mapping mapping;
    bench_must(mr__mapping_init(&mapping, "bench"), "mapping");
    bench_must(mr__mapping_table(&mapping, "bench_work"), "table");
    bench_must(mr__mapping_value(&mapping, "id", NULL), "id");
    bench_must(mr__mapping_value(&mapping, "payload", NULL), "payload");
    mr_queue_policy policy = mr__queue_policy_default();
    mr_queue_store *store = NULL;
    bench_must(mr__queue_open(conn, &mapping, &policy, &names, &store), "store");
    return store;
}

/* One batch; how many jobs there were. */
static size_t batch(PGconn *conn, const mr_queue_store *store, mr_mark *mark, int count)
{
    static mr_outcome outcomes[500];
    mr_queue_on on = {.conn = conn};
    mr_claim claim = {.count = count, .worker = "by hand"};
    mr_jobs *jobs = NULL;
    bench_must(mr__queue_claim(on, store, &claim, mark, &mr__clock_system, &jobs), "claim");
    size_t got = mr__jobs_count(jobs);
    for (size_t i = 0; i < got; i++) {
        mr_job_row job = mr__jobs_at(jobs, i);
        outcomes[i] = (mr_outcome){.id = job.id, .fence = job.fence};
    }
    bench_must(mr__queue_finish(on, store, "by hand", outcomes, got, mark, NULL), "finish");
    mr__jobs_unref(jobs);
    return got;
}

static double by_hand(const bench *b)
{
    double start = bench_now();
    PGconn *conn = bench_connect(b, "bench by hand");
    mr_queue_store *store = open_store(conn);
    mr_mark mark;
    mr__queue_mark_init(store, BENCH_MILLION, &mark);
    while (batch(conn, store, &mark, AT_ONCE) > 0) {
    }
    mr__mark_free(&mark);
    mr__queue_close(store);
    PQfinish(conn);
    return bench_now() - start;
}

/* ---- Buffers ------------------------------------------------------------------------------- */

static double number_after(const char *plan, const char *key)
{
    const char *found = strstr(plan, key);
    double value = 0;
    if (found != NULL)
        value = strtod(found + strlen(key), NULL);
    else
        bench_die("the server's plan does not tell its buffers");
    return value;
}

/* Buffers that the next claim touches; it is undone. */
static double claim_cost(PGconn *conn, const mr_queue_store *store, const mr_mark *mark)
{
    mr_claim claim = {.count = COST_BATCH, .worker = "by hand"};
    mr_queue_call call = {0};
    bench_must(mr__queue_claim_call(store, &claim, mark, MR_SCAN_MARK, &call), "claim");
    char sql[16384];
    if (snprintf(sql, sizeof(sql), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) %s", call.sql) >=
        (int)sizeof(sql))
        bench_die("the claim is longer than expected");
    bench_exec(conn, "BEGIN", 0, NULL);
    PGresult *rows = bench_query(conn, sql, call.count, call.values);
    const char *plan = PQgetvalue(rows, 0, 0);
    double buffers = number_after(plan, "\"Shared Hit Blocks\": ") +
                     number_after(plan, "\"Shared Read Blocks\": ");
    PQclear(rows);
    bench_exec(conn, "ROLLBACK", 0, NULL);
    mr__queue_call_free(&call);
    return buffers;
}

static void cost_row(bench *b, const char *what, double now, double fresh)
{
    bench_row row = {.name = "queue",
                     .what = what,
                     .beside = "the same on a fresh table",
                     .unit = "buffers",
                     .ours = {now},
                     .theirs = {fresh},
                     .runs = 1,
                     .need = BENCH_AT_MOST,
                     .limit = 2};
    bench_report_row(b, &row);
}

static void costs(bench *b)
{
    fill(b, 60000);
    bench_exec(b->conn, "ALTER TABLE bench_work SET (autovacuum_enabled = off)", 0, NULL);
    PGconn *conn = bench_connect(b, "bench by hand"), *report = bench_connect(b, "bench report");
    mr_queue_store *store = open_store(conn);
    mr_mark mark;
    mr__queue_mark_init(store, BENCH_MILLION, &mark);
    (void)batch(conn, store, &mark, COST_BATCH);
    double fresh = claim_cost(conn, store, &mark);
    bench_exec(report, "BEGIN ISOLATION LEVEL REPEATABLE READ", 0, NULL);
    PQclear(bench_query(report, "SELECT count(*) FROM bench_work", 0, NULL));
    for (int64_t done = 0; done < 50000; done += 500)
        (void)batch(conn, store, &mark, 500);
    cost_row(b, "a claim of 10 after 50,000 jobs under a held snapshot",
             claim_cost(conn, store, &mark), fresh);
    bench_exec(report, "COMMIT", 0, NULL);
    bench_exec(conn,
               "INSERT INTO bench_work (id, state, finished_at) SELECT -n, 'completed', now()"
               " FROM generate_series(1, 1000000) n",
               0, NULL);
    bench_exec(conn, "VACUUM ANALYZE bench_work", 0, NULL);
    cost_row(b, "a claim of 10 with a million finished rows", claim_cost(conn, store, &mark),
             fresh);
    mr__mark_free(&mark);
    mr__queue_close(store);
    PQfinish(report);
    PQfinish(conn);
}

void bench_queue(bench *b)
{
    int64_t count = b->quick ? 20000 : 100000;
    make_table(b);
    bench_row row = {.name = "queue",
                     .what = "jobs claimed and completed, empty handler, 100 at once",
                     .beside = "a plain loop over the same statements",
                     .unit = "jobs/s",
                     .runs = b->runs,
                     .need = BENCH_AT_LEAST,
                     .limit = 0.85};
    for (int i = 0; i < b->runs; i++) {
        fill(b, count);
        row.ours[i] = (double)count / by_worker(b);
        check(b, count);
        fill(b, count);
        row.theirs[i] = (double)count / by_hand(b);
        check(b, count);
    }
    bench_report_row(b, &row);
    costs(b);
}
