/* One batch of a consumer under test, and what a worker would make of it.
 *
 * Gathering, running and judging are a worker's own (consumer/gather.c, batch.c, policy.c); what
 * stands here in place of dispatch.c and outcome.c is who says when, and where the checkpoint is.
 */
#include "runtime/testkit.h"

#include <stdlib.h>

enum {
    TROUBLE_FIRST = 100000, /* a worker's waits when it was nobody's fault */
    TROUBLE_MOST = 5000000,
};

static void rest(mr_test *test, int64_t wait)
{
    test->slots[test->slot].ready_at = mr_test_now(test) + wait;
}

void mr__test_drop_sentence(mr_place *p)
{
    mr_error_free(p->sentence.error);
    p->sentence = (mr_sentence){0};
}

/* ---- One batch ----------------------------------------------------------------------------- */

static mr_batch *make_batch(const mr_test *test)
{
    mr_place *p = mr__test_place(test);
    mr_worker *w = test->worker;
    mr_batch *b = mr__batch_new();
    if (b == NULL)
        return NULL;
    b->consumer = p->name;
    b->worker_id = w->id;
    b->shape = &w->shape;
    b->clock = mr__test_batch_clock(test);
    b->cancelled = &w->cancelled;
    b->logger = &w->logger;
    b->handler = p->handler;
    b->mode = p->trial.mode;
    b->detached = p->detached;
    b->attempt = p->trial.attempts + 1;
    b->timeout = p->batch_timeout;
    b->epoch = -1;
    b->expected = p->saved;
    b->target = p->saved;
    b->on_dead_letter = p->spec->on_dead_letter;
    b->on_dead_letter_user = p->spec->on_dead_letter_user;
    return b;
}

static mr_error *gather(mr_test *test, mr_batch *batch)
{
    mr_place *p = mr__test_place(test);
    mr_intake intake = {.filter = &p->filter,
                        .slot = p->slot,
                        .slots = p->slots,
                        .batch_size = p->trial.mode == MR_MODE_SINGLE ? 1 : (size_t)p->batch_size,
                        .skips = p->skips,
                        .skip_count = p->skip_count,
                        .by_key = p->by_key,
                        .blocked = &p->blocked,
                        .sentence = &p->sentence};
    mr_source source = {.find = mr__test_log_find, .from = &test->log};
    mr_error *error = mr__gather(batch, &intake, &source);
    if (error == NULL && test->log.error != NULL)
        error = mr__error_copy(test->log.error);
    return error;
}

static mr_error *open_session(void *user, mr_session **session)
{
    return mr__test_session(user, session);
}

/* A detached consumer's handler runs first; then what came of it is saved, here after each batch.
 */
static mr_error *deliver(mr_test *test, mr_batch *batch, mr_session *session)
{
    mr_sessions sessions = {.open = open_session, .user = test};
    if (batch->count > 0)
        mr__batch_deliver(batch, &sessions);
    else
        batch->reached = batch->target;
    mr_batch *save = make_batch(test);
    if (save == NULL)
        return mr__error_nomem();
    save->target = batch->reached;
    mr_error *error = mr__batch_pass_on(batch, save, batch->reached);
    if (error == NULL) {
        mr__batch_run(save, session);
        error = save->error;
        save->error = NULL;
    }
    mr__batch_free(save);
    return error;
}

static mr_error *run_batch(mr_test *test, mr_batch *batch)
{
    mr_session *session = NULL;
    MR_TRY(mr__test_session(test, &session));
    if (batch->detached)
        return deliver(test, batch, session);
    mr__batch_run(batch, session);
    return NULL;
}

/* ---- What came of it ------------------------------------------------------------------------ */

static mr_error *add_letter(mr_test *test, const mr_aside *aside)
{
    mr_test_letter *grown =
        realloc(test->letters, (test->letter_count + 1) * sizeof(*test->letters));
    if (grown == NULL)
        return mr__error_nomem();
    test->letters = grown;
    bool poison = aside->kind == MR_ASIDE_POISON;
    test->letters[test->letter_count++] =
        (mr_test_letter){.position = aside->event->position,
                         .parked = !poison,
                         .attempts = aside->sentence.attempts,
                         .error = poison ? mr__error_copy(aside->sentence.error) : NULL};
    return NULL;
}

