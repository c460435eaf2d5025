/* What a queue promises beyond the reference: a worker that lost its job changes nothing, nobody
 * waits for a locked row, no claim is given out twice, an outcome commits with the handler's
 * effects or not at all. */
#include "queue_fixture.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes the queue stall the given job and reset it. */
static void reset_job(queue_test *t, int id)
{
    char sql[160];
    (void)snprintf(sql, sizeof(sql),
                   "UPDATE work SET last_heartbeat_at = now() - '1 hour'::interval WHERE id = %d",
                   id);
    run(t->conn, sql);
    mr_resets resets;
    assert_ok(mr__queue_reset(on_conn(t->conn), t->store, NULL, &resets));
    assert_int_equal(resets.count, 1);
    mr__resets_free(&resets);
}

static mr_beat_state beat(queue_test *t, const char *worker, const mr_job_row *job)
{
    mr_beat one = {.id = job->id, .fence = job->fence};
    assert_ok(mr__queue_heartbeat(on_conn(t->conn), t->store, worker, &one, 1));
    return one.state;
}

/* Everything that a worker could still try with a claim that it lost. */
static void assert_powerless(queue_test *t, const char *worker, const mr_job_row *job)
{
    char before[4096];
    (void)snprintf(before, sizeof(before), "%s", value(t->conn, "SELECT work::text FROM work"));
    for (int kind = MR_OUTCOME_COMPLETE; kind <= MR_OUTCOME_RELEASE; kind++)
        assert_string_equal(finish_as(t, t->conn, worker,
                                      (mr_outcome){.id = job->id,
                                                   .fence = job->fence,
                                                   .kind = (mr_outcome_kind)kind,
                                                   .message = "from the grave"}),
                            "");
    assert_int_equal(beat(t, worker, job), MR_BEAT_LOST);
    mr_log_target target = {.id = job->id, .fence = &job->fence, .worker = worker};
    assert_error(mr__queue_log_add(on_conn(t->conn), t->store, &target, "{}", NULL), MR_E_FENCED,
                 "not this worker's any more");
    assert_error(mr__queue_log_set(on_conn(t->conn), t->store, &target, 1, "{}"), MR_E_FENCED,
                 "not this worker's any more");
    assert_string_equal(value(t->conn, "SELECT work::text FROM work"), before);
}

static void stale_worker(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id", "(1)");
    mr_jobs *first = claim_as(&t, t.conn, "a", 1);
    mr_job_row old = mr__jobs_at(first, 0);
    assert_int_equal(beat(&t, "a", &old), MR_BEAT_OURS);
    reset_job(&t, 1);
    assert_powerless(&t, "a", &old); /* queued again */
    mr_jobs *second = claim_as(&t, t.conn, "b", 1);
    mr_job_row now = mr__jobs_at(second, 0);
    assert_true(now.fence != old.fence);
    assert_powerless(&t, "a", &old); /* another's */
    assert_int_equal(beat(&t, "b", &now), MR_BEAT_OURS);
    mr_log_target target = {.id = now.id, .fence = &now.fence, .worker = "b"};
    assert_ok(mr__queue_log_add(on_conn(t.conn), t.store, &target, "{}", NULL));
    assert_string_equal(finish_as(&t, t.conn, "b", (mr_outcome){.id = now.id, .fence = now.fence}),
                        "completed");
    assert_powerless(&t, "b", &now); /* finished */
    mr__jobs_unref(first);
    mr__jobs_unref(second);
    queue_end(&t);
}

