/* The one reader of a process: follows the tail of the log, decides holes, keeps decided windows
 * for all consumers, and reads older stretches for those far behind.
 *
 * What must stay true: `horizon` is only raised by proof (evidence, or an unbroken run of rows from
 * below it), and a read may rely on the horizon only if it was known before the read was sent. */
#include "log/reader.h"

#include "log/frontier.h"
#include "log/reader_sql.h"
#include "log/settle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    POLL_BUSY = 5,  /* milliseconds between two looks while events arrive */
    STEP_FIRST = 1, /* milliseconds between two looks at who holds a hole open */
    STEP_MOST = 100,
    FIRST_LIMIT = 100,      /* rows of the first read, before row sizes are known */
    WINDOW_BYTES = 4 << 20, /* what a window should stay under */
    SIDE_READS = 4,         /* stretches read at once for consumers far behind */
    GAP_WARN_AFTER = 5000000,
    GAP_WARN_EVERY = 30000000,
};

/* What a flight at the tail asks: rows only; a fresh proof from the start; the next look at one. */
typedef enum ask { ASK_ROWS, ASK_BEGIN, ASK_STEP, ASK_PUBLISHED } ask;

struct mr_reader {
    mr_reader_params params;
    mr_reader_sql sql;
    mr_aconn *conn;
    uv_timer_t timer;
    bool closing, following, busy, again, ready, telling;
    ask asked;
    int64_t sent_at, sent_horizon, sent_tail, limit;
    int64_t tail, horizon, head, lowest;
    bool waiting; /* a consumer stands at the tail */
    int64_t poll; /* milliseconds until the next look */
    mr_settle settle;
    int64_t snapshot_mark, snapshot_xmax; /* snapshot strategy: M and whom to wait for; 0 = none */
    int64_t step;                         /* milliseconds to the next look at the proof */
    int64_t gap, gap_seen, gap_warned;
    int64_t side[SIDE_READS]; /* places being read; -1 = free */
    int64_t row_bytes;
    mr_cache cache;
};

typedef struct side_read {
    mr_reader *reader;
    int slot;
    int64_t from, horizon, limit;
} side_read;

static void look(mr_reader *r);

static bool by_evidence(const mr_reader *r)
{
    return r->params.gap.strategy == MR_GAP_SETTLED || r->params.gap.strategy == MR_GAP_SNAPSHOT;
}

const char *mr__gap_strategy_name(mr_gap_strategy strategy)
{
    static const char *const names[] = {"settled",  "harbor",    "timeout",
                                        "snapshot", "published", "single_writer"};
    return names[strategy];
}

static int64_t now(const mr_reader *r)
{
    return mr__clock_now(r->params.clock);
}

static void on_timer(uv_timer_t *timer)
{
    look(timer->data);
}

static void look_in(mr_reader *r, int64_t milliseconds)
{
    if (!r->closing)
        (void)uv_timer_start(&r->timer, on_timer, (uint64_t)milliseconds, 0);
}

/* ---- Proof --------------------------------------------------------------------------------- */

static void proven(mr_reader *r, int64_t mark)
{
    if (mark > r->horizon)
        r->horizon = mark;
    r->step = STEP_FIRST;
    mr__settle_cancel(&r->settle);
    r->snapshot_xmax = 0;
}

static bool proof_active(const mr_reader *r)
{
    return r->settle.active || r->snapshot_xmax != 0;
}

static mr_error *read_holders(const PGresult *rows, mr_holder **out)
{
    int count = PQntuples(rows);
    mr_holder *holders = calloc((size_t)count + 1, sizeof(*holders));
    if (holders == NULL)
        return mr__error_nomem();
    for (int i = 0; i < count; i++) {
        (void)snprintf(holders[i].id, sizeof(holders[i].id), "%s", PQgetvalue(rows, i, 0));
        holders[i].prepared = PQgetvalue(rows, i, 1)[0] == 't';
    }
    *out = holders;
    return NULL;
}

/* Feeds the proof with what the server shows; `mark` is M when it starts. */
static mr_error *feed_settled(mr_reader *r, const PGresult *rows, bool begin, int64_t mark)
{
    mr_holder *holders = NULL;
    MR_TRY(read_holders(rows, &holders));
    size_t count = (size_t)PQntuples(rows);
    bool done = false;
    mr_error *error = begin ? mr__settle_begin(&r->settle, mark, holders, count, &done)
                            : mr__settle_step(&r->settle, holders, count, &done);
    free(holders);
    if (error == NULL && done)
        proven(r, r->settle.mark);
    return error;
}

