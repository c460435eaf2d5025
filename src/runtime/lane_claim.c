/* A queue's claims: when there is room for more, after asking the program's hook, with a wait when
 * there was nothing. */
#include "runtime/lane.h"
#include "runtime/worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    TROUBLE_FIRST = 100000,
    TROUBLE_MOST = 5000000,
    AHEAD_TIME = 50000, /* microseconds of work that may wait here, … */
    AHEAD_MOST = 1000,  /* … and jobs */
    /* Jobs that are done and not written yet, before no more are claimed. */
    WRITE_BACKLOG = 4 * MR_LANE_WRITE_MOST
};

static void send_claim(mr_lane *lane);

/* ---- The hook ------------------------------------------------------------------------------ */

void mr_dequeue_refuse(mr_dequeue *ask)
{
    ask->refused = true;
}

int mr_dequeue_count(const mr_dequeue *ask)
{
    return ask->count;
}

void mr_dequeue_limit(mr_dequeue *ask, int count)
{
    if (count < ask->count)
        ask->count = count;
    if (ask->count < 1)
        ask->refused = true;
}

static void free_condition(mr_condition *c)
{
    for (int i = 0; i < c->count; i++)
        free((void *)(uintptr_t)c->values[i]);
    free((void *)(uintptr_t)c->values);
    free((void *)(uintptr_t)c->sql);
}

static mr_error *copy_condition(const char *sql, int count, const char *const *values,
                                mr_condition *out)
{
    char **copies = calloc((size_t)count + 1, sizeof(*copies));
    *out = (mr_condition){.sql = strdup(sql), .values = (const char *const *)copies};
    bool good = out->sql != NULL && copies != NULL;
    for (int i = 0; good && i < count; i++) {
        copies[i] = values[i] == NULL ? NULL : strdup(values[i]);
        out->count++;
        good = copies[i] != NULL || values[i] == NULL;
    }
    if (good)
        return NULL;
    free_condition(out);
    return mr__error_nomem();
}

mr_error *mr_dequeue_where(mr_dequeue *ask, const char *condition, int count,
                           const char *const *values)
{
    if (ask->lane->builtin)
        return mr__error(MR_E_USAGE,
                         "claims of the built-in table take no conditions; refuse, or limit the "
                         "number of jobs");
    mr_condition *grown =
        realloc(ask->conditions, (ask->condition_count + 1) * sizeof(*ask->conditions));
    if (grown == NULL)
        return mr__error_nomem();
    ask->conditions = grown;
    MR_TRY(copy_condition(condition, count, values, &grown[ask->condition_count]));
    ask->condition_count++;
    return NULL;
}

static void free_ask(mr_dequeue *ask)
{
    if (ask == NULL)
        return;
    for (size_t i = 0; i < ask->condition_count; i++)
        free_condition(&ask->conditions[i]);
    free(ask->conditions);
    mr_error_free(ask->error);
    free(ask);
}

static void run_ask(mr_task *task, mr_seat *seat)
{
    (void)seat;
    mr_dequeue *ask = (mr_dequeue *)task;
    const mr_queue *spec = ask->lane->spec;
    ask->error = spec->on_dequeue(ask, spec->dequeue_user);
}

static void drop_ask(mr_task *task)
{
    free_ask((mr_dequeue *)task);
}

static void asked(mr_task *task)
{
    mr_dequeue *ask = (mr_dequeue *)task;
    mr_lane *lane = ask->lane;
    lane->asking = false;
    if (ask->error != NULL) {
        mr__log(&lane->worker->logger, MR_WARN, "dequeue hook failed", "queue=%s" MR_SEP "error=%s",
                lane->name, mr_error_message(ask->error));
        ask->refused = true;
    }
    if (ask->refused || lane->worker->life != MR_LIFE_RUNNING) {
        free_ask(ask);
        mr__lane_look_in(lane, lane->interval);
        return;
    }
    lane->ask = ask;
    lane->wanted = ask->count;
    send_claim(lane);
}

static void ask_hook(mr_lane *lane)
{
    mr_dequeue *ask = calloc(1, sizeof(*ask));
    if (ask == NULL) {
        mr__lane_look_in(lane, lane->interval);
        return;
    }
    *ask = (mr_dequeue){.task = {.run = run_ask, .done = asked, .drop = drop_ask},
                        .lane = lane,
                        .count = lane->wanted};
    lane->asking = true;
    lane->worker->running++;
    mr__executors_submit(lane->worker->executors, &ask->task);
}

