/* What came back from the executors: commits, failures, dead letters, pauses. Loop thread only. */
#include "runtime/worker.h"

#include <inttypes.h>
#include <string.h>

enum {
    TROUBLE_FIRST = 100000, /* backoff when it was nobody's fault: the server went away … */
    TROUBLE_MOST = 5000000,
    ROW_HELD_MOST = 500000, /* … or the row is held, by the old owner's batch perhaps */
};

int64_t mr__jitter(int64_t wait)
{
    return wait / 2 + mr__random_upto(wait / 2);
}

void mr__place_trouble(mr_place *p, int64_t most, const char *why)
{
    p->troubles++;
    mr__place_rest(p, mr__jitter(mr__policy_wait(TROUBLE_FIRST, most, p->troubles)), why);
}

static void keep_error(mr_place *p, mr_error *error)
{
    mr_error_free(p->last_error);
    p->last_error = error;
}

static void drop_sentence(mr_place *p)
{
    mr_error_free(p->sentence.error);
    p->sentence = (mr_sentence){0};
}

void mr__place_pause(mr_place *p, mr_error *error, int64_t position)
{
    mr_worker *w = p->worker;
    keep_error(p, error);
    mr__place_drop_draft(p);
    mr__place_set_state(p, MR_PLACE_PAUSED, "failures");
    mr__control_failure(p, position);
    mr__log(&w->logger, MR_ERROR, "consumer paused",
            "consumer=%s" MR_SEP "error=%s" MR_SEP "position=%" PRId64 MR_SEP "failures=%d" MR_SEP
            "hint=mend the cause, then: millrace consumers resume %s",
            p->name, mr_error_message(error), position, p->trial.rounds, mr__place_base(p));
    if (mr__bag_number(&w->conf->bag, MR_OPT_ONCE) != 0)
        mr__worker_fail(w,
                        mr__error_prefix(mr__error_copy(error), "consumer '%s' paused", p->name));
}

/* ---- Failures ------------------------------------------------------------------------------ */

/* The server or the connection, not the handler: tried again without being held against anybody. */
static void trouble(mr_place *p, const mr_error *error)
{
    mr_worker *w = p->worker;
    bool fenced = mr_error_code(error) == MR_E_FENCED;
    if (fenced)
        mr__count(w, MR_METRIC_FENCED, 1);
    /* Somebody changed the controls: no trouble at all, they only have to be read. */
    bool told = strcmp(mr_error_sqlstate(error), "MR009") == 0;
    mr__log(&w->logger, told ? MR_INFO : MR_WARN,
            fenced ? "batch fenced off" : "batch will be tried again",
            "consumer=%s" MR_SEP "error=%s" MR_SEP "sqlstate=%s", p->name, mr_error_message(error),
            mr_error_sqlstate(error));
    if (told) {
        mr__place_go_on(p, 0, "controls changed");
        return;
    }
    bool held = strcmp(mr_error_sqlstate(error), "55P03") == 0;
    mr__place_trouble(p, held ? ROW_HELD_MOST : TROUBLE_MOST, "trouble");
}

/* The event becomes a dead letter with the next batch, in its transaction. */
static void condemn(mr_place *p, mr_error *error, int64_t position)
{
    drop_sentence(p);
    p->sentence = (mr_sentence){.position = position,
                                .attempts = p->trial.attempts,
                                .first_failed = p->first_failed,
                                .error = mr__error_copy(error)};
    p->trial = (mr_trial){0};
    mr__count(p->worker, MR_METRIC_DEAD_LETTERS, 1);
    mr__log(&p->worker->logger, MR_ERROR, "dead letter",
            "consumer=%s" MR_SEP "position=%" PRId64 MR_SEP "error=%s" MR_SEP "attempts=%d",
            p->name, position, mr_error_message(error), p->sentence.attempts);
    keep_error(p, error);
    mr__place_go_on(p, 0, "dead letter");
}

