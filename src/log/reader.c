/* The one reader of a process: follows the tail of the log, decides holes, keeps decided windows
 * for all consumers, and reads older stretches for those far behind.
 *
 * What must stay true: `horizon` is only raised by proof (evidence, or an unbroken run of rows from
 * below it), and a read may rely on the horizon only if it was known before the read was sent. */
#include "log/reader_private.h"

#include <stdlib.h>

enum {
    POLL_BUSY = 5,   /* milliseconds between two looks while events arrive */
    STEP_MOST = 100, /* longest wait between two looks at who holds a hole open */
};

static void look(mr_reader *r);

static void on_timer(uv_timer_t *timer)
{
    look(timer->data);
}

static void look_in(mr_reader *r, int64_t milliseconds)
{
    if (!r->closing)
        (void)uv_timer_start(&r->timer, on_timer, (uint64_t)milliseconds, 0);
}

/* ---- The tail ------------------------------------------------------------------------------ */

/* What the rows of a tail read allow; moves the horizon along with what is proven by them. */
static mr_error *advance_tail(mr_reader *r, PGresult **rows, int64_t horizon, bool *moved,
                              bool *more)
{
    int64_t *positions = NULL;
    size_t count = 0;
    MR_TRY(mr__reader_positions(*rows, &positions, &count));
    *more = (int64_t)count >= r->limit;
    if (r->asked == ASK_PUBLISHED && mr__reader_cut(positions, &count, horizon))
        *more = false;
    mr_frontier f = mr__frontier(r->tail, horizon, positions, count, *more);
    if (f.blocked) {
        mr__reader_note_gap(r, f.gap);
        int64_t target = mr__reader_forced_target(r, positions + f.rows, count - f.rows);
        if (target > 0)
            f = mr__frontier(r->tail, target, positions, count, *more);
    }
    free(positions);
    int64_t seen = r->gap != 0 ? r->gap_seen : mr__reader_now(r);
    if (!f.blocked)
        r->gap = 0;
    *moved = f.to > r->tail;
    if (!*moved)
        return NULL;
    int64_t from = r->tail;
    PGresult *taken = *rows;
    *rows = NULL;
    MR_TRY(mr__reader_publish(r, taken, from, &f, seen, false));
    r->tail = f.to;
    if (from <= r->horizon && r->tail > r->horizon)
        r->horizon = r->tail;
    return NULL;
}

static void schedule_look(mr_reader *r, bool moved, bool more)
{
    if (r->again || (moved && more)) {
        r->again = false;
        look(r);
        return;
    }
    bool blocked = r->gap != 0;
    if (mr__reader_by_evidence(r) && (blocked || mr__reader_proof_active(r))) {
        /* A hole: the first look at the proof is at once, later ones wait a little longer each
         * time. */
        look_in(r, mr__reader_proof_active(r) ? r->step : 0);
        if (mr__reader_proof_active(r))
            r->step = r->step * 2 > STEP_MOST ? STEP_MOST : r->step * 2;
        return;
    }
    r->poll = moved ? POLL_BUSY : r->poll + r->poll / 2 + 1;
    if (r->poll > r->params.idle / 1000)
        r->poll = r->params.idle / 1000;
    int64_t fixed = r->params.interval < 0 ? r->poll : r->params.interval / 1000;
    look_in(r, blocked && fixed > POLL_BUSY * 4 ? POLL_BUSY * 4 : fixed);
}

static bool check_primary(mr_reader *r, const PGresult *head)
{
    if (PQgetvalue(head, 0, 1)[0] != 't')
        return true;
    mr__aconn_restart(r->conn, "this server is a standby; waiting for the primary "
                               "(target_session_attrs=read-write picks it)");
    return false;
}

/* A consumer may stand beyond the head, put there by its start_from: nobody may wait for the log to
 * grow up to it, so the tail goes back to the head. The rows at hand are not those after it: look
 * again. */
static bool ahead_of_log(mr_reader *r, int64_t head)
{
    if (r->ready || r->tail <= head)
        return false;
    r->tail = head;
    if (r->horizon > head)
        r->horizon = head;
    r->again = true;
    return true;
}

