/* What programs that embed the library see of failures, dead letters, detached consumers, lag,
 * locks and set-up steps. */
#include "scratch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- A worker in a thread ------------------------------------------------------------------ */

typedef struct running {
    mr_worker *worker;
    pthread_t thread;
    mr_error *error;
} running;

static void *run_worker(void *argument)
{
    running *r = argument;
    r->error = mr_worker_run(r->worker);
    return NULL;
}

static void start(running *r, mr_conf *conf)
{
    r->error = NULL;
    assert_ok(mr_worker_new(conf, &r->worker));
    assert_int_equal(pthread_create(&r->thread, NULL, run_worker, r), 0);
}

static mr_error *wait_end(running *r)
{
    (void)pthread_join(r->thread, NULL);
    mr_worker_free(r->worker);
    return r->error;
}

static void stop(running *r)
{
    mr_worker_stop(r->worker);
    assert_ok(wait_end(r));
}

static void await(PGconn *conn, const char *sql, int64_t wanted)
{
    for (int i = 0; i < 3000; i++) {
        if (number(conn, sql) == wanted)
            return;
        (void)usleep(10000);
    }
    fail_msg("waited for %s to give %lld", sql, (long long)wanted);
}

static int setup(void **state)
{
    if (scratch_setup(state) != 0)
        return -1;
    scratch *s = *state;
    mr_conf *conf = mr_conf_new();
    assert_ok(mr_schema_apply(s->conn, conf, NULL));
    mr_conf_free(conf);
    run(s->conn, "CREATE TABLE effects (n bigserial PRIMARY KEY, pos bigint)");
    return 0;
}

static void add_events(PGconn *conn, int count)
{
    char sql[300];
    (void)snprintf(
        sql, sizeof(sql),
        "INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id,"
        " event_type, payload) SELECT 'T', (n %% 5)::text, gen.n, gen_random_uuid(), 'E',"
        " '{}' FROM generate_series(1, %d) AS gen(n)",
        count);
    run(conn, "ALTER TABLE events DROP CONSTRAINT IF EXISTS"
              " events_aggregate_type_aggregate_id_aggregate_version_key");
    run(conn, sql);
}

static mr_conf *conf_for(const scratch *s)
{
    mr_conf *conf = mr_conf_new();
    assert_ok(mr_conf_set(conf, "database", scratch_conninfo(s)));
    assert_ok(mr_conf_set(conf, "retry_base_delay", "2ms"));
    assert_ok(mr_conf_set(conf, "retry_max_delay", "5ms"));
    assert_ok(mr_conf_set(conf, "rebalance_interval", "50ms"));
    return conf;
}

/* ---- Verdicts ------------------------------------------------------------------------------ */

typedef struct probe {
    _Atomic int64_t bad; /* the position that fails */
    int failures_left;   /* -1 = always */
    mr_code code;
    bool retryable;
    atomic_int calls, told, told_attempts;
    int64_t told_position;
    char told_error[64], told_consumer[32];
} probe;

static mr_error *on_event(mr_tx *tx, const mr_event *event, void *user)
{
    probe *p = user;
    atomic_fetch_add(&p->calls, 1);
    if (mr_event_position(event) == p->bad && p->failures_left != 0) {
        if (p->failures_left > 0)
            p->failures_left--;
        return mr_error_new(p->code, p->retryable, "cannot take it");
    }
    if (tx == NULL)
        return NULL;
    char position[24];
    (void)snprintf(position, sizeof(position), "%lld", (long long)mr_event_position(event));
    const char *values[] = {position};
    return mr_tx_exec(tx, "INSERT INTO effects (pos) VALUES ($1)", 1, values);
}

static mr_error *on_batch(mr_tx *tx, const mr_event *const *events, size_t count, void *user)
{
    mr_error *error = NULL;
    for (size_t i = 0; i < count && error == NULL; i++)
        error = on_event(tx, events[i], user);
    return error;
}

static void on_letter(void *user, const char *consumer, const mr_event *event,
                      const mr_error *error, int attempts)
{
    probe *p = user;
    p->told_position = mr_event_position(event);
    (void)snprintf(p->told_error, sizeof(p->told_error), "%s", mr_error_message(error));
    (void)snprintf(p->told_consumer, sizeof(p->told_consumer), "%s", consumer);
    atomic_store(&p->told_attempts, attempts);
    atomic_fetch_add(&p->told, 1);
}

