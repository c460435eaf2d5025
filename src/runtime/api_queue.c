/* Public calls that translate a configuration's queue for src/queue. */
#include "runtime/api_queue.h"

#include "base/list.h"
#include "queue/operate.h"
#include "runtime/conf_queue.h"

#include <string.h>

static void close_store(mr_queue_store **store)
{
    mr__queue_close(*store);
}
#define AUTO_STORE __attribute__((cleanup(close_store))) mr_queue_store *

static mr_error *open_store(PGconn *conn, const mr_conf *conf, const mr_queue *queue,
                            mr_queue_store **out)
{
    mr_names names;
    MR_TRY(mr__conf_names(conf, &names));
    mr_mapping mapping;
    MR_TRY(mr__queue_mapping_of(queue, &mapping));
    mr_queue_policy policy = mr__queue_policy_of(queue);
    mr_error *error = mr__queue_open(conn, &mapping, &policy, &names, out);
    if (error != NULL)
        mr__mapping_free(&mapping);
    return error;
}

static mr_error *open_named(PGconn *conn, const mr_conf *conf, const char *name,
                            mr_queue_store **out)
{
    const mr_queue *queue = NULL;
    MR_TRY(mr__conf_queue_find(conf, name, &queue));
    return open_store(conn, conf, queue, out);
}

/* ---- All queues ------------------------------------------------------------------------------ */

/* A queue whose table does not fit is told as that; the others are listed all the same. */
static mr_error *put_queue(PGconn *conn, const mr_conf *conf, const mr_queue *queue, mr_buf *sql)
{
    AUTO_STORE store = NULL;
    mr_error *error = open_store(conn, conf, queue, &store);
    if (error == NULL)
        return mr__queue_summary(conn, store, sql);
    if (mr_error_code(error) != MR_E_CONFIG)
        return error;
    mr__queue_summary_broken(mr__bag_text(&queue->bag, MR_OPT_Q_NAME),
                             mr__bag_text(&queue->bag, MR_OPT_Q_TABLE), mr_error_message(error),
                             sql);
    mr_error_free(error);
    return NULL;
}

mr_error *mr__list_queues(PGconn *conn, const mr_conf *conf, const mr_list_input *input,
                          PGresult **rows)
{
    MR_AUTO_BUF sql = {0};
    mr__relation_workers(&sql, input->names);
    mr__buf_puts(&sql, " SELECT mr_q.queue, mr_q.\"table\", mr_q.queued, mr_q.errored,"
                       " mr_q.processing, mr_q.completed, mr_q.failed, mr_q.canceled, mr_q.stalled,"
                       " CASE WHEN NOT mr_q.rough ? 'oldest_wait_seconds'"
                       " THEN mr_q.oldest_wait_seconds END AS oldest_wait_seconds,"
                       " (SELECT count(*) FROM worker w WHERE w.state = 'alive'"
                       " AND mr_q.queue = ANY (w.queues)) AS workers,"
                       " mr_q.rough, mr_q.problem FROM (");
    for (size_t i = 0; i < conf->queue_count; i++) {
        mr__buf_printf(&sql, "%sSELECT %zu AS mr_at, mr_one.* FROM (", i == 0 ? "" : " UNION ALL ",
                       i);
        MR_TRY(put_queue(conn, conf, conf->queues[i], &sql));
        mr__buf_puts(&sql, ") AS mr_one");
    }
    if (conf->queue_count == 0) {
        mr__buf_puts(&sql, "SELECT 0 AS mr_at, mr_one.* FROM (");
        mr__queue_summary_broken("", "", "", &sql);
        mr__buf_puts(&sql, ") AS mr_one WHERE false");
    }
    mr__buf_puts(&sql, ") AS mr_q WHERE $2::int8 IS NOT NULL ORDER BY mr_q.mr_at");
    return mr__list_run(conn, input, &sql, 2, rows);
}

/* ---- Jobs ------------------------------------------------------------------------------------ */

mr_error *mr_queue_jobs(PGconn *conn, const mr_conf *conf, const char *queue,
                        const mr_job_filter *filter, PGresult **rows)
{
    AUTO_STORE store = NULL;
    MR_TRY(open_named(conn, conf, queue, &store));
    return mr__jobs_list(conn, store, filter, rows);
}