/* The same worker again: the host's name alone, which is all the reference has, would let it in. */
static void stale_claim_of_the_same_worker(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id", "(1)");
    mr_jobs *first = claim(&t, 1);
    mr_job_row old = mr__jobs_at(first, 0);
    reset_job(&t, 1);
    mr_jobs *second = claim(&t, 1);
    mr_job_row now = mr__jobs_at(second, 0);
    assert_powerless(&t, "me", &old);
    assert_int_equal(beat(&t, "me", &now), MR_BEAT_OURS);
    /* What a fence of time leaves open: a second claim by the same worker in the same microsecond,
     * which takes a server whose clock was set back. Then the two cannot be told apart. A
     * generation has no such hole. */
    char sql[160];
    (void)snprintf(sql, sizeof(sql),
                   "UPDATE work SET started_at = to_timestamp(0) + %" PRId64
                   " * '1 microsecond'::interval",
                   old.fence);
    run(t.conn, sql);
    assert_int_equal(beat(&t, "me", &old), t.form == FORM_PLAIN ? MR_BEAT_OURS : MR_BEAT_LOST);
    mr__jobs_unref(first);
    mr__jobs_unref(second);
    queue_end(&t);
}

static void deleted_while_it_runs(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id", "(1), (2)");
    mr_jobs *jobs = claim(&t, 2);
    mr_job_row gone = mr__jobs_at(jobs, 0), kept = mr__jobs_at(jobs, 1);
    run(t.conn, "DELETE FROM work WHERE id = 1");
    assert_int_equal(beat(&t, "me", &gone), MR_BEAT_LOST);
    assert_int_equal(beat(&t, "me", &kept), MR_BEAT_OURS);
    mr_outcome both[] = {{.id = gone.id, .fence = gone.fence},
                         {.id = kept.id, .fence = kept.fence}};
    size_t late = 0;
    assert_ok(mr__queue_finish(on_conn(t.conn), t.store, "me", both, 2, NULL, &late));
    assert_int_equal(late, 1);
    assert_string_equal(both[0].became, "");
    assert_string_equal(both[1].became, "completed");
    mr__jobs_unref(jobs);
    queue_end(&t);
}

/* A heartbeat that fails says nothing about any job. */
static void failed_heartbeat(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id", "(1)");
    mr_jobs *jobs = claim(&t, 1);
    mr_job_row job = mr__jobs_at(jobs, 0);
    mr_beat one = {.id = job.id, .fence = job.fence, .state = MR_BEAT_OURS};
    PGconn *other = scratch_connect(t.s);
    PQclear(PQexec(other, "BEGIN; SELECT 1 / 0"));
    assert_error(mr__queue_heartbeat(on_conn(other), t.store, "me", &one, 1), MR_E_DB, "aborted");
    assert_int_equal(one.state, MR_BEAT_OURS);
    PQfinish(other);
    assert_int_equal(beat(&t, "me", &job), MR_BEAT_OURS);
    mr__jobs_unref(jobs);
    queue_end(&t);
}

/* A session that waits for a lock longer than this fails, and the test with it. */
static void never_wait(PGconn *conn)
{
    run(conn, "SET lock_timeout = '20ms'");
}

