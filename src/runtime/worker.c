/* A worker's life: made from a configuration, runs its loop, stops in good order. */
#include "runtime/worker.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const char *life_name(mr_life life)
{
    static const char *const names[] = {"new",     "running", "stopping",
                                        "leaving", "closing", "ended"};
    return names[life];
}

static void set_life(mr_worker *w, mr_life life)
{
    mr__log(&w->logger, MR_DEBUG, "worker state", "from=%s" MR_SEP "to=%s", life_name(w->life),
            life_name(life));
    w->life = life;
}

/* ---- Making and freeing -------------------------------------------------------------------- */

static mr_error *make_places(mr_worker *w)
{
    const mr_conf *conf = w->conf;
    w->places = calloc(conf->consumer_count + 1, sizeof(*w->places));
    if (w->places == NULL)
        return mr__error_nomem();
    for (size_t i = 0; i < conf->consumer_count; i++) {
        MR_TRY(mr__place_new(w, conf->consumers[i], &w->places[i]));
        w->place_count++;
    }
    return NULL;
}

static mr_error *fill(mr_worker *w)
{
    if (w->conf->consumer_count == 0)
        return mr__error(MR_E_CONFIG, "there are no consumers; give the worker something to do");
    MR_TRY(mr__conf_names(w->conf, &w->names));
    MR_TRY(mr__conf_log_spec(w->conf, &w->log_spec));
    MR_TRY(mr__worker_statements(w));
    MR_TRY(mr__control_init(w));
    return make_places(w);
}

mr_error *mr_worker_new(mr_conf *conf, mr_worker **out)
{
    mr_worker *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return mr__error_nomem();
    w->conf = conf;
    w->clock = &mr__clock_system;
    w->once_target = -1;
    (void)pthread_mutex_init(&w->start_lock, NULL);
    (void)pthread_mutex_init(&w->changes_lock, NULL);
    atomic_init(&w->stops, 0);
    atomic_init(&w->woken, false);
    atomic_init(&w->cancelled, false);
    w->signal_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    mr__uuid_v7(w->id);
    (void)snprintf(w->application, sizeof(w->application), "millrace %s", w->id);
    mr__logger_init(&w->logger, conf->sink, conf->sink_user,
                    (mr_level)mr__bag_number(&conf->bag, MR_OPT_LOG_LEVEL),
                    mr__bag_number(&conf->bag, MR_OPT_LOG_FORMAT) == 1);
    mr_error *error =
        w->signal_fd < 0 ? mr__error(MR_E_IO, "eventfd: %s", strerror(errno)) : fill(w);
    if (error != NULL) {
        w->conf = NULL;
        mr_worker_free(w);
        return error;
    }
    *out = w;
    return NULL;
}

void mr_worker_free(mr_worker *w)
{
    if (w == NULL)
        return;
    if (w->loop_made && w->life != MR_LIFE_ENDED) {
        /* Started but never brought to its end: do that now, so that nothing outlives the memory.
         */
        mr_worker_stop(w);
        mr_worker_stop(w);
        mr_error_free(mr_worker_run(w));
    }
    for (size_t i = 0; i < w->place_count; i++)
        mr__place_free(w->places[i]);
    free(w->places);
    while (w->changes != NULL) {
        mr_change *change = w->changes;
        w->changes = change->next;
        mr__place_free(change->add);
        free(change->remove);
        free(change);
    }
    (void)pthread_mutex_destroy(&w->changes_lock);
    (void)pthread_mutex_destroy(&w->start_lock);
    mr__control_free(w);
    mr__batch_sql_free(&w->batch_sql);
    free(w->checkpoints_sql);
    free(w->published_sql);
    free(w->notify_sql);
    mr_error_free(w->fatal);
    if (w->signal_fd >= 0)
        (void)close(w->signal_fd);
    mr__logger_destroy(&w->logger);
    mr_conf_free(w->conf);
    free(w);
}

const char *mr_worker_id(const mr_worker *w)
{
    return w->id;
}

/* ---- Stopping ------------------------------------------------------------------------------ */

static void on_left(void *user, PGresult **results, mr_error *error);

static void close_everything(mr_worker *w)
{
    set_life(w, MR_LIFE_CLOSING);
    mr__executors_free(w->executors);
    w->executors = NULL;
    mr__reader_close(w->reader);
    mr__aconn_close(w->control);
    mr__aconn_close(w->listener);
    for (size_t i = 0; i < w->place_count; i++)
        uv_close((uv_handle_t *)&w->places[i]->timer, NULL);
    uv_close((uv_handle_t *)&w->heartbeat, NULL);
    uv_close((uv_handle_t *)&w->shutdown, NULL);
    uv_close((uv_handle_t *)&w->signal, NULL);
}

void mr__worker_settle_stop(mr_worker *w)
{
    if (w->life != MR_LIFE_STOPPING || !mr__dispatch_quiet(w))
        return;
    set_life(w, MR_LIFE_LEAVING);
    if (!mr__control_leave(w, true, on_left))
        close_everything(w);
}

