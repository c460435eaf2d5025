/* Workers inside a program: C handlers, several threads, the program's own loop, stopping at any
 * moment. Runs under ThreadSanitizer too. */
#include "scratch.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int setup(void **state)
{
    (void)scratch_setup(state);
    scratch *s = *state;
    mr_conf *conf = mr_conf_new();
    assert_ok(mr_schema_apply(s->conn, conf, NULL));
    mr_conf_free(conf);
    run(s->conn, "CREATE TABLE effects (n bigserial, consumer text, pos bigint)");
    return 0;
}

static void add_events(PGconn *conn, int count)
{
    char sql[400];
    (void)snprintf(sql, sizeof(sql),
                   "INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, "
                   "event_type, payload)"
                   " SELECT 'T', gen_random_uuid()::text, 1, gen_random_uuid(), 'E', '{}' FROM "
                   "generate_series(1, %d)",
                   count);
    run(conn, sql);
}

/* What a handler is given. */
typedef struct probe {
    const char *name;
    atomic_int calls, frees, failures_left, events;
    atomic_bool inside; /* one call at a time for a consumer */
} probe;

static mr_error *record(mr_tx *tx, const char *name, const mr_event *event)
{
    char position[24];
    (void)snprintf(position, sizeof(position), "%lld", (long long)mr_event_position(event));
    const char *values[] = {name, position};
    return mr_tx_exec(tx, "INSERT INTO effects (consumer, pos) VALUES ($1, $2::int8)", 2, values);
}

static mr_error *enter(probe *p)
{
    if (atomic_exchange(&p->inside, true))
        return mr_error_new(MR_E_INTERNAL, false, "two calls at once");
    atomic_fetch_add(&p->calls, 1);
    return NULL;
}

static mr_error *leave(probe *p, mr_error *error)
{
    if (error == NULL && atomic_load(&p->failures_left) > 0) {
        atomic_fetch_sub(&p->failures_left, 1);
        error = mr_error_new(MR_E_HANDLER, true, "not today");
    }
    atomic_store(&p->inside, false);
    return error;
}

static mr_error *on_event(mr_tx *tx, const mr_event *event, void *user)
{
    probe *p = user;
    mr_error *error = enter(p);
    if (error != NULL)
        return error;
    atomic_fetch_add(&p->events, 1);
    return leave(p, record(tx, p->name, event));
}

static mr_error *on_batch(mr_tx *tx, const mr_event *const *events, size_t count, void *user)
{
    probe *p = user;
    mr_error *error = enter(p);
    for (size_t i = 0; i < count && error == NULL; i++)
        error = record(tx, p->name, events[i]);
    atomic_fetch_add(&p->events, (int)count);
    PGresult *rows = NULL;
    if (error == NULL)
        error = mr_tx_query(tx, "SELECT count(*) FROM effects", 0, NULL, &rows);
    PQclear(rows);
    return leave(p, error);
}

static void count_free(void *user)
{
    atomic_fetch_add(&((probe *)user)->frees, 1);
}

static mr_conf *conf_for(const scratch *s)
{
    mr_conf *conf = mr_conf_new();
    assert_ok(mr_conf_set(conf, "database", scratch_conninfo(s)));
    assert_ok(mr_conf_set(conf, "retry_base_delay", "10ms"));
    assert_ok(mr_conf_set(conf, "retry_max_delay", "10ms"));
    return conf;
}

static void add_consumer(mr_conf *conf, probe *p, bool batch)
{
    mr_consumer *consumer = mr_consumer_new(p->name);
    assert_ok(mr_consumer_set(consumer, "batch_size", "7"));
    if (batch)
        mr_consumer_on_batch(consumer, on_batch, p, count_free);
    else
        mr_consumer_on_event(consumer, on_event, p, count_free);
    assert_ok(mr_conf_take_consumer(conf, consumer));
}

static void assert_exactly_once(PGconn *conn, const char *name)
{
    char sql[400];
    (void)snprintf(
        sql, sizeof(sql),
        "SELECT coalesce((SELECT array_agg(pos ORDER BY n) FROM effects WHERE consumer = '%s')"
        " = (SELECT array_agg(global_position ORDER BY 1) FROM events), false)",
        name);
    if (strcmp(value(conn, sql), "t") != 0)
        fail_msg("%s did not handle each event once, in order", name);
}

