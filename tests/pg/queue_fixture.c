/* A queue on a table as a user would have it, and short words for what the tests do with it. */
#include "queue_fixture.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

queue_form queue_test_form;

const char *queue_form_name(queue_form form)
{
    static const char *const names[] = {"queue store, plain", "queue store, generation",
                                        "queue store, view"};
    return names[form];
}

mr_queue_on on_conn(PGconn *conn)
{
    return (mr_queue_on){.conn = conn};
}

void queue_schema(queue_test *t)
{
    mr_log_spec log;
    mr__log_spec_init(&log);
    mr_schema_input input = {.names = &t->names, .log = &log, .no_log = true};
    assert_ok(mr__schema_apply(t->conn, &input, NULL));
}

void queue_begin(void **state, queue_test *t)
{
    *t = (queue_test){.s = *state, .form = queue_test_form, .policy = mr__queue_policy_default()};
    t->conn = t->s->conn;
    t->policy.stalled_max_age = SECONDS(5);
    t->policy.max_resets = 5;
    t->policy.max_retries = 3;
    assert_ok(mr__names_init(&t->names, "millrace"));
    run(t->conn, "SET client_min_messages = warning;"
                 "DROP VIEW IF EXISTS work_seen; DROP TABLE IF EXISTS work");
    run(t->conn, "CREATE TABLE work (id int PRIMARY KEY, state text NOT NULL DEFAULT 'queued',"
                 " created_at timestamptz NOT NULL DEFAULT now(), started_at timestamptz,"
                 " last_heartbeat_at timestamptz, finished_at timestamptz,"
                 " process_after timestamptz, num_resets int NOT NULL DEFAULT 0,"
                 " num_failures int NOT NULL DEFAULT 0, failure_message text,"
                 " worker_hostname text NOT NULL DEFAULT '', execution_logs json[],"
                 " cancel boolean NOT NULL DEFAULT false, payload text)");
    if (t->form != FORM_PLAIN)
        run(t->conn, "ALTER TABLE work ADD lease_generation bigint NOT NULL DEFAULT 0");
    if (t->form == FORM_VIEW)
        run(t->conn, "CREATE VIEW work_seen AS SELECT w.*, w.id * 7 AS new_field FROM work w");
}

void queue_mapping(const queue_test *t, mr_mapping *mapping)
{
    assert_ok(mr__mapping_init(mapping, "work"));
    assert_ok(mr__mapping_table(mapping, "work w"));
    if (t->form == FORM_VIEW)
        assert_ok(mr__mapping_view(mapping, "work_seen AS w"));
    assert_ok(mr__mapping_column(mapping, "queued_at", "created_at"));
    assert_ok(mr__mapping_order(mapping, "w.created_at"));
}

mr_session *queue_session(const queue_test *t)
{
    static atomic_bool never;
    char conninfo[1200];
    /* The scratch's conninfo is a URI with the database "postgres": swap the name in. */
    const char *name = strstr(t->s->conninfo, "/postgres?");
    if (name != NULL)
        (void)snprintf(conninfo, sizeof(conninfo), "%.*s/%s%s", (int)(name - t->s->conninfo),
                       t->s->conninfo, t->s->name, name + strlen("/postgres"));
    else
        (void)snprintf(conninfo, sizeof(conninfo), "%s dbname=%s", t->s->conninfo, t->s->name);
    mr_session_params params = {.conn = {.conninfo = conninfo, .application = "test_queue"},
                                .prepare = true,
                                .clock = &mr__clock_system,
                                .cancelled = &never};
    mr_session *session = NULL;
    assert_ok(mr__session_open(&params, &session));
    return session;
}

void queue_open(queue_test *t)
{
    mr__queue_close(t->store);
    t->store = NULL;
    mr_mapping mapping;
    queue_mapping(t, &mapping);
    assert_ok(mr__queue_open(t->conn, &mapping, &t->policy, &t->names, &t->store));
}

void queue_end(queue_test *t)
{
    mr__queue_close(t->store);
}

void rows(queue_test *t, const char *columns, const char *values)
{
    MR_AUTO_BUF sql = {0};
    mr__buf_printf(&sql, "INSERT INTO work (%s) VALUES %s", columns, values);
    run(t->conn, mr__buf_text(&sql));
}

mr_jobs *claim_as(queue_test *t, PGconn *conn, const char *worker, int count)
{
    mr_claim wanted = {.count = count, .worker = worker};
    mr_jobs *jobs = NULL;
    assert_ok(mr__queue_claim(on_conn(conn), t->store, &wanted, NULL, &mr__clock_system, &jobs));
    return jobs;
}

mr_jobs *claim(queue_test *t, int count)
{
    return claim_as(t, t->conn, "me", count);
}

int claim_where(queue_test *t, const mr_condition *conditions, size_t count)
{
    mr_claim wanted = {
        .count = 1, .worker = "me", .conditions = conditions, .condition_count = count};
    mr_jobs *jobs = NULL;
    assert_ok(mr__queue_claim(on_conn(t->conn), t->store, &wanted, NULL, &mr__clock_system, &jobs));
    int id = mr__jobs_count(jobs) == 0 ? 0 : (int)strtol(mr__jobs_at(jobs, 0).id, NULL, 10);
    mr__jobs_unref(jobs);
    return id;
}

int claim_one(queue_test *t)
{
    return claim_where(t, NULL, 0);
}

const char *job_value(const mr_job_row *job, const char *name)
{
    int index = mr__jobs_value_find(job->jobs, name);
    if (index < 0)
        fail_msg("the job has no value %s", name);
    return mr__job_value_at(job, (size_t)index);
}

int64_t fence_of(queue_test *t, int id)
{
    char sql[256];
    (void)snprintf(sql, sizeof(sql), "SELECT coalesce(%s, 0) FROM work WHERE id = %d",
                   t->form == FORM_PLAIN ? "(extract(epoch FROM started_at) * 1000000)::int8"
                                         : "lease_generation",
                   id);
    return number(t->conn, sql);
}

const char *finish_as(queue_test *t, PGconn *conn, const char *worker, mr_outcome outcome)
{
    static char became[16];
    size_t late = 99;
    assert_ok(mr__queue_finish(on_conn(conn), t->store, worker, &outcome, 1, NULL, &late));
    assert_int_equal(late, outcome.became[0] == '\0' ? 1 : 0);
    memcpy(became, outcome.became, sizeof(became));
    return became;
}

const char *finish(queue_test *t, int id, mr_outcome_kind kind, const char *message)
{
    char text[16], worker[64];
    (void)snprintf(text, sizeof(text), "%d", id);
    (void)snprintf(worker, sizeof(worker), "%s", row(t, id, "worker_hostname"));
    return finish_as(
        t, t->conn, worker,
        (mr_outcome){.id = text, .fence = fence_of(t, id), .kind = kind, .message = message});
}

const char *row(queue_test *t, int id, const char *columns)
{
    MR_AUTO_BUF sql = {0};
    mr__buf_printf(&sql, "SELECT concat_ws('|', %s) FROM work WHERE id = %d", columns, id);
    return value(t->conn, mr__buf_text(&sql));
}
