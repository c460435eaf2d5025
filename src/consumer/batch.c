/* One batch from window to checkpoint: how it runs, in a transaction or detached.
 *
 * What must stay true: the checkpoint moves in the transaction that holds the effects, behind the
 * fence; what is reported as reached is committed (for a detached batch: was handled), nothing
 * beyond it is. */
#include "consumer/batch.h"

#include "handler/whole.h"

#include <stdlib.h>
#include <string.h>

mr_batch *mr__batch_new(void)
{
    return calloc(1, sizeof(mr_batch));
}

void mr__batch_free(mr_batch *batch)
{
    if (batch == NULL)
        return;
    for (size_t i = 0; i < batch->window_count; i++)
        mr__window_unref(batch->windows[i]);
    free(batch->windows);
    free((void *)batch->events);
    for (size_t i = 0; i < batch->aside_count; i++)
        mr_error_free(batch->asides[i].sentence.error);
    free(batch->asides);
    free(batch->holes);
    mr_error_free(batch->error);
    free(batch);
}

mr_error *mr__batch_add_event(mr_batch *batch, const mr_event *event)
{
    if (batch->count == batch->capacity) {
        size_t capacity = batch->capacity == 0 ? 64 : batch->capacity * 2;
        const mr_event **grown = realloc((void *)batch->events, capacity * sizeof(*grown));
        if (grown == NULL)
            return mr__error_nomem();
        batch->events = grown;
        batch->capacity = capacity;
    }
    batch->events[batch->count++] = event;
    return NULL;
}

mr_error *mr__batch_add_aside(mr_batch *batch, int kind, const mr_event *event,
                              const mr_sentence *sentence)
{
    if (batch->aside_count == batch->aside_capacity) {
        size_t capacity = batch->aside_capacity == 0 ? 8 : batch->aside_capacity * 2;
        mr_aside *grown = realloc(batch->asides, capacity * sizeof(*grown));
        if (grown == NULL)
            return mr__error_nomem();
        batch->asides = grown;
        batch->aside_capacity = capacity;
    }
    mr_aside *aside = &batch->asides[batch->aside_count++];
    *aside = (mr_aside){.event = event};
    aside->kind = kind;
    if (sentence != NULL) {
        aside->sentence = *sentence;
        aside->sentence.error = mr__error_copy(sentence->error);
    }
    return NULL;
}

mr_error *mr__batch_add_window(mr_batch *batch, mr_window *window)
{
    mr_window **grown = realloc(batch->windows, (batch->window_count + 1) * sizeof(*grown));
    if (grown == NULL)
        return mr__error_nomem();
    batch->windows = grown;
    batch->windows[batch->window_count++] = mr__window_ref(window);
    return NULL;
}

static mr_error *add_hole(mr_batch *batch, mr_hole hole)
{
    mr_hole *grown = realloc(batch->holes, (batch->hole_count + 1) * sizeof(*grown));
    if (grown == NULL)
        return mr__error_nomem();
    batch->holes = grown;
    batch->holes[batch->hole_count++] = hole;
    return NULL;
}

mr_error *mr__batch_add_holes(mr_batch *batch, const mr_window *window, int64_t from, int64_t to)
{
    batch->server = window->server;
    for (size_t i = 0; i < window->hole_count; i++) {
        mr_hole hole = window->holes[i];
        if (hole.last <= from || hole.first > to)
            continue;
        /* A checkpoint may stand inside a hole, when another strategy or a start position put it
         * there. */
        hole.first = hole.first > from ? hole.first : from + 1;
        hole.last = hole.last < to ? hole.last : to;
        MR_TRY(add_hole(batch, hole));
    }
    return NULL;
}

mr_error *mr__batch_pass_on(mr_batch *from, mr_batch *to, int64_t reached)
{
    to->server = from->server;
    for (size_t i = 0; i < from->hole_count; i++) {
        mr_hole hole = from->holes[i];
        if (hole.first > reached)
            continue;
        hole.last = hole.last < reached ? hole.last : reached;
        MR_TRY(add_hole(to, hole));
    }
    bool kept = false;
    for (size_t i = 0; i < from->aside_count; i++) {
        if (from->asides[i].event->position > reached)
            continue;
        const mr_aside *aside = &from->asides[i];
        MR_TRY(mr__batch_add_aside(to, (int)aside->kind, aside->event,
                                   aside->kind == MR_ASIDE_POISON ? &aside->sentence : NULL));
        kept = true;
    }
    for (size_t i = 0; kept && i < from->window_count; i++)
        MR_TRY(mr__batch_add_window(to, from->windows[i]));
    return NULL;
}

