/* A worker's loop: its connections, the reader, the executors, and what they tell it. */
#include "runtime/worker.h"

#include <string.h>

mr_aconn *mr__worker_jobs_conn(const mr_worker *w)
{
    return w->reader != NULL ? mr__reader_conn(w->reader) : w->jobs;
}

/* Something may have come: events, jobs. */
static void wake(mr_worker *w)
{
    if (w->reader != NULL)
        mr__reader_wake(w->reader);
    for (size_t i = 0; i < w->lane_count; i++)
        mr__lane_look(w->lanes[i]);
}

static void on_signal(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    mr_worker *w = poll->data;
    uint64_t count;
    /* Taken before the flags are looked at, so that what comes meanwhile wakes the loop again. */
    while (read(w->signal_fd, &count, sizeof(count)) > 0) {
    }
    if (w->life == MR_LIFE_CLOSING)
        return;
    int stops = atomic_load(&w->stops);
    if (w->life == MR_LIFE_RUNNING)
        mr__place_apply_changes(w);
    if (stops > 0)
        mr__worker_stop_begin(w, "asked to");
    if (stops > 1)
        mr__worker_force(w);
    if (atomic_exchange(&w->woken, false) && w->life == MR_LIFE_RUNNING)
        wake(w);
    if (w->executors == NULL)
        return;
    w->settling = true;
    mr__lanes_done(w);
    mr__dispatch_done(w);
    w->settling = false;
    mr__worker_settle_stop(w);
}

static void notify_done(void *user)
{
    mr__worker_signal(user);
}

static void on_listening(void *user, PGresult **results, mr_error *error)
{
    (void)results;
    mr_worker *w = user;
    if (error != NULL && mr_error_code(error) != MR_E_CANCELLED)
        mr__log(&w->logger, MR_WARN, "LISTEN failed; looking at the head is left", "error=%s",
                mr_error_message(error));
    else if (error == NULL && w->life == MR_LIFE_RUNNING)
        wake(w); /* what was notified before we listened */
    mr_error_free(error);
}

/* Also on the fleet's channel, for the wake-ups of queues, where the registration did not do it. */
static void listen_on(mr_worker *w, mr_aconn *conn)
{
    if (w->notify_sql == NULL)
        return;
    bool by_lease = mr__bag_number(&w->conf->bag, MR_OPT_LEADER_STRATEGY) == 1;
    mr_flight_statement listen[] = {{.sql = w->notify_sql}, {.sql = w->fleet.listen_sql}};
    mr__aconn_send(conn, listen, by_lease ? 2 : 1, on_listening, w);
}

/* A notification is a hint, and anybody may send one: it makes us look, nothing else. */
static void on_notify(void *user, const char *channel, const char *payload)
{
    mr_worker *w = user;
    if (w->life != MR_LIFE_RUNNING)
        return;
    const char *queue = mr__wake_queue(payload);
    if (strcmp(channel, w->fleet.channel) == 0 && queue != NULL)
        mr__lanes_wake(w, queue);
    else if (strcmp(channel, w->fleet.channel) == 0)
        mr__control_look(w);
    if (w->notify_sql != NULL &&
        strcmp(channel, mr__bag_text(&w->conf->bag, MR_OPT_NOTIFY_CHANNEL)) == 0)
        wake(w);
}

static void on_control_state(void *user, bool up)
{
    mr_worker *w = user;
    if (up && mr__aconn_connects(w->control) > 1) {
        mr__count(w, MR_METRIC_RECONNECTS, 1);
        /* What cut one connection may have cut the other; its own deadline is a long one. */
        if (mr__aconn_pending(mr__worker_jobs_conn(w)) > 0)
            mr__aconn_restart(mr__worker_jobs_conn(w), "no answer while the other came back");
    }
    mr__control_state(w, up);
    if (up && w->listener == NULL)
        listen_on(w, w->control);
}

static void on_listener_state(void *user, bool up)
{
    mr_worker *w = user;
    if (up)
        listen_on(w, w->listener);
}