static mr_error *take_tail(mr_reader *r, PGresult **results, bool *moved, bool *more)
{
    int64_t horizon = r->sent_horizon;
    PGresult **rows = &results[0];
    if (r->asked == ASK_BEGIN) {
        int64_t mark = strtoll(PQgetvalue(results[0], 0, 0), NULL, 10);
        if (mark > r->head)
            r->head = mark;
        if (!check_primary(r, results[0]))
            return NULL;
        r->server = strtoll(PQgetvalue(results[0], 0, 2), NULL, 10);
        rows = &results[1];
        if (mr__reader_by_evidence(r)) {
            MR_TRY(mr__reader_feed_proof(r, results[1], true, mark));
            rows = &results[2];
            /* The rows were read after the listing, so a proof that is complete holds for them. */
            horizon = r->horizon;
        }
        if (ahead_of_log(r, mark))
            return NULL;
    } else if (r->asked == ASK_STEP) {
        MR_TRY(mr__reader_feed_proof(r, results[0], false, 0));
        rows = &results[1];
        horizon = r->horizon;
    } else if (r->asked == ASK_PUBLISHED) {
        horizon = PQntuples(results[0]) > 0 ? strtoll(PQgetvalue(results[0], 0, 0), NULL, 10) : 0;
        r->server = PQntuples(results[0]) > 0 ? strtoll(PQgetvalue(results[0], 0, 1), NULL, 10) : 0;
        mr__reader_proven(r, horizon);
        rows = &results[1];
        r->head = horizon;
        if (ahead_of_log(r, horizon))
            return NULL;
    }
    mr__reader_count(r, *rows);
    return advance_tail(r, rows, horizon, moved, more);
}

static void on_tail(void *user, PGresult **results, mr_error *error)
{
    mr_reader *r = user;
    r->busy = false;
    bool moved = false, more = false;
    if (error == NULL && !r->closing && r->following && r->sent_tail != r->tail) {
        look(r); /* the tail was raised meanwhile: these rows are not what follows it */
        return;
    }
    int64_t horizon = r->horizon;
    if (error == NULL && !r->closing && r->following)
        error = take_tail(r, results, &moved, &more);
    if (error == NULL && !r->closing && r->following)
        mr__reader_age(r);
    if (error != NULL && mr_error_code(error) != MR_E_CONNECT &&
        mr_error_code(error) != MR_E_CANCELLED) {
        mr__log(r->params.logger, MR_ERROR, "reading the log failed",
                "error=%s" MR_SEP "sqlstate=%s", mr_error_message(error), mr_error_sqlstate(error));
        look_in(r, 1000);
    }
    bool failed = error != NULL;
    mr_error_free(error);
    if (failed || r->closing || !mr__aconn_up(r->conn) || !r->following)
        return;
    bool first = !r->ready;
    r->ready = true;
    if (r->gap != 0)
        mr__reader_warn_gap(r);
    /* More is there: the server reads on while the consumers take what came. Not when the cache is
     * full: room would be made of what they have not seen yet. */
    if (moved && more && !mr__cache_tail_full(&r->cache))
        look(r);
    /* A proof lets those on who wait at a hole below the tail. */
    if (moved || first || r->horizon > horizon || mr__reader_stuck_due(r)) {
        r->telling = true;
        r->params.on_progress(r->params.user);
        r->telling = false;
    }
    if (!r->busy && r->following)
        schedule_look(r, moved, more);
}

static ask choose_ask(const mr_reader *r)
{
    if (r->params.gap.strategy == MR_GAP_PUBLISHED)
        return ASK_PUBLISHED;
    if (!r->ready)
        return ASK_BEGIN;
    if (!mr__reader_by_evidence(r))
        return ASK_ROWS;
    if (mr__reader_proof_active(r))
        return ASK_STEP;
    return r->gap != 0 ? ASK_BEGIN : ASK_ROWS;
}

/* Room for another window: when the cache is full, slow consumers give way to one that waits. */
static bool make_room(mr_reader *r)
{
    mr__cache_release(&r->cache, r->lowest);
    if (!mr__cache_tail_full(&r->cache))
        return true;
    /* Holes must be looked at all the same: somebody may wait at one below the tail. */
    if (!r->waiting && r->ready && !mr__reader_proof_active(r) && r->stuck_count == 0)
        return false;
    mr__cache_evict_tail(&r->cache);
    return true;
}

static void look(mr_reader *r)
{
    if (r->closing || !r->following || !mr__aconn_up(r->conn))
        return;
    if (r->busy) {
        r->again = true;
        return;
    }
    if (r->ready && r->lowest < 0)
        return; /* nobody needs anything */
    if (!make_room(r))
        return; /* mr__reader_places() looks again when a consumer has moved */
    (void)uv_timer_stop(&r->timer);
    r->asked = choose_ask(r);
    r->limit = mr__reader_limit(r);
    r->busy = true;
    r->again = false;
    r->sent_at = mr__reader_now(r);
    r->sent_horizon = r->horizon;
    r->sent_tail = r->tail;
    char from[24], limit[24];
    mr__reader_number(from, r->tail);
    mr__reader_number(limit, r->limit);
    mr_flight_statement window = {
        .sql = r->sql.window, .count = 2, .values = {from, limit}, .binary = true};
    mr_flight_statement head = {.sql = r->sql.head};
    bool begin = r->asked == ASK_BEGIN;
    mr_flight_statement proof = {.sql = r->params.gap.strategy != MR_GAP_SNAPSHOT ? r->sql.evidence
                                        : begin                                   ? r->sql.xid
                                                : r->sql.snapshot};
    mr_flight_statement published = {.sql = r->params.published_sql};
    mr_flight_statement flight[3];
    int n = 0;
    if (r->asked == ASK_BEGIN)
        flight[n++] = head;
    if ((r->asked == ASK_BEGIN && mr__reader_by_evidence(r)) || r->asked == ASK_STEP)
        flight[n++] = proof;
    if (r->asked == ASK_PUBLISHED)
        flight[n++] = published;
    flight[n++] = window;
    mr__aconn_send(r->conn, flight, n, on_tail, r);
}

