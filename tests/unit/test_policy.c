/* What becomes of failures: a consumer in miniature runs batches over events of which some are bad,
 * and the policy decides. Also whose fault an error is. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "consumer/policy.h"

#include "random.h"

#include <string.h>

/* ---- Whose fault --------------------------------------------------------------------------- */

static mr_fault fault(mr_error *error, bool own)
{
    mr_fault found = mr__fault_of(error, own, false);
    mr_error_free(error);
    return found;
}

static mr_error *state_error(const char *sqlstate, bool retryable)
{
    return mr__error_db(MR_E_DB, sqlstate, retryable, "x");
}

static void faults(void **state)
{
    (void)state;
    assert_int_equal(fault(state_error("40001", true), false), MR_FAULT_NOBODY);
    assert_int_equal(fault(state_error("40P01", true), true), MR_FAULT_NOBODY);
    assert_int_equal(fault(state_error("25006", true), false), MR_FAULT_NOBODY);
    assert_int_equal(fault(state_error("22012", false), false), MR_FAULT_PERMANENT);
    assert_int_equal(fault(state_error("23502", false), false), MR_FAULT_PERMANENT);
    assert_int_equal(fault(state_error("23505", false), false), MR_FAULT_RETRYABLE);
    assert_int_equal(fault(state_error("42P01", false), false), MR_FAULT_RETRYABLE);
    assert_int_equal(fault(mr__error_db(MR_E_FENCED, "MR002", false, "x"), false), MR_FAULT_NOBODY);
    assert_int_equal(fault(mr__error(MR_E_CONNECT, "x"), false), MR_FAULT_NOBODY);
    /* A handler's own lost connection, to a mail server say, is its own affair. */
    assert_int_equal(fault(mr_error_new(MR_E_CONNECT, true, "x"), true), MR_FAULT_RETRYABLE);
    assert_int_equal(fault(mr_error_new(MR_E_HANDLER, true, "x"), true), MR_FAULT_RETRYABLE);
    assert_int_equal(fault(mr_error_new(MR_E_HANDLER, false, "x"), true), MR_FAULT_PERMANENT);
    assert_int_equal(fault(mr_error_new(MR_E_FATAL, false, "x"), true), MR_FAULT_FATAL);
    assert_int_equal(fault(mr_error_new(MR_E_IO, true, "x"), true), MR_FAULT_HANDLER);
    assert_int_equal(fault(mr_error_new(MR_E_TIMEOUT, false, "x"), true), MR_FAULT_RETRYABLE);
    assert_int_equal(fault(mr_error_new(MR_E_CANCELLED, true, "x"), false), MR_FAULT_NOBODY);
    mr_error *cancelled = mr_error_new(MR_E_CANCELLED, true, "x");
    assert_int_equal(mr__fault_of(cancelled, true, true), MR_FAULT_NOBODY);
    assert_int_equal(mr__fault_of(cancelled, true, false), MR_FAULT_RETRYABLE);
    mr_error_free(cancelled);
}

static void waits(void **state)
{
    (void)state;
    assert_int_equal(mr__policy_wait(100, 10000, 1), 100);
    assert_int_equal(mr__policy_wait(100, 10000, 2), 200);
    assert_int_equal(mr__policy_wait(100, 10000, 7), 6400);
    assert_int_equal(mr__policy_wait(100, 10000, 8), 10000);
    assert_int_equal(mr__policy_wait(100, 10000, 1000000), 10000);
    assert_int_equal(mr__policy_wait(INT64_MAX / 3, INT64_MAX / 2, 64), INT64_MAX / 2);
}

/* ---- A consumer in miniature --------------------------------------------------------------- */

enum { EVENTS = 60 };

/* How an event behaves: bad for the next `left` attempts; at the commit only, when `late`. */
typedef struct event {
    int left;
    bool permanent, late;
    int handled, failures, condemned;
} event;

typedef struct world {
    event events[EVENTS + 1]; /* by position, from 1 */
    int64_t checkpoint;
    mr_policy policy;
    mr_trial trial;
    bool answers; /* the handler's answers tell whose fault it is, as a child's do */
    int64_t condemned;
    bool paused;
    int runs;
} world;

