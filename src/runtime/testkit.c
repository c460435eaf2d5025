/* A consumer under test: its life, its clock, what an operator does to it, what is to be seen. */
#include "runtime/testkit.h"

#include <inttypes.h>
#include <stdlib.h>

static const int64_t clock_start = 1767225600LL * 1000000; /* 2026-01-01 00:00 UTC */

/* ---- Life ---------------------------------------------------------------------------------- */

static mr_error *make_handler(mr_test *test)
{
    mr_worker *w = test->worker;
    mr_handler *handler = NULL;
    MR_TRY(mr__worker_handler(w, w->places[0], &handler));
    for (size_t i = 0; i < w->place_count; i++) {
        w->places[i]->handler = i == 0 ? handler : mr__handler_ref(handler);
        mr__place_set_state(w->places[i], MR_PLACE_IDLE, "test");
    }
    return mr__test_option(test, MR_OPT_C_EXEC)[0] == '\0' ? NULL : handler->check(handler, NULL);
}

static mr_error *fill(mr_test *test, mr_conf *conf)
{
    mr_error *error = mr_worker_new(conf, &test->worker);
    if (error != NULL) {
        mr_conf_free(conf);
        return error;
    }
    mr_worker *w = test->worker;
    if (mr__test_option(test, MR_OPT_C_SQL_BATCH)[0] != '\0')
        return mr__error(MR_E_USAGE,
                         "sql_batch reads the log on its server, and a test's log is in memory; "
                         "test it with a worker and a database (the option once)");
    test->clock = mr__clock_manual(clock_start);
    w->clock = &test->clock;
    test->log.clock = &test->clock;
    mr__log_shape_assume(&w->log_spec, "public", &w->shape);
    mr__test_record_init(&test->record);
    test->slots = calloc(w->place_count, sizeof(*test->slots));
    if (test->slots == NULL)
        return mr__error_nomem();
    return mr__error_prefix(make_handler(test), "consumer '%s'", mr__place_base(w->places[0]));
}

static mr_error *make(mr_conf *conf, mr_test **out)
{
    mr_test *test = calloc(1, sizeof(*test));
    if (test == NULL) {
        mr_conf_free(conf);
        return mr__error_nomem();
    }
    mr_error *error = fill(test, conf);
    if (error != NULL) {
        mr_test_free(test);
        return error;
    }
    *out = test;
    return NULL;
}

mr_error *mr_test_new(mr_consumer *consumer, mr_test **out)
{
    if (consumer == NULL)
        return mr__error(MR_E_USAGE, "mr_test_new() needs a consumer");
    mr_conf *conf = mr_conf_new();
    if (conf == NULL) {
        mr_consumer_free(consumer);
        return mr__error_nomem();
    }
    mr_error *error = mr_conf_take_consumer(conf, consumer);
    if (error == NULL)
        return make(conf, out);
    mr_conf_free(conf);
    return error;
}

void mr_test_free(mr_test *test)
{
    if (test == NULL)
        return;
    mr__session_close(test->session);
    mr__test_record_free(&test->record);
    mr__test_log_free(&test->log);
    for (size_t i = 0; i < test->letter_count; i++)
        mr_error_free(test->letters[i].error);
    free(test->letters);
    free(test->slots);
    free(test->conninfo);
    mr_worker_free(test->worker);
    free(test);
}

void mr_test_on_log(mr_test *test, mr_log_fn sink, void *user)
{
    test->worker->logger.sink = sink;
    test->worker->logger.user = user;
}

/* ---- Time ---------------------------------------------------------------------------------- */

int64_t mr_test_now(const mr_test *test)
{
    return mr__clock_now(&test->clock);
}

void mr_test_advance(mr_test *test, int64_t microseconds)
{
    if (microseconds > 0)
        test->clock.manual += microseconds;
}

int64_t mr_test_wait(const mr_test *test)
{
    int64_t left = test->slots[test->slot].ready_at - mr_test_now(test);
    return left > 0 ? left : 0;
}

const mr_clock *mr__test_batch_clock(const mr_test *test)
{
    bool real = test->conninfo != NULL || mr__test_option(test, MR_OPT_C_EXEC)[0] != '\0';
    return real ? &mr__clock_system : &test->clock;
}

mr_error *mr_test_slot(mr_test *test, int slot)
{
    if (test->running)
        return mr__error(MR_E_STATE, "mr_test_slot() while a batch runs");
    if (slot < 0 || (size_t)slot >= test->worker->place_count)
        return mr__error(MR_E_USAGE, "the consumer has the slots 0 to %zu, not %d",
                         test->worker->place_count - 1, slot);
    test->slot = (size_t)slot;
    return NULL;
}

/* ---- As an operator would -------------------------------------------------------------------- */

void mr_test_resume(mr_test *test)
{
    mr_place *p = mr__test_place(test);
    if (test->running || p->state != MR_PLACE_PAUSED)
        return;
    mr__test_drop_sentence(p);
    p->trial = (mr_trial){0};
    test->slots[test->slot] = (mr_test_slot_state){0};
    mr__place_set_state(p, MR_PLACE_IDLE, "resumed");
}

mr_error *mr_test_skip(mr_test *test, int64_t position)
{
    mr_place *p = mr__test_place(test);
    if (position <= p->saved)
        return mr__error(MR_E_USAGE, "position %" PRId64 " is not above the checkpoint, %" PRId64,
                         position, p->saved);
    if (!mr__test_log_has(&test->log, position))
        return mr__error(MR_E_USAGE, "there is no event at position %" PRId64, position);
    int64_t *grown = realloc(p->skips, (p->skip_count + 1) * sizeof(*grown));
    if (grown == NULL)
        return mr__error_nomem();
    p->skips = grown;
    p->skips[p->skip_count++] = position;
    mr_test_resume(test);
    return NULL;
}

/* ---- Looking at it -------------------------------------------------------------------------- */

const char *mr_test_outcome_name(mr_test_outcome outcome)
{
    static const char *const names[] = {"idle",   "blocked", "waiting", "committed",
                                        "failed", "paused",  "stopped"};
    return (size_t)outcome < sizeof(names) / sizeof(names[0]) ? names[outcome] : "?";
}

size_t mr_test_handled(const mr_test *test)
{
    return test->handled;
}

int64_t mr_test_checkpoint(const mr_test *test)
{
    return mr__test_place(test)->saved;
}

bool mr_test_paused(const mr_test *test)
{
    return mr__test_place(test)->state == MR_PLACE_PAUSED;
}

const mr_error *mr_test_error(const mr_test *test)
{
    return mr__test_place(test)->last_error;
}

static const mr_test_letter *letter(const mr_test *test, size_t index)
{
    static const mr_test_letter none;
    return index < test->letter_count ? &test->letters[index] : &none;
}

size_t mr_test_letter_count(const mr_test *test)
{
    return test->letter_count;
}

int64_t mr_test_letter_position(const mr_test *test, size_t index)
{
    return letter(test, index)->position;
}

const char *mr_test_letter_error(const mr_test *test, size_t index)
{
    return mr_error_message(letter(test, index)->error);
}

int mr_test_letter_attempts(const mr_test *test, size_t index)
{
    return letter(test, index)->attempts;
}

bool mr_test_letter_parked(const mr_test *test, size_t index)
{
    return letter(test, index)->parked;
}