static void nobody_waits(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, created_at",
         "(1, now() - '3 s'::interval), (2, now() - '2 s'::interval),"
         " (3, now() - '1 s'::interval)");
    PGconn *other = scratch_connect(t.s);
    never_wait(t.conn);
    static const char *const locks[] = {"UPDATE", "NO KEY UPDATE", "SHARE"};
    for (int i = 0; i < 3; i++) {
        MR_AUTO_BUF sql = {0};
        mr__buf_printf(&sql, "BEGIN; SELECT 1 FROM work FOR %s", locks[i]);
        run(other, mr__buf_text(&sql));
        assert_int_equal(claim_one(&t), 0);
        run(other, "ROLLBACK");
    }
    /* Only the oldest is locked: the next ones are taken. */
    run(other, "BEGIN; SELECT 1 FROM work WHERE id = 1 FOR UPDATE");
    assert_int_equal(claim_one(&t), 2);
    run(other, "ROLLBACK");
    /* A child row that is being inserted keeps nobody from the claim. */
    run(other, "BEGIN; SELECT 1 FROM work WHERE id = 1 FOR KEY SHARE");
    assert_int_equal(claim_one(&t), 1);
    run(other, "ROLLBACK");
    /* An open deletion neither. */
    run(other, "BEGIN; DELETE FROM work WHERE id = 3");
    assert_int_equal(claim_one(&t), 0);
    run(other, "COMMIT");
    assert_int_equal(claim_one(&t), 0);

    /* Heartbeats and resets do not wait either. */
    run(other, "BEGIN; SELECT 1 FROM work WHERE id = 1 FOR UPDATE");
    mr_beat beats[] = {{.id = "1", .fence = fence_of(&t, 1)},
                       {.id = "2", .fence = fence_of(&t, 2)}};
    assert_ok(mr__queue_heartbeat(on_conn(t.conn), t.store, "me", beats, 2));
    assert_int_equal(beats[0].state, MR_BEAT_LOCKED);
    assert_int_equal(beats[1].state, MR_BEAT_OURS);
    /* Outcomes wait as long as the session allows, then the others are written without the locked
     * one, which is not taken for lost. */
    rows(&t, "id, state, started_at, worker_hostname", "(4, 'processing', now(), 'me')");
    mr_outcome both[] = {{.id = "1", .fence = fence_of(&t, 1)},
                         {.id = "4", .fence = fence_of(&t, 4)},
                         {.id = "2", .fence = -5}};
    size_t late = 0;
    assert_ok(mr__queue_finish(on_conn(t.conn), t.store, "me", both, 3, NULL, &late));
    assert_true(both[0].locked && both[0].became[0] == '\0');
    assert_false(both[1].locked);
    assert_string_equal(both[1].became, "completed");
    assert_false(both[2].locked);
    assert_int_equal(late, 1);
    run(t.conn, "UPDATE work SET last_heartbeat_at = now() - '1 hour'::interval WHERE id = 2");
    mr_resets resets;
    assert_ok(mr__queue_reset(on_conn(t.conn), t.store, NULL, &resets));
    assert_int_equal(resets.count, 1);
    mr__resets_free(&resets);
    PQfinish(other);
    run(t.conn, "RESET lock_timeout");
    queue_end(&t);
}

/* The reference lists the ids that run in order, because its heartbeat waits for their rows in that
 * order. Here nobody waits for a row, so any order will do: each answer is for the job it is about,
 * and sessions that stamp the same rows in opposite orders do not meet. */
static void s47_any_order(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state, started_at, worker_hostname, cancel",
         "(1, 'processing', now(), 'me', false), (2, 'processing', now(), 'me', true),"
         " (3, 'processing', now(), 'me', false)");
    mr_beat up[3] = {{.id = "1"}, {.id = "2"}, {.id = "3"}}, down[3];
    for (int i = 0; i < 3; i++) {
        up[i].fence = fence_of(&t, i + 1);
        down[2 - i] = up[i];
    }
    PGconn *other = scratch_connect(t.s);
    run(other, "BEGIN");
    assert_ok(mr__queue_heartbeat(on_conn(other), t.store, "me", up, 3));
    never_wait(t.conn);
    assert_ok(mr__queue_heartbeat(on_conn(t.conn), t.store, "me", down, 3));
    run(t.conn, "RESET lock_timeout");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(up[i].state, MR_BEAT_OURS);
        assert_int_equal(down[i].state, MR_BEAT_LOCKED);
        assert_int_equal(down[i].cancel, i == 1);
    }
    run(other, "ROLLBACK"); /* a session that is only closed may hold its locks a while longer */
    PQfinish(other);
    down[0].fence = -5;
    assert_ok(mr__queue_heartbeat(on_conn(t.conn), t.store, "me", down, 3));
    assert_int_equal(down[0].state, MR_BEAT_LOST);
    assert_int_equal(down[1].state, MR_BEAT_OURS);
    assert_int_equal(down[2].state, MR_BEAT_OURS);
    queue_end(&t);
}

/* ---- An outcome in the handler's own transaction
 * -------------------------------------------------- */