static bool fails(event *e)
{
    if (e->left == 0)
        return false;
    if (e->left > 0)
        e->left--;
    e->failures++;
    return true;
}

static void commit(world *w, int64_t from, int64_t to)
{
    for (int64_t p = from; p <= to; p++) {
        if (p == w->condemned)
            w->events[p].condemned++;
        else
            w->events[p].handled++;
    }
    w->checkpoint = to;
    mr__policy_passed(&w->trial, to);
}

/* Runs one batch the way batch.c does, and lets the policy decide. */
static void run_batch(world *w, size_t size)
{
    int64_t from = w->checkpoint + 1, to = from + (int64_t)size - 1;
    if (w->trial.mode == MR_MODE_SINGLE)
        to = from;
    to = to > EVENTS ? EVENTS : to;
    bool isolated = w->trial.mode == MR_MODE_ISOLATE;
    mr_failure failure = {.end = to};
    bool late = false;
    for (int64_t p = from; p <= to && failure.position == 0; p++) {
        event *e = &w->events[p];
        if (p == w->condemned || !fails(e))
            continue;
        failure.fault = e->permanent ? MR_FAULT_PERMANENT : MR_FAULT_RETRYABLE;
        failure.position = p;
        failure.proven = isolated || from == to || (w->answers && !e->late);
        late = e->late;
    }
    w->runs++;
    if (failure.position == 0) {
        commit(w, from, to);
        return;
    }
    bool prefix = (isolated || w->answers) && !late;
    if (late && from < to) { /* it shows only when everything is over, and names nobody */
        failure.position = 0;
        failure.proven = false;
    }
    if (prefix && failure.position > from)
        commit(w, from, failure.position - 1);
    int64_t wait = -1;
    mr_verdict verdict = mr__policy_decide(&w->policy, &w->trial, &failure, &wait);
    assert_true(wait >= 0 && wait <= w->policy.retry_most);
    if (verdict == MR_VERDICT_CONDEMN) {
        /* Only what is proven, only what is bad, and only after all retries. */
        assert_true(failure.proven && failure.position > 0);
        event *e = &w->events[failure.position];
        assert_true(e->permanent || e->failures > w->policy.max_retries);
        w->condemned = failure.position;
        w->trial = (mr_trial){0};
    }
    w->paused = verdict == MR_VERDICT_PAUSE;
    assert_int_not_equal(verdict, MR_VERDICT_STOP);
}

static world make_world(rng *r, mr_on_failure on_failure)
{
    world w = {.policy = {.on_failure = on_failure,
                          .max_retries = (int64_t)rng_below(r, 6),
                          .retry_base = 100,
                          .retry_most = 1000},
               .answers = rng_chance(r, 30)};
    unsigned density = (unsigned)rng_below(r, 30);
    for (int p = 1; p <= EVENTS; p++)
        if (rng_chance(r, density))
            w.events[p] = (event){.left = rng_chance(r, 50) ? -1 : (int)rng_below(r, 10),
                                  .permanent = rng_chance(r, 40),
                                  .late = rng_chance(r, 15)};
    return w;
}

static void good_events_once_bad_ones_given_up(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    for (int i = 0; i < 4000; i++) {
        rng r = rng_new(seed + (uint64_t)i);
        world w = make_world(&r, MR_ON_DEAD_LETTER);
        event before[EVENTS + 1];
        memcpy(before, w.events, sizeof(before));
        while (w.checkpoint < EVENTS) {
            run_batch(&w, 1 + rng_below(&r, 20));
            assert_false(w.paused);
            if (w.runs > 100000)
                fail_msg("seed %llu: no end", (unsigned long long)(seed + (uint64_t)i));
        }
        for (int p = 1; p <= EVENTS; p++) {
            assert_int_equal(w.events[p].handled + w.events[p].condemned, 1);
            if (before[p].left == 0)
                assert_int_equal(w.events[p].condemned, 0);
            if (before[p].left < 0)
                assert_int_equal(w.events[p].condemned, 1);
        }
    }
}