/* ---- Life ---------------------------------------------------------------------------------- */

static void forget(mr_reader *r)
{
    r->following = false;
    r->ready = false;
    r->again = false;
    r->gap = 0;
    r->horizon = 0;
    r->head = 0;
    r->stuck_count = 0;
    r->below_since = 0;
    r->server = 0;
    r->poll = POLL_BUSY;
    mr__reader_proven(r, 0);
    mr__cache_clear(&r->cache);
    (void)uv_timer_stop(&r->timer);
}

/* Another server may answer after a reconnect: nothing learned before counts. */
static void on_state(void *user, bool up)
{
    mr_reader *r = user;
    if (r->closing)
        return;
    forget(r);
    if (up)
        r->params.on_up(r->params.user);
}

mr_error *mr__reader_new(const mr_reader_params *params, mr_reader **out)
{
    mr_reader *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return mr__error_nomem();
    r->params = *params;
    r->cache.limit = params->cache_size;
    for (int i = 0; i < MR_READER_SIDE_READS; i++)
        r->side[i] = -1;
    mr_error *error = mr__reader_sql_render(params->shape, &params->want, &r->sql);
    mr_aconn_params conn = {.loop = params->loop,
                            .conn = params->conn,
                            .what = "reader",
                            .logger = params->logger,
                            .timeout = 60000000,
                            .open = params->open,
                            .on_state = on_state,
                            .user = r};
    if (error == NULL)
        error = mr__aconn_new(&conn, &r->conn);
    if (error != NULL) {
        mr__reader_sql_free(&r->sql);
        free(r);
        return error;
    }
    (void)uv_timer_init(params->loop, &r->timer);
    r->timer.data = r;
    *out = r;
    return NULL;
}

void mr__reader_start(mr_reader *r)
{
    mr__aconn_start(r->conn);
}

mr_aconn *mr__reader_conn(mr_reader *r)
{
    return r->conn;
}

void mr__reader_follow(mr_reader *r, int64_t tail)
{
    forget(r);
    r->following = true;
    r->tail = tail;
    r->lowest = 0;
    r->waiting = true;
    mr__reader_believe(r, tail);
    look(r);
}

mr_window *mr__reader_find(mr_reader *r, int64_t position)
{
    return mr__cache_find(&r->cache, position);
}

void mr__reader_places(mr_reader *r, int64_t lowest, bool waiting)
{
    /* While nobody needed anything wake-ups were let go, and the timer may be set for later. */
    bool needed = r->lowest < 0 && lowest >= 0;
    r->lowest = lowest;
    r->waiting = waiting;
    if (lowest < 0) {
        (void)uv_timer_stop(&r->timer);
        mr__cache_clear(&r->cache);
        return;
    }
    bool idle = !r->telling && !r->busy && uv_is_active((uv_handle_t *)&r->timer) == 0;
    if (idle || (needed && !r->telling))
        look(r);
    else
        mr__cache_release(&r->cache, lowest);
}

void mr__reader_raise(mr_reader *r, int64_t position)
{
    if (position <= r->tail)
        return;
    r->tail = position;
    r->gap = 0;
    mr__reader_proven(r, 0);
    mr__reader_believe(r, position);
    r->ready = false; /* a fresh look proves what lies between */
    look(r);
}

void mr__reader_wake(mr_reader *r)
{
    r->poll = POLL_BUSY;
    look(r);
}

int64_t mr__reader_tail(const mr_reader *r)
{
    return r->tail;
}

int64_t mr__reader_head(const mr_reader *r)
{
    return r->head;
}

bool mr__reader_ready(const mr_reader *r)
{
    return r->ready;
}

int64_t mr__reader_gap(const mr_reader *r)
{
    return r->gap;
}

static void on_closed(uv_handle_t *handle)
{
    mr_reader *r = handle->data;
    mr__reader_sql_free(&r->sql);
    mr__settle_free(&r->settle);
    free(r->stuck);
    free(r);
}

void mr__reader_close(mr_reader *r)
{
    if (r == NULL || r->closing)
        return;
    r->closing = true;
    mr__aconn_close(r->conn);
    mr__cache_clear(&r->cache);
    uv_close((uv_handle_t *)&r->timer, on_closed);
}