static mr_error *handle(queue_test *t, mr_session *session, const mr_job_row *job,
                        mr_outcome_kind kind)
{
    mr_tx *tx = NULL;
    MR_TRY(mr__tx_begin(session, mr__clock_now(&mr__clock_system) + SECONDS(60), &tx));
    const char *values[] = {job->id};
    mr_error *error = mr_tx_exec(tx, "INSERT INTO effects VALUES ($1::int)", 1, values);
    mr_outcome outcome = {.id = job->id, .fence = job->fence, .kind = kind, .message = "no"};
    if (error == NULL)
        error = mr__queue_finish_with(tx, t->store, "me", &outcome, 1);
    if (error == NULL)
        return mr__tx_commit(tx, NULL);
    mr_error_free(mr__tx_rollback(tx, NULL));
    return error;
}

static void outcome_with_effects(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_schema(&t);
    queue_open(&t);
    run(t.conn, "DROP TABLE IF EXISTS effects; CREATE TABLE effects (id int PRIMARY KEY)");
    rows(&t, "id", "(1), (2), (3)");
    mr_session *session = queue_session(&t);
    mr_jobs *jobs = claim(&t, 3);
    mr_job_row done = mr__jobs_at(jobs, 0), failed = mr__jobs_at(jobs, 1),
               lost = mr__jobs_at(jobs, 2);
    int64_t trips = mr__session_round_trips(session);
    assert_ok(handle(&t, session, &done, MR_OUTCOME_COMPLETE));
    assert_int_equal(mr__session_round_trips(session) - trips, 1);
    assert_ok(handle(&t, session, &failed, MR_OUTCOME_FAIL));
    reset_job(&t, (int)strtol(lost.id, NULL, 10));
    assert_error(handle(&t, session, &lost, MR_OUTCOME_COMPLETE), MR_E_FENCED,
                 "of queue work is not this worker's any more");
    assert_error(handle(&t, session, &done, MR_OUTCOME_COMPLETE), MR_E_DB, "duplicate key");
    assert_true(mr__session_usable(session));
    assert_int_equal(number(t.conn, "SELECT count(*) FROM effects"), 2);
    assert_string_equal(value(t.conn, "SELECT string_agg(state, ',' ORDER BY state) FROM work"),
                        "completed,failed,queued");
    mr__jobs_unref(jobs);
    mr__session_close(session);
    queue_end(&t);
}

/* ---- Outcomes
 * ------------------------------------------------------------------------------------ */

static void putting_back_costs_nothing(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, created_at, num_failures, num_resets",
         "(1, '2020-01-01+00', 1, 2), (2, '2020-01-02+00', 1, 2)");
    mr_jobs *jobs = claim(&t, 2);
    mr_outcome both[2] = {{.kind = MR_OUTCOME_RELEASE},
                          {.kind = MR_OUTCOME_SNOOZE, .delay = MINUTES(60)}};
    for (size_t i = 0; i < 2; i++) {
        both[i].id = mr__jobs_at(jobs, i).id;
        both[i].fence = mr__jobs_at(jobs, i).fence;
    }
    assert_ok(mr__queue_finish(on_conn(t.conn), t.store, "me", both, 2, NULL, NULL));
    const char *columns = "state, created_at, num_failures, num_resets, started_at IS NULL";
    assert_string_equal(row(&t, 1, columns), "queued|2020-01-01 00:00:00+00|1|2|t");
    assert_string_equal(row(&t, 2, columns), "queued|2020-01-02 00:00:00+00|1|2|t");
    assert_string_equal(row(&t, 2, "process_after > now() + '59 minutes'::interval"), "t");
    assert_int_equal(claim_one(&t), 1);
    assert_int_equal(claim_one(&t), 0);
    mr__jobs_unref(jobs);
    queue_end(&t);
}

/* Whoever asked for a job to be canceled gets that from every outcome but a success and a requeue.
 */
