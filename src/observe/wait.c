/* Read your own writes: waiting until a consumer has applied a position.
 *
 * A look is one short statement by primary keys. A consumer in slots has applied a position when
 * every slot has: whose event it is would take a read of the log to know. Why a wait was in vain is
 * found out only then, from the listing of the consumers. */
#include "observe/wait.h"

#include "base/clock.h"
#include "base/text.h"
#include "pg/conn.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FIRST_PAUSE = 2000, LONGEST_PAUSE = 100000 }; /* microseconds */

typedef struct waiter {
    PGconn *conn;
    const mr_list_input *input;
    const char *name;
    int64_t position;
    mr_buf sql;
    int slots;
    int64_t first, lowest; /* at the first and the last look; -1: not all slots have begun */
} waiter;

/* Columns of a look, one row a slot, the one furthest behind first. */
enum { SLOT, POSITION, PAUSED, KIND, PAUSED_BY, PAUSED_AT, REASON, LETTER, ERROR };

static void put_look(mr_buf *sql, const mr_names *names)
{
    mr__buf_puts(sql, "SELECT c.consumer_name, c.last_position, k.paused, k.pause_kind,"
                      " k.paused_by, date_trunc('second', k.paused_at), k.pause_reason, d.state,"
                      " left(d.error, 500) FROM ");
    mr__ident_quote(sql, names->schema);
    mr__buf_puts(sql, ".consumer_parts($1::text) AS p(name) JOIN ");
    mr__qname_quote(sql, &names->table[MR_TABLE_CHECKPOINTS]);
    mr__buf_puts(sql, " c ON c.consumer_name = p.name LEFT JOIN ");
    mr__qname_quote(sql, &names->table[MR_TABLE_CONTROLS]);
    mr__buf_puts(sql, " k ON k.consumer_name = p.name LEFT JOIN LATERAL (SELECT l.state, l.error"
                      " FROM ");
    mr__qname_quote(sql, &names->table[MR_TABLE_DEAD_LETTERS]);
    mr__buf_puts(sql, " l WHERE l.consumer_name = p.name AND l.global_position = $2::int8) d"
                      " ON true ORDER BY c.last_position, c.consumer_name");
}

/* Columns by name, "" for NULL. */
static const char *cell(const PGresult *rows, int row, const char *column)
{
    return PQgetvalue(rows, row, PQfnumber(rows, column));
}

/* How many slots the name of one says there are; 0 for a consumer without. */
static long slots_of(const char *slot)
{
    const char *mark = strrchr(slot, '#');
    const char *slash = mark == NULL ? NULL : strchr(mark, '/');
    return slash == NULL ? 0 : strtol(slash + 1, NULL, 10);
}

/* A consumer's slots appear one by one as workers take them up. */
static bool complete(const waiter *w, const PGresult *rows)
{
    long most = 0, have = 0;
    for (int row = 0; row < PQntuples(rows); row++) {
        const char *slot = PQgetvalue(rows, row, SLOT);
        long count = strcmp(slot, w->name) == 0 ? 0 : slots_of(slot);
        have = count > most ? 1 : have + (count == most);
        most = count > most ? count : most;
    }
    return PQntuples(rows) > 0 && (most == 0 || have == most);
}

/* ---- Why it will not come ------------------------------------------------------------------ */

static mr_error *dead_letter(const waiter *w, const PGresult *rows, int row)
{
    bool parked = strcmp(PQgetvalue(rows, row, LETTER), "parked") == 0;
    const char *error = PQgetvalue(rows, row, ERROR);
    return mr__error(MR_E_STATE, "position %" PRId64 " went to the dead letters of %s%s%s%s",
                     w->position, PQgetvalue(rows, row, SLOT),
                     parked ? " (it waits behind another event of its stream)" : "",
                     error[0] == '\0' ? "" : ": ", error);
}

static mr_error *paused(const waiter *w, const PGresult *rows, int row)
{
    const char *slot = PQgetvalue(rows, row, SLOT), *by = PQgetvalue(rows, row, PAUSED_BY),
               *since = PQgetvalue(rows, row, PAUSED_AT), *reason = PQgetvalue(rows, row, REASON);
    return mr__error(MR_E_STATE,
                     "consumer %s is paused%s%s%s%s%s%s; it is at %s and will not reach %" PRId64
                     " until it goes on: millrace consumers resume %s",
                     slot, by[0] == '\0' ? "" : " by ", by, since[0] == '\0' ? "" : " since ",
                     since, reason[0] == '\0' ? "" : ": ", reason, PQgetvalue(rows, row, POSITION),
                     w->position, slot);
}

mr_error *mr__consumer_known(PGconn *conn, const mr_list_input *input, const char *name)
{
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__list_rows(conn, input, "consumers", &rows));
    int count = PQntuples(rows);
    const char **names = calloc((size_t)count + 1, sizeof(*names));
    if (names == NULL)
        return mr__error_nomem();
    bool known = false;
    for (int row = 0; row < count; row++) {
        names[row] = cell(rows, row, "base");
        known = known || strcmp(names[row], name) == 0 ||
                strcmp(cell(rows, row, "consumer"), name) == 0;
    }
    mr_error *error = NULL;
    if (!known) {
        int nearest = mr__text_nearest(name, names, (size_t)count);
        error = mr__error(MR_E_USAGE, "there is no consumer %.255s%s%s%s", name,
                          nearest < 0 ? "; see millrace consumers list" : "; did you mean ",
                          nearest < 0 ? "" : names[nearest], nearest < 0 ? "" : "?");
    }
    free(names);
    return error;
}

