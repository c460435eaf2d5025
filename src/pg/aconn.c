/* A connection driven by the loop: connects and reconnects by itself, runs flights of statements.
 */
#include "pg/aconn.h"

#include "base/clock.h"
#include "base/uuid.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    BACKOFF_FIRST = 100,
    BACKOFF_MOST = 5000
}; /* milliseconds between two attempts to connect */

typedef enum aconn_state {
    STATE_DOWN,       /* waiting for the backoff timer */
    STATE_CONNECTING, /* PQconnectPoll under way */
    STATE_UP,
    STATE_CLOSED,
} aconn_state;

typedef struct flight {
    struct flight *next;
    mr_flight_statement statements[MR_FLIGHT_STATEMENTS];
    PGresult *results[MR_FLIGHT_STATEMENTS];
    int count, sent, answered, synced;
    bool result_seen; /* of the statement being answered */
    mr_error *error;
    mr_flight_fn callback;
    void *user;
} flight;

struct mr_aconn {
    mr_aconn_params params;
    aconn_state state;
    PGconn *conn;
    uv_poll_t *poll;   /* NULL while there is no socket */
    uv_timer_t timer;  /* backoff while down, deadline while busy or connecting */
    uv_async_t failed; /* flights queued while down are answered from the loop, never from send() */
    flight *first, *last;
    int pending, open_handles;
    int64_t backoff, flights, connects;
};

static void begin_connect(mr_aconn *c);
static void go_down(mr_aconn *c, mr_error *error);
static void on_poll(uv_poll_t *handle, int status, int events);
static void on_timer(uv_timer_t *timer);

/* ---- Flights ------------------------------------------------------------------------------- */

static void flight_free(flight *f)
{
    for (int i = 0; i < f->count; i++) {
        PQclear(f->results[i]);
        for (int k = 0; k < f->statements[i].count; k++)
            free((void *)(uintptr_t)f->statements[i].values[k]);
    }
    mr_error_free(f->error);
    free(f);
}

static void flight_end(mr_aconn *c)
{
    flight *f = c->first;
    c->first = f->next;
    if (c->first == NULL)
        c->last = NULL;
    c->pending--;
    mr_error *error = f->error;
    f->error = NULL;
    f->callback(f->user, f->results, error);
    flight_free(f);
}

static void fail_all(mr_aconn *c, const mr_error *error)
{
    /* Callbacks may queue new flights: those are answered in the next round, not in this loop. */
    int rounds = c->pending;
    while (rounds-- > 0 && c->first != NULL) {
        mr_error_free(c->first->error);
        c->first->error = mr__error_copy(error);
        flight_end(c);
    }
}

static flight *flight_copy(const mr_flight_statement *statements, int count)
{
    flight *f = calloc(1, sizeof(*f));
    if (f == NULL)
        return NULL;
    f->count = count;
    for (int i = 0; i < count; i++) {
        f->statements[i] = statements[i];
        for (int k = 0; k < statements[i].count; k++) {
            const char *value = statements[i].values[k];
            f->statements[i].values[k] = value == NULL ? NULL : strdup(value);
        }
    }
    return f;
}

/* A sync after each statement makes each its own transaction, so each has its own snapshot. With
 * one sync for all, a database that defaults to REPEATABLE READ would show later statements what
 * the first one saw, and the proof that a hole is dead would hold for rows read before it. */
static bool flight_transmit(mr_aconn *c, flight *f)
{
    for (; f->sent < f->count; f->sent++) {
        mr_flight_statement *s = &f->statements[f->sent];
        if (PQsendQueryParams(c->conn, s->sql, s->count, NULL, s->values, NULL, NULL, s->binary) !=
                1 ||
            PQpipelineSync(c->conn) != 1)
            return false;
    }
    c->flights++;
    return true;
}

/* ---- Polling ------------------------------------------------------------------------------- */

static void maybe_free(mr_aconn *c)
{
    if (c->state == STATE_CLOSED && c->open_handles == 0)
        free(c);
}

