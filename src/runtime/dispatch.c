/* Consumers between windows and executors: gathers batches, hands them over, deals with what comes
 * back.
 *
 * What must stay true: a consumer has at most one batch in flight; `saved` is what the database
 * has, or `reload` is set; a wake-up that comes while a consumer is busy is not lost because every
 * finished batch looks at the windows again. */
#include "runtime/worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    SCAN_MOST = 20000,      /* rows looked at for one batch before others get their turn */
    BATCH_BYTES = 16 << 20, /* payload bytes of one batch */
    FLUSH_AFTER = 250000,   /* microseconds an advance over foreign events may stay unsaved */
    TROUBLE_FIRST = 100000, /* backoff when it was nobody's fault: the server went away … */
    TROUBLE_MOST = 5000000,
    ROW_HELD_MOST = 500000, /* … or the row is held, by the old owner's batch perhaps */
};

static void step(mr_place *p);
static void load_some(mr_worker *w, mr_aconn *conn, bool follow);

static int64_t now(const mr_worker *w)
{
    return mr__clock_now(w->clock);
}

void mr__place_set_state(mr_place *p, mr_place_state state, const char *why)
{
    static const char *const names[] = {"away", "loading", "idle", "running", "resting", "paused"};
    if (p->state == state)
        return;
    mr__log(&p->worker->logger, MR_DEBUG, "consumer state",
            "consumer=%s" MR_SEP "from=%s" MR_SEP "to=%s" MR_SEP "why=%s", p->name, names[p->state],
            names[state], why);
    p->state = state;
}

static void rest(mr_place *p, int64_t micros, const char *why)
{
    mr__place_set_state(p, MR_PLACE_RESTING, why);
    (void)uv_timer_start(&p->timer, mr__dispatch_timer, (uint64_t)(micros / 1000), 0);
}

void mr__place_drop_draft(mr_place *p)
{
    mr__batch_free(p->draft);
    p->draft = NULL;
    p->dirty_at = 0;
}

/* Exponential with jitter: between half of it and all of it. */
static int64_t backoff(int64_t first, int64_t most, int attempt)
{
    int64_t wait = first;
    for (int i = 1; i < attempt && wait < most; i++)
        wait *= 2;
    if (wait > most)
        wait = most;
    return wait / 2 + mr__random_upto(wait / 2);
}

/* ---- Gathering ----------------------------------------------------------------------------- */

static mr_error *make_draft(mr_place *p)
{
    mr_worker *w = p->worker;
    p->draft = mr__batch_new();
    if (p->draft == NULL)
        return mr__error_nomem();
    mr_gap_strategy strategy = (mr_gap_strategy)mr__bag_number(&w->conf->bag, MR_OPT_GAP_STRATEGY);
    p->draft->consumer = p->name;
    p->draft->worker_id = w->id;
    p->draft->strategy = mr__gap_strategy_name(strategy);
    p->draft->sql = &w->batch_sql;
    p->draft->shape = &w->shape;
    p->draft->clock = w->clock;
    p->draft->handler = p->handler;
    p->draft->timeout = p->batch_timeout;
    p->draft->expected = p->saved;
    p->draft->target = p->saved;
    p->draft->owner = p;
    return NULL;
}

/* Takes what matches from one window; `*scanned` and `*bytes` bound the batch over all of them. */
static mr_error *gather_window(mr_place *p, mr_window *window, size_t *scanned, size_t *bytes)
{
    mr_batch *d = p->draft;
    int64_t upto = window->to;
    bool took = false;
    for (size_t i = mr__window_seek(window, d->target); i < window->count; i++) {
        const mr_event *event = &window->events[i];
        (*scanned)++;
        if (!mr__filter_matches(&p->filter, event))
            continue;
        MR_TRY(mr__batch_add_event(d, event));
        took = true;
        *bytes += event->payload_length;
        if ((int64_t)d->count >= p->batch_size || *bytes >= BATCH_BYTES) {
            upto = event->position;
            break;
        }
    }
    if (took)
        MR_TRY(mr__batch_add_window(d, window));
    MR_TRY(mr__batch_add_holes(d, window, d->target, upto));
    d->target = upto;
    return NULL;
}