static mr_consumer *consumer_for(probe *p, bool batch, const char *on_failure)
{
    mr_consumer *consumer = mr_consumer_new("a");
    if (batch)
        mr_consumer_on_batch(consumer, on_batch, p, NULL);
    else
        mr_consumer_on_event(consumer, on_event, p, NULL);
    mr_consumer_on_dead_letter(consumer, on_letter, p);
    assert_ok(mr_consumer_set(consumer, "on_failure", on_failure));
    assert_ok(mr_consumer_set(consumer, "batch_size", "10"));
    return consumer;
}

static mr_error *drain(const scratch *s, mr_consumer *consumer)
{
    mr_conf *conf = conf_for(s);
    assert_ok(mr_conf_set(conf, "once", "true"));
    assert_ok(mr_conf_take_consumer(conf, consumer));
    running r;
    start(&r, conf);
    return wait_end(&r);
}

static void dead_letters_are_told(void **state)
{
    scratch *s = *state;
    add_events(s->conn, 50);
    for (int i = 0; i < 4; i++) {
        bool batch = i % 2 == 1, retryable = i > 1;
        probe p = {.bad = 17, .failures_left = -1, .code = MR_E_HANDLER, .retryable = retryable};
        run(s->conn, "TRUNCATE effects, millrace.consumer_checkpoints,"
                     " millrace.consumer_dead_letters");
        mr_consumer *consumer = consumer_for(&p, batch, "dead_letter");
        assert_ok(mr_consumer_set(consumer, "max_retries", "2"));
        assert_ok(drain(s, consumer));
        assert_int_equal(p.told, 1);
        assert_int_equal(p.told_position, 17);
        assert_string_equal(p.told_error, "cannot take it");
        assert_string_equal(p.told_consumer, "a");
        assert_true(retryable ? p.told_attempts >= 3 : p.told_attempts >= 1);
        assert_int_equal(number(s->conn, "SELECT count(*) FROM effects"), 49);
        assert_int_equal(number(s->conn, "SELECT count(*) FROM effects WHERE pos = 17"), 0);
        assert_int_equal(number(s->conn, "SELECT count(*) FROM (SELECT pos < lag(pos) OVER"
                                         " (ORDER BY n) AS back FROM effects) e WHERE back"),
                         0);
        assert_int_equal(number(s->conn, "SELECT global_position FROM"
                                         " millrace.consumer_dead_letters WHERE state = 'poison'"
                                         " AND error = 'cannot take it'"),
                         17);
    }
}

static void retryable_errors_are_retried(void **state)
{
    scratch *s = *state;
    add_events(s->conn, 30);
    probe p = {.bad = 5, .failures_left = 4, .code = MR_E_HANDLER, .retryable = true};
    assert_ok(drain(s, consumer_for(&p, false, "dead_letter")));
    assert_int_equal(p.told, 0);
    assert_int_equal(number(s->conn, "SELECT count(*) FROM effects"), 30);
}

static void fatal_stops_whatever_the_policy(void **state)
{
    scratch *s = *state;
    add_events(s->conn, 30);
    probe p = {.bad = 5, .failures_left = -1, .code = MR_E_FATAL, .retryable = false};
    mr_error *error = drain(s, consumer_for(&p, false, "dead_letter"));
    assert_int_equal(mr_error_code(error), MR_E_FATAL);
    assert_non_null(strstr(mr_error_message(error), "cannot take it"));
    mr_error_free(error);
    assert_int_equal(number(s->conn, "SELECT count(*) FROM millrace.consumer_dead_letters"), 0);
}

/* ---- Detached ------------------------------------------------------------------------------ */

static void detached_handlers_have_no_transaction(void **state)
{
    scratch *s = *state;
    add_events(s->conn, 120);
    for (int i = 0; i < 2; i++) {
        probe p = {.bad = 33, .failures_left = -1, .code = MR_E_HANDLER, .retryable = false};
        run(s->conn, "TRUNCATE millrace.consumer_checkpoints, millrace.consumer_dead_letters");
        mr_consumer *consumer = consumer_for(&p, i == 1, "dead_letter");
        assert_ok(mr_consumer_set(consumer, "detached", "true"));
        assert_ok(drain(s, consumer));
        assert_int_equal(number(s->conn, "SELECT last_position FROM millrace.consumer_checkpoints"),
                         120);
        assert_int_equal(p.told, 1);
        /* One by one each event is tried once; whole batches of ten show it by being tried again.
         */
        assert_in_range(p.calls, 120, i == 0 ? 121 : 140);
    }
}