static void log_failure(mr_place *p, const mr_batch *batch, const mr_error *error, int64_t wait)
{
    mr__log(&p->worker->logger, MR_ERROR, "batch failed",
            "consumer=%s" MR_SEP "error=%s" MR_SEP "sqlstate=%s" MR_SEP "position=%" PRId64 MR_SEP
            "from=%" PRId64 MR_SEP "to=%" PRId64 MR_SEP "failures=%d" MR_SEP "retry_ms=%" PRId64,
            p->name, mr_error_message(error), mr_error_sqlstate(error), batch->failure.position,
            batch->expected + 1, batch->target, p->trial.rounds, wait < 0 ? -1 : wait / 1000);
}

/* Somebody is to blame. Takes the error. */
static void failed(mr_place *p, const mr_batch *batch, mr_error *error)
{
    mr_worker *w = p->worker;
    if (p->trial.rounds == 0)
        p->first_failed = mr__clock_now(w->clock);
    int64_t wait = 0;
    mr_verdict verdict = mr__policy_decide(&p->policy, &p->trial, &batch->failure, &wait);
    wait = mr__jitter(wait);
    log_failure(p, batch, error, verdict == MR_VERDICT_RETRY ? wait : -1);
    mr__control_tell(w);
    switch (verdict) {
    case MR_VERDICT_STOP:
        mr__place_set_state(p, MR_PLACE_PAUSED, "fatal");
        mr__worker_fail(w, mr__error_prefix(error, "consumer '%s' failed %d times in a row",
                                            p->name, p->trial.rounds));
        return;
    case MR_VERDICT_PAUSE:
        mr__place_pause(p, error, batch->failure.position);
        return;
    case MR_VERDICT_CONDEMN:
        condemn(p, error, batch->failure.position);
        return;
    case MR_VERDICT_RETRY:
    default:
        keep_error(p, error);
        mr__place_go_on(p, wait, "failed");
        return;
    }
}

static void batch_failed(mr_place *p, mr_batch *batch)
{
    mr_worker *w = p->worker;
    mr_error *error = batch->error;
    batch->error = NULL;
    mr__count(w, MR_METRIC_BATCHES_FAILED, 1);
    if (!p->owned) {
        mr_error_free(error); /* whoever has it now finds out */
        mr__place_set_state(p, MR_PLACE_IDLE, "not ours");
        return;
    }
    if (batch->failure.fault == MR_FAULT_NOBODY) {
        trouble(p, error);
        mr_error_free(error);
        return;
    }
    failed(p, batch, error);
}

/* ---- Progress ------------------------------------------------------------------------------ */

/* Everything up to `reached` is done; trouble that lay before it is over. */
static void progressed(mr_place *p, int64_t reached)
{
    mr_worker *w = p->worker;
    bool was = p->trial.rounds > 0;
    mr__policy_passed(&p->trial, reached);
    if (was && p->trial.rounds == 0) {
        mr__control_tell(w);
        mr__log(&w->logger, MR_INFO, "consumer recovered", "consumer=%s", p->name);
    }
    if (p->sentence.position != 0 && p->sentence.position <= reached)
        drop_sentence(p);
    p->troubles = 0;
}

static void committed(mr_place *p, const mr_batch *batch)
{
    mr_worker *w = p->worker;
    mr__count(w, MR_METRIC_BATCHES, 1);
    mr__count(w, MR_METRIC_EVENTS, (int64_t)batch->handled);
    p->saved = batch->reached;
    if (p->reached < p->saved)
        p->reached = p->saved;
    mr__log(&w->logger, MR_DEBUG, "batch committed",
            "consumer=%s" MR_SEP "from=%" PRId64 MR_SEP "to=%" PRId64 MR_SEP "events=%zu" MR_SEP
            "holes=%zu",
            p->name, batch->expected + 1, batch->reached, batch->handled, batch->hole_count);
}

/* A save that could not be written is tried again: what it tells of has happened. */
static bool keep_save(mr_place *p, mr_batch **save)
{
    mr_batch *batch = *save;
    if (batch->failure.fault != MR_FAULT_NOBODY || batch->fenced || p->save != NULL)
        return false;
    p->save = batch;
    *save = NULL;
    return true;
}