/* ---- One look ------------------------------------------------------------------------------ */

static mr_error *look(waiter *w, bool *reached)
{
    char position[24];
    (void)snprintf(position, sizeof(position), "%" PRId64, w->position);
    const char *const values[] = {w->name, position};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__list_query(w->conn, &w->sql, 2, values, &rows));
    int count = PQntuples(rows);
    w->slots = count;
    w->lowest = complete(w, rows) ? strtoll(PQgetvalue(rows, 0, POSITION), NULL, 10) : -1;
    *reached = w->position == 0 || w->lowest >= w->position;
    for (int row = 0; row < count && w->position > 0; row++)
        if (!PQgetisnull(rows, row, LETTER))
            return dead_letter(w, rows, row);
    for (int row = 0; row < count && !*reached; row++)
        if (PQgetvalue(rows, row, PAUSED)[0] == 't' &&
            strtoll(PQgetvalue(rows, row, POSITION), NULL, 10) < w->position)
            return paused(w, rows, row);
    return NULL;
}

/* ---- Passed over --------------------------------------------------------------------------- */

/* What people decided about a position, the last word of each slot: skipped, its dead letter
 * dropped, jumped over by a reset; or ("again") a reset from beyond it to before it, so that it was
 * handled after all. */
static void put_passed(mr_buf *sql, const mr_names *names)
{
    mr__buf_puts(sql, "SELECT last.consumer_name, last.word, last.actor,"
                      " date_trunc('second', last.created_at), last.reason FROM (SELECT DISTINCT ON"
                      " (a.consumer_name) a.consumer_name, a.actor, a.created_at, a.reason,"
                      " CASE WHEN a.action = 'skip' THEN 'skipped'"
                      " WHEN a.action = 'drop' THEN 'dropped from the dead letters'"
                      " WHEN (a.detail->>'to')::int8 >= $2::int8 THEN 'passed over by a reset'"
                      " ELSE 'again' END AS word FROM ");
    mr__ident_quote(sql, names->schema);
    mr__buf_puts(sql, ".consumer_parts($1::text) AS p(name) JOIN ");
    mr__qname_quote(sql, &names->table[MR_TABLE_AUDIT]);
    mr__buf_puts(sql, " a ON a.consumer_name = p.name WHERE (a.action IN ('skip', 'drop')"
                      " AND (a.detail->>'position')::int8 = $2::int8) OR (a.action = 'reset'"
                      " AND $2::int8 > least((a.detail->>'from')::int8, (a.detail->>'to')::int8)"
                      " AND $2::int8 <= greatest((a.detail->>'from')::int8,"
                      " (a.detail->>'to')::int8))"
                      " ORDER BY a.consumer_name, a.id DESC) last WHERE last.word <> 'again'"
                      " ORDER BY last.word = 'passed over by a reset', last.consumer_name");
}

/* The checkpoint is beyond it: but was it applied? A skip and a drop name its slot; a reset jumped
 * over it for certain when all slots were reset. */
static mr_error *check_applied(const waiter *w)
{
    enum { PART, WORD, ACTOR, AT, WHY };
    char position[24];
    (void)snprintf(position, sizeof(position), "%" PRId64, w->position);
    const char *const values[] = {w->name, position};
    MR_AUTO_BUF sql = {0};
    put_passed(&sql, w->input->names);
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__list_query(w->conn, &sql, 2, values, &rows));
    if (PQntuples(rows) == 0)
        return NULL;
    const char *word = PQgetvalue(rows, 0, WORD), *actor = PQgetvalue(rows, 0, ACTOR),
               *why = PQgetvalue(rows, 0, WHY);
    if (word[0] == 'p' && PQntuples(rows) < w->slots)
        return NULL;
    return mr__error(MR_E_STATE,
                     "consumer %s is beyond position %" PRId64 " without having applied it: it was "
                     "%s%s%s at %s%s%s",
                     PQgetvalue(rows, 0, PART), w->position, word, actor[0] == '\0' ? "" : " by ",
                     actor, PQgetvalue(rows, 0, AT), why[0] == '\0' ? "" : ": ", why);
}

/* ---- In vain ------------------------------------------------------------------------------- */

/* The row of the listing that is furthest behind, -1 for none. */
static int hindmost(const waiter *w, const PGresult *rows)
{
    int found = -1;
    for (int row = 0; row < PQntuples(rows); row++) {
        if (strcmp(cell(rows, row, "base"), w->name) != 0 &&
            strcmp(cell(rows, row, "consumer"), w->name) != 0)
            continue;
        const char *checkpoint = cell(rows, row, "checkpoint");
        if (found < 0 || checkpoint[0] == '\0' ||
            (cell(rows, found, "checkpoint")[0] != '\0' &&
             strtoll(checkpoint, NULL, 10) < strtoll(cell(rows, found, "checkpoint"), NULL, 10)))
            found = row;
    }
    return found;
}