/* ---- Claiming ------------------------------------------------------------------------------ */

static int64_t now(const mr_lane *lane)
{
    return mr__clock_now(lane->worker->clock);
}

bool mr__lane_over(const mr_lane *lane)
{
    return (lane->max_total >= 0 && lane->total >= lane->max_total) ||
           (lane->max_active >= 0 && now(lane) - lane->began >= lane->max_active);
}

static void on_look(uv_timer_t *timer)
{
    mr__lane_write(timer->data);
    mr__lane_look(timer->data);
}

void mr__lane_look_in(mr_lane *lane, int64_t micros)
{
    if (lane->woken != 0 && micros > MR_LANE_AGAIN)
        micros = MR_LANE_AGAIN;
    if (lane->called && micros > MR_WAKE_EVERY)
        micros = MR_WAKE_EVERY;
    lane->called = false;
    if (lane->worker->life == MR_LIFE_RUNNING)
        (void)uv_timer_start(&lane->look, on_look, (uint64_t)((micros + 999) / 1000), 0);
}

static void claim_failed(mr_lane *lane, mr_error *error)
{
    mr_worker *w = lane->worker;
    if (mr_error_code(error) != MR_E_CANCELLED)
        mr__log(&w->logger, MR_WARN, "claim failed",
                "queue=%s" MR_SEP "error=%s" MR_SEP "sqlstate=%s", lane->name,
                mr_error_message(error), mr_error_sqlstate(error));
    mr_error_free(lane->last_error);
    lane->last_error = error;
    lane->troubles++;
    mr__lane_look_in(lane,
                     mr__jitter(mr__policy_wait(TROUBLE_FIRST, TROUBLE_MOST, lane->troubles)));
    mr__worker_settle_stop(w);
}

/* What a claim gave: more may be there when it was full. */
static void claim_taken(mr_lane *lane, size_t got)
{
    lane->troubles = 0;
    lane->total += (int64_t)got;
    mr__count(lane->worker, MR_METRIC_JOBS_CLAIMED, (int64_t)got);
    lane->empty = got == 0 && lane->scan == MR_SCAN_ALL;
    bool once = mr__bag_number(&lane->worker->conf->bag, MR_OPT_ONCE) != 0;
    if (once && !lane->empty && (got > 0 || mr__lane_resting(lane))) {
        if (got == 0)
            mr__mark_stir(&lane->mark); /* the end is known only by a look at everything */
        mr__lane_look(lane);
    } else if (got < (size_t)lane->wanted) {
        int64_t wait = lane->interval;
        mr__lane_look_in(lane, got == 0 ? wait - wait / 10 + mr__random_upto(wait / 5) : wait / 8);
    } else {
        mr__lane_look(lane);
    }
}

static void on_claimed(void *user, PGresult **results, mr_error *error)
{
    mr_lane *lane = user;
    mr_worker *w = lane->worker;
    lane->claiming = false;
    mr__queue_call_free(&lane->claim);
    lane->claim = (mr_queue_call){0};
    free_ask(lane->ask);
    lane->ask = NULL;
    mr__lane_claims_told(lane, MR_TOLD_BY_CLAIM, error == NULL);
    if (error != NULL) {
        claim_failed(lane, error);
        return;
    }
    mr_mark_news news = {.scan = lane->scan,
                         .wanted = lane->wanted,
                         .now = now(lane),
                         .took = now(lane) - lane->claim_sent};
    mr_jobs *jobs = NULL;
    PGresult *rows = results[0];
    results[0] = NULL;
    error = mr__queue_claim_take(lane->store, rows, &lane->mark, news, &jobs);
    if (error != NULL) {
        claim_failed(lane, error);
        return;
    }
    size_t got = mr__jobs_count(jobs);
    if (got > 0)
        mr__lane_take(lane, jobs);
    mr__jobs_unref(jobs);
    if (w->life == MR_LIFE_RUNNING) {
        mr__lane_feed(lane);
        claim_taken(lane, got);
        mr__dispatch_settle(w);
    } else {
        mr__lane_release(lane); /* it came too late to be begun */
        mr__lane_write(lane);
        mr__worker_settle_stop(w);
    }
}