/* ---- Lag ----------------------------------------------------------------------------------- */

typedef struct lag_probe {
    atomic_int calls, over;
    _Atomic int64_t lag, head;
} lag_probe;

static void on_lag(void *user, const char *consumer, int64_t lag, int64_t position, int64_t head,
                   bool over)
{
    lag_probe *p = user;
    if (strcmp(consumer, "a") != 0 || head - position != lag)
        abort();
    atomic_store(&p->lag, lag);
    atomic_store(&p->head, head);
    atomic_fetch_add(&p->over, over ? 1 : 0);
    atomic_fetch_add(&p->calls, 1);
}

static void lag_is_told(void **state)
{
    scratch *s = *state;
    add_events(s->conn, 40);
    lag_probe p = {0};
    probe handler = {.bad = 11, .failures_left = -1, .code = MR_E_HANDLER, .retryable = false};
    mr_conf *conf = conf_for(s);
    assert_ok(mr_conf_set(conf, "lag_check_interval", "100ms"));
    assert_ok(mr_conf_set(conf, "lag_threshold", "20"));
    mr_conf_on_lag(conf, on_lag, &p);
    assert_ok(mr_conf_take_consumer(conf, consumer_for(&handler, false, "pause")));
    running r;
    start(&r, conf);
    for (int i = 0; i < 3000 && !(atomic_load(&p.over) > 0 && atomic_load(&p.lag) == 30); i++)
        (void)usleep(10000);
    assert_int_equal(p.lag, 30);
    assert_int_equal(p.head, 40);
    /* Somebody resumes it, and the handler has been mended. */
    handler.bad = 0;
    mr_conf *names = mr_conf_new();
    assert_ok(mr_consumer_resume(s->conn, names, "a", "test", NULL));
    mr_conf_free(names);
    for (int i = 0; i < 3000 && atomic_load(&p.lag) != 0; i++)
        (void)usleep(10000);
    assert_int_equal(p.lag, 0);
    stop(&r);
}

/* ---- Set-up -------------------------------------------------------------------------------- */

static mr_error *make_table(PGconn *conn, void *user)
{
    atomic_fetch_add((atomic_int *)user, 1);
    PGresult *result = PQexec(conn, "CREATE TABLE made (x int)");
    mr_error *error = mr_error_from_result(conn, result);
    PQclear(result);
    return error;
}

static void setup_in_c(void **state)
{
    scratch *s = *state;
    atomic_int calls = 0;
    for (int i = 0; i < 2; i++) {
        probe p = {0};
        mr_consumer *consumer = consumer_for(&p, false, "pause");
        mr_consumer_on_setup(consumer, make_table, &calls);
        assert_ok(drain(s, consumer));
    }
    assert_int_equal(calls, 1);
    assert_string_equal(value(s->conn, "SELECT to_regclass('made')"), "made");
}

/* ---- Partitions and locks ------------------------------------------------------------------ */

static void partitions_in_a_program(void **state)
{
    scratch *s = *state;
    assert_int_equal(mr_partition_of("Order", "42", 1), 0);
    for (int p = 2; p < 20; p++)
        assert_in_range(mr_partition_of("Order", "42", p), 0, p - 1);
    add_events(s->conn, 200);
    probe p = {0};
    mr_conf *conf = conf_for(s);
    running r;
    mr_consumer *first = consumer_for(&p, false, "pause");
    assert_ok(mr_conf_take_consumer(conf, first));
    start(&r, conf);
    await(s->conn, "SELECT count(*) FROM effects", 200);
    /* Another one, with slots, comes and goes while the worker runs. */
    probe q = {0};
    mr_consumer *slotted = mr_consumer_new("b");
    mr_consumer_on_event(slotted, on_event, &q, NULL);
    assert_ok(mr_consumer_set(slotted, "partitions", "7"));
    assert_ok(mr_worker_add_consumer(r.worker, slotted));
    char *names[4] = {NULL};
    await(s->conn, "SELECT count(*) FROM effects", 400);
    assert_int_equal(mr_worker_consumers(r.worker, names, 4), 2);
    assert_string_equal(names[1], "b");
    mr_free(names[0]);
    mr_free(names[1]);
    await(s->conn,
          "SELECT count(*) FROM millrace.consumer_checkpoints WHERE consumer_name LIKE 'b#%/7' AND"
          " last_position = 200",
          7);
    assert_ok(mr_worker_remove_consumer(r.worker, "b"));
    await(s->conn,
          "SELECT count(*) FROM millrace.consumer_assignments WHERE consumer_name LIKE"
          " 'b#%' AND worker_id IS NOT NULL",
          0);
    add_events(s->conn, 10);
    await(s->conn, "SELECT count(*) FROM effects", 410);
    stop(&r);
}