static void drain_once(void **state)
{
    scratch *s = *state;
    add_events(s->conn, 50);
    probe each = {.name = "each"}, all = {.name = "all", .failures_left = 2};
    mr_conf *conf = conf_for(s);
    add_consumer(conf, &each, false);
    add_consumer(conf, &all, true);
    assert_ok(mr_conf_set(conf, "once", "true"));
    mr_worker *worker = NULL;
    assert_ok(mr_worker_new(conf, &worker));
    assert_ok(mr_worker_check(worker));
    assert_int_equal(each.calls, 0);
    assert_ok(mr_worker_run(worker));
    assert_error(mr_worker_run(worker), MR_E_STATE, "");
    assert_true(mr_worker_metric(worker, "events_handled") >= 100);
    assert_int_equal(mr_worker_metric(worker, "nonsense"), -1);
    assert_int_equal(mr_worker_metric(worker, "batches_failed"), 2);
    assert_int_equal(each.frees + all.frees, 0);
    mr_worker_free(worker);
    assert_int_equal(each.frees, 1);
    assert_int_equal(all.frees, 1);
    assert_exactly_once(s->conn, "each");
    assert_exactly_once(s->conn, "all");
}

static void *run_worker(void *argument)
{
    mr_worker *worker = argument;
    mr_error *error = mr_worker_run(worker);
    bool failed = error != NULL;
    if (failed)
        (void)fprintf(stderr, "worker: %s\n", mr_error_message(error));
    mr_error_free(error);
    return failed ? worker : NULL;
}

static void wait_for(PGconn *conn, const char *sql)
{
    for (int i = 0; i < 3000; i++) {
        if (strcmp(value(conn, sql), "t") == 0)
            return;
        (void)usleep(20000);
    }
    fail_msg("waited for %s", sql);
}

/* Several workers in one process, woken and counted by other threads, one of them stopped early. */
static void several_in_one_process(void **state)
{
    scratch *s = *state;
    enum { WORKERS = 3 };
    probe probes[WORKERS][2];
    mr_worker *workers[WORKERS];
    pthread_t threads[WORKERS];
    memset((void *)probes, 0, sizeof(probes));
    for (int i = 0; i < WORKERS; i++) {
        mr_conf *conf = conf_for(s);
        probes[i][0].name = "each";
        probes[i][1].name = "all";
        add_consumer(conf, &probes[i][0], false);
        add_consumer(conf, &probes[i][1], true);
        assert_ok(mr_worker_new(conf, &workers[i]));
        assert_int_equal(pthread_create(&threads[i], NULL, run_worker, workers[i]), 0);
    }
    /* All run before one ends: libuv closes descriptors unseen by TSan, to which a number that
     * another thread gets next then looks like a race. */
    wait_for(s->conn, "SELECT count(*) = 3 FROM millrace.worker_nodes");
    for (int round = 0; round < 20; round++) {
        add_events(s->conn, 10);
        for (int i = 0; i < WORKERS; i++) {
            mr_worker_wake(workers[i]);
            (void)mr_worker_metric(workers[i], "events_handled");
        }
        if (round == 10)
            mr_worker_stop(workers[0]);
    }
    wait_for(s->conn, "SELECT count(*) = 400 FROM effects");
    for (int i = 0; i < WORKERS; i++) {
        mr_worker_stop(workers[i]);
        void *failed = NULL;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
        mr_worker_free(workers[i]);
    }
    assert_exactly_once(s->conn, "each");
    assert_exactly_once(s->conn, "all");
}

typedef struct hammer {
    mr_worker *worker;
    atomic_bool over;
} hammer;

static void *hammer_it(void *argument)
{
    hammer *h = argument;
    while (!atomic_load(&h->over)) {
        mr_worker_wake(h->worker);
        (void)mr_worker_metric(h->worker, "connections");
    }
    return NULL;
}

/* Wakes and stops come from other threads before the start, while it runs, while it ends and
 * afterwards: until the worker is freed they are allowed. */