static void pause_stops_at_the_first_that_stays_bad(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    for (int i = 0; i < 4000; i++) {
        rng r = rng_new(seed + (uint64_t)i);
        world w = make_world(&r, MR_ON_PAUSE);
        while (w.checkpoint < EVENTS && !w.paused)
            run_batch(&w, 1 + rng_below(&r, 20));
        for (int64_t p = 1; p <= EVENTS; p++)
            assert_int_equal(w.events[p].handled, p <= w.checkpoint ? 1 : 0);
        if (w.paused)
            assert_true(w.events[w.checkpoint + 1].failures > 0);
    }
}

static void unlimited_never_gives_up(void **state)
{
    (void)state;
    mr_policy policy = {
        .on_failure = MR_ON_DEAD_LETTER, .max_retries = -1, .retry_base = 1, .retry_most = 9};
    mr_trial trial = {0};
    for (int i = 0; i < 1000; i++) {
        mr_failure failure = {.fault = i % 2 == 0 ? MR_FAULT_PERMANENT : MR_FAULT_HANDLER,
                              .position = 7,
                              .proven = true,
                              .end = 9};
        int64_t wait = 0;
        assert_int_equal(mr__policy_decide(&policy, &trial, &failure, &wait), MR_VERDICT_RETRY);
        assert_true(wait > 0);
    }
}

/* A program that cannot be started is no event's fault: nothing is given up for it. */
static void a_broken_handler_is_never_an_events_fault(void **state)
{
    (void)state;
    mr_policy policy = {
        .on_failure = MR_ON_DEAD_LETTER, .max_retries = 2, .retry_base = 1, .retry_most = 9};
    mr_trial trial = {0};
    mr_failure failure = {.fault = MR_FAULT_HANDLER, .position = 7, .proven = true, .end = 9};
    int64_t wait = 0;
    assert_int_equal(mr__policy_decide(&policy, &trial, &failure, &wait), MR_VERDICT_RETRY);
    assert_int_equal(mr__policy_decide(&policy, &trial, &failure, &wait), MR_VERDICT_RETRY);
    assert_int_equal(mr__policy_decide(&policy, &trial, &failure, &wait), MR_VERDICT_PAUSE);
}

static void fatal_counts_failures_in_a_row(void **state)
{
    (void)state;
    mr_policy policy = {
        .on_failure = MR_ON_FATAL, .max_failures = 3, .fatal_base = 10, .fatal_most = 15};
    mr_trial trial = {0};
    mr_failure failure = {.fault = MR_FAULT_PERMANENT, .position = 4, .end = 9};
    int64_t wait = 0;
    assert_int_equal(mr__policy_decide(&policy, &trial, &failure, &wait), MR_VERDICT_RETRY);
    assert_int_equal(wait, 10);
    assert_int_equal(mr__policy_decide(&policy, &trial, &failure, &wait), MR_VERDICT_RETRY);
    assert_int_equal(wait, 15);
    mr_trial passed = trial;
    mr__policy_passed(&passed, 9);
    assert_int_equal(passed.attempts, 0);
    assert_int_equal(mr__policy_decide(&policy, &trial, &failure, &wait), MR_VERDICT_STOP);
    policy.max_failures = 0;
    assert_int_equal(mr__policy_decide(&policy, &trial, &failure, &wait), MR_VERDICT_RETRY);
    failure.fault = MR_FAULT_FATAL;
    assert_int_equal(mr__policy_decide(&policy, &trial, &failure, &wait), MR_VERDICT_STOP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults),
        cmocka_unit_test(waits),
        cmocka_unit_test(good_events_once_bad_ones_given_up),
        cmocka_unit_test(pause_stops_at_the_first_that_stays_bad),
        cmocka_unit_test(unlimited_never_gives_up),
        cmocka_unit_test(a_broken_handler_is_never_an_events_fault),
        cmocka_unit_test(fatal_counts_failures_in_a_row),
    };
    return cmocka_run_group_tests_name("policy", tests, NULL, NULL);
}
