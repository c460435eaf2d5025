/* Consumers between windows and executors: gathers batches and hands them over.
 *
 * What must stay true: a consumer has at most one errand under way; `saved` is what the database
 * has, or `reload` is set; a wake-up that comes while a consumer is busy is not lost because every
 * finished errand looks at the windows again. */
#include "runtime/worker.h"

enum {
    FLUSH_AFTER = 250000, /* microseconds an advance over foreign events may stay unsaved */
    NO_MEMORY_WAIT = 5000000,
};

static int64_t now(const mr_worker *w)
{
    return mr__clock_now(w->clock);
}

/* ---- States -------------------------------------------------------------------------------- */

void mr__place_set_state(mr_place *p, mr_place_state state, const char *why)
{
    static const char *const names[] = {"away", "loading", "idle", "running", "resting", "paused"};
    if (p->state == state)
        return;
    mr__log(&p->worker->logger, MR_DEBUG, "consumer state",
            "consumer=%s" MR_SEP "from=%s" MR_SEP "to=%s" MR_SEP "why=%s", p->name, names[p->state],
            names[state], why);
    p->state = state;
    p->unnoted = false; /* a pause that is over needs no telling */
}

void mr__place_rest(mr_place *p, int64_t micros, const char *why)
{
    mr__place_set_state(p, MR_PLACE_RESTING, why);
    (void)uv_timer_start(&p->timer, mr__dispatch_timer, (uint64_t)(micros / 1000), 0);
}

void mr__place_go_on(mr_place *p, int64_t wait, const char *why)
{
    if (wait > 0) {
        mr__place_rest(p, wait, why);
    } else if (p->reload && p->owned && p->worker->life == MR_LIFE_RUNNING) {
        mr__place_set_state(p, MR_PLACE_LOADING, why);
        mr__loading_some(p->worker);
    } else {
        mr__place_set_state(p, MR_PLACE_IDLE, why);
    }
}

void mr__place_drop_draft(mr_place *p)
{
    mr__batch_free(p->draft);
    p->draft = NULL;
    p->dirty_at = 0;
}

/* ---- Gathering ----------------------------------------------------------------------------- */

mr_error *mr__place_make_batch(mr_place *p, int64_t from, mr_batch **out)
{
    mr_worker *w = p->worker;
    mr_batch *b = mr__batch_new();
    if (b == NULL)
        return mr__error_nomem();
    mr_gap_strategy strategy = (mr_gap_strategy)mr__bag_number(&w->conf->bag, MR_OPT_GAP_STRATEGY);
    b->consumer = p->name;
    b->worker_id = w->id;
    b->by_lock = p->by_lock;
    b->strategy = mr__gap_strategy_name(strategy);
    b->sql = &w->batch_sql;
    b->shape = &w->shape;
    b->clock = w->clock;
    b->cancelled = &w->cancelled;
    b->recalled = &p->recalled;
    b->logger = &w->logger;
    b->handler = p->handler;
    b->timeout = p->batch_timeout;
    b->mode = p->trial.mode;
    b->attempt = p->trial.attempts + 1;
    b->detached = p->detached;
    b->epoch = p->epoch;
    b->expected = from;
    b->target = from;
    b->on_dead_letter = p->spec->on_dead_letter;
    b->on_dead_letter_user = p->spec->on_dead_letter_user;
    *out = b;
    return NULL;
}

static mr_window *find_window(void *reader, int64_t position)
{
    return mr__reader_find(reader, position);
}

/* How many events the next batch may have. What a detached handler of events does is saved after
 * checkpoint_every of them; one of whole batches gets those whole. */
static size_t room_of(const mr_place *p)
{
    if (p->trial.mode == MR_MODE_SINGLE)
        return 1;
    int64_t room = p->batch_size, left = p->checkpoint_every - p->unsaved;
    if (p->detached && p->handler->counts && left > 0 && left < room)
        room = left;
    return (size_t)room;
}

