/* What a snapshot that stays open costs jobs of the built-in table: it keeps vacuum from removing
 * what was claimed and finished. */
#include "bench.h"

#include <stdio.h>

static mr_error *nothing(mr_job *job, void *user)
{
    (void)job;
    (void)user;
    return NULL;
}

/* Jobs round so many keys; 0 = without. */
static void lay_out(bench *b, int jobs, int keys)
{
    char sql[600];
    bench_exec(b->conn, "TRUNCATE millrace.jobs, millrace.job_claims, millrace.jobs_archive", 0,
               NULL);
    (void)snprintf(sql, sizeof(sql),
                   "SELECT count(*) FROM millrace.enqueue_rows('held', array_fill('{}'::jsonb,"
                   " ARRAY[%d]), ARRAY(SELECT CASE WHEN %d > 0 THEN 'k' || n %% greatest(%d, 1) END"
                   " FROM generate_series(1, %d) AS n), '{}', '{}', '{}', '{}', '{}', '{}')",
                   jobs, keys, keys, jobs);
    PQclear(bench_query(b->conn, sql, 0, NULL));
    bench_exec(b->conn, "VACUUM ANALYZE millrace.jobs", 0, NULL);
}

static mr_worker *make_worker(const bench *b)
{
    mr_conf *conf = mr_conf_new();
    mr_queue *queue = mr_queue_new("held");
    mr_worker *worker = NULL;
    if (conf == NULL || queue == NULL)
        bench_die("no memory");
    mr_queue_on_job(queue, nothing, NULL, NULL);
    bench_must(mr_queue_set(queue, "look_ahead", "2000"), "look_ahead");
    bench_must(mr_conf_set(conf, "database", b->conninfo), "database");
    bench_must(mr_conf_set(conf, "log_level", "warn"), "log_level");
    bench_must(mr_conf_set(conf, "once", "true"), "once");
    bench_must(mr_conf_take_queue(conf, queue), "queue");
    bench_must(mr_worker_new(conf, &worker), "making a worker");
    return worker;
}

/* Jobs a second. */
static double drain(bench *b, int jobs, int keys, bool held)
{
    PGconn *report = bench_connect(b, "bench report");
    lay_out(b, jobs, keys);
    if (held) {
        bench_exec(report, "BEGIN ISOLATION LEVEL REPEATABLE READ", 0, NULL);
        PQclear(bench_query(report, "SELECT count(*) FROM millrace.jobs", 0, NULL));
    }
    mr_worker *worker = make_worker(b);
    double began = bench_now();
    bench_must(mr_worker_run(worker), "running a worker");
    double took = bench_now() - began;
    mr_worker_free(worker);
    if (held)
        bench_exec(report, "COMMIT", 0, NULL);
    PQfinish(report);
    if (bench_number(b->conn, "SELECT count(*) FROM millrace.jobs_archive") != jobs)
        bench_die("not every job is done, so the times mean nothing");
    return jobs / took;
}

static void row_of(bench *b, const char *what, int jobs, int keys, bench_need need)
{
    bench_row row = {.name = "held",
                     .what = what,
                     .beside = "the same without the snapshot",
                     .unit = "jobs/s",
                     .runs = b->runs,
                     .need = need,
                     .limit = 0.9};
    for (int i = 0; i < b->runs; i++) {
        row.theirs[i] = drain(b, jobs, keys, false);
        row.ours[i] = drain(b, jobs, keys, true);
    }
    bench_report_row(b, &row);
}

void bench_held(bench *b)
{
    row_of(b, "built-in jobs under a held snapshot", 100000, 0, BENCH_AT_LEAST);
    row_of(b, "the same with 20,000 keys in order", 100000, 20000, BENCH_INFO);
    row_of(b, "the same with 20 keys in order", 10000, 20, BENCH_INFO);
}