static void feed_snapshot(mr_reader *r, const PGresult *rows, bool begin, int64_t mark)
{
    int64_t xmin = strtoll(PQgetvalue(rows, 0, 0), NULL, 10);
    if (begin) {
        r->snapshot_mark = mark;
        r->snapshot_xmax = strtoll(PQgetvalue(rows, 0, 1), NULL, 10);
    }
    if (xmin >= r->snapshot_xmax)
        proven(r, r->snapshot_mark);
}

static mr_error *feed_proof(mr_reader *r, const PGresult *rows, bool begin, int64_t mark)
{
    r->params.counts->settle_steps++;
    if (r->params.gap.strategy == MR_GAP_SETTLED)
        return feed_settled(r, rows, begin, mark);
    feed_snapshot(r, rows, begin, mark);
    return NULL;
}

/* ---- Holes that time or trust decide ------------------------------------------------------- */

static void note_gap(mr_reader *r, int64_t gap)
{
    if (r->gap == gap)
        return;
    r->gap = gap;
    r->gap_seen = now(r);
    r->gap_warned = 0;
}

static void warn_gap(mr_reader *r)
{
    int64_t t = now(r);
    if (t - r->gap_seen < GAP_WARN_AFTER ||
        (r->gap_warned != 0 && t - r->gap_warned < GAP_WARN_EVERY))
        return;
    r->gap_warned = t;
    mr__log(r->params.logger, MR_WARN, "waiting for a hole in the log",
            "position=%" PRId64 MR_SEP "seconds=%" PRId64 MR_SEP "strategy=%s" MR_SEP
            "hint=millrace gaps open names who holds it",
            r->gap, (t - r->gap_seen) / 1000000, mr__gap_strategy_name(r->params.gap.strategy));
}

/* Where a strategy without proof lets readers go on past the hole; 0 = stay. The rows come from a
 * read that was sent after the hole was due, so they are the last look at it. */
static int64_t forced_target(mr_reader *r, const int64_t *beyond, size_t count)
{
    const mr_gap_options *gap = &r->params.gap;
    int64_t age = r->sent_at - r->gap_seen;
    switch (gap->strategy) {
    case MR_GAP_HARBOR:
        return age >= gap->stale_threshold ? mr__harbor(r->gap, beyond, count, gap->harbor_lag) : 0;
    case MR_GAP_TIMEOUT:
        if (gap->skip)
            return age >= gap->timeout && count > 0 ? beyond[0] - 1 : 0;
        if (gap->max_wait > 0 && age >= gap->max_wait)
            r->params.on_stuck(r->params.user,
                               mr__error(MR_E_LOG,
                                         "position %" PRId64
                                         " is missing from the log for longer than "
                                         "max_gap_wait (gap_strategy timeout, gap_action error)",
                                         r->gap));
        return 0;
    case MR_GAP_SINGLE_WRITER:
        r->params.on_stuck(
            r->params.user,
            mr__error(MR_E_LOG,
                      "position %" PRId64 " is missing from the log, which gap_strategy "
                      "single_writer rules out; is there a second writer, or did one roll "
                      "back? gap_strategy settled copes with both",
                      r->gap));
        return 0;
    case MR_GAP_SETTLED:
    case MR_GAP_SNAPSHOT:
    case MR_GAP_PUBLISHED:
    default:
        return 0;
    }
}

/* ---- Windows ------------------------------------------------------------------------------- */

static mr_error *read_positions(const PGresult *rows, int64_t **out, size_t *count)
{
    size_t n = (size_t)PQntuples(rows);
    int64_t *positions = calloc(n + 1, sizeof(*positions));
    if (positions == NULL)
        return mr__error_nomem();
    for (size_t i = 0; i < n; i++)
        positions[i] = mr__rows_position(rows, (int)i);
    *out = positions;
    *count = n;
    return NULL;
}

/* Reads adapt to the size of rows, so that a window of large events is a short one. */
static void learn_size(mr_reader *r, const mr_window *window, size_t rows)
{
    if (rows == 0)
        return;
    int64_t bytes = (int64_t)(window->bytes / rows);
    r->row_bytes = bytes > r->row_bytes ? bytes : (r->row_bytes * 7 + bytes) / 8;
}

static int64_t next_limit(const mr_reader *r)
{
    int64_t most = r->params.read_size;
    if (r->row_bytes == 0)
        return most < FIRST_LIMIT ? most : FIRST_LIMIT;
    int64_t fits = WINDOW_BYTES / r->row_bytes;
    return fits < 1 ? 1 : fits < most ? fits : most;
}