static mr_error *gather(mr_place *p)
{
    if (p->draft == NULL)
        MR_TRY(make_draft(p));
    size_t scanned = 0, bytes = 0;
    while ((int64_t)p->draft->count < p->batch_size && bytes < BATCH_BYTES && scanned < SCAN_MOST) {
        mr_window *window = mr__reader_find(p->worker->reader, p->draft->target);
        if (window == NULL)
            break;
        MR_TRY(gather_window(p, window, &scanned, &bytes));
    }
    return NULL;
}

/* ---- Handing over -------------------------------------------------------------------------- */

static void hand_over(mr_place *p)
{
    mr_batch *batch = p->draft;
    p->draft = NULL;
    p->dirty_at = 0;
    p->target = batch->target;
    mr__place_set_state(p, MR_PLACE_RUNNING, "batch");
    p->worker->running++;
    /* A consumer far behind reads its next stretch while this one is handled. */
    if (mr__reader_find(p->worker->reader, batch->target) == NULL)
        mr__reader_want(p->worker->reader, batch->target);
    mr__executors_submit(p->worker->executors, batch);
}

static bool once_reached(const mr_worker *w, int64_t position)
{
    return w->once_target >= 0 && position >= w->once_target;
}

/* The advance over events that were not for this consumer is saved, but not for each window anew.
 */
static bool flush_due(mr_place *p)
{
    mr_worker *w = p->worker;
    if (p->draft->target == p->saved)
        return false;
    if (p->dirty_at == 0)
        p->dirty_at = now(w);
    int64_t left = p->dirty_at + FLUSH_AFTER - now(w);
    if (left <= 0 || once_reached(w, p->draft->target))
        return true;
    /* Anew each time: the loop's clock lags behind ours, so a timer may come a little too early. */
    (void)uv_timer_start(&p->timer, mr__dispatch_timer, (uint64_t)(left / 1000 + 1), 0);
    return false;
}

static void step(mr_place *p)
{
    mr_worker *w = p->worker;
    if (p->state != MR_PLACE_IDLE || w->life != MR_LIFE_RUNNING || !mr__reader_ready(w->reader))
        return;
    mr_error *error = gather(p);
    if (error != NULL) {
        /* Only memory can be short here: let go of everything and try again. */
        mr__log(&w->logger, MR_ERROR, "gathering a batch failed", "consumer=%s" MR_SEP "error=%s",
                p->name, mr_error_message(error));
        mr_error_free(error);
        mr__place_drop_draft(p);
        rest(p, TROUBLE_MOST, "no memory");
        return;
    }
    if (p->draft->count > 0 || flush_due(p)) {
        hand_over(p);
        return;
    }
    if (p->draft->target < mr__reader_tail(w->reader))
        mr__reader_want(w->reader, p->draft->target);
}

/* From where on it needs windows next. */
static int64_t place_of(const mr_place *p)
{
    if (p->state == MR_PLACE_RUNNING)
        return p->target;
    return p->draft != NULL ? p->draft->target : p->saved;
}

/* Tells the reader which windows are still needed, and ends a `once` run when everybody is there.
 */
void mr__dispatch_settle(mr_worker *w)
{
    int64_t lowest = -1;
    bool waiting = false, all_done = w->once_target >= 0;
    for (size_t i = 0; i < w->place_count; i++) {
        mr_place *p = w->places[i];
        all_done = all_done && once_reached(w, p->saved) &&
                   (p->state == MR_PLACE_IDLE || p->state == MR_PLACE_AWAY);
        if (p->state == MR_PLACE_PAUSED || p->state == MR_PLACE_AWAY)
            continue;
        int64_t place = place_of(p);
        if (lowest < 0 || place < lowest)
            lowest = place;
        waiting = waiting || (p->state == MR_PLACE_IDLE && place >= mr__reader_tail(w->reader));
    }
    if (w->life == MR_LIFE_RUNNING)
        mr__reader_places(w->reader, lowest, waiting);
    if (all_done && w->life == MR_LIFE_RUNNING)
        mr__worker_stop_begin(w, "drained");
}