static void on_jobs_state(void *user, bool up)
{
    mr_worker *w = user;
    if (up && mr__aconn_connects(w->jobs) > 1)
        mr__count(w, MR_METRIC_RECONNECTS, 1);
    if (w->life == MR_LIFE_RUNNING || w->life == MR_LIFE_STOPPING)
        mr__lanes_state(w, up);
}

static void on_reader_up(void *user)
{
    mr_worker *w = user;
    mr__lanes_state(w, false); /* another session: what the last one held is gone */
    mr__lanes_state(w, true);
    if (w->life != MR_LIFE_RUNNING)
        return;
    if (mr__aconn_connects(mr__reader_conn(w->reader)) > 1)
        mr__count(w, MR_METRIC_RECONNECTS, 1);
    mr__loading_all(w);
}

static void on_reader_progress(void *user)
{
    mr__dispatch_progress(user);
}

static void on_reader_stuck(void *user, mr_error *error)
{
    mr__worker_fail(user, error);
}

static bool wants_rows(const mr_worker *w)
{
    for (size_t i = 0; i < w->place_count; i++)
        if (w->places[i]->handler->wants_rows)
            return true;
    return false;
}

static mr_error *make_reader(mr_worker *w, const mr_conn_params *conn)
{
    const mr_bag *bag = &w->conf->bag;
    w->light = !wants_rows(w);
    mr_reader_params params = {
        .loop = &w->loop,
        .logger = &w->logger,
        .clock = w->clock,
        .conn = *conn,
        .shape = &w->shape,
        .gap = {.strategy = (mr_gap_strategy)mr__bag_number(bag, MR_OPT_GAP_STRATEGY),
                .stale_threshold = mr__bag_number(bag, MR_OPT_STALE_GAP_THRESHOLD),
                .harbor_lag = (size_t)mr__bag_number(bag, MR_OPT_STALE_GAP_LAG),
                .timeout = mr__bag_number(bag, MR_OPT_GAP_TIMEOUT),
                .max_wait = mr__bag_number(bag, MR_OPT_MAX_GAP_WAIT),
                .skip = mr__bag_number(bag, MR_OPT_GAP_ACTION) == 1},
        .published_sql = w->published_sql,
        .want = {.light = w->light,
                 .inline_payload_max = mr__bag_number(bag, MR_OPT_INLINE_PAYLOAD)},
        .read_size = (int)mr__bag_number(bag, MR_OPT_READ_SIZE),
        .cache_size = (size_t)mr__bag_number(bag, MR_OPT_CACHE_SIZE),
        .open = &w->metrics[MR_METRIC_CONNECTIONS],
        .counts = &w->read,
        .interval = mr__bag_number(bag, MR_OPT_DISPATCHER_INTERVAL),
        .idle = w->notify_sql != NULL ? 1000000 : 500000,
        .on_up = on_reader_up,
        .on_progress = on_reader_progress,
        .on_stuck = on_reader_stuck,
        .user = w,
    };
    return mr__reader_new(&params, &w->reader);
}

static mr_error *make_executors(mr_worker *w, const mr_conn_params *conn)
{
    int64_t count = mr__bag_number(&w->conf->bag, MR_OPT_EXECUTORS);
    if (count < 0) {
        count = w->place_count < 8 ? (int64_t)w->place_count : 8;
        for (size_t i = 0; i < w->lane_count; i++)
            count += w->lanes[i]->num_handlers;
        count += w->lane_count > 0 ? 1 : 0; /* for outcomes, while all handlers are busy */
    }
    mr_executors_params params = {
        .count = (int)count,
        .session = {.conn = *conn,
                    .prepare = mr__bag_number(&w->conf->bag, MR_OPT_PREPARED) != 0,
                    .clock = w->clock,
                    .cancelled = &w->cancelled},
        .idle_timeout = mr__bag_number(&w->conf->bag, MR_OPT_EXECUTOR_IDLE),
        .notify = notify_done,
        .user = w,
        .connections = &w->metrics[MR_METRIC_CONNECTIONS],
    };
    return mr__executors_new(&params, &w->executors);
}