static void put_state(mr_buf *text, const PGresult *rows, int row)
{
    const char *state = cell(rows, row, "state"), *error = cell(rows, row, "last_error");
    if (strcmp(cell(rows, row, "partitions"), "1") != 0)
        mr__buf_printf(text, "; furthest behind is %s", cell(rows, row, "consumer"));
    if (strcmp(state, "unassigned") == 0 || strcmp(state, "no worker can run it") == 0)
        mr__buf_printf(text, "; no worker runs it (%s)", state);
    else if (strncmp(state, "owner", strlen("owner")) == 0)
        mr__buf_printf(text, "; its worker %s:%s is %s", cell(rows, row, "host"),
                       cell(rows, row, "pid"), state + strlen("owner "));
    else if (strcmp(state, "blocked") == 0)
        mr__buf_printf(text,
                       "; it waits before a hole at position %" PRId64 ", see: millrace gaps open",
                       (int64_t)strtoll(cell(rows, row, "checkpoint"), NULL, 10) + 1);
    else if (strcmp(state, "failing") == 0)
        mr__buf_printf(text, "; it is failing: %s", error);
    else
        mr__buf_printf(text, "; it is %s", state);
}

/* How far it is, how fast it moved, and what may hold it. */
static mr_error *in_vain(const waiter *w, int64_t timeout_ms)
{
    MR_AUTO_BUF text = {0};
    char within[32];
    mr__text_duration_format(timeout_ms * 1000, within);
    mr__buf_printf(&text, "consumer %s did not reach position %" PRId64 " within %s: ", w->name,
                   w->position, within);
    if (w->lowest < 0) {
        mr__buf_puts(&text, "it has not begun");
    } else {
        int64_t moved = w->first < 0 ? 0 : w->lowest - w->first;
        mr__buf_printf(&text, "it is at %" PRId64 ", ", w->lowest);
        if (moved > 0 && timeout_ms > 0)
            mr__buf_printf(&text, "%" PRId64 " further than before (%.1f positions/s)", moved,
                           (double)moved * 1000.0 / (double)timeout_ms);
        else
            mr__buf_puts(&text, "where it was");
    }
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__list_rows(w->conn, w->input, "consumers", &rows));
    int row = hindmost(w, rows);
    if (row >= 0) {
        if (strtoll(cell(rows, row, "head"), NULL, 10) < w->position)
            mr__buf_printf(&text, "; the head of the log is only %s", cell(rows, row, "head"));
        put_state(&text, rows, row);
    }
    return mr__error_db(MR_E_TIMEOUT, NULL, true, "%s", mr__buf_text(&text));
}

static void pause_for(int64_t micros)
{
    struct timespec time = {.tv_sec = micros / 1000000, .tv_nsec = micros % 1000000 * 1000};
    (void)nanosleep(&time, NULL);
}

static mr_error *wait_for(waiter *w, int64_t timeout_ms)
{
    int64_t deadline = mr__clock_now(&mr__clock_system) + timeout_ms * 1000;
    bool reached = false;
    MR_TRY(look(w, &reached));
    w->first = w->lowest;
    if (w->lowest < 0)
        MR_TRY(mr__consumer_known(w->conn, w->input, w->name));
    for (int64_t pause = FIRST_PAUSE; !reached;
         pause = pause * 2 > LONGEST_PAUSE ? LONGEST_PAUSE : pause * 2) {
        int64_t left = deadline - mr__clock_now(&mr__clock_system);
        if (left <= 0)
            return in_vain(w, timeout_ms);
        pause_for(pause < left ? pause : left);
        MR_TRY(look(w, &reached));
    }
    return w->position == 0 ? NULL : check_applied(w);
}

mr_error *mr__consumer_wait(PGconn *conn, const mr_list_input *input, const char *name,
                            int64_t position, int64_t timeout_ms)
{
    static const int64_t longest = INT64_C(1000) * 3600 * 24 * 366;
    if (position < 0)
        return mr__error(MR_E_USAGE,
                         "position %" PRId64 " is negative; give one that an append "
                         "returned",
                         position);
    if (timeout_ms < 0)
        return mr__error(MR_E_USAGE, "a timeout of %" PRId64 " ms is negative; 0 looks once",
                         timeout_ms);
    PGTransactionStatusType status = PQtransactionStatus(conn);
    if (status == PQTRANS_INTRANS || status == PQTRANS_INERROR)
        return mr__error(MR_E_USAGE, "a wait needs a connection outside of a transaction: nobody "
                                     "sees what that appended before it commits");
    waiter w = {.conn = conn,
                .input = input,
                .name = name,
                .position = position,
                .first = -1,
                .lowest = -1};
    put_look(&w.sql, input->names);
    mr_error *error = wait_for(&w, timeout_ms > longest ? longest : timeout_ms);
    mr__buf_free(&w.sql);
    return error;
}