static void cancelled_jobs(void **state)
{
    static const struct {
        mr_outcome_kind kind;
        const char *became;
    } expected[] = {
        {MR_OUTCOME_COMPLETE, "completed"}, {MR_OUTCOME_ERROR, "canceled"},
        {MR_OUTCOME_FAIL, "canceled"},      {MR_OUTCOME_CANCEL, "canceled"},
        {MR_OUTCOME_REQUEUE, "queued"},     {MR_OUTCOME_SNOOZE, "canceled"},
        {MR_OUTCOME_RELEASE, "canceled"},
    };
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id", "(1), (2), (3), (4), (5), (6), (7), (8)");
    mr_jobs *jobs = claim(&t, 8);
    run(t.conn, "UPDATE work SET cancel = true");
    mr_outcome outcomes[7] = {0};
    for (size_t i = 0; i < 7; i++)
        outcomes[i] = (mr_outcome){.id = mr__jobs_at(jobs, i).id,
                                   .fence = mr__jobs_at(jobs, i).fence,
                                   .kind = expected[i].kind,
                                   .message = "stopped"};
    assert_ok(mr__queue_finish(on_conn(t.conn), t.store, "me", outcomes, 7, NULL, NULL));
    for (size_t i = 0; i < 7; i++)
        assert_string_equal(outcomes[i].became, expected[i].became);
    assert_int_equal(number(t.conn, "SELECT sum(num_failures) FROM work"), 0);
    /* One whose worker died as well. */
    reset_job(&t, (int)strtol(mr__jobs_at(jobs, 7).id, NULL, 10));
    assert_int_equal(number(t.conn, "SELECT count(*) FROM work WHERE state = 'canceled'"), 6);
    mr__jobs_unref(jobs);
    queue_end(&t);
}

/* A message is whatever a handler printed; it must not fail the outcomes beside it. */
static void odd_messages(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id", "(1), (2), (3)");
    mr_jobs *jobs = claim(&t, 3);
    static const char *const messages[] = {"a \"quoted\" back\\slash, {braces} and NULL",
                                           "bad \xFF\xC3 bytes, good \xC3\xA9", ""};
    mr_outcome outcomes[3] = {0};
    for (size_t i = 0; i < 3; i++)
        outcomes[i] = (mr_outcome){.id = mr__jobs_at(jobs, i).id,
                                   .fence = mr__jobs_at(jobs, i).fence,
                                   .kind = MR_OUTCOME_FAIL,
                                   .message = messages[i]};
    assert_ok(mr__queue_finish(on_conn(t.conn), t.store, "me", outcomes, 3, NULL, NULL));
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(row(&t, (int)strtol(outcomes[i].id, NULL, 10), "failure_message"),
                            i == 1 ? "bad ?? bytes, good \xC3\xA9" : messages[i]);
    mr__jobs_unref(jobs);
    queue_end(&t);
}

static void resets_are_bounded(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    t.policy.reset_batch = 3;
    t.policy.reset_failure_message = "it's dead";
    t.policy.max_resets = 0;
    queue_open(&t);
    run(t.conn, "INSERT INTO work (id, state, started_at, last_heartbeat_at)"
                " SELECT n, 'processing', now(), now() - n * '1 minute'::interval"
                " FROM generate_series(1, 5) AS n");
    mr_resets resets;
    assert_ok(mr__queue_reset(on_conn(t.conn), t.store, NULL, &resets));
    assert_int_equal(resets.count, 3);
    assert_true(resets.more);
    assert_string_equal(resets.rows[0].id, "5"); /* the longest silent first */
    assert_string_equal(resets.rows[0].state, "failed");
    mr__resets_free(&resets);
    assert_string_equal(row(&t, 5, "failure_message"), "it's dead");
    assert_ok(mr__queue_reset(on_conn(t.conn), t.store, NULL, &resets));
    assert_int_equal(resets.count, 2);
    assert_false(resets.more);
    mr__resets_free(&resets);
    queue_end(&t);
}