mr_conn_params mr__worker_conn(const mr_worker *w)
{
    return (mr_conn_params){.conninfo = mr__bag_text(&w->conf->bag, MR_OPT_DATABASE),
                            .application = w->application};
}

/* How long the server may leave a tick unanswered: not longer than it takes to be declared dead. */
static int64_t control_deadline(const mr_worker *w)
{
    enum { LEAST = 2000000, MOST = 10000000 };
    int64_t timeout = mr__bag_number(&w->conf->bag, MR_OPT_HEARTBEAT_TIMEOUT);
    return timeout < LEAST ? LEAST : timeout > MOST ? MOST : timeout;
}

enum { JOBS_DEADLINE = 60000000 }; /* microseconds the server may take for a claim */

mr_error *mr__worker_make_loop(mr_worker *w)
{
    if (uv_loop_init(&w->loop) != 0)
        return mr__error(MR_E_IO, "the event loop could not be made");
    (void)uv_poll_init(&w->loop, &w->signal, w->signal_fd);
    (void)uv_poll_start(&w->signal, UV_READABLE, on_signal);
    (void)uv_timer_init(&w->loop, &w->heartbeat);
    (void)uv_timer_init(&w->loop, &w->shutdown);
    (void)uv_timer_init(&w->loop, &w->lag);
    (void)uv_timer_init(&w->loop, &w->ring);
    (void)uv_timer_init(&w->loop, &w->house);
    w->lag.data = w->ring.data = w->house.data = w;
    w->signal.data = w;
    w->heartbeat.data = w;
    w->shutdown.data = w;
    for (size_t i = 0; i < w->place_count; i++) {
        (void)uv_timer_init(&w->loop, &w->places[i]->timer);
        w->places[i]->timer.data = w->places[i];
    }
    for (size_t i = 0; i < w->lane_count; i++) {
        mr_lane *lane = w->lanes[i];
        (void)uv_timer_init(&w->loop, &lane->look);
        (void)uv_timer_init(&w->loop, &lane->beat);
        (void)uv_timer_init(&w->loop, &lane->reset);
        (void)uv_timer_init(&w->loop, &lane->later);
        (void)uv_timer_init(&w->loop, &lane->progress);
        lane->progress.data = lane;
        (void)uv_timer_init(&w->loop, &lane->promote);
        lane->look.data = lane->beat.data = lane->reset.data = lane->later.data = lane;
        lane->promote.data = lane;
    }
    w->loop_made = true;
    mr_conn_params conn = mr__worker_conn(w);
    mr_aconn_params control = {.loop = &w->loop,
                               .conn = conn,
                               .what = "control",
                               .logger = &w->logger,
                               .timeout = control_deadline(w),
                               .open = &w->metrics[MR_METRIC_CONNECTIONS],
                               .on_state = on_control_state,
                               .on_notify = on_notify,
                               .user = w};
    mr_error *error = mr__aconn_new(&control, &w->control);
    const char *separate = mr__bag_text(&w->conf->bag, MR_OPT_NOTIFY_CONNECTION);
    if (error == NULL && w->notify_sql != NULL && separate[0] != '\0') {
        control.conn.conninfo = separate;
        control.what = "listener";
        control.on_state = on_listener_state;
        error = mr__aconn_new(&control, &w->listener);
    }
    if (error == NULL && w->place_count > 0)
        error = make_reader(w, &conn);
    if (error == NULL && w->place_count == 0) {
        control.conn = conn;
        control.what = "queues";
        control.timeout = JOBS_DEADLINE;
        control.on_state = on_jobs_state;
        control.on_notify = NULL;
        error = mr__aconn_new(&control, &w->jobs);
    }
    if (error == NULL)
        error = make_executors(w, &conn);
    return error;
}
