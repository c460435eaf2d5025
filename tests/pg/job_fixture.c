/* One claimed job, run by the test as an executor would. */
#include "job_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void keep_line(void *user, mr_level level, const char *line)
{
    job_test *t = user;
    (void)level;
    (void)pthread_mutex_lock(&t->lock);
    mr__buf_puts(&t->said, line);
    mr__buf_putc(&t->said, '\n');
    (void)pthread_mutex_unlock(&t->lock);
}

void job_begin(void **state, job_test *t)
{
    memset(t, 0, sizeof(*t));
    queue_test_form = FORM_GENERATION;
    queue_begin(state, &t->q);
    run(t->q.conn, "ALTER TABLE work ADD data jsonb, ADD at timestamptz, ADD tags text[],"
                   " ADD \"Odd\" bytea;"
                   "CREATE TABLE effects (n int CHECK (n < 1000))");
    queue_schema(&t->q);
    queue_open(&t->q);
    (void)pthread_mutex_init(&t->lock, NULL);
    mr__logger_init(&t->logger, keep_line, t, MR_DEBUG, false);
    t->session = queue_session(&t->q);
}

void job_end(job_test *t)
{
    mr__job_clear(&t->job);
    mr__job_handler_free(t->handler);
    mr__session_close(t->session);
    mr__buf_free(&t->said);
    mr__logger_destroy(&t->logger);
    (void)pthread_mutex_destroy(&t->lock);
    mr_error_free(t->refusal);
    queue_end(&t->q);
}

void job_claim(job_test *t, int id, int64_t max_runtime)
{
    char sql[160];
    (void)snprintf(sql, sizeof(sql), "INSERT INTO work (id) VALUES (%d) ON CONFLICT DO NOTHING",
                   id);
    run(t->q.conn, sql);
    char wanted[16];
    (void)snprintf(wanted, sizeof(wanted), "%d", id);
    const char *values[] = {wanted};
    mr_condition condition = {.sql = "w.id = $1::int", .count = 1, .values = values};
    mr_claim ask = {.count = 1, .worker = "me", .conditions = &condition, .condition_count = 1};
    mr__job_clear(&t->job);
    mr_jobs *jobs = NULL;
    assert_ok(
        mr__queue_claim(on_conn(t->q.conn), t->q.store, &ask, NULL, &mr__clock_system, &jobs));
    assert_int_equal(mr__jobs_count(jobs), 1);
    mr_job_hooks hooks = t->job.hooks;
    memset(&t->job, 0, sizeof(t->job));
    t->job.store = t->q.store;
    t->job.worker = "me";
    t->job.jobs = jobs;
    t->job.row = mr__jobs_at(jobs, 0);
    t->job.handler = t->handler;
    t->job.hooks = hooks;
    t->job.logger = &t->logger;
    t->job.clock = &mr__clock_system;
    t->job.max_runtime = max_runtime;
}

void job_callback(job_test *t, mr_job_fn function, void *user)
{
    mr__job_handler_free(t->handler);
    assert_ok(mr__job_handler_callback(function, user, &t->handler));
    t->job.handler = t->handler;
}

static mr_error *open_session(void *user, mr_session **session)
{
    job_test *t = user;
    t->opens++;
    if (t->refusal != NULL) {
        mr_error *error = t->refusal;
        t->refusal = NULL;
        return error;
    }
    if (!mr__session_usable(t->session)) {
        mr__session_close(t->session);
        t->session = queue_session(&t->q);
    }
    *session = t->session;
    return NULL;
}

void job_only_run(job_test *t)
{
    mr__job_run(&t->job, open_session, t);
    assert_null(t->job.tx);
    assert_int_equal(t->job.note_count, 0);
    if (mr__session_usable(t->session))
        assert_int_equal(PQtransactionStatus(mr__session_conn(t->session)), PQTRANS_IDLE);
}

const char *job_write(job_test *t)
{
    mr_job *job = &t->job;
    if (!job->written && job->outcome.id != NULL)
        (void)finish_as(&t->q, t->q.conn, "me", job->outcome);
    char sql[200];
    (void)snprintf(sql, sizeof(sql),
                   "SELECT concat_ws('|', state, num_failures, failure_message) FROM work"
                   " WHERE id = %s",
                   job->row.id);
    return value(t->q.conn, sql);
}

const char *job_run(job_test *t)
{
    job_only_run(t);
    return job_write(t);
}

const char *job_outcome(job_test *t, int id, mr_job_fn function, void *user)
{
    job_callback(t, function, user);
    job_claim(t, id, -1);
    return job_run(t);
}

int64_t effects(job_test *t)
{
    return number(t->q.conn, "SELECT count(*) FROM effects");
}
