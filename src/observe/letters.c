/* Dead letters: list, replay, drop.
 *
 * Replaying is done by the consumers' own workers: the request is a mark on the letters, and this
 * side waits until each is gone (handled) or has lost its mark (failed again). */
#include "observe/letters.h"

#include "base/clock.h"
#include "cluster/schema.h"
#include "cluster/template.h"
#include "log/rows.h"
#include "pg/conn.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void free_text(char **text)
{
    free(*text);
}
#define AUTO_TEXT __attribute__((cleanup(free_text))) char *

/* What the server does not accept of a filter is a time. */
static mr_error *explain(mr_error *error)
{
    const char *state = mr_error_sqlstate(error);
    if (strcmp(state, "22007") != 0 && strcmp(state, "22008") != 0 && strcmp(state, "22009") != 0 &&
        strcmp(state, "22003") != 0)
        return error;
    mr_error *better = mr__error(MR_E_USAGE, "%s; a time looks like 2026-01-31T12:00:00Z",
                                 mr_error_message(error));
    mr_error_free(error);
    return better;
}

/* ---- List ---------------------------------------------------------------------------------- */

/* The event's payload in its column's own type; the event may have left the log. */
static void put_whole(mr_buf *sql, const mr_log_shape *shape)
{
    mr__buf_puts(sql, ", l.event_id, l.worker_id, l.first_failed_at, l.updated_at, l.replay_at,"
                      " l.replay_by, (SELECT e.");
    mr__rows_column(sql, shape, MR_COL_PAYLOAD);
    mr__buf_puts(sql, " FROM ");
    mr__qname_quote(sql, &shape->table);
    mr__buf_puts(sql, " e WHERE e.");
    mr__rows_column(sql, shape, MR_COL_POSITION);
    mr__buf_puts(sql, " = l.global_position) AS data");
}

mr_error *mr__letters_list(PGconn *conn, const mr_operate_input *input, const mr_letters *letters,
                           bool whole, PGresult **rows)
{
    mr_schema_input schema = {.names = input->names, .log = input->log, .no_log = true};
    MR_TRY(mr__schema_require(conn, &schema));
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT l.id, l.consumer_name AS consumer, l.global_position AS position,"
                       " l.state, l.aggregate_type, l.aggregate_id, l.event_type, l.error,"
                       " l.sqlstate, l.attempts, l.created_at, l.replay_at IS NOT NULL AS replay");
    if (whole) {
        mr_log_shape shape;
        MR_TRY(mr__log_shape_read(conn, input->log, &shape));
        put_whole(&sql, &shape);
    }
    mr__buf_puts(&sql, " FROM ");
    mr__names_function(input->names, "find_letters", &sql);
    mr__buf_puts(&sql, "($1::jsonb) AS l ORDER BY l.global_position, l.consumer_name");
    AUTO_TEXT filter = NULL;
    MR_TRY(mr__letters_json(letters, &filter));
    const char *values[] = {filter};
    return explain(mr__pg_query(conn, rows, mr__buf_text(&sql), 1, values));
}

/* ---- Requests ------------------------------------------------------------------------------ */

static mr_error *refuse_all(const mr_letters *letters, bool all, const char *what)
{
    if (all || !mr__letters_empty(letters))
        return NULL;
    return mr__error(MR_E_USAGE, "say which dead letters to %s, or that all of them are meant",
                     what);
}

/* Calls request_replay (without a reason) or drop_letters; the only value it gives. */
static mr_error *request(PGconn *conn, const mr_operate_input *input, const mr_letters *letters,
                         const char *actor, bool drop, const char *reason, PGresult **rows)
{
    char channel[MR_CHANNEL_MAX];
    MR_TRY(mr__operate_check_text("actor", actor));
    MR_TRY(mr__operate_check_text("reason", reason));
    MR_TRY(mr__names_channel(input->names, channel));
    AUTO_TEXT filter = NULL;
    MR_TRY(mr__letters_json(letters, &filter));
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT r.value");
    mr__buf_puts(&sql, drop ? "" : ", cardinality(r.value)");
    mr__buf_puts(&sql, " FROM ");
    mr__names_function(input->names, drop ? "drop_letters" : "request_replay", &sql);
    mr__buf_puts(&sql, drop ? "($1::jsonb, $2::text, $4::text, $3::text) AS r(value)"
                            : "($1::jsonb, $2::text, $3::text) AS r(value)");
    const char *values[] = {filter, actor, channel, reason};
    MR_TRY(mr__operate_begin(conn, input));
    MR_AUTO_RESULT done = NULL;
    MR_TRY(explain(mr__operate_end(
        conn, mr__pg_query(conn, &done, mr__buf_text(&sql), drop ? 4 : 3, values))));
    *rows = done;
    done = NULL;
    return NULL;
}

mr_error *mr__letters_drop(PGconn *conn, const mr_operate_input *input, const mr_letters *letters,
                           bool all, const char *actor, const char *reason, int64_t *dropped)
{
    MR_TRY(refuse_all(letters, all, "drop"));
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(request(conn, input, letters, actor, true, reason, &rows));
    if (dropped != NULL)
        *dropped = strtoll(PQgetvalue(rows, 0, 0), NULL, 10);
    return NULL;
}