static mr_error *gather(mr_place *p)
{
    if (p->draft == NULL)
        MR_TRY(mr__place_make_batch(p, p->reached, &p->draft));
    mr_intake intake = {.filter = &p->filter,
                        .slot = p->slot,
                        .slots = p->slots,
                        .batch_size = room_of(p),
                        .skips = p->skips,
                        .skip_count = p->skip_count,
                        .by_key = p->by_key,
                        .blocked = &p->blocked,
                        .sentence = &p->sentence};
    mr_source source = {.find = find_window, .from = p->worker->reader};
    return mr__gather(p->draft, &intake, &source);
}

/* ---- Handing over -------------------------------------------------------------------------- */

static void hand_over(mr_place *p)
{
    mr_batch *batch = p->draft;
    p->draft = NULL;
    p->dirty_at = 0;
    p->target = batch->target;
    batch->begun = now(p->worker);
    batch->save_by = (p->unsaved > 0 ? p->unsaved_at : batch->begun) + p->checkpoint_age;
    /* A consumer far behind reads its next stretch while this one is handled. */
    if (mr__reader_find(p->worker->reader, batch->target) == NULL)
        mr__reader_want(p->worker->reader, batch->target);
    mr__errand_send(p, p->detached ? MR_ERRAND_DELIVER : MR_ERRAND_BATCH, batch);
}

void mr__dispatch_save(mr_place *p)
{
    mr_batch *save = p->save;
    p->save = NULL;
    p->dirty_at = 0;
    p->target = p->reached;
    save->expected = p->saved;
    save->target = p->reached;
    save->epoch = -1; /* what was done outside is done, paused or not */
    mr__errand_send(p, MR_ERRAND_BATCH, save);
}

/* Everything up to the draft's target needs no handler: it goes to the next save. */
static mr_error *draft_to_save(mr_place *p)
{
    if (p->save == NULL)
        MR_TRY(mr__place_make_batch(p, p->saved, &p->save));
    MR_TRY(mr__batch_pass_on(p->draft, p->save, p->draft->target));
    p->reached = p->draft->target;
    mr__place_drop_draft(p);
    return NULL;
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
    if (p->draft->aside_count > 0)
        return true;
    if (p->dirty_at == 0)
        p->dirty_at = p->unsaved > 0 ? p->unsaved_at : now(w);
    int64_t patience = p->unsaved > 0 ? p->checkpoint_age : FLUSH_AFTER;
    int64_t left = p->dirty_at + patience - now(w);
    if (left <= 0 || once_reached(w, p->draft->target))
        return true;
    /* Anew each time: the loop's clock lags behind ours, so a timer may come a little too early. */
    (void)uv_timer_start(&p->timer, mr__dispatch_timer, (uint64_t)(left / 1000 + 1), 0);
    return false;
}

static void no_memory(mr_place *p, mr_error *error)
{
    mr__log(&p->worker->logger, MR_ERROR, "gathering a batch failed",
            "consumer=%s" MR_SEP "error=%s", p->name, mr_error_message(error));
    mr_error_free(error);
    mr__place_drop_draft(p);
    mr__place_rest(p, NO_MEMORY_WAIT, "no memory");
}

static mr_error *look(mr_place *p)
{
    mr_worker *w = p->worker;
    MR_TRY(gather(p));
    if (p->draft->count > 0) {
        hand_over(p);
    } else if (flush_due(p)) {
        if (!p->detached) {
            hand_over(p);
            return NULL;
        }
        MR_TRY(draft_to_save(p));
        mr__dispatch_save(p);
    } else if (p->draft->target < mr__reader_tail(w->reader)) {
        mr__reader_want(w->reader, p->draft->target);
    }
    return NULL;
}

static bool unsaved(const mr_place *p)
{
    return p->detached && p->owned && p->save != NULL && p->reached > p->saved;
}

void mr__dispatch_step(mr_place *p)
{
    mr_worker *w = p->worker;
    if (p->state != MR_PLACE_IDLE || w->life != MR_LIFE_RUNNING || !mr__reader_ready(w->reader))
        return;
    if (p->replay && unsaved(p)) { /* its letters are to be written before some are read */
        mr__dispatch_save(p);
        return;
    }
    if (p->replay && p->reached == p->saved) {
        mr_batch *fence = NULL;
        mr__place_drop_draft(p);
        mr_error *error = mr__place_make_batch(p, p->saved, &fence);
        if (error != NULL) {
            no_memory(p, error);
            return;
        }
        p->replay = false;
        p->target = p->saved;
        mr__errand_send(p, MR_ERRAND_REPLAY, fence);
        return;
    }
    mr_error *error = look(p);
    if (error != NULL)
        no_memory(p, error); /* only that can be short here: let go of everything and try again */
}