/* ---- Many at once
 * --------------------------------------------------------------------------------- */

enum { THREADS = 6, JOBS = 1500 };

typedef struct rusher {
    queue_test *t;
    PGconn *conn;
    unsigned seed;
    char name[8];
    char trouble[512];
} rusher;

static unsigned dice(rusher *r, unsigned sides)
{
    r->seed = r->seed * 1103515245U + 12345U;
    return (r->seed >> 16) % sides;
}

/* Records the claims, which fails when one was given out before, and finishes them at random. */
static mr_error *work_off(rusher *r, const mr_jobs *jobs)
{
    mr_outcome outcomes[8];
    size_t count = mr__jobs_count(jobs);
    for (size_t i = 0; i < count; i++) {
        mr_job_row job = mr__jobs_at(jobs, i);
        char fence[24];
        (void)snprintf(fence, sizeof(fence), "%" PRId64, job.fence);
        const char *values[] = {job.id, fence};
        MR_TRY(mr__pg_query(r->conn, NULL, "INSERT INTO claims VALUES ($1::int, $2::int8)", 2,
                            values));
        static const mr_outcome_kind kinds[] = {MR_OUTCOME_COMPLETE, MR_OUTCOME_COMPLETE,
                                                MR_OUTCOME_ERROR, MR_OUTCOME_RELEASE,
                                                MR_OUTCOME_SNOOZE};
        outcomes[i] = (mr_outcome){.id = job.id, .fence = job.fence, .kind = kinds[dice(r, 5)]};
    }
    size_t late = 0;
    MR_TRY(mr__queue_finish((mr_queue_on){.conn = r->conn}, r->t->store, r->name, outcomes, count,
                            NULL, &late));
    return late == 0 ? NULL : mr__error(MR_E_INTERNAL, "%zu outcomes came too late", late);
}

static void *rush(void *user)
{
    rusher *r = user;
    mr_mark mark;
    mr__queue_mark_init(r->t->store, 1000, &mark);
    mr_error *error = NULL;
    int64_t left = 1;
    while (error == NULL && left > 0) {
        mr_claim wanted = {.count = 1 + (int)dice(r, 7), .worker = r->name};
        mr_jobs *jobs = NULL;
        mr_queue_on on = {.conn = r->conn};
        error = mr__queue_claim(on, r->t->store, &wanted, &mark, &mr__clock_system, &jobs);
        if (error == NULL && mr__jobs_count(jobs) > 0)
            error = work_off(r, jobs);
        else if (error == NULL)
            error = mr__queue_count(on, r->t->store,
                                    MR_IN_QUEUED | MR_IN_ERRORED | MR_IN_PROCESSING, &left);
        mr__jobs_unref(jobs);
    }
    if (error != NULL)
        (void)snprintf(r->trouble, sizeof(r->trouble), "%s", mr_error_message(error));
    mr_error_free(error);
    mr__mark_free(&mark);
    PQfinish(r->conn);
    return NULL;
}

