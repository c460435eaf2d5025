/* A worker's life: made from a configuration, started, stopped in good order. */
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
    for (size_t i = 0; i < conf->consumer_count; i++) {
        mr_place **places = NULL;
        size_t count = 0;
        MR_TRY(mr__places_new(w, conf->consumers[i], &places, &count));
        mr_place **grown = realloc(w->places, (w->place_count + count) * sizeof(*grown));
        if (grown == NULL) {
            while (count > 0)
                mr__place_free(places[--count]);
            free(places);
            return mr__error_nomem();
        }
        w->places = grown;
        memcpy(w->places + w->place_count, places, count * sizeof(*places));
        w->place_count += count;
        free(places);
    }
    return NULL;
}

static mr_error *make_lanes(mr_worker *w)
{
    const mr_conf *conf = w->conf;
    w->lanes = calloc(conf->queue_count + 1, sizeof(*w->lanes));
    if (w->lanes == NULL)
        return mr__error_nomem();
    for (size_t i = 0; i < conf->queue_count; i++) {
        MR_TRY(mr__lane_new(w, conf->queues[i], &w->lanes[i]));
        w->lane_count++;
    }
    return NULL;
}

static mr_error *fill(mr_worker *w)
{
    if (w->conf->consumer_count == 0 && w->conf->queue_count == 0)
        return mr__error(MR_E_CONFIG,
                         "there are no consumers and no queues; give the worker something to do");
    MR_TRY(mr__conf_names(w->conf, &w->names));
    MR_TRY(mr__conf_log_spec(w->conf, &w->log_spec));
    MR_TRY(mr__worker_statements(w));
    MR_TRY(mr__control_init(w));
    MR_TRY(make_lanes(w));
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
    for (size_t i = 0; i < w->lane_count; i++)
        mr__lane_free(w->lanes[i]);
    free(w->lanes);
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
    mr__replay_sql_free(&w->replay_sql);
    free(w->load_sql);
    free(w->published_sql);
    free(w->notify_sql);
    free(w->ring_sql);
    free(w->house_sql);
    json_decref(w->ring_members);
    free(w->house_after);
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
    if (w->reader != NULL)
        mr__reader_close(w->reader);
    mr__aconn_close(w->jobs);
    mr__aconn_close(w->control);
    mr__lanes_close(w);
    mr__aconn_close(w->listener);
    for (size_t i = 0; i < w->place_count; i++)
        uv_close((uv_handle_t *)&w->places[i]->timer, NULL);
    uv_close((uv_handle_t *)&w->heartbeat, NULL);
    uv_close((uv_handle_t *)&w->shutdown, NULL);
    uv_close((uv_handle_t *)&w->lag, NULL);
    uv_close((uv_handle_t *)&w->ring, NULL);
    uv_close((uv_handle_t *)&w->house, NULL);
    uv_close((uv_handle_t *)&w->signal, NULL);
}

void mr__worker_settle_stop(mr_worker *w)
{
    if (w->life != MR_LIFE_STOPPING || w->settling || !mr__dispatch_quiet(w))
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

enum { OVERTIME = 5000 }; /* milliseconds for what was cancelled to be written down */

static void on_shutdown_timer(uv_timer_t *timer)
{
    mr_worker *w = timer->data;
    if (w->life == MR_LIFE_LEAVING) {
        close_everything(w);
        return;
    }
    mr__log(&w->logger, MR_WARN, "shutdown timed out; cancelling running batches", "running=%d",
            w->running);
    w->overdue++;
    atomic_store(&w->cancelled, true);
    mr__lanes_cancel(w);
    mr__worker_settle_stop(w);
}

void mr__worker_force(mr_worker *w)
{
    if (w->life == MR_LIFE_STOPPING && w->overdue == 0)
        (void)uv_timer_start(&w->shutdown, on_shutdown_timer, 0, OVERTIME);
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
    (void)uv_timer_start(&w->shutdown, on_shutdown_timer, (uint64_t)(patience / 1000), OVERTIME);
    mr__dispatch_flush(w);
    mr__lanes_stop(w);
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

/* ---- Running ------------------------------------------------------------------------------- */

mr_error *mr_worker_check(mr_worker *w)
{
    mr_conn_params params = mr__worker_conn(w);
    MR_AUTO_CONN conn = NULL;
    MR_TRY(mr_connect(params.conninfo, params.application, &conn));
    MR_TRY(mr__worker_prepare(w, conn, true));
    return mr__enrol_check(w, conn);
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
    mr_conn_params params = mr__worker_conn(w);
    MR_AUTO_CONN conn = NULL;
    MR_TRY(mr_connect(params.conninfo, params.application, &conn));
    MR_TRY(mr__worker_prepare(w, conn, false));
    MR_TRY(mr__enrol_places(w, conn, w->places, w->place_count));
    MR_TRY(mr__lanes_enrol(w, conn));
    mr_error *error = mr__worker_make_loop(w);
    if (error != NULL)
        return w->loop_made ? abandon(w, error) : error;
    set_life(w, MR_LIFE_RUNNING);
    mr__log(&w->logger, MR_INFO, "worker started",
            "worker=%s" MR_SEP "version=%s" MR_SEP "database=%s" MR_SEP "consumers=%zu" MR_SEP
            "queues=%zu" MR_SEP "gap_strategy=%s",
            w->id, MR_VERSION, PQdb(conn), w->place_count, w->lane_count,
            mr__bag_text(&w->conf->bag, MR_OPT_GAP_STRATEGY));
    mr__aconn_start(w->control);
    if (w->listener != NULL)
        mr__aconn_start(w->listener);
    if (w->reader != NULL)
        mr__reader_start(w->reader);
    else
        mr__aconn_start(w->jobs);
    mr__lag_start(w);
    mr__lanes_start(w);
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