void mr__dispatch_progress(mr_worker *w)
{
    if (w->life != MR_LIFE_RUNNING)
        return;
    bool once = mr__bag_number(&w->conf->bag, MR_OPT_ONCE) != 0;
    /* Before the reader has looked, its head is nothing: a target of 0 would end the run undone. */
    if (once && w->once_target < 0 && mr__reader_ready(w->reader))
        w->once_target = mr__reader_head(w->reader);
    for (size_t i = 0; i < w->place_count; i++)
        step(w->places[i]);
    mr__dispatch_settle(w);
}

void mr__dispatch_timer(uv_timer_t *timer)
{
    mr_place *p = timer->data;
    mr_worker *w = p->worker;
    if (w->life != MR_LIFE_RUNNING)
        return;
    if (p->state == MR_PLACE_RESTING && p->reload) {
        mr__place_set_state(p, MR_PLACE_LOADING, "reload");
        load_some(w, w->control, false);
        return;
    }
    if (p->state == MR_PLACE_RESTING)
        mr__place_set_state(p, MR_PLACE_IDLE, "rested");
    step(p);
    mr__dispatch_settle(w);
}

/* ---- Checkpoints --------------------------------------------------------------------------- */

/* Only for who waits for it: the answer may be older than a batch that has committed since. */
static void place_loaded(mr_place *p, int64_t position)
{
    if (p->state != MR_PLACE_LOADING && p->state != MR_PLACE_AWAY)
        return;
    mr__place_drop_draft(p);
    p->saved = position;
    p->reload = false;
    p->missing = false;
    if (p->state != MR_PLACE_LOADING)
        return;
    mr__place_set_state(p, MR_PLACE_IDLE, "checkpoint read");
    mr__reader_raise(p->worker->reader, position);
}

static void pause_place(mr_place *p, mr_error *error)
{
    mr_error_free(p->last_error);
    p->last_error = error;
    mr__place_drop_draft(p);
    mr__place_set_state(p, MR_PLACE_PAUSED, "failures");
    mr__control_tell(p->worker);
    mr__log(&p->worker->logger, MR_ERROR, "consumer paused",
            "consumer=%s" MR_SEP "error=%s" MR_SEP "failures=%d" MR_SEP
            "hint=mend the cause, then restart the worker",
            p->name, mr_error_message(error), p->failures);
    if (mr__bag_number(&p->worker->conf->bag, MR_OPT_ONCE) != 0)
        mr__worker_fail(p->worker,
                        mr__error_prefix(mr__error_copy(error), "consumer '%s' paused", p->name));
}

/* Its row was not among the answers. That answer may be to a question from before the consumer
 * came, so the row counts as gone only when a second look does not find it either. */
static void place_missing(mr_place *p)
{
    if (p->state != MR_PLACE_LOADING && p->state != MR_PLACE_IDLE)
        return;
    if (p->missing) {
        pause_place(p, mr__error(MR_E_STATE,
                                 "its row in consumer_checkpoints is gone; a restart makes "
                                 "a new one at start_from"));
        return;
    }
    p->missing = true;
    p->reload = true;
    mr__place_drop_draft(p);
    rest(p, TROUBLE_FIRST, "no checkpoint found");
}

static void take_checkpoints(mr_worker *w, const PGresult *rows)
{
    for (size_t i = 0; i < w->place_count; i++) {
        mr_place *p = w->places[i];
        bool found = false;
        for (int row = 0; row < PQntuples(rows) && !found; row++) {
            found = strcmp(PQgetvalue(rows, row, 0), p->name) == 0;
            if (found)
                place_loaded(p, strtoll(PQgetvalue(rows, row, 1), NULL, 10));
        }
        if (!found)
            place_missing(p);
    }
}