static void no_claim_twice(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    t.policy.retry_after = 1;
    t.policy.max_retries = 1000;
    queue_open(&t);
    run(t.conn, "DROP TABLE IF EXISTS claims; CREATE TABLE claims"
                " (id int, fence int8, PRIMARY KEY (id, fence))");
    char sql[160];
    (void)snprintf(sql, sizeof(sql), "INSERT INTO work (id) SELECT generate_series(1, %d)", JOBS);
    run(t.conn, sql);
    run(t.conn, "CREATE INDEX ON work (created_at) WHERE state IN ('queued', 'errored')");
    rusher rushers[THREADS];
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        rushers[i] = (rusher){.t = &t, .conn = scratch_connect(t.s), .seed = i * 7919 + 1};
        (void)snprintf(rushers[i].name, sizeof(rushers[i].name), "w%u", i);
        assert_int_equal(pthread_create(&threads[i], NULL, rush, &rushers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        (void)pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        if (rushers[i].trouble[0] != '\0')
            fail_msg("%s: %s", rushers[i].name, rushers[i].trouble);
    assert_int_equal(number(t.conn, "SELECT count(*) FROM work WHERE state = 'completed'"), JOBS);
    assert_true(number(t.conn, "SELECT count(*) FROM claims") > JOBS);
    if (t.form != FORM_PLAIN)
        assert_int_equal(number(t.conn, "SELECT sum(lease_generation) FROM work"),
                         number(t.conn, "SELECT count(*) FROM claims"));
    queue_end(&t);
}

/* ---- A row that changes between the look and the lock
 * ----------------------------------------------- */

typedef struct slow_claim {
    queue_test *t;
    PGconn *conn;
    mr_jobs *jobs;
    mr_error *error;
} slow_claim;

static void *claim_slowly(void *user)
{
    slow_claim *c = user;
    mr_condition gate = {.sql = "length((SELECT pg_advisory_xact_lock_shared(7))::text) = 0"};
    mr_claim wanted = {.count = 5, .worker = "me", .conditions = &gate, .condition_count = 1};
    c->error = mr__queue_claim((mr_queue_on){.conn = c->conn}, c->t->store, &wanted, NULL,
                               &mr__clock_system, &c->jobs);
    return NULL;
}

static void changed_between_look_and_lock(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, payload, created_at",
         "(1, 'old', now() - '3 s'::interval), (2, 'old', now() - '2 s'::interval),"
         " (3, 'old', now() - '1 s'::interval)");
    run(t.conn, "SELECT pg_advisory_lock(7)");
    slow_claim claimer = {.t = &t, .conn = scratch_connect(t.s)};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, claim_slowly, &claimer), 0);
    while (number(t.conn, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
                          " AND NOT granted") == 0)
        ;
    /* Its snapshot is taken by now: these come after it. */
    run(t.conn, "UPDATE work SET payload = 'new' WHERE id = 1");
    run(t.conn, "UPDATE work SET state = 'failed' WHERE id = 2");
    run(t.conn, "SELECT pg_advisory_unlock(7)");
    (void)pthread_join(thread, NULL);
    assert_ok(claimer.error);
    /* Never the payload of before. Through a view the changed row waits for the next claim. */
    for (size_t i = 0; i < mr__jobs_count(claimer.jobs); i++) {
        mr_job_row job = mr__jobs_at(claimer.jobs, i);
        assert_string_not_equal(job.id, "2");
        assert_string_equal(job_value(&job, "payload"), job.id[0] == '1' ? "new" : "old");
    }
    assert_int_equal(mr__jobs_count(claimer.jobs), t.form == FORM_VIEW ? 1 : 2);
    assert_int_equal(claim_one(&t), t.form == FORM_VIEW ? 1 : 0);
    mr__jobs_unref(claimer.jobs);
    PQfinish(claimer.conn);
    queue_end(&t);
}

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stale_worker),
        cmocka_unit_test(stale_claim_of_the_same_worker),
        cmocka_unit_test(deleted_while_it_runs),
        cmocka_unit_test(failed_heartbeat),
        cmocka_unit_test(nobody_waits),
        cmocka_unit_test(s47_any_order),
        cmocka_unit_test(outcome_with_effects),
        cmocka_unit_test(putting_back_costs_nothing),
        cmocka_unit_test(cancelled_jobs),
        cmocka_unit_test(odd_messages),
        cmocka_unit_test(resets_are_bounded),
        cmocka_unit_test(no_claim_twice),
        cmocka_unit_test(changed_between_look_and_lock),
    };
    int failed = 0;
    for (int form = 0; form < FORM_COUNT; form++) {
        queue_test_form = (queue_form)form;
        failed += cmocka_run_group_tests_name(queue_form_name(queue_test_form), tests,
                                              scratch_setup, scratch_teardown);
    }
    return failed;
}