/* ---- Payloads ------------------------------------------------------------------------------ */

/* In a short transaction of its own: the handler is about to work without one. */
static mr_error *fetch(const mr_run *run, mr_session *session, mr_whole *whole)
{
    mr_tx *tx = NULL;
    MR_TRY(mr__tx_begin(session, run->deadline, &tx));
    mr_error *error = mr__whole_load(tx, run, whole);
    if (error == NULL)
        return mr__tx_commit(tx, NULL);
    mr_error_free(mr__tx_rollback(tx, NULL));
    return error;
}

/* ---- In a transaction ---------------------------------------------------------------------- */

static mr_run run_of(const mr_batch *batch, int64_t deadline)
{
    return (mr_run){.events = batch->events,
                    .count = batch->count,
                    .from = batch->expected,
                    .to = batch->target,
                    .some = batch->some || batch->aside_count > 0,
                    .shape = batch->shape,
                    .consumer = batch->consumer,
                    .attempt = batch->attempt,
                    .deadline = deadline,
                    .clock = batch->clock,
                    .cancelled = batch->cancelled,
                    .logger = batch->logger};
}

/* The run narrowed to one of its events. */
static mr_run run_one(const mr_run *whole, size_t index)
{
    mr_run one = *whole;
    one.events = whole->events + index;
    one.count = 1;
    one.from = one.events[0]->position - 1;
    one.to = one.events[0]->position;
    return one;
}

/* The position just before an event: where a batch ends that could not handle it. */
static int64_t before(const mr_batch *batch, size_t index)
{
    return index < batch->count ? batch->events[index]->position - 1 : batch->target;
}

static void blame(mr_batch *batch, size_t index, bool proven)
{
    /* What failed at the commit names nobody, but an event that is alone has nobody to share with.
     */
    if (batch->count == 1)
        index = 0;
    if (index >= batch->count)
        return;
    batch->failure.position = batch->events[index]->position;
    /* With events set aside before it, the next attempt writes those down first. */
    batch->failure.proven = proven || (batch->count == 1 && batch->aside_count == 0);
}

static bool stopping(const mr_batch *batch)
{
    return batch->cancelled != NULL && atomic_load(batch->cancelled);
}

/* Notes an error (taken): whose it is, and that it counts for the event at `index`. */
static void note(mr_batch *batch, mr_error *error, bool own, size_t index, bool proven)
{
    batch->error = error;
    batch->failure.fault = mr__fault_of(error, own, stopping(batch));
    blame(batch, index, proven);
}

/* The fence as MR_SERVER_SQL raised it, in words that say so. */
static mr_error *name_other_server(mr_error *error)
{
    if (strcmp(mr_error_sqlstate(error), "MR002") != 0 ||
        strstr(mr_error_message(error), "not at -1 ") == NULL)
        return error;
    mr_error_free(error);
    return mr__error_db(MR_E_FENCED, "MR002", false,
                        "its events were read from another server than the one that answers now");
}

/* Ends a transaction that failed by the handler's own error, unless a statement of it failed on the
 * server: that is the cause. */
static void give_up(mr_batch *batch, mr_tx *tx, mr_error *own)
{
    int current = mr__tx_current(tx), failed = -1;
    mr_error *server = mr__tx_rollback(tx, &failed);
    if (server == NULL) {
        note(batch, own, true, current < 0 ? batch->count : (size_t)current, false);
        return;
    }
    mr_error_free(own);
    note(batch, name_other_server(server), false, failed < 0 ? batch->count : (size_t)failed,
         false);
}

static void end(mr_batch *batch, mr_tx *tx, int64_t upto, size_t handled)
{
    int failed = -1;
    mr_error *error = mr__tx_commit(tx, &failed);
    if (error == NULL) {
        batch->reached = upto;
        batch->handled = handled;
        return;
    }
    mr_error_free(batch->error);
    batch->failure = (mr_failure){.end = batch->failure.end};
    note(batch, name_other_server(error), false, failed < 0 ? batch->count : (size_t)failed, false);
}

static mr_error *begin(mr_batch *batch, mr_session *session, int64_t deadline, int64_t to,
                       mr_tx **tx)
{
    MR_TRY(mr__tx_begin(session, deadline, tx));
    return mr__batch_advance(batch, *tx, to);
}

