/* Rows of fail-over: from SIGKILL of the worker that runs a consumer to the first event that
 * another one handles, at default settings. */
#include "bench.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONSUMER "failover"

static mr_error *note(mr_tx *tx, const mr_event *event, void *user)
{
    (void)event;
    const char *values[] = {user};
    return mr_tx_exec(tx, "INSERT INTO bench_failover (pid) VALUES ($1::int4)", 1, values);
}

/* A worker in a process of its own, which only a signal ends. */
static pid_t spawn(const bench *b)
{
    (void)fflush(NULL);
    pid_t child = fork();
    if (child < 0)
        bench_die("fork failed");
    if (child > 0)
        return child;
    char pid[16];
    (void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
    bench_consumer ours = {.name = CONSUMER, .on_event = note, .user = pid};
    mr_worker *worker = bench_worker(b, &ours, false);
    mr_error *error = mr_worker_run(worker);
    _exit(error == NULL ? 0 : 1);
}

static void wait_for(PGconn *conn, const char *sql, int64_t value)
{
    double until = bench_now() + 60;
    while (bench_number(conn, sql) != value) {
        if (bench_now() > until)
            bench_die("waited in vain for: %s", sql);
        bench_sleep(0.01);
    }
}

static void append_one(PGconn *conn)
{
    bench_exec(conn, "SELECT millrace.append('Failover', 'x', -1, '{\"type\": \"Beat\"}')", 0,
               NULL);
}

/* Seconds from the kill until somebody else has handled an event. */
static double kill_owner(bench *b, pid_t workers[2])
{
    wait_for(b->conn, "SELECT count(*) FROM millrace.worker_nodes WHERE state = 'alive'", 2);
    wait_for(b->conn,
             "SELECT count(*) FROM millrace.consumer_assignments a JOIN millrace.worker_nodes n"
             " USING (worker_id) WHERE consumer_name = '" CONSUMER "'",
             1);
    int64_t owner = bench_number(b->conn, "SELECT pid FROM millrace.consumer_assignments"
                                          " JOIN millrace.worker_nodes USING (worker_id)"
                                          " WHERE consumer_name = '" CONSUMER "'");
    int victim = workers[0] == (pid_t)owner ? 0 : 1;
    bench_exec(b->conn, "TRUNCATE bench_failover", 0, NULL);
    append_one(b->conn);
    wait_for(b->conn, "SELECT count(DISTINCT pid) FROM bench_failover", 1);
    double start = bench_now();
    (void)kill(workers[victim], SIGKILL);
    (void)waitpid(workers[victim], NULL, 0);
    char sql[128];
    (void)snprintf(sql, sizeof(sql),
                   "SELECT (count(*) > 0)::int FROM bench_failover WHERE pid <> %" PRId64, owner);
    do {
        append_one(b->conn);
        bench_sleep(0.005);
    } while (bench_number(b->conn, sql) == 0 && bench_now() < start + 60);
    double took = bench_now() - start;
    /* The dead one's row stays until its heartbeat is over; the next round must not wait for it. */
    bench_exec(b->conn, "DELETE FROM millrace.worker_nodes WHERE pid = $1::int4", 1,
               (const char *[]){strrchr(sql, ' ') + 1});
    workers[victim] = spawn(b);
    return took;
}

void bench_failover(bench *b)
{
    bench_exec(b->conn, "CREATE TABLE bench_failover (n bigserial, pid int4)", 0, NULL);
    /* A server that has only just started is given time: missing sessions are no sign of death yet.
     */
    wait_for(b->conn, "SELECT (pg_postmaster_start_time() < now() - interval '11 seconds')::int",
             1);
    bench_row row = {.name = "fail-over",
                     .what = "SIGKILL to the first event handled elsewhere",
                     .beside = "",
                     .unit = "s",
                     .runs = b->quick ? 5 : 10,
                     .alone = true,
                     .need = BENCH_AT_MOST,
                     .limit = 3};
    pid_t workers[2] = {spawn(b), spawn(b)};
    for (int i = 0; i < row.runs; i++)
        row.ours[i] = kill_owner(b, workers);
    for (int i = 0; i < 2; i++) {
        (void)kill(workers[i], SIGKILL);
        (void)waitpid(workers[i], NULL, 0);
    }
    bench_report_row(b, &row);
}