typedef struct adder {
    mr_worker *worker;
    probe *probe;
    int number;
    mr_error *error;
} adder;

static void *add_one(void *argument)
{
    adder *a = argument;
    char name[16];
    (void)snprintf(name, sizeof(name), "c%d", a->number);
    mr_consumer *consumer = mr_consumer_new(name);
    mr_consumer_on_event(consumer, on_event, a->probe, NULL);
    a->error = mr_worker_add_consumer(a->worker, consumer);
    return NULL;
}

/* One comes while the registration that names the other is under way: both must be run. */
static void two_come_at_once(void **state)
{
    enum { ROUNDS = 20 };
    scratch *s = *state;
    probe p = {0};
    mr_conf *conf = conf_for(s);
    running r;
    assert_ok(mr_conf_take_consumer(conf, consumer_for(&p, false, "pause")));
    start(&r, conf);
    add_events(s->conn, 1);
    await(s->conn, "SELECT count(*) FROM effects", 1);
    for (int round = 0; round < ROUNDS; round++) {
        adder adders[2];
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) {
            adders[i] = (adder){r.worker, &p, 2 * round + i, NULL};
            assert_int_equal(pthread_create(&threads[i], NULL, add_one, &adders[i]), 0);
        }
        for (int i = 0; i < 2; i++) {
            (void)pthread_join(threads[i], NULL);
            assert_ok(adders[i].error);
        }
        await(s->conn, "SELECT count(*) FROM effects", 1 + 2 * (round + 1));
    }
    stop(&r);
}

static void a_lock_that_is_given_back(void **state)
{
    scratch *s = *state;
    running r[2];
    probe p[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        mr_conf *conf = conf_for(s);
        mr_consumer *consumer = consumer_for(&p[i], false, "pause");
        assert_ok(mr_consumer_set(consumer, "ownership", "lock"));
        assert_ok(mr_conf_take_consumer(conf, consumer));
        start(&r[i], conf);
        if (i == 0) {
            add_events(s->conn, 10);
            await(s->conn, "SELECT count(*) FROM effects", 10);
        }
    }
    /* The holder lets go of the consumer but lives on: the other one has it then. */
    await(s->conn, "SELECT count(*) FROM millrace.worker_nodes", 2);
    assert_ok(mr_worker_remove_consumer(r[0].worker, "a"));
    add_events(s->conn, 10);
    await(s->conn, "SELECT count(*) FROM effects", 20);
    assert_int_equal(p[1].calls, 10);
    stop(&r[0]);
    stop(&r[1]);
}

static void a_worker_outlives_its_last_consumer(void **state)
{
    scratch *s = *state;
    probe p = {0}, q = {0};
    mr_conf *conf = conf_for(s);
    assert_ok(mr_conf_take_consumer(conf, consumer_for(&p, false, "pause")));
    running r;
    start(&r, conf);
    add_events(s->conn, 5);
    await(s->conn, "SELECT count(*) FROM effects", 5);
    assert_ok(mr_worker_remove_consumer(r.worker, "a"));
    for (int i = 0; i < 3000 && mr_worker_consumers(r.worker, NULL, 0) > 0; i++)
        (void)usleep(1000);
    add_events(s->conn, 5);
    mr_worker_wake(r.worker);
    mr_consumer *other = mr_consumer_new("b");
    mr_consumer_on_event(other, on_event, &q, NULL);
    assert_ok(mr_worker_add_consumer(r.worker, other));
    await(s->conn, "SELECT count(*) FROM effects", 15);
    stop(&r);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, scratch_teardown)

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        TEST(dead_letters_are_told),
        TEST(retryable_errors_are_retried),
        TEST(fatal_stops_whatever_the_policy),
        TEST(detached_handlers_have_no_transaction),
        TEST(lag_is_told),
        TEST(setup_in_c),
        TEST(partitions_in_a_program),
        TEST(two_come_at_once),
        TEST(a_lock_that_is_given_back),
        TEST(a_worker_outlives_its_last_consumer),
    };
    return cmocka_run_group_tests_name("coping", tests, NULL, NULL);
}