static void calls_at_any_moment(void **state)
{
    scratch *s = *state;
    add_events(s->conn, 20);
    for (int i = 0; i < 25; i++) {
        probe each = {.name = "each"};
        mr_conf *conf = conf_for(s);
        add_consumer(conf, &each, false);
        if (i % 3 == 0)
            assert_ok(mr_conf_set(conf, "once", "true"));
        hammer h = {0};
        assert_ok(mr_worker_new(conf, &h.worker));
        pthread_t threads[2], runner;
        for (int k = 0; k < 2; k++)
            assert_int_equal(pthread_create(&threads[k], NULL, hammer_it, &h), 0);
        assert_int_equal(pthread_create(&runner, NULL, run_worker, h.worker), 0);
        (void)usleep((useconds_t)(i * 2000));
        if (i % 3 != 0)
            mr_worker_stop(h.worker);
        if (i % 5 == 0)
            mr_worker_stop(h.worker); /* by force */
        void *failed = NULL;
        assert_int_equal(pthread_join(runner, &failed), 0);
        assert_null(failed);
        mr_worker_stop(h.worker);
        (void)usleep(2000); /* the hammers go on after its end */
        atomic_store(&h.over, true);
        for (int k = 0; k < 2; k++)
            assert_int_equal(pthread_join(threads[k], NULL), 0);
        mr_worker_free(h.worker);
        assert_int_equal(each.frees, 1);
    }
    assert_int_equal(number(s->conn, "SELECT count(*) FROM millrace.worker_nodes"), 0);
    assert_int_equal(number(s->conn, "SELECT count(*) - count(DISTINCT pos) FROM effects"), 0);
}

static void the_programs_own_loop(void **state)
{
    scratch *s = *state;
    probe each = {.name = "each"};
    mr_conf *conf = conf_for(s);
    add_consumer(conf, &each, false);
    mr_worker *worker = NULL;
    assert_ok(mr_worker_new(conf, &worker));
    bool running = true;
    assert_error(mr_worker_turn(worker, &running), MR_E_STATE, "");
    assert_false(running);
    assert_int_equal(mr_worker_fd(worker), -1);
    assert_ok(mr_worker_start(worker));
    assert_error(mr_worker_start(worker), MR_E_STATE, "");
    running = true;
    int turns = 0;
    bool stopped = false;
    add_events(s->conn, 100);
    while (running && turns++ < 100000) {
        struct pollfd fd = {.fd = mr_worker_fd(worker), .events = POLLIN};
        (void)poll(&fd, 1, mr_worker_timeout(worker));
        assert_ok(mr_worker_turn(worker, &running));
        if (atomic_load(&each.events) >= 100 && !stopped) {
            mr_worker_stop(worker);
            stopped = true;
        }
    }
    assert_false(running);
    assert_error(mr_worker_turn(worker, &running), MR_E_STATE, "");
    mr_worker_free(worker);
    assert_exactly_once(s->conn, "each");
}

static void freed_without_an_end(void **state)
{
    scratch *s = *state;
    add_events(s->conn, 1000);
    for (int turns = 0; turns < 12; turns++) {
        probe each = {.name = "each"};
        mr_conf *conf = conf_for(s);
        add_consumer(conf, &each, false);
        mr_worker *worker = NULL;
        assert_ok(mr_worker_new(conf, &worker));
        if (turns > 0)
            assert_ok(mr_worker_start(worker));
        for (int i = 1; i < turns; i++) {
            bool running = false;
            struct pollfd fd = {.fd = mr_worker_fd(worker), .events = POLLIN};
            (void)poll(&fd, 1, 10);
            assert_ok(mr_worker_turn(worker, &running));
        }
        mr_worker_free(worker);
        assert_int_equal(each.frees, 1);
    }
    assert_int_equal(number(s->conn, "SELECT count(*) - count(DISTINCT pos) FROM effects"), 0);
}

static void a_start_that_fails(void **state)
{
    scratch *s = *state;
    probe each = {.name = "each"};
    mr_conf *conf = conf_for(s);
    add_consumer(conf, &each, false);
    assert_ok(mr_conf_set(conf, "database", "host=/nonexistent"));
    mr_worker *worker = NULL;
    assert_ok(mr_worker_new(conf, &worker));
    assert_error(mr_worker_check(worker), MR_E_CONNECT, "");
    assert_error(mr_worker_run(worker), MR_E_CONNECT, "");
    mr_worker_stop(worker);
    mr_worker_free(worker);
    assert_int_equal(each.frees, 1);
    conf = conf_for(s);
    assert_error(mr_worker_new(conf, &worker), MR_E_CONFIG, "consumers");
    mr_conf_free(conf);
    mr_worker_free(NULL);
}

/* A handler that ends the transaction, or ignores what it is told, does not get its batch
 * committed. */