static mr_error *progressed(mr_test *test, const mr_batch *batch)
{
    mr_place *p = mr__test_place(test);
    for (size_t i = 0; i < batch->aside_count; i++)
        if (batch->asides[i].kind != MR_ASIDE_SKIP &&
            batch->asides[i].event->position <= batch->reached)
            MR_TRY(add_letter(test, &batch->asides[i]));
    p->saved = batch->reached;
    p->reached = batch->reached;
    p->troubles = 0;
    mr__policy_passed(&p->trial, batch->reached);
    if (p->sentence.position != 0 && p->sentence.position <= batch->reached)
        mr__test_drop_sentence(p);
    return NULL;
}

static void condemn(mr_place *p, const mr_batch *batch)
{
    mr__test_drop_sentence(p);
    p->sentence = (mr_sentence){.position = batch->failure.position,
                                .attempts = p->trial.attempts,
                                .first_failed = p->first_failed,
                                .error = mr__error_copy(p->last_error)};
    p->trial = (mr_trial){0};
}

static mr_test_outcome failed(mr_test *test, const mr_batch *batch)
{
    mr_place *p = mr__test_place(test);
    if (batch->failure.fault == MR_FAULT_NOBODY) {
        rest(test, mr__policy_wait(TROUBLE_FIRST, TROUBLE_MOST, ++p->troubles));
        return MR_TEST_FAILED;
    }
    if (p->trial.rounds == 0)
        p->first_failed = mr_test_now(test);
    int64_t wait = 0;
    mr_verdict verdict = mr__policy_decide(&p->policy, &p->trial, &batch->failure, &wait);
    switch (verdict) {
    case MR_VERDICT_STOP:
        test->slots[test->slot].stopped = true;
        mr__place_set_state(p, MR_PLACE_PAUSED, "fatal");
        return MR_TEST_STOPPED;
    case MR_VERDICT_PAUSE:
        mr__place_set_state(p, MR_PLACE_PAUSED, "failures");
        return MR_TEST_PAUSED;
    case MR_VERDICT_CONDEMN:
        condemn(p, batch);
        return MR_TEST_FAILED;
    case MR_VERDICT_RETRY:
    default:
        rest(test, wait);
        return MR_TEST_FAILED;
    }
}

static mr_error *judge(mr_test *test, mr_batch *batch, mr_test_outcome *outcome)
{
    mr_place *p = mr__test_place(test);
    mr_error_free(p->last_error);
    p->last_error = batch->error;
    batch->error = NULL;
    if (batch->reached > batch->expected) {
        test->handled = batch->handled;
        MR_TRY(progressed(test, batch));
    }
    if (p->last_error != NULL) {
        *outcome = failed(test, batch);
        return NULL;
    }
    rest(test, batch->count > 0 ? p->batch_pause : 0);
    *outcome = MR_TEST_COMMITTED;
    return NULL;
}

/* ---- A run ---------------------------------------------------------------------------------- */

static mr_error *attempt(mr_test *test, mr_batch *batch, mr_test_outcome *outcome)
{
    MR_TRY(gather(test, batch));
    if (batch->target == batch->expected) {
        bool more = mr__test_log_highest(&test->log) > batch->target;
        *outcome = more ? MR_TEST_BLOCKED : MR_TEST_IDLE;
        return NULL;
    }
    test->running = true;
    mr_error *error = run_batch(test, batch);
    test->running = false;
    return error != NULL ? error : judge(test, batch, outcome);
}

/* Why nothing can run now, if so. */
static bool held_back(const mr_test *test, mr_test_outcome *outcome)
{
    if (mr_test_paused(test))
        *outcome = test->slots[test->slot].stopped ? MR_TEST_STOPPED : MR_TEST_PAUSED;
    else if (mr_test_wait(test) > 0)
        *outcome = MR_TEST_WAITING;
    else
        return false;
    return true;
}

mr_error *mr_test_run(mr_test *test, mr_test_outcome *outcome)
{
    if (test->running)
        return mr__error(MR_E_STATE, "mr_test_run() from within a batch of the same test");
    if (test->conninfo == NULL && mr__test_option(test, MR_OPT_C_SQL)[0] != '\0')
        return mr__error(MR_E_STATE, "an sql handler runs on a server: call mr_test_database() "
                                     "first");
    mr_test_outcome ignored;
    if (outcome == NULL)
        outcome = &ignored;
    test->handled = 0;
    if (held_back(test, outcome))
        return NULL;
    mr_batch *batch = make_batch(test);
    if (batch == NULL)
        return mr__error_nomem();
    mr_error *error = attempt(test, batch, outcome);
    mr__batch_free(batch);
    mr__test_log_release(&test->log);
    return error;
}