static void on_handle_closed(uv_handle_t *handle)
{
    mr_aconn *c = handle->data;
    c->open_handles--;
    maybe_free(c);
}

static void on_poll_closed(uv_handle_t *handle)
{
    mr_aconn *c = handle->data;
    free(handle);
    c->open_handles--;
    maybe_free(c);
}

static void poll_drop(mr_aconn *c)
{
    if (c->poll == NULL)
        return;
    (void)uv_poll_stop(c->poll);
    uv_close((uv_handle_t *)c->poll, on_poll_closed);
    c->poll = NULL;
}

/* libpq may have moved to another socket (several hosts, a retry): look each time. */
static bool poll_on(mr_aconn *c, int events)
{
    int fd = PQsocket(c->conn);
    uv_os_fd_t current = -1;
    if (c->poll != NULL)
        (void)uv_fileno((uv_handle_t *)c->poll, &current);
    if (c->poll != NULL && (current != fd || c->state == STATE_CONNECTING))
        poll_drop(c);
    if (c->poll == NULL) {
        uv_poll_t *poll = calloc(1, sizeof(*poll));
        if (poll == NULL || fd < 0 || uv_poll_init(c->params.loop, poll, fd) != 0) {
            free(poll);
            return false;
        }
        poll->data = c;
        c->poll = poll;
        c->open_handles++;
    }
    return uv_poll_start(c->poll, events, on_poll) == 0;
}

static void arm(mr_aconn *c, int64_t milliseconds)
{
    (void)uv_timer_start(&c->timer, on_timer, (uint64_t)milliseconds, 0);
}

/* The deadline runs while a flight is under way and starts anew with each answer. */
static void arm_deadline(mr_aconn *c)
{
    if (c->first != NULL)
        arm(c, c->params.timeout / 1000);
    else
        (void)uv_timer_stop(&c->timer);
}

static void flush(mr_aconn *c)
{
    int unsent = PQflush(c->conn);
    if (unsent < 0 || !poll_on(c, unsent > 0 ? UV_READABLE | UV_WRITABLE : UV_READABLE))
        go_down(c, mr__pg_conn_error(c->conn));
}

/* ---- Results ------------------------------------------------------------------------------- */

static void take_result(flight *f, PGconn *conn, PGresult *result)
{
    bool aborted = PQresultStatus(result) == PGRES_PIPELINE_ABORTED;
    mr_error *error = aborted ? NULL : mr_error_from_result(conn, result);
    if (error != NULL && f->error == NULL)
        f->error = error;
    else
        mr_error_free(error);
    f->result_seen = true;
    if (f->error == NULL && !aborted && f->results[f->answered] == NULL) {
        f->results[f->answered] = result;
        return;
    }
    PQclear(result);
}

/* Takes one piece of what arrived; false when there is nothing more for now. */
static bool take_one(mr_aconn *c)
{
    flight *f = c->first;
    if (f == NULL || f->sent < f->count || PQisBusy(c->conn) != 0)
        return false;
    PGresult *result = PQgetResult(c->conn);
    if (result == NULL) {
        if (!f->result_seen)
            return PQstatus(c->conn) == CONNECTION_OK;
        f->answered++;
        f->result_seen = false;
        return true;
    }
    if (PQresultStatus(result) == PGRES_PIPELINE_SYNC) {
        PQclear(result);
        if (++f->synced == f->count)
            flight_end(c);
        return c->state == STATE_UP;
    }
    if (f->answered >= f->count) {
        PQclear(result); /* only a connection that is going away says more than was asked */
        return true;
    }
    take_result(f, c->conn, result);
    return true;
}

static void take_notifications(mr_aconn *c)
{
    PGnotify *n;
    while (c->state == STATE_UP && (n = PQnotifies(c->conn)) != NULL) {
        if (c->params.on_notify != NULL)
            c->params.on_notify(c->params.user, n->relname, n->extra);
        PQfreemem(n);
    }
}

