/* An executor's connection: opening, waiting with a deadline, cancelling, the prepared statements.
 */
#include "pg/session_private.h"

#include "base/hash.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    CANCEL_GRACE = 5000000, /* how long a cancelled statement may take to end before we hang up */
    POLL_SLICE = 100,       /* milliseconds between two looks at the cancelled flag */
};

mr_error *mr__session_open(const mr_session_params *params, mr_session **out)
{
    mr_session *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return mr__error_nomem();
    s->params = *params;
    mr_error *error = mr_connect(params->conn.conninfo, params->conn.application, &s->conn);
    if (error == NULL && PQsetnonblocking(s->conn, 1) != 0)
        error = mr__pg_conn_error(s->conn);
    if (error == NULL && PQenterPipelineMode(s->conn) != 1)
        error = mr__pg_conn_error(s->conn);
    if (error != NULL) {
        mr__session_close(s);
        return error;
    }
    *out = s;
    return NULL;
}

mr_error *mr__session_script(const mr_session_params *params, const mr_script *script,
                             mr_session **out)
{
    mr_session *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return mr__error_nomem();
    s->params = *params;
    s->script = script;
    *out = s;
    return NULL;
}

void mr__session_close(mr_session *s)
{
    if (s == NULL)
        return;
    mr__session_cancel_end(s);
    for (size_t i = 0; i < s->statement_count; i++)
        free(s->statements[i].key);
    PQfinish(s->conn);
    free(s->tx.entries);
    free(s);
}

bool mr__session_usable(const mr_session *s)
{
    return !s->spent && mr__session_sound(s);
}

bool mr__session_sound(const mr_session *s)
{
    return !s->broken && (s->script != NULL || PQstatus(s->conn) == CONNECTION_OK);
}

PGconn *mr__session_conn(mr_session *s)
{
    return s->conn;
}

int64_t mr__session_round_trips(const mr_session *s)
{
    return s->round_trips;
}

mr_error *mr__session_lost(mr_session *s)
{
    s->broken = true;
    return mr__pg_conn_error(s->conn);
}

/* ---- Cancelling ---------------------------------------------------------------------------- */

/* PQcancel() opens a connection of its own and waits for it without a limit, so it gets a thread of
 * its own: a server that no longer answers must not hold the executor. */
struct mr_cancel {
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t over;
    bool done;
    int holders; /* the session and the thread; the last one frees */
    PGcancel *handle;
};

/* Unlocks. */
static void cancel_release(mr_cancel *c)
{
    bool last = --c->holders == 0;
    (void)pthread_mutex_unlock(&c->lock);
    if (!last)
        return;
    PQfreeCancel(c->handle);
    (void)pthread_cond_destroy(&c->over);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

static void *run_cancel(void *argument)
{
    mr_cancel *c = argument;
    char why[256];
    (void)PQcancel(c->handle, why, sizeof(why));
    (void)pthread_mutex_lock(&c->lock);
    c->done = true;
    (void)pthread_cond_signal(&c->over);
    cancel_release(c);
    return NULL;
}

/* Asks the server to stop what this connection runs. The answer comes through the connection
 * itself. */
static void request_cancel(mr_session *s)
{
    mr_cancel *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return;
    c->handle = PQgetCancel(s->conn);
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->over, NULL);
    c->holders = 2;
    s->cancel = c;
    pthread_t thread;
    if (c->handle != NULL && pthread_create(&thread, NULL, run_cancel, c) == 0) {
        (void)pthread_detach(thread);
        return;
    }
    c->holders = 1; /* no cancel is under way; the grace period ends the wait */
    c->done = true;
}

void mr__session_cancel_end(mr_session *s)
{
    mr_cancel *c = s->cancel;
    if (c == NULL)
        return;
    s->cancel = NULL;
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    (void)pthread_mutex_lock(&c->lock);
    while (!c->done && pthread_cond_timedwait(&c->over, &c->lock, &until) == 0) {
    }
    /* One that is still on its way would hit whatever runs here next. */
    if (!c->done)
        s->broken = true;
    cancel_release(c);
}

/* Turns a passed deadline or a forced stop into a cancel request, once; hangs up when even that
 * does not end the statement in time. */
static mr_error *check_deadline(mr_session *s)
{
    mr_tx *tx = &s->tx;
    int64_t now = mr__clock_now(s->params.clock);
    if (tx->cancel_sent_at != 0) {
        if (now < tx->cancel_sent_at + CANCEL_GRACE)
            return NULL;
        s->broken = true;
        return mr__error_db(
            MR_E_CONNECT, NULL, true,
            "the server did not end a cancelled statement; the connection was closed");
    }
    tx->timed_out = now >= tx->deadline;
    tx->stopped = mr__tx_unwanted(tx);
    if (!tx->timed_out && !tx->stopped)
        return NULL;
    tx->cancel_sent_at = now;
    request_cancel(s);
    return NULL;
}

mr_error *mr__session_wait(mr_session *s)
{
    int unsent = PQflush(s->conn);
    if (unsent < 0)
        return mr__session_lost(s);
    struct pollfd fd = {.fd = PQsocket(s->conn), .events = POLLIN};
    if (unsent > 0)
        fd.events |= POLLOUT;
    int ready = poll(&fd, 1, POLL_SLICE);
    if (ready < 0 && errno != EINTR)
        return mr__session_lost(s);
    if (ready > 0 && (fd.revents & (POLLIN | POLLERR | POLLHUP)) != 0 &&
        PQconsumeInput(s->conn) == 0)
        return mr__session_lost(s);
    return check_deadline(s);
}

/* ---- Prepared statements ------------------------------------------------------------------- */

static mr_statement *statement_find(mr_session *s, const char *sql, uint64_t hash)
{
    for (size_t i = 0; i < s->statement_count; i++)
        if (s->statements[i].hash == hash && strcmp(s->statements[i].key, sql) == 0)
            return &s->statements[i];
    return NULL;
}

mr_statement *mr__session_statement(mr_session *s, const char *sql, int count, const Oid *types)
{
    uint64_t hash = mr__hash_fnv1a64(sql, strlen(sql));
    if (types != NULL)
        hash ^= mr__hash_fnv1a64(types, (size_t)count * sizeof(Oid));
    mr_statement *found = statement_find(s, sql, hash);
    if (found != NULL)
        return found;
    if (s->statement_count == MR_STATEMENTS)
        return NULL;
    char *key = strdup(sql);
    if (key == NULL)
        return NULL;
    mr_statement *fresh = &s->statements[s->statement_count];
    *fresh = (mr_statement){.key = key, .hash = hash};
    (void)snprintf(fresh->name, sizeof(fresh->name), "mr_%zu", s->statement_count);
    s->statement_count++;
    return fresh;
}