/* All events together; with `answers` the handler has done its part before. */
static void run_whole(mr_batch *batch, mr_session *session, const mr_run *run,
                      const mr_answers *answers, size_t good)
{
    int64_t upto = before(batch, good);
    mr_tx *tx = NULL;
    mr_error *error = begin(batch, session, run->deadline, upto, &tx);
    if (tx == NULL) {
        note(batch, error, false, batch->count, false);
        return;
    }
    if (error == NULL)
        error = mr__batch_audit(batch, tx, upto);
    if (error == NULL && good > 0)
        error = answers != NULL ? batch->handler->apply(batch->handler, tx, run, answers, good)
                                : batch->handler->run(batch->handler, tx, run);
    if (error != NULL)
        give_up(batch, tx, error);
    else
        end(batch, tx, upto, good);
}

/* First the handler's slow part without a transaction, then what it asked for in one. Answers tell
 * which events went well, so those are kept. */
static void run_talk(mr_batch *batch, mr_session *session, const mr_run *run)
{
    size_t good = 0;
    bool sure = false;
    mr_answers *answers = NULL;
    mr_error *own = batch->handler->talk(batch->handler, run, &good, &sure, &answers);
    bool late = own != NULL && mr_error_code(own) == MR_E_TIMEOUT && good > 0;
    mr_run rest = *run;
    rest.deadline = mr__clock_now(batch->clock) + batch->timeout;
    if (own == NULL || before(batch, good) > batch->expected)
        run_whole(batch, session, &rest, answers, good);
    batch->handler->forget(answers);
    /* The answers' error stands when what came before it is safe. Time that ran out after some
     * events were answered proves nothing: the rest may only have begun too late. */
    if (own != NULL && batch->error == NULL)
        note(batch, own, true, good, sure && !late);
    else
        mr_error_free(own);
}

/* Runs the events one by one, each behind a mark, until one fails; `*done` is how many went well as
 * far as is known. */
static mr_error *run_marked(mr_batch *batch, mr_tx *tx, const mr_run *run, size_t *done)
{
    for (*done = 0; *done < batch->count; (*done)++) {
        mr_run one = run_one(run, *done);
        mr__tx_tag_from(tx, (int)*done);
        mr__tx_tag(tx, 0);
        MR_TRY(mr__tx_mark(tx));
        MR_TRY(batch->handler->run(batch->handler, tx, &one));
        mr__tx_tag(tx, 0);
        MR_TRY(mr__tx_unmark(tx));
    }
    mr__tx_tag_from(tx, 0);
    mr__tx_tag(tx, -1);
    return mr__tx_settle(tx);
}

/* After an error (taken) in marked events: undoes the one that failed, keeps those before it. An
 * error returned means that the transaction cannot go on. */
static mr_error *keep_prefix(mr_batch *batch, mr_tx *tx, mr_error *own, size_t *done)
{
    mr_error *server = NULL;
    int failed = -1;
    int64_t deadline = mr__clock_now(batch->clock) + batch->timeout;
    mr_error *error = mr__tx_undo(tx, deadline, &server, &failed);
    mr__tx_tag_from(tx, 0);
    mr__tx_tag(tx, -1);
    if (server != NULL) {
        mr_error_free(own);
        own = NULL;
    }
    if (error != NULL || (server != NULL && failed < 0)) {
        /* The connection, a forced stop, or the fence itself: nothing can be kept. */
        mr_error_free(own);
        if (error == NULL)
            return server;
        mr_error_free(server);
        return error;
    }
    if (failed >= 0)
        *done = (size_t)failed;
    bool late = mr_error_code(server != NULL ? server : own) == MR_E_TIMEOUT && *done > 0;
    if (late) {
        /* Time ran out for all of them together; those that are left have their own turn. */
        mr_error_free(server);
        mr_error_free(own);
    } else {
        note(batch, server != NULL ? server : own, server == NULL, *done, true);
    }
    return NULL;
}

/* A savepoint an event: the good ones before the first that fails are kept. */
static void run_isolated(mr_batch *batch, mr_session *session, const mr_run *run)
{
    mr_tx *tx = NULL;
    size_t done = 0;
    mr_error *error = begin(batch, session, run->deadline, batch->expected, &tx);
    if (tx == NULL) {
        note(batch, error, false, batch->count, false);
        return;
    }
    if (error == NULL)
        error = run_marked(batch, tx, run, &done);
    if (error != NULL)
        error = keep_prefix(batch, tx, error, &done);
    int64_t upto = before(batch, done);
    if (error == NULL)
        error = mr__batch_audit(batch, tx, upto);
    if (error == NULL && upto > batch->expected)
        error = mr__batch_advance(batch, tx, upto);
    if (error == NULL) {
        end(batch, tx, upto, done);
        return;
    }
    mr_error_free(batch->error);
    batch->error = NULL;
    batch->failure = (mr_failure){.end = batch->failure.end};
    mr_error *server = mr__tx_rollback(tx, NULL);
    mr_error_free(server == NULL ? NULL : error);
    note(batch, name_other_server(server == NULL ? error : server), false, batch->count, false);
}