static void send_claim(mr_lane *lane)
{
    mr_worker *w = lane->worker;
    lane->claim_sent = now(lane);
    lane->scan = mr__mark_plan(&lane->mark, lane->claim_sent);
    MR_AUTO_BUF spent = {0};
    if (lane->builtin)
        mr__lane_claims_put(lane, MR_TOLD_BY_CLAIM, &spent, NULL);
    mr_claim claim = {.count = lane->wanted,
                      .worker = lane->identity,
                      .buckets = lane->buckets,
                      .spent = mr__buf_text(&spent)};
    if (lane->ask != NULL) {
        claim.conditions = lane->ask->conditions;
        claim.condition_count = lane->ask->condition_count;
    }
    mr_error *error = spent.failed ? mr__error_nomem()
                                   : mr__queue_claim_call(lane->store, &claim, &lane->mark,
                                                          lane->scan, &lane->claim);
    if (error != NULL) {
        mr__lane_claims_told(lane, MR_TOLD_BY_CLAIM, false);
        mr__queue_call_free(&lane->claim);
        lane->claim = (mr_queue_call){0};
        free_ask(lane->ask);
        lane->ask = NULL;
        claim_failed(lane, error);
        return;
    }
    mr_flight_statement statement = {.sql = lane->claim.sql, .count = lane->claim.count};
    memcpy(statement.values, lane->claim.values,
           (size_t)lane->claim.count * sizeof(statement.values[0]));
    lane->claiming = true;
    mr__aconn_send(mr__worker_jobs_conn(w), &statement, 1, on_claimed, lane);
}

/* Jobs that are done in no time are claimed many at once; those that take long are left to whoever
 * is free for them. */
static int64_t look_ahead(const mr_lane *lane)
{
    if (lane->look_ahead >= 0)
        return lane->look_ahead;
    /* What waits here counts as running, which a limit is for. */
    bool limited = mr__bag_number(&lane->spec->bag, MR_OPT_Q_MAX_RUNNING) >= 0;
    if (!lane->builtin || limited || lane->pace == 0)
        return 0;
    int64_t most = lane->num_handlers * AHEAD_TIME / lane->pace;
    return most < AHEAD_MOST ? most : AHEAD_MOST;
}

/* How many more it may hold. */
static int64_t room(const mr_lane *lane)
{
    /* Handlers may be quicker than outcomes can be written: what is done must not pile up here. */
    if (lane->claimed - lane->active >= WRITE_BACKLOG)
        return 0;
    int64_t ahead = look_ahead(lane);
    int64_t most = lane->num_handlers + ahead;
    int64_t room = most - (int64_t)lane->active;
    /* With look-ahead it claims many at once instead of one whenever one is done, but not while a
     * handler has nothing to do. */
    if (ahead > 0 && room < (most + 1) / 2 && (int64_t)lane->active >= lane->num_handlers)
        return 0;
    if (lane->max_total >= 0 && room > lane->max_total - lane->total)
        room = lane->max_total - lane->total;
    return room;
}

void mr__lane_look(mr_lane *lane)
{
    mr_worker *w = lane->worker;
    if (w->life != MR_LIFE_RUNNING || lane->asking || lane->claiming ||
        !mr__aconn_up(mr__worker_jobs_conn(w)))
        return;
    /* Claims of who is not registered, or whose session lock went with its connection, would be
     * taken for a dead worker's. */
    if (lane->builtin && (w->fleet.registered < 2 || w->fleet.lost))
        return;
    if (now(lane) >= lane->woken)
        lane->woken = 0; /* what was meant is found now */
    if (now(lane) < lane->rest_until) {
        mr__lane_look_in(lane, lane->rest_until - now(lane));
        return;
    }
    if (mr__lane_over(lane)) {
        mr__dispatch_settle(w);
        return;
    }
    if (lane->transaction) {
        mr__lane_tx_feed(lane);
        return;
    }
    int64_t wanted = room(lane);
    if (wanted <= 0)
        return;
    (void)uv_timer_stop(&lane->look);
    lane->wanted = (int)(wanted < 1000 ? wanted : 1000);
    if (lane->spec->on_dequeue != NULL)
        ask_hook(lane);
    else
        send_claim(lane);
}
