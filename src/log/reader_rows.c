/* Rows to windows, and the stretches that consumers far behind ask for. */
#include "log/reader_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    FIRST_LIMIT = 100,      /* rows of the first read, before row sizes are known */
    WINDOW_BYTES = 4 << 20, /* what a window should stay under */
    STUCK_WARN = 30000000,  /* and between two warnings about one */
    STUCK_RETRY = 1000000,  /* microseconds between two looks at a hole below the tail */
};

/* ---- Windows ------------------------------------------------------------------------------- */

mr_error *mr__reader_positions(const PGresult *rows, int64_t **out, size_t *count)
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

int64_t mr__reader_limit(const mr_reader *r)
{
    int64_t most = r->params.read_size;
    if (r->row_bytes == 0)
        return most < FIRST_LIMIT ? most : FIRST_LIMIT;
    int64_t fits = WINDOW_BYTES / r->row_bytes;
    return fits < 1 ? 1 : fits < most ? fits : most;
}

/* Turns the rows after `from` up to the frontier into a window in the cache. Takes the result. */
mr_error *mr__reader_publish(mr_reader *r, PGresult *rows, int64_t from, const mr_frontier *f,
                             int64_t seen, bool side)
{
    size_t total = (size_t)PQntuples(rows);
    mr_window *window = NULL;
    MR_TRY(
        mr__window_new(rows, r->params.want.light, from, f->to, f->rows, seen, r->head, &window));
    window->server = r->server;
    learn_size(r, window, total);
    r->params.counts->windows++;
    r->params.counts->holes += (int64_t)window->hole_count;
    mr__cache_add(&r->cache, window, side);
    return NULL;
}

void mr__reader_count(mr_reader *r, const PGresult *rows)
{
    int n = PQntuples(rows);
    r->params.counts->reads++;
    r->params.counts->rows += n;
    /* What is not published is not there. */
    if (n > 0 && r->params.gap.strategy != MR_GAP_PUBLISHED &&
        mr__rows_position(rows, n - 1) > r->head)
        r->head = mr__rows_position(rows, n - 1);
}

bool mr__reader_cut(const int64_t *positions, size_t *count, int64_t last)
{
    size_t before = *count;
    while (*count > 0 && positions[*count - 1] > last)
        (*count)--;
    return *count < before;
}

void mr__reader_number(char out[24], int64_t value)
{
    (void)snprintf(out, 24, "%" PRId64, value);
}

/* ---- Stretches for consumers far behind ---------------------------------------------------- */

/* A hole below the tail is decided by the proof under way, or filled by a commit. Until then its
 * readers must not take the place of those who have rows to read. */
static bool is_stuck(const mr_reader *r, int64_t position)
{
    for (size_t i = 0; r->stuck_horizon == r->horizon && i < r->stuck_count; i++)
        if (r->stuck[i] == position)
            return true;
    return false;
}

static void note_stuck(mr_reader *r, int64_t position)
{
    if (r->stuck_horizon != r->horizon || r->stuck_count == 0) {
        r->stuck_count = 0;
        r->stuck_horizon = r->horizon;
        r->stuck_since = mr__reader_now(r);
    }
    if (r->stuck_count == r->stuck_capacity) {
        size_t capacity = r->stuck_capacity == 0 ? 16 : r->stuck_capacity * 2;
        int64_t *grown = realloc(r->stuck, capacity * sizeof(*grown));
        if (grown == NULL)
            return; /* it will only be read once more */
        r->stuck = grown;
        r->stuck_capacity = capacity;
    }
    r->stuck[r->stuck_count++] = position;
}

bool mr__reader_stuck_due(mr_reader *r)
{
    if (r->stuck_count == 0 || mr__reader_now(r) - r->stuck_since < STUCK_RETRY)
        return false;
    if (mr__reader_now(r) - r->stuck_warned >= STUCK_WARN) {
        if (r->stuck_warned != 0)
            mr__log(r->params.logger, MR_WARN, "consumers behind wait for a hole in the log",
                    "position=%" PRId64 MR_SEP "places=%zu" MR_SEP "strategy=%s", r->stuck[0] + 1,
                    r->stuck_count, mr__gap_strategy_name(r->params.gap.strategy));
        r->stuck_warned = mr__reader_now(r) - (r->stuck_warned == 0 ? STUCK_WARN - 5000000 : 0);
    }
    r->stuck_count = 0;
    return true;
}

typedef struct side_read {
    mr_reader *reader;
    int slot;
    int64_t from, horizon, limit;
} side_read;

static void on_side(void *user, PGresult **results, mr_error *error)
{
    side_read *s = user;
    mr_reader *r = s->reader;
    r->side[s->slot] = -1;
    bool news = false;
    if (error == NULL && !r->closing && r->following) {
        int64_t *positions = NULL;
        size_t count = 0;
        mr__reader_count(r, results[0]);
        error = mr__reader_positions(results[0], &positions, &count);
        mr_frontier f = {0};
        bool more = (int64_t)count >= s->limit;
        if (error == NULL && r->params.gap.strategy == MR_GAP_PUBLISHED)
            more = !mr__reader_cut(positions, &count, s->horizon) && more;
        if (error == NULL)
            f = mr__frontier(s->from, s->horizon, positions, count, more);
        free(positions);
        /* Beyond the tail the tail's own windows serve; a hole above the horizon waits for the
         * proof, which may have come while this read was under way. */
        news = f.to > s->from || r->horizon > s->horizon;
        if (error == NULL && !news)
            note_stuck(r, s->from);
        if (error == NULL && f.to > s->from) {
            PGresult *taken = results[0];
            results[0] = NULL;
            error = mr__reader_publish(r, taken, s->from, &f, mr__reader_now(r), true);
        }
    }
    bool tell = error == NULL && (news || r->refused) && !r->closing && r->following;
    r->refused = false;
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
    if (!r->following || r->closing || position >= r->tail || !mr__aconn_up(r->conn) ||
        is_stuck(r, position))
        return;
    int slot = -1;
    for (int i = 0; i < MR_READER_SIDE_READS; i++) {
        if (r->side[i] == position)
            return;
        if (r->side[i] < 0)
            slot = i;
    }
    if (slot < 0) {
        r->refused = true; /* whoever ends first tells everybody */
        return;
    }
    side_read *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return;
    /* A consumer may stand beyond what is published; the others still go no further than that. */
    bool beyond = r->params.gap.strategy == MR_GAP_PUBLISHED && r->horizon > r->head;
    *s = (side_read){.reader = r,
                     .slot = slot,
                     .from = position,
                     .horizon = beyond ? r->head : r->horizon,
                     .limit = mr__reader_limit(r)};
    r->side[slot] = position;
    char from[24], limit[24];
    mr__reader_number(from, position);
    mr__reader_number(limit, s->limit);
    mr_flight_statement window = {
        .sql = r->sql.window, .count = 2, .values = {from, limit}, .binary = true};
    mr__aconn_send(r->conn, &window, 1, on_side, s);
}