static void on_left(void *user, PGresult **results, mr_error *error)
{
    (void)results;
    mr_worker *w = user;
    if (error != NULL)
        mr__log(&w->logger, MR_WARN, "removal of registration failed", "error=%s",
                mr_error_message(error));
    mr_error_free(error);
    if (w->life == MR_LIFE_LEAVING)
        close_everything(w);
}

static void on_shutdown_timer(uv_timer_t *timer)
{
    mr_worker *w = timer->data;
    if (w->life == MR_LIFE_LEAVING) {
        close_everything(w);
        return;
    }
    mr__log(&w->logger, MR_WARN, "shutdown timed out; cancelling running batches", "running=%d",
            w->running);
    atomic_store(&w->cancelled, true);
}

static void on_draining(void *user, PGresult **results, mr_error *error)
{
    (void)user;
    (void)results;
    mr_error_free(error); /* leaving says it again */
}

void mr__worker_stop_begin(mr_worker *w, const char *why)
{
    if (w->life != MR_LIFE_RUNNING)
        return;
    mr__log(&w->logger, MR_INFO, "worker stopping", "reason=%s" MR_SEP "running=%d", why,
            w->running);
    set_life(w, MR_LIFE_STOPPING);
    /* First of all others may take over what is not running here; then the rest drains. */
    (void)mr__control_leave(w, false, on_draining);
    int64_t patience = mr__bag_number(&w->conf->bag, MR_OPT_SHUTDOWN_TIMEOUT);
    (void)uv_timer_start(&w->shutdown, on_shutdown_timer, (uint64_t)(patience / 1000), 5000);
    mr__worker_settle_stop(w);
}

void mr__worker_fail(mr_worker *w, mr_error *error)
{
    if (w->fatal == NULL) {
        w->fatal = error;
        mr__log(&w->logger, MR_ERROR, "worker failed", "error=%s", mr_error_message(error));
    } else {
        mr_error_free(error);
    }
    mr__worker_stop_begin(w, "fatal error");
}

void mr__worker_signal(mr_worker *w)
{
    uint64_t one = 1;
    int kept = errno; /* a signal handler must leave it alone */
    ssize_t written = write(w->signal_fd, &one, sizeof(one));
    (void)written; /* full means that a wake-up is pending already */
    errno = kept;
}

void mr_worker_stop(mr_worker *w)
{
    atomic_fetch_add(&w->stops, 1);
    mr__worker_signal(w);
}

void mr_worker_wake(mr_worker *w)
{
    atomic_store(&w->woken, true);
    mr__worker_signal(w);
}

/* ---- The loop ------------------------------------------------------------------------------ */

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
        atomic_store(&w->cancelled, true);
    if (atomic_exchange(&w->woken, false) && w->life == MR_LIFE_RUNNING)
        mr__reader_wake(w->reader);
    if (w->executors != NULL)
        mr__dispatch_done(w);
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
        mr__reader_wake(w->reader); /* what was notified before we listened */
    mr_error_free(error);
}

static void listen_on(mr_worker *w, mr_aconn *conn)
{
    if (w->notify_sql == NULL)
        return;
    mr_flight_statement listen = {.sql = w->notify_sql};
    mr__aconn_send(conn, &listen, 1, on_listening, w);
}

/* A notification is a hint: which channel it came on is all that counts. */
static void on_notify(void *user, const char *channel, const char *payload)
{
    (void)payload;
    mr_worker *w = user;
    if (w->life != MR_LIFE_RUNNING)
        return;
    if (strcmp(channel, w->fleet.channel) == 0)
        mr__control_look(w);
    if (w->notify_sql != NULL &&
        strcmp(channel, mr__bag_text(&w->conf->bag, MR_OPT_NOTIFY_CHANNEL)) == 0)
        mr__reader_wake(w->reader);
}