static void on_readable(mr_aconn *c)
{
    if (PQconsumeInput(c->conn) == 0) {
        go_down(c, mr__pg_conn_error(c->conn));
        return;
    }
    int before = c->pending;
    while (take_one(c)) {
    }
    take_notifications(c);
    if (c->state != STATE_UP)
        return;
    if (PQstatus(c->conn) != CONNECTION_OK) {
        go_down(c, mr__pg_conn_error(c->conn));
        return;
    }
    if (c->pending != before)
        arm_deadline(c);
    flush(c);
}

/* ---- States -------------------------------------------------------------------------------- */

static void go_up(mr_aconn *c)
{
    if (PQsetnonblocking(c->conn, 1) != 0 || PQenterPipelineMode(c->conn) != 1) {
        go_down(c, mr__pg_conn_error(c->conn));
        return;
    }
    c->state = STATE_UP;
    if (c->params.open != NULL)
        atomic_fetch_add(c->params.open, 1);
    c->backoff = BACKOFF_FIRST;
    c->connects++;
    (void)uv_timer_stop(&c->timer);
    if (c->connects > 1)
        mr__log(c->params.logger, MR_INFO, "reconnected", "connection=%s", c->params.what);
    c->params.on_state(c->params.user, true);
    if (c->state == STATE_UP)
        flush(c);
}

static void go_down(mr_aconn *c, mr_error *error)
{
    if (c->state == STATE_CLOSED || c->state == STATE_DOWN) {
        mr_error_free(error);
        return;
    }
    bool was_up = c->state == STATE_UP;
    if (was_up && c->params.open != NULL)
        atomic_fetch_sub(c->params.open, 1);
    c->state = STATE_DOWN;
    poll_drop(c);
    PQfinish(c->conn);
    c->conn = NULL;
    /* Jitter, so that a fleet does not come back in step. */
    int64_t wait = c->backoff / 2 + mr__random_upto(c->backoff / 2);
    mr__log(c->params.logger, MR_WARN, was_up ? "connection lost" : "cannot connect",
            "connection=%s" MR_SEP "error=%s" MR_SEP "retry_ms=%" PRId64, c->params.what,
            mr_error_message(error), wait);
    c->backoff = c->backoff * 2 > BACKOFF_MOST ? BACKOFF_MOST : c->backoff * 2;
    arm(c, wait);
    mr_error *lost = mr__error_db(MR_E_CONNECT, NULL, true, "%s", mr_error_message(error));
    fail_all(c, lost);
    mr_error_free(lost);
    mr_error_free(error);
    if (was_up)
        c->params.on_state(c->params.user, false);
}

static void step_connect(mr_aconn *c)
{
    switch (PQconnectPoll(c->conn)) {
    case PGRES_POLLING_OK:
        go_up(c);
        return;
    case PGRES_POLLING_READING:
    case PGRES_POLLING_ACTIVE:
        if (poll_on(c, UV_READABLE))
            return;
        break;
    case PGRES_POLLING_WRITING:
        if (poll_on(c, UV_WRITABLE))
            return;
        break;
    case PGRES_POLLING_FAILED:
    default:
        break;
    }
    go_down(c, mr__pg_conn_error(c->conn));
}

static void begin_connect(mr_aconn *c)
{
    const char *keys[MR_CONN_KEYS], *values[MR_CONN_KEYS];
    mr__conn_keywords(&c->params.conn, keys, values);
    c->state = STATE_CONNECTING;
    c->conn = PQconnectStartParams(keys, values, 1);
    if (c->conn == NULL) {
        go_down(c, mr__error_nomem());
        return;
    }
    arm(c, 15000);
    /* PQconnectPoll wants to be treated as if it last said "writing". */
    if (PQstatus(c->conn) == CONNECTION_BAD || !poll_on(c, UV_WRITABLE))
        go_down(c, mr__pg_conn_error(c->conn));
}

static void on_poll(uv_poll_t *handle, int status, int events)
{
    (void)events;
    mr_aconn *c = handle->data;
    if (handle != c->poll)
        return;
    if (c->state == STATE_CONNECTING)
        step_connect(c);
    else if (status < 0 && status != UV_EBADF)
        go_down(c, mr__error_db(MR_E_CONNECT, NULL, true, "%s", uv_strerror(status)));
    else
        on_readable(c);
}