void mr__dispatch_flush(mr_worker *w)
{
    for (size_t i = 0; i < w->place_count; i++) {
        mr_place *p = w->places[i];
        if (p->state == MR_PLACE_RUNNING)
            atomic_store(&p->recalled, true);
        bool free_now = p->state == MR_PLACE_IDLE || p->state == MR_PLACE_LOADING;
        bool rested = p->state == MR_PLACE_RESTING && uv_is_active((uv_handle_t *)&p->timer) == 0;
        if ((free_now || rested) && unsaved(p))
            mr__dispatch_save(p);
    }
}

/* ---- Everybody ----------------------------------------------------------------------------- */

/* From where on it needs windows next. */
static int64_t place_of(const mr_place *p)
{
    if (p->state == MR_PLACE_RUNNING)
        return p->target;
    return p->draft != NULL ? p->draft->target : p->reached;
}

/* Tells the reader which windows are still needed, and ends a `once` run when everybody is there.
 */
void mr__dispatch_settle(mr_worker *w)
{
    int64_t lowest = -1;
    bool once = mr__bag_number(&w->conf->bag, MR_OPT_ONCE) != 0;
    bool waiting = false, all_done = w->once_target >= 0;
    if (w->place_count == 0)
        all_done = w->lane_count > 0;
    for (size_t i = 0; i < w->place_count; i++) {
        mr_place *p = w->places[i];
        all_done = all_done && once_reached(w, p->saved) && !p->replay &&
                   (p->state == MR_PLACE_IDLE || p->state == MR_PLACE_AWAY);
        if (p->state == MR_PLACE_PAUSED || p->state == MR_PLACE_AWAY)
            continue;
        int64_t place = place_of(p);
        if (lowest < 0 || place < lowest)
            lowest = place;
        waiting = waiting || (p->state == MR_PLACE_IDLE && place >= mr__reader_tail(w->reader));
    }
    if (w->life != MR_LIFE_RUNNING)
        return;
    if (w->reader != NULL)
        mr__reader_places(w->reader, lowest, waiting);
    /* Queues alone may also be told to do only so much. */
    bool spent = w->lane_count > 0 && w->place_count == 0 && mr__lanes_spent(w);
    if ((once && all_done && mr__lanes_drained(w)) || spent)
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
        mr__dispatch_step(w->places[i]);
    mr__dispatch_settle(w);
}

void mr__dispatch_timer(uv_timer_t *timer)
{
    mr_place *p = timer->data;
    mr_worker *w = p->worker;
    if (w->life == MR_LIFE_STOPPING && p->state == MR_PLACE_RESTING && unsaved(p) &&
        !atomic_load(&w->cancelled))
        mr__dispatch_save(p); /* what was done outside should not be done again */
    if (w->life != MR_LIFE_RUNNING)
        return;
    if (p->state == MR_PLACE_RESTING)
        mr__place_go_on(p, 0, "rested");
    mr__dispatch_step(p);
    mr__dispatch_settle(w);
}

void mr__dispatch_done(mr_worker *w)
{
    mr_task *task = mr__executors_done(w->executors);
    bool any = task != NULL;
    while (task != NULL) {
        mr_task *next = task->next;
        w->running--;
        task->done(task);
        task = next;
    }
    if (!any)
        return;
    if (w->life == MR_LIFE_RUNNING)
        mr__dispatch_settle(w);
    mr__control_quiet(w);
    if (w->life == MR_LIFE_STOPPING) {
        mr__dispatch_flush(w);
        mr__worker_settle_stop(w);
    }
}

bool mr__dispatch_quiet(const mr_worker *w)
{
    for (size_t i = 0; i < w->place_count && !atomic_load(&w->cancelled); i++)
        if (w->places[i]->state == MR_PLACE_RESTING && unsaved(w->places[i]))
            return false; /* its save is tried again */
    return w->running == 0 && mr__lanes_quiet(w);
}