static void on_checkpoints(mr_worker *w, PGresult **results, mr_error *error, bool follow)
{
    if (w->life != MR_LIFE_RUNNING) {
        mr_error_free(error);
        return;
    }
    if (error != NULL) {
        mr__log(&w->logger, MR_WARN, "reading checkpoints failed", "error=%s",
                mr_error_message(error));
        mr_error_free(error);
        for (size_t i = 0; i < w->place_count; i++) {
            mr_place *p = w->places[i];
            if (p->state == MR_PLACE_LOADING && !follow) {
                p->reload = true;
                rest(p, backoff(TROUBLE_FIRST, TROUBLE_MOST, ++p->troubles), "reload failed");
            }
        }
        if (follow)
            mr__aconn_restart(mr__reader_conn(w->reader), "checkpoints could not be read");
        return;
    }
    take_checkpoints(w, results[0]);
    if (follow) {
        int64_t tail = 0;
        for (size_t i = 0; i < w->place_count; i++)
            if (w->places[i]->saved > tail && w->places[i]->owned)
                tail = w->places[i]->saved;
        mr__reader_follow(w->reader, tail);
        return;
    }
    mr__dispatch_progress(w);
}

static void on_checkpoints_all(void *user, PGresult **results, mr_error *error)
{
    on_checkpoints(user, results, error, true);
}

static void on_checkpoints_some(void *user, PGresult **results, mr_error *error)
{
    on_checkpoints(user, results, error, false);
}

static void load_some(mr_worker *w, mr_aconn *conn, bool follow)
{
    char *array = mr__worker_names(w);
    if (array == NULL) {
        mr__worker_fail(w, mr__error_nomem());
        return;
    }
    mr_flight_statement load = {.sql = w->checkpoints_sql, .count = 1, .values = {array}};
    mr__aconn_send(conn, &load, 1, follow ? on_checkpoints_all : on_checkpoints_some, w);
    free(array);
}

void mr__dispatch_reload(mr_worker *w)
{
    load_some(w, w->control, false);
}

void mr__dispatch_load(mr_worker *w)
{
    for (size_t i = 0; i < w->place_count; i++) {
        mr_place *p = w->places[i];
        mr__place_drop_draft(p);
        if (p->state == MR_PLACE_IDLE)
            mr__place_set_state(p, MR_PLACE_LOADING, "reconnected");
    }
    load_some(w, mr__reader_conn(w->reader), true);
}

/* ---- What came back ------------------------------------------------------------------------ */

/* The server or the connection, not the handler: tried again without being held against anybody.
 * What a handler itself calls a lost connection is its own affair. */
static bool nobodys_fault(const mr_worker *w, const mr_batch *batch, const mr_error *error)
{
    mr_code code = mr_error_code(error);
    if (batch->handlers_own)
        return code == MR_E_CANCELLED && atomic_load(&w->cancelled);
    return code == MR_E_CONNECT || code == MR_E_FENCED || code == MR_E_CANCELLED ||
           (mr_error_sqlstate(error)[0] != '\0' && mr_error_retryable(error));
}