static void on_control_state(void *user, bool up)
{
    mr_worker *w = user;
    if (up && mr__aconn_connects(w->control) > 1) {
        mr__count(w, MR_METRIC_RECONNECTS, 1);
        /* What cut one connection may have cut the other; its own deadline is a long one. */
        if (mr__aconn_pending(mr__reader_conn(w->reader)) > 0)
            mr__aconn_restart(mr__reader_conn(w->reader), "no answer while the other came back");
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

static void on_reader_up(void *user)
{
    mr_worker *w = user;
    if (w->life != MR_LIFE_RUNNING)
        return;
    if (mr__aconn_connects(mr__reader_conn(w->reader)) > 1)
        mr__count(w, MR_METRIC_RECONNECTS, 1);
    mr__dispatch_load(w);
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
    if (count < 0)
        count = w->place_count < 8 ? (int64_t)w->place_count : 8;
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

static mr_conn_params conn_params(const mr_worker *w)
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

static mr_error *make_loop(mr_worker *w)
{
    if (uv_loop_init(&w->loop) != 0)
        return mr__error(MR_E_IO, "the event loop could not be made");
    (void)uv_poll_init(&w->loop, &w->signal, w->signal_fd);
    (void)uv_poll_start(&w->signal, UV_READABLE, on_signal);
    (void)uv_timer_init(&w->loop, &w->heartbeat);
    (void)uv_timer_init(&w->loop, &w->shutdown);
    w->signal.data = w;
    w->heartbeat.data = w;
    w->shutdown.data = w;
    for (size_t i = 0; i < w->place_count; i++) {
        (void)uv_timer_init(&w->loop, &w->places[i]->timer);
        w->places[i]->timer.data = w->places[i];
    }
    w->loop_made = true;
    mr_conn_params conn = conn_params(w);
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
    if (error == NULL)
        error = make_reader(w, &conn);
    if (error == NULL)
        error = make_executors(w, &conn);
    return error;
}

mr_error *mr_worker_check(mr_worker *w)
{
    mr_conn_params params = conn_params(w);
    MR_AUTO_CONN conn = NULL;
    MR_TRY(mr_connect(params.conninfo, params.application, &conn));
    return mr__worker_prepare(w, conn);
}

/* Half-made: close what there is, so that the loop can go. */
static mr_error *abandon(mr_worker *w, mr_error *error)
{
    close_everything(w);
    (void)uv_run(&w->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&w->loop);
    set_life(w, MR_LIFE_ENDED);
    return error;
}

static mr_error *start(mr_worker *w)
{
    if (w->life != MR_LIFE_NEW)
        return mr__error(MR_E_STATE, "the worker was started before; make a new one");
    mr_conn_params params = conn_params(w);
    MR_AUTO_CONN conn = NULL;
    MR_TRY(mr_connect(params.conninfo, params.application, &conn));
    MR_TRY(mr__worker_prepare(w, conn));
    MR_TRY(mr__worker_enrol(w, conn));
    mr_error *error = make_loop(w);
    if (error != NULL)
        return w->loop_made ? abandon(w, error) : error;
    set_life(w, MR_LIFE_RUNNING);
    mr__log(&w->logger, MR_INFO, "worker started",
            "worker=%s" MR_SEP "version=%s" MR_SEP "database=%s" MR_SEP "consumers=%zu" MR_SEP
            "gap_strategy=%s",
            w->id, MR_VERSION, PQdb(conn), w->place_count,
            mr__bag_text(&w->conf->bag, MR_OPT_GAP_STRATEGY));
    mr__aconn_start(w->control);
    if (w->listener != NULL)
        mr__aconn_start(w->listener);
    mr__reader_start(w->reader);
    mr__worker_signal(w); /* a stop that came before the start */
    return NULL;
}

mr_error *mr_worker_start(mr_worker *w)
{
    (void)pthread_mutex_lock(&w->start_lock);
    mr_error *error = start(w);
    (void)pthread_mutex_unlock(&w->start_lock);
    return error;
}

int mr_worker_fd(const mr_worker *w)
{
    return w->loop_made ? uv_backend_fd(&w->loop) : -1;
}

int mr_worker_timeout(const mr_worker *w)
{
    return w->loop_made ? uv_backend_timeout(&w->loop) : -1;
}

static mr_error *turn(mr_worker *w, uv_run_mode mode, bool *running)
{
    *running = uv_run(&w->loop, mode) != 0;
    if (*running)
        return NULL;
    (void)uv_loop_close(&w->loop);
    mr__log(&w->logger, MR_INFO, "worker stopped", "worker=%s", w->id);
    set_life(w, MR_LIFE_ENDED);
    mr_error *error = w->fatal;
    w->fatal = NULL;
    return error;
}

mr_error *mr_worker_turn(mr_worker *w, bool *running)
{
    *running = false;
    if (!w->loop_made || w->life == MR_LIFE_ENDED)
        return mr__error(MR_E_STATE, "the worker is not running; mr_worker_start() comes first");
    return turn(w, UV_RUN_NOWAIT, running);
}

mr_error *mr_worker_run(mr_worker *w)
{
    if (w->life == MR_LIFE_NEW)
        MR_TRY(mr_worker_start(w));
    if (w->life == MR_LIFE_ENDED)
        return mr__error(MR_E_STATE, "the worker has ended; make a new one");
    bool running = false;
    return turn(w, UV_RUN_DEFAULT, &running);
}

int64_t mr_worker_metric(const mr_worker *w, const char *name)
{
    int metric = mr__metric_find(name);
    switch (metric) {
    case -1:
        return -1;
    case MR_METRIC_LOG_READS:
        return atomic_load(&w->read.reads);
    case MR_METRIC_LOG_ROWS:
        return atomic_load(&w->read.rows);
    case MR_METRIC_WINDOWS:
        return atomic_load(&w->read.windows);
    case MR_METRIC_SETTLE_STEPS:
        return atomic_load(&w->read.settle_steps);
    case MR_METRIC_HOLES:
        return atomic_load(&w->read.holes);
    default:
        return atomic_load(&w->metrics[metric]);
    }
}