void mr__outcome_batch(mr_place *p, mr_batch **taken)
{
    mr_batch *batch = *taken;
    bool moved = batch->reached > batch->expected;
    if (moved) {
        committed(p, batch);
        progressed(p, batch->reached);
    }
    if (p->detached && p->saved == p->reached)
        p->unsaved = 0;
    int64_t wait = batch->count > 0 ? p->batch_pause : p->rest_left;
    p->rest_left = 0;
    if (batch->error == NULL) {
        mr__place_go_on(p, wait, "committed");
        return;
    }
    /* After a lost connection nobody knows whether the commit happened: the database does. */
    if (!moved)
        p->reload = true;
    batch->fenced = mr_error_code(batch->error) == MR_E_FENCED;
    batch_failed(p, batch);
    if (p->detached && !moved && !keep_save(p, taken)) {
        p->reached = p->saved;
        p->unsaved = 0;
    }
}

/* ---- Detached ------------------------------------------------------------------------------ */

static mr_error *note_delivered(mr_place *p, mr_batch *batch)
{
    if (p->save == NULL)
        MR_TRY(mr__place_make_batch(p, p->saved, &p->save));
    return mr__batch_pass_on(batch, p->save, batch->reached);
}

static bool save_due(const mr_place *p)
{
    int64_t age = mr__clock_now(p->worker->clock) - p->unsaved_at;
    return p->unsaved > 0 && (p->unsaved >= p->checkpoint_every || age >= p->checkpoint_age);
}

/* Saves what was delivered if the time has come: it is `due`, or an event after it failed. That one
 * may be tried for long, and what went well before it must not be done again for its sake. */
static void save_now(mr_place *p, bool due, bool guilty)
{
    bool paused = p->state == MR_PLACE_PAUSED;
    bool free_now = paused || p->state == MR_PLACE_IDLE || p->state == MR_PLACE_LOADING;
    if (p->state == MR_PLACE_RESTING && guilty) {
        p->rest_left = (int64_t)uv_timer_get_due_in(&p->timer) * 1000;
        (void)uv_timer_stop(&p->timer);
    } else if (!free_now || !(due || paused)) {
        return;
    }
    p->reload = p->reload || paused; /* what follows the save is for the controls to say */
    mr__dispatch_save(p);
}

void mr__outcome_delivered(mr_place *p, mr_batch *batch)
{
    mr_worker *w = p->worker;
    if (batch->reached > batch->expected) {
        mr_error *error = note_delivered(p, batch);
        if (error != NULL) {
            /* What cannot be written down will be delivered again. */
            mr_error_free(error);
            p->reload = true;
            p->reached = p->saved;
            mr__place_trouble(p, TROUBLE_MOST, "no memory");
            return;
        }
        if (p->unsaved == 0)
            p->unsaved_at = batch->begun; /* its first event may have been done right then */
        p->unsaved += (int64_t)batch->handled;
        p->reached = batch->reached;
        mr__count(w, MR_METRIC_EVENTS, (int64_t)batch->handled);
        mr__count(w, MR_METRIC_BATCHES, 1);
        progressed(p, batch->reached);
    }
    /* When it was told to come back, whoever told it waits for its checkpoint too. */
    bool due = save_due(p) || (p->unsaved > 0 && atomic_load(&p->recalled));
    bool guilty = batch->error != NULL && batch->failure.fault != MR_FAULT_NOBODY;
    if (batch->error != NULL)
        batch_failed(p, batch);
    else
        mr__place_go_on(p, due ? 0 : p->batch_pause, "delivered");
    if (w->life != MR_LIFE_RUNNING && w->life != MR_LIFE_STOPPING)
        return;
    if (p->owned && p->save != NULL && p->reached > p->saved)
        save_now(p, due, guilty);
}

/* ---- Replays ------------------------------------------------------------------------------- */

void mr__outcome_replayed(mr_place *p, mr_replay *replay)
{
    mr_worker *w = p->worker;
    if (replay->replayed + replay->failed > 0)
        mr__log(&w->logger, MR_INFO, "dead letters replayed",
                "consumer=%s" MR_SEP "replayed=%zu" MR_SEP "failed=%zu", p->name, replay->replayed,
                replay->failed);
    mr__count(w, MR_METRIC_REPLAYED, (int64_t)replay->replayed);
    p->reload = true; /* streams may be free again */
    mr_error *error = replay->error;
    replay->error = NULL;
    if (error == NULL)
        mr__place_go_on(p, 0, "replayed");
    else
        trouble(p, error);
    mr_error_free(error);
}