/* Turns the rows after `from` up to the frontier into a window in the cache. Takes the result. */
static mr_error *publish(mr_reader *r, PGresult *rows, int64_t from, const mr_frontier *f,
                         int64_t seen, bool side)
{
    size_t total = (size_t)PQntuples(rows);
    mr_window *window = NULL;
    MR_TRY(
        mr__window_new(rows, r->params.want.light, from, f->to, f->rows, seen, r->head, &window));
    learn_size(r, window, total);
    r->params.counts->windows++;
    r->params.counts->holes += (int64_t)window->hole_count;
    mr__cache_add(&r->cache, window, side);
    return NULL;
}

static void count_rows(mr_reader *r, const PGresult *rows)
{
    int n = PQntuples(rows);
    r->params.counts->reads++;
    r->params.counts->rows += n;
    if (n > 0 && mr__rows_position(rows, n - 1) > r->head)
        r->head = mr__rows_position(rows, n - 1);
}

/* ---- The tail ------------------------------------------------------------------------------ */

/* What the rows of a tail read allow; moves the horizon along with what is proven by them. */
static mr_error *advance_tail(mr_reader *r, PGresult **rows, int64_t horizon, bool *moved,
                              bool *more)
{
    int64_t *positions = NULL;
    size_t count = 0;
    MR_TRY(read_positions(*rows, &positions, &count));
    *more = (int64_t)count >= r->limit;
    if (r->asked == ASK_PUBLISHED)
        while (count > 0 && positions[count - 1] > horizon) {
            count--;
            *more = false;
        }
    mr_frontier f = mr__frontier(r->tail, horizon, positions, count, *more);
    if (f.blocked) {
        note_gap(r, f.gap);
        int64_t target = forced_target(r, positions + f.rows, count - f.rows);
        if (target > 0)
            f = mr__frontier(r->tail, target, positions, count, *more);
    }
    free(positions);
    int64_t seen = r->gap != 0 ? r->gap_seen : now(r);
    if (!f.blocked)
        r->gap = 0;
    *moved = f.to > r->tail;
    if (!*moved)
        return NULL;
    int64_t from = r->tail;
    PGresult *taken = *rows;
    *rows = NULL;
    MR_TRY(publish(r, taken, from, &f, seen, false));
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
    if (by_evidence(r) && (blocked || proof_active(r))) {
        /* A hole: the first look at the proof is at once, later ones wait a little longer each
         * time. */
        look_in(r, proof_active(r) ? r->step : 0);
        if (proof_active(r))
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
        rows = &results[1];
        if (by_evidence(r)) {
            MR_TRY(feed_proof(r, results[1], true, mark));
            rows = &results[2];
            /* The rows were read after the listing, so a proof that is complete holds for them. */
            horizon = r->horizon;
        }
        if (ahead_of_log(r, mark))
            return NULL;
    } else if (r->asked == ASK_STEP) {
        MR_TRY(feed_proof(r, results[0], false, 0));
        rows = &results[1];
        horizon = r->horizon;
    } else if (r->asked == ASK_PUBLISHED) {
        horizon = PQntuples(results[0]) > 0 ? strtoll(PQgetvalue(results[0], 0, 0), NULL, 10) : 0;
        proven(r, horizon);
        rows = &results[1];
        r->head = horizon;
        if (ahead_of_log(r, horizon))
            return NULL;
    }
    count_rows(r, *rows);
    if (r->asked == ASK_PUBLISHED)
        r->head = horizon;
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
        warn_gap(r);
    /* A proof lets those on who wait at a hole below the tail. */
    if (moved || first || r->horizon > horizon) {
        r->telling = true;
        r->params.on_progress(r->params.user);
        r->telling = false;
    }
    if (!r->busy && r->following)
        schedule_look(r, moved, more);
}

static void put_number(char out[24], int64_t value)
{
    (void)snprintf(out, 24, "%" PRId64, value);
}

static ask choose_ask(const mr_reader *r)
{
    if (r->params.gap.strategy == MR_GAP_PUBLISHED)
        return ASK_PUBLISHED;
    if (!r->ready)
        return ASK_BEGIN;
    if (!by_evidence(r))
        return ASK_ROWS;
    if (proof_active(r))
        return ASK_STEP;
    return r->gap != 0 ? ASK_BEGIN : ASK_ROWS;
}