/* Whoever wants to know of dead letters hears of those that are committed now. */
static void tell(const mr_batch *batch)
{
    if (batch->on_dead_letter == NULL)
        return;
    for (size_t i = 0; i < batch->aside_count; i++)
        if (batch->asides[i].kind == MR_ASIDE_POISON &&
            batch->asides[i].event->position <= batch->reached)
            batch->on_dead_letter(batch->on_dead_letter_user, batch->consumer,
                                  batch->asides[i].event, batch->asides[i].sentence.error,
                                  batch->asides[i].sentence.attempts);
}

static void outcome_init(mr_batch *batch)
{
    batch->reached = batch->expected;
    batch->failure = (mr_failure){.end = batch->target};
}

void mr__batch_run(mr_batch *batch, mr_session *session)
{
    int64_t trips = mr__session_round_trips(session);
    outcome_init(batch);
    mr_run run = run_of(batch, mr__clock_now(batch->clock) + batch->timeout);
    mr_whole whole = {0};
    mr_error *error = NULL;
    bool talks = batch->count > 0 && batch->mode == MR_MODE_WHOLE && batch->handler->talk != NULL;
    if (talks && mr__whole_needed(&run)) {
        error = fetch(&run, session, &whole);
        run.events = whole.events;
    }
    if (error != NULL)
        note(batch, error, false, batch->count, false);
    else if (talks)
        run_talk(batch, session, &run);
    else if (batch->count > 0 && batch->mode == MR_MODE_ISOLATE)
        run_isolated(batch, session, &run);
    else
        run_whole(batch, session, &run, NULL, batch->count);
    mr__whole_free(&whole);
    if (batch->reached > batch->expected)
        tell(batch);
    batch->round_trips = mr__session_round_trips(session) - trips;
}

/* ---- Detached ------------------------------------------------------------------------------ */

/* One by one, so that a handler of whole batches shows which event it cannot take. */
static mr_error *deliver_isolated(mr_batch *batch, const mr_run *run, size_t *good)
{
    for (*good = 0; *good < batch->count; (*good)++) {
        mr_run one = run_one(run, *good);
        size_t done = 0;
        if (*good > 0 && mr__run_enough(run))
            break;
        if (*good > 0)
            MR_TRY(mr__run_check(run));
        MR_TRY(batch->handler->deliver(batch->handler, &one, &done));
    }
    return NULL;
}

/* A detached handler may take its time, and a connection that only waits is one too many. */
static mr_error *fetch_apart(const mr_run *run, const mr_sessions *sessions, mr_whole *whole)
{
    mr_session *session = NULL;
    MR_TRY(sessions->open(sessions->user, &session));
    mr_error *error = fetch(run, session, whole);
    if (sessions->leave != NULL)
        sessions->leave(sessions->user);
    return error;
}

void mr__batch_deliver(mr_batch *batch, const mr_sessions *sessions)
{
    outcome_init(batch);
    mr_whole whole = {0};
    mr_error *error = NULL;
    mr_run run = run_of(batch, mr__clock_now(batch->clock) + batch->timeout);
    run.save_by = batch->save_by;
    run.recalled = batch->recalled;
    if (mr__whole_needed(&run)) {
        error = fetch_apart(&run, sessions, &whole);
        run.events = whole.events;
    }
    if (error != NULL) {
        note(batch, error, false, batch->count, false);
        mr__whole_free(&whole);
        return;
    }
    size_t good = 0;
    bool isolated = batch->mode != MR_MODE_WHOLE;
    error = isolated ? deliver_isolated(batch, &run, &good)
                     : batch->handler->deliver(batch->handler, &run, &good);
    batch->handled = good;
    batch->reached = before(batch, good);
    bool late = error != NULL && mr_error_code(error) == MR_E_TIMEOUT && good > 0;
    /* A handler of whole batches says 0 and blames nobody; one of events means the next one. */
    if (error != NULL)
        note(batch, error, true, good, !late && (isolated || good > 0 || batch->handler->counts));
    mr__whole_free(&whole);
}