static void on_timer(uv_timer_t *timer)
{
    mr_aconn *c = timer->data;
    if (c->state == STATE_DOWN)
        begin_connect(c);
    else if (c->state == STATE_CONNECTING)
        go_down(c, mr__error_db(MR_E_CONNECT, NULL, true, "connecting took too long"));
    else if (c->state == STATE_UP && c->first != NULL)
        go_down(c, mr__error_db(MR_E_CONNECT, NULL, true, "the server did not answer in time"));
}

static void on_failed(uv_async_t *async)
{
    mr_aconn *c = async->data;
    if (c->state == STATE_CLOSED)
        return;
    if (c->state == STATE_UP) {
        if (c->poll == NULL)
            go_down(c, mr__pg_conn_error(c->conn));
        return;
    }
    mr_error *error = mr__error_db(MR_E_CONNECT, NULL, true, "not connected");
    fail_all(c, error);
    mr_error_free(error);
}

/* ---- Calls --------------------------------------------------------------------------------- */

mr_error *mr__aconn_new(const mr_aconn_params *params, mr_aconn **out)
{
    mr_aconn *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return mr__error_nomem();
    c->params = *params;
    c->backoff = BACKOFF_FIRST;
    (void)uv_timer_init(params->loop, &c->timer);
    (void)uv_async_init(params->loop, &c->failed, on_failed);
    c->timer.data = c;
    c->failed.data = c;
    c->open_handles = 2;
    *out = c;
    return NULL;
}

void mr__aconn_start(mr_aconn *c)
{
    begin_connect(c);
}

bool mr__aconn_up(const mr_aconn *c)
{
    return c->state == STATE_UP;
}

int mr__aconn_pending(const mr_aconn *c)
{
    return c->pending;
}

int64_t mr__aconn_flights(const mr_aconn *c)
{
    return c->flights;
}

int64_t mr__aconn_connects(const mr_aconn *c)
{
    return c->connects;
}

void mr__aconn_send(mr_aconn *c, const mr_flight_statement *statements, int count,
                    mr_flight_fn callback, void *user)
{
    flight *f = flight_copy(statements, count);
    if (f == NULL) {
        callback(user, NULL, mr__error_nomem());
        return;
    }
    f->callback = callback;
    f->user = user;
    if (c->last != NULL)
        c->last->next = f;
    else
        c->first = f;
    c->last = f;
    c->pending++;
    if (c->state == STATE_UP && c->pending == 1)
        arm_deadline(c);
    bool good = c->state == STATE_UP && flight_transmit(c, f);
    int unsent = good ? PQflush(c->conn) : -1;
    /* libpq closes the socket by itself when sending shows that the server has gone. The loop must
     * not watch that number any longer: it may be another file's by now, and libuv aborts the
     * process when it cannot watch what it was told to. */
    if (c->state == STATE_UP && (unsent < 0 || PQstatus(c->conn) != CONNECTION_OK)) {
        good = false;
        poll_drop(c);
    }
    if (!good)
        (void)uv_async_send(&c->failed);
    else if (unsent > 0)
        (void)poll_on(c, UV_READABLE | UV_WRITABLE);
}

void mr__aconn_restart(mr_aconn *c, const char *reason)
{
    go_down(c, mr__error_db(MR_E_CONNECT, NULL, true, "%s", reason));
}

void mr__aconn_close(mr_aconn *c)
{
    if (c == NULL || c->state == STATE_CLOSED)
        return;
    if (c->state == STATE_UP && c->params.open != NULL)
        atomic_fetch_sub(c->params.open, 1);
    c->state = STATE_CLOSED;
    poll_drop(c);
    PQfinish(c->conn);
    c->conn = NULL;
    mr_error *error = mr__error(MR_E_CANCELLED, "the connection was closed");
    fail_all(c, error);
    mr_error_free(error);
    uv_close((uv_handle_t *)&c->timer, on_handle_closed);
    uv_close((uv_handle_t *)&c->failed, on_handle_closed);
}