/* ---- Replay -------------------------------------------------------------------------------- */

/* A replay that is being waited for. */
typedef struct wait {
    PGconn *conn;
    const mr_operate_input *input;
    const char *ids; /* of the letters, as an array's text */
    int64_t total, present, pending;
} wait;

static mr_error *look(wait *w)
{
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT count(*), count(l.replay_at) FROM ");
    mr__qname_quote(&sql, &w->input->names->table[MR_TABLE_DEAD_LETTERS]);
    mr__buf_puts(&sql, " l WHERE l.id = ANY($1::int8[])");
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(w->conn, &rows, mr__buf_text(&sql), 1, &w->ids));
    w->present = strtoll(PQgetvalue(rows, 0, 0), NULL, 10);
    w->pending = strtoll(PQgetvalue(rows, 0, 1), NULL, 10);
    return NULL;
}

/* Why letters still wait: sentences about their consumers, "" when nothing is known. */
static mr_error *reasons(const wait *w, PGresult **rows)
{
    MR_AUTO_BUF letters = {0};
    mr__qname_quote(&letters, &w->input->names->table[MR_TABLE_DEAD_LETTERS]);
    MR_AUTO_BUF workers = {0};
    mr__qname_quote(&workers, &w->input->names->table[MR_TABLE_WORKER_NODES]);
    MR_AUTO_BUF controls = {0};
    mr__qname_quote(&controls, &w->input->names->table[MR_TABLE_CONTROLS]);
    MR_AUTO_BUF sql = {0};
    mr__buf_printf(
        &sql,
        "SELECT coalesce(string_agg(s.why, '; ' ORDER BY s.name), '') FROM ("
        "SELECT p.name, CASE WHEN NOT EXISTS (SELECT FROM %s n WHERE n.state = 'alive'"
        " AND n.heartbeat_at > pg_catalog.clock_timestamp() - $2::interval"
        /* Workers may register a partitioned consumer by its own name or by its slots'. */
        " AND (p.name = ANY(n.consumers) OR"
        " regexp_replace(p.name, '#[0-9]+/[0-9]+$', '') = ANY(n.consumers)"
        " OR n.info->'locks' ? p.name))"
        " THEN 'no worker that is alive can run consumer ' || p.name"
        " WHEN k.paused THEN 'consumer ' || p.name || ' is paused' END AS why"
        " FROM (SELECT DISTINCT l.consumer_name AS name FROM %s l"
        " WHERE l.id = ANY($1::int8[]) AND l.replay_at IS NOT NULL) p"
        " LEFT JOIN %s k ON k.consumer_name = p.name) s",
        mr__buf_text(&workers), mr__buf_text(&letters), mr__buf_text(&controls));
    MR_AUTO_BUF timeout = {0};
    mr__buf_printf(&timeout, "%" PRId64 " microseconds", w->input->heartbeat_timeout);
    const char *values[] = {w->ids, mr__buf_text(&timeout)};
    return mr__pg_query(w->conn, rows, mr__buf_text(&sql), 2, values);
}

static mr_error *timed_out(const wait *w, int64_t timeout_ms)
{
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(reasons(w, &rows));
    const char *why = PQgetvalue(rows, 0, 0);
    return mr__error(MR_E_TIMEOUT,
                     "%" PRId64 " of %" PRId64 " dead letters are not replayed after %" PRId64
                     " ms%s%s; they stay requested",
                     w->pending, w->total, timeout_ms, why[0] == '\0' ? "" : ": ", why);
}

static mr_error *wait_for_workers(wait *w, int64_t timeout_ms)
{
    enum { FIRST = 20000, MOST = 250000 }; /* microseconds */
    int64_t deadline = mr__clock_now(&mr__clock_system) + timeout_ms * 1000;
    int64_t pause = FIRST;
    for (;;) {
        MR_TRY(look(w));
        if (w->pending == 0)
            return NULL;
        int64_t left = deadline - mr__clock_now(&mr__clock_system);
        if (left <= 0)
            return timed_out(w, timeout_ms);
        int64_t now = pause < left ? pause : left;
        struct timespec nap = {.tv_sec = now / 1000000, .tv_nsec = now % 1000000 * 1000};
        (void)nanosleep(&nap, NULL);
        pause = pause * 3 / 2 < MOST ? pause * 3 / 2 : MOST;
    }
}

mr_error *mr__letters_replay(PGconn *conn, const mr_operate_input *input, const mr_letters *letters,
                             bool all, mr_replay_order *replay)
{
    enum { DAY = 24 * 60 * 60 };
    MR_TRY(refuse_all(letters, all, "replay"));
    if (replay->timeout_ms < 0 || replay->timeout_ms > (int64_t)365 * DAY * 1000)
        return mr__error(MR_E_USAGE, "the timeout must be 0 ms to a year");
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(request(conn, input, letters, replay->actor, false, NULL, &rows));
    wait w = {.conn = conn, .input = input, .ids = PQgetvalue(rows, 0, 0)};
    w.total = strtoll(PQgetvalue(rows, 0, 1), NULL, 10);
    if (w.total > 0)
        MR_TRY(wait_for_workers(&w, replay->timeout_ms));
    replay->replayed = w.total - w.present;
    replay->failed = w.present;
    return NULL;
}