mr_error *mr_queue_job(PGconn *conn, const mr_conf *conf, const char *queue, const char *id,
                       PGresult **rows)
{
    AUTO_STORE store = NULL;
    MR_TRY(open_named(conn, conf, queue, &store));
    return mr__jobs_show(conn, store, id, rows);
}

/* ---- Counts ---------------------------------------------------------------------------------- */

static mr_error *read_states(const char *list, unsigned *states)
{
    static const char *const names[] = {"queued",    "errored", "processing",
                                        "completed", "failed",  "canceled"};
    enum { STATES = sizeof(names) / sizeof(names[0]) };
    MR_AUTO_BUF item = {0};
    *states = 0;
    while (mr__list_next(&list, &item, NULL)) {
        unsigned bit = 0;
        for (unsigned i = 0; i < STATES; i++)
            if (strcmp(names[i], mr__buf_text(&item)) == 0)
                bit = 1U << i;
        if (bit == 0)
            return mr__error(MR_E_USAGE,
                             "a job has no state '%.40s'; there are queued, errored, processing, "
                             "completed, failed and canceled",
                             mr__buf_text(&item));
        *states |= bit;
    }
    return NULL;
}

mr_error *mr_queue_count(PGconn *conn, const mr_conf *conf, const char *queue, const char *states,
                         int64_t *count)
{
    AUTO_STORE store = NULL;
    unsigned set = 0;
    MR_TRY(read_states(states, &set));
    MR_TRY(open_named(conn, conf, queue, &store));
    return mr__queue_count((mr_queue_on){.conn = conn}, store, set, count);
}

mr_error *mr_queue_exists(PGconn *conn, const mr_conf *conf, const char *queue, const char *states,
                          bool *exists)
{
    AUTO_STORE store = NULL;
    unsigned set = 0;
    MR_TRY(read_states(states, &set));
    MR_TRY(open_named(conn, conf, queue, &store));
    return mr__queue_exists((mr_queue_on){.conn = conn}, store, set, exists);
}

mr_error *mr_queue_wait(PGconn *conn, const mr_conf *conf, const char *queue, int64_t *wait)
{
    AUTO_STORE store = NULL;
    MR_TRY(open_named(conn, conf, queue, &store));
    return mr__queue_wait((mr_queue_on){.conn = conn}, store, wait);
}

/* ---- Changes --------------------------------------------------------------------------------- */

static mr_error *operate(PGconn *conn, const mr_conf *conf, const char *queue,
                         const mr_job_order *order, PGresult **rows)
{
    AUTO_STORE store = NULL;
    MR_TRY(open_named(conn, conf, queue, &store));
    return mr__jobs_operate(conn, store, order, rows);
}

mr_error *mr_queue_retry(PGconn *conn, const mr_conf *conf, const char *queue,
                         const mr_job_filter *filter, bool all, bool reset_counters,
                         PGresult **rows)
{
    mr_job_order order = {
        .action = MR_JOB_RETRY, .filter = filter, .all = all, .reset_counters = reset_counters};
    return operate(conn, conf, queue, &order, rows);
}

mr_error *mr_queue_cancel(PGconn *conn, const mr_conf *conf, const char *queue,
                          const mr_job_filter *filter, bool all, const char *reason,
                          PGresult **rows)
{
    mr_job_order order = {
        .action = MR_JOB_CALL_OFF, .filter = filter, .all = all, .reason = reason};
    return operate(conn, conf, queue, &order, rows);
}

mr_error *mr_queue_requeue(PGconn *conn, const mr_conf *conf, const char *queue,
                           const mr_job_filter *filter, bool all, const char *at, int64_t delay_ms,
                           bool reset_counters, PGresult **rows)
{
    enum { MICROS = 1000 };
    if (delay_ms < 0 || delay_ms > INT64_MAX / MICROS)
        return mr__error(MR_E_USAGE, "the delay must be 0 to 10 years");
    mr_job_order order = {.action = MR_JOB_REQUEUE,
                          .filter = filter,
                          .all = all,
                          .at = at,
                          .delay = delay_ms * MICROS,
                          .reset_counters = reset_counters};
    return operate(conn, conf, queue, &order, rows);
}