static mr_error *misbehave(mr_tx *tx, const mr_event *event, void *user)
{
    const char *how = user;
    mr_error *error = record(tx, "bad", event);
    if (error != NULL)
        return error;
    if (strcmp(how, "commit") == 0)
        mr_error_free(mr_tx_exec(tx, "/* x /* y */ */ COMMIT", 0, NULL));
    else if (strcmp(how, "swallow") == 0)
        mr_error_free(mr_tx_exec(tx, "SELECT 1 / 0", 0, NULL));
    else if (strcmp(how, "unreachable") == 0)
        /* Its own trouble with somebody else's server: counted, not retried for ever. */
        return mr_error_new(MR_E_CONNECT, true, "the mail server is away");
    else if (mr_event_position(event) == 3)
        return mr_error_new(MR_E_HANDLER, false, "enough");
    return NULL;
}

static void handlers_that_misbehave(void **state)
{
    scratch *s = *state;
    add_events(s->conn, 5);
    static const char *const ways[] = {"commit", "swallow", "unreachable", "refuse"};
    for (int i = 0; i < 4; i++) {
        mr_conf *conf = conf_for(s);
        mr_consumer *consumer = mr_consumer_new("bad");
        mr_consumer_on_event(consumer, misbehave, (void *)(uintptr_t)ways[i], NULL);
        assert_ok(mr_consumer_set(consumer, "max_retries", "1"));
        assert_ok(mr_conf_take_consumer(conf, consumer));
        assert_ok(mr_conf_set(conf, "once", "true"));
        mr_worker *worker = NULL;
        assert_ok(mr_worker_new(conf, &worker));
        mr_error *error = mr_worker_run(worker);
        assert_non_null(error);
        mr_error_free(error);
        mr_worker_free(worker);
        /* The good ones before the one that is refused are done. */
        assert_int_equal(number(s->conn, "SELECT count(*) FROM effects"), i == 3 ? 2 : 0);
        assert_int_equal(number(s->conn, "SELECT last_position FROM millrace.consumer_checkpoints"),
                         i == 3 ? 2 : 0);
    }
}

/* Payloads beyond inline_payload_max are fetched when the handler runs, for both kinds of callback.
 */
static mr_error *measure(mr_tx *tx, const mr_event *event, void *user)
{
    size_t length = 0;
    const char *payload = mr_event_payload(event, &length);
    (void)tx;
    if (length != strlen(payload) || payload[length] != '\0')
        return mr_error_new(MR_E_HANDLER, false, "length");
    atomic_fetch_add((atomic_int *)user, (int)length);
    return NULL;
}

static mr_error *measure_batch(mr_tx *tx, const mr_event *const *events, size_t count, void *user)
{
    mr_error *error = NULL;
    for (size_t i = 0; i < count && error == NULL; i++)
        error = measure(tx, events[i], user);
    return error;
}

static void large_payloads(void **state)
{
    scratch *s = *state;
    run(s->conn,
        "INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, "
        "event_type, payload)"
        " SELECT 'T', n::text, 1, gen_random_uuid(), 'E', convert_to(repeat('x', n * 1000), 'UTF8')"
        " FROM generate_series(0, 200, 10) n");
    atomic_int bytes[2] = {0, 0};
    mr_conf *conf = conf_for(s);
    for (int i = 0; i < 2; i++) {
        mr_consumer *consumer = mr_consumer_new(i == 0 ? "each" : "all");
        if (i == 0)
            mr_consumer_on_event(consumer, measure, &bytes[0], NULL);
        else
            mr_consumer_on_batch(consumer, measure_batch, &bytes[1], NULL);
        assert_ok(mr_conf_take_consumer(conf, consumer));
    }
    assert_ok(mr_conf_set(conf, "inline_payload_max", "50KiB"));
    assert_ok(mr_conf_set(conf, "once", "true"));
    mr_worker *worker = NULL;
    assert_ok(mr_worker_new(conf, &worker));
    assert_ok(mr_worker_run(worker));
    mr_worker_free(worker);
    assert_int_equal(bytes[0], 2100000);
    assert_int_equal(bytes[1], 2100000);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, scratch_teardown)

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        TEST(drain_once),
        TEST(several_in_one_process),
        TEST(calls_at_any_moment),
        TEST(the_programs_own_loop),
        TEST(freed_without_an_end),
        TEST(a_start_that_fails),
        TEST(handlers_that_misbehave),
        TEST(large_payloads),
    };
    return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