/* Room for another window: when the cache is full, slow consumers give way to one that waits. */
static bool make_room(mr_reader *r)
{
    mr__cache_release(&r->cache, r->lowest);
    if (!mr__cache_tail_full(&r->cache))
        return true;
    if (!r->waiting)
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
    r->limit = next_limit(r);
    r->busy = true;
    r->again = false;
    r->sent_at = now(r);
    r->sent_horizon = r->horizon;
    r->sent_tail = r->tail;
    char from[24], limit[24];
    put_number(from, r->tail);
    put_number(limit, r->limit);
    mr_flight_statement window = {
        .sql = r->sql.window, .count = 2, .values = {from, limit}, .binary = true};
    mr_flight_statement head = {.sql = r->sql.head};
    mr_flight_statement proof = {
        .sql = r->params.gap.strategy == MR_GAP_SNAPSHOT ? r->sql.snapshot : r->sql.evidence};
    mr_flight_statement published = {.sql = r->params.published_sql};
    mr_flight_statement flight[3];
    int n = 0;
    if (r->asked == ASK_BEGIN)
        flight[n++] = head;
    if ((r->asked == ASK_BEGIN && by_evidence(r)) || r->asked == ASK_STEP)
        flight[n++] = proof;
    if (r->asked == ASK_PUBLISHED)
        flight[n++] = published;
    flight[n++] = window;
    mr__aconn_send(r->conn, flight, n, on_tail, r);
}

/* ---- Stretches for consumers far behind ---------------------------------------------------- */

static void on_side(void *user, PGresult **results, mr_error *error)
{
    side_read *s = user;
    mr_reader *r = s->reader;
    r->side[s->slot] = -1;
    bool news = false;
    if (error == NULL && !r->closing && r->following) {
        int64_t *positions = NULL;
        size_t count = 0;
        count_rows(r, results[0]);
        error = read_positions(results[0], &positions, &count);
        mr_frontier f = {0};
        if (error == NULL)
            f = mr__frontier(s->from, s->horizon, positions, count, (int64_t)count >= s->limit);
        free(positions);
        /* Beyond the tail the tail's own windows serve; a hole above the horizon waits for the
         * proof, which may have come while this read was under way. */
        news = f.to > s->from || r->horizon > s->horizon;
        if (error == NULL && f.to > s->from) {
            PGresult *taken = results[0];
            results[0] = NULL;
            error = publish(r, taken, s->from, &f, now(r), true);
        }
    }
    bool tell = error == NULL && news && !r->closing && r->following;
    /* The server refused it: nobody else would ask again, so all starts anew after a while. */
    if (error != NULL && mr_error_code(error) != MR_E_CONNECT &&
        mr_error_code(error) != MR_E_CANCELLED)
        mr__aconn_restart(r->conn, mr_error_message(error));
    mr_error_free(error);
    free(s);
    if (tell)
        r->params.on_progress(r->params.user);
}

void mr__reader_want(mr_reader *r, int64_t position)
{
    if (!r->following || r->closing || position >= r->tail || !mr__aconn_up(r->conn))
        return;
    int slot = -1;
    for (int i = 0; i < SIDE_READS; i++) {
        if (r->side[i] == position)
            return;
        if (r->side[i] < 0)
            slot = i;
    }
    if (slot < 0)
        return;
    side_read *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return;
    *s = (side_read){
        .reader = r, .slot = slot, .from = position, .horizon = r->horizon, .limit = next_limit(r)};
    r->side[slot] = position;
    char from[24], limit[24];
    put_number(from, position);
    put_number(limit, s->limit);
    mr_flight_statement window = {
        .sql = r->sql.window, .count = 2, .values = {from, limit}, .binary = true};
    mr__aconn_send(r->conn, &window, 1, on_side, s);
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
    r->poll = POLL_BUSY;
    proven(r, 0);
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
    for (int i = 0; i < SIDE_READS; i++)
        r->side[i] = -1;
    mr_error *error = mr__reader_sql_render(params->shape, &params->want, &r->sql);
    mr_aconn_params conn = {.loop = params->loop,
                            .conn = params->conn,
                            .what = "reader",
                            .logger = params->logger,
                            .timeout = 60000000,
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
    /* Without evidence a hole below the place of the consumer furthest ahead was passed over
     * before. */
    if (!by_evidence(r))
        r->horizon = tail;
    look(r);
}

mr_window *mr__reader_find(mr_reader *r, int64_t position)
{
    return mr__cache_find(&r->cache, position);
}

void mr__reader_places(mr_reader *r, int64_t lowest, bool waiting)
{
    r->lowest = lowest;
    r->waiting = waiting;
    if (lowest < 0) {
        (void)uv_timer_stop(&r->timer);
        mr__cache_clear(&r->cache);
        return;
    }
    bool idle = !r->telling && !r->busy && uv_is_active((uv_handle_t *)&r->timer) == 0;
    if (idle)
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
    proven(r, by_evidence(r) ? 0 : position);
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