static void batch_failed(mr_place *p, mr_batch *batch)
{
    mr_worker *w = p->worker;
    mr_error *error = batch->error;
    batch->error = NULL;
    mr__count(w, MR_METRIC_BATCHES_FAILED, 1);
    if (mr_error_code(error) == MR_E_FENCED)
        mr__count(w, MR_METRIC_FENCED, 1);
    /* After a lost connection nobody knows whether the commit happened: the database does. */
    p->reload = true;
    if (nobodys_fault(w, batch, error)) {
        bool fenced = mr_error_code(error) == MR_E_FENCED;
        mr__log(&w->logger, MR_WARN, fenced ? "batch fenced off" : "batch will be tried again",
                "consumer=%s" MR_SEP "error=%s" MR_SEP "sqlstate=%s", p->name,
                mr_error_message(error), mr_error_sqlstate(error));
        int64_t most =
            strcmp(mr_error_sqlstate(error), "55P03") == 0 ? ROW_HELD_MOST : TROUBLE_MOST;
        mr_error_free(error);
        rest(p, backoff(TROUBLE_FIRST, most, ++p->troubles), "trouble");
        return;
    }
    p->failures++;
    mr__control_tell(w);
    int64_t first = mr__bag_number(&w->conf->bag, MR_OPT_POLL_INTERVAL);
    int64_t most = mr__bag_number(&w->conf->bag, MR_OPT_MAX_POLL_INTERVAL);
    int64_t wait = backoff(first, most < first ? first : most, p->failures);
    bool over = p->max_failures > 0 && p->failures >= p->max_failures;
    mr__log(&w->logger, MR_ERROR, "batch failed",
            "consumer=%s" MR_SEP "error=%s" MR_SEP "sqlstate=%s" MR_SEP "position=%" PRId64 MR_SEP
            "from=%" PRId64 MR_SEP "to=%" PRId64 MR_SEP "failures=%d" MR_SEP "retry_ms=%" PRId64,
            p->name, mr_error_message(error), mr_error_sqlstate(error), batch->failed_position,
            batch->expected + 1, batch->target, p->failures, over ? (int64_t)-1 : wait / 1000);
    if (over && p->fatal) {
        mr__worker_fail(w, mr__error_prefix(error, "consumer '%s' failed %d times in a row",
                                            p->name, p->failures));
        mr__place_set_state(p, MR_PLACE_PAUSED, "fatal");
        return;
    }
    if (over) {
        pause_place(p, error);
        return;
    }
    mr_error_free(p->last_error);
    p->last_error = error;
    rest(p, wait, "failed");
}

static void batch_committed(mr_place *p, const mr_batch *batch)
{
    mr_worker *w = p->worker;
    mr__count(w, MR_METRIC_BATCHES, 1);
    mr__count(w, MR_METRIC_EVENTS, (int64_t)batch->count);
    if (p->failures > 0) {
        mr__control_tell(w);
        mr__log(&w->logger, MR_INFO, "consumer recovered", "consumer=%s" MR_SEP "failures=%d",
                p->name, p->failures);
    }
    p->failures = 0;
    p->troubles = 0;
    p->saved = batch->target;
    mr__log(&w->logger, MR_DEBUG, "batch committed",
            "consumer=%s" MR_SEP "from=%" PRId64 MR_SEP "to=%" PRId64 MR_SEP "events=%zu" MR_SEP
            "holes=%zu",
            p->name, batch->expected + 1, batch->target, batch->count, batch->hole_count);
    if (p->batch_pause > 0 && batch->count > 0)
        rest(p, p->batch_pause, "batch_pause");
    else
        mr__place_set_state(p, MR_PLACE_IDLE, "committed");
}

void mr__dispatch_done(mr_worker *w)
{
    mr_batch *batch = mr__executors_done(w->executors);
    bool any = batch != NULL;
    while (batch != NULL) {
        mr_batch *next = batch->next;
        mr_place *p = batch->owner;
        w->running--;
        mr__count(w, MR_METRIC_ROUND_TRIPS, batch->round_trips);
        if (batch->error == NULL)
            batch_committed(p, batch);
        else
            batch_failed(p, batch);
        mr__batch_free(batch);
        batch = next;
        if (!p->owned)
            mr__place_let_go(p);
        else if (w->life == MR_LIFE_RUNNING)
            step(p);
    }
    if (any && w->life == MR_LIFE_RUNNING)
        mr__dispatch_settle(w);
    if (any)
        mr__control_quiet(w);
    if (any && w->life == MR_LIFE_STOPPING)
        mr__worker_settle_stop(w);
}

bool mr__dispatch_quiet(const mr_worker *w)
{
    return w->running == 0;
}
