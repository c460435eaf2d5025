/* What people do to consumers: pause, resume, reset, skip. One transaction each.
 *
 * The functions in the database do the work and keep the promise that no batch of the old state
 * commits once the call has returned (sql/functions/hold_parts.sql); here is what needs the log. */
#include "observe/operate.h"

#include "base/hash.h"
#include "base/text.h"
#include "cluster/schema.h"
#include "cluster/template.h"
#include "log/rows.h"
#include "log/start.h"
#include "pg/conn.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Transactions -------------------------------------------------------------------------- */

mr_error *mr__operate_begin(PGconn *conn, const mr_operate_input *input)
{
    if (PQtransactionStatus(conn) != PQTRANS_IDLE)
        return mr__error(MR_E_USAGE, "the connection must be idle and outside of a transaction");
    mr_schema_input schema = {.names = input->names, .log = input->log, .no_log = true};
    MR_TRY(mr__schema_require(conn, &schema));
    /* Each statement of the functions must see what was committed while they waited for a lock. */
    return mr__pg_script(conn, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE");
}

mr_error *mr__operate_end(PGconn *conn, mr_error *error)
{
    if (error == NULL)
        return mr__pg_script(conn, "COMMIT");
    if (PQtransactionStatus(conn) != PQTRANS_UNKNOWN)
        mr_error_free(mr__pg_script(conn, "ROLLBACK")); /* the first error tells more */
    if (strcmp(mr_error_sqlstate(error), "55P03") != 0)
        return error;
    mr_error *busy = mr__error_db(MR_E_STATE, "55P03", true, "%s", mr_error_message(error));
    mr_error_free(error);
    return busy;
}

mr_error *mr__operate_check_text(const char *what, const char *text)
{
    if (text == NULL || mr__text_utf8(text, strlen(text)))
        return NULL;
    return mr__error(MR_E_USAGE, "%s: the text is not valid UTF-8", what);
}

/* ---- The commands -------------------------------------------------------------------------- */

typedef struct call {
    PGconn *conn;
    const mr_operate_input *input;
    const mr_order *order;
    PGresult **rows;
} call;

/* SELECT of the audit's rows from a function whose arguments are `count` values, then actor, reason
 * and channel. */
static mr_error *run_function(const call *c, const char *function, const char *const *arguments,
                              int count)
{
    enum { MOST = 8 };
    char channel[MR_CHANNEL_MAX];
    MR_TRY(mr__names_channel(c->input->names, channel));
    const char *values[MOST];
    int n = 0;
    for (; n < count; n++)
        values[n] = arguments[n];
    values[n++] = c->order->actor;
    values[n++] = c->order->reason;
    values[n++] = channel;
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT a.id, a.consumer_name AS consumer, a.action, a.actor, a.reason,"
                       " a.detail, a.created_at FROM ");
    mr__names_function(c->input->names, function, &sql);
    mr__buf_putc(&sql, '(');
    for (int i = 1; i <= n; i++)
        mr__buf_printf(&sql, "%s$%d%s", i == 1 ? "" : ", ", i,
                       i == 2 && count == 2 ? "::int8" : "::text");
    mr__buf_puts(&sql, ") AS a");
    return sql.failed ? mr__error_nomem() : mr__pg_query(c->conn, c->rows, sql.data, n, values);
}

static mr_error *run_pause(const call *c)
{
    return run_function(c, "pause_consumer", &c->order->name, 1);
}

static mr_error *run_resume(const call *c)
{
    return run_function(c, "resume_consumer", &c->order->name, 1);
}

static mr_error *run_reset(const call *c)
{
    mr_log_shape shape;
    MR_TRY(mr__log_shape_read(c->conn, c->input->log, &shape));
    int64_t target = 0, head = 0;
    MR_TRY(mr__error_prefix(mr__log_start(c->conn, &shape, c->order->argument, MR_E_USAGE, &target),
                            "reset"));
    mr_log log = {.shape = shape};
    MR_TRY(mr_log_latest(c->conn, &log, &head));
    if (target > head)
        return mr__error(MR_E_USAGE,
                         "the log ends at %" PRId64 ": a checkpoint at %" PRId64
                         " would lose the events that come next; 'now' is the furthest",
                         head, target);
    char text[24];
    (void)snprintf(text, sizeof(text), "%" PRId64, target);
    if (c->order->position != NULL)
        *c->order->position = target;
    const char *arguments[] = {c->order->name, text};
    return run_function(c, "reset_consumer", arguments, 2);
}

/* ---- Skip ---------------------------------------------------------------------------------- */

/* The stream of the event at a position, or an error that says why there is none. */
static mr_error *find_event(const call *c, PGresult **rows)
{
    mr_log_shape shape;
    MR_TRY(mr__log_shape_read(c->conn, c->input->log, &shape));
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT e.");
    mr__rows_column(&sql, &shape, MR_COL_AGGREGATE_TYPE);
    mr__buf_puts(&sql, "::text, e.");
    mr__rows_column(&sql, &shape, MR_COL_AGGREGATE_ID);
    mr__buf_puts(&sql, "::text FROM ");
    mr__qname_quote(&sql, &shape.table);
    mr__buf_puts(&sql, " e WHERE e.");
    mr__rows_column(&sql, &shape, MR_COL_POSITION);
    mr__buf_puts(&sql, " = $1::int8");
    MR_AUTO_RESULT found = NULL;
    MR_TRY(mr__pg_query(c->conn, &found, mr__buf_text(&sql), 1, &c->order->argument));
    if (PQntuples(found) == 0)
        return mr__error(MR_E_STATE,
                         "there is no event at position %s: a hole, or beyond the head; 'millrace "
                         "gaps open' names who holds a hole",
                         c->order->argument);
    *rows = found;
    found = NULL;
    return NULL;
}

/* Whether a stream belongs to this part: "name#3/8" has those of slot 3 of 8, a plain name all. */
static bool owns(const char *part, const char *type, const char *id)
{
    const char *hash = strrchr(part, '#');
    if (hash == NULL)
        return true;
    char *slash = NULL, *end = NULL;
    unsigned long number = strtoul(hash + 1, &slash, 10);
    if (slash == hash + 1 || *slash != '/')
        return true;
    unsigned long slots = strtoul(slash + 1, &end, 10);
    if (end == slash + 1 || *end != '\0' || slots == 0)
        return true;
    return mr__hash_stream(type, id) % slots == number;
}

/* The one part that the event belongs to. */
static mr_error *choose_part(const call *c, const PGresult *parts, const PGresult *event,
                             const char **part)
{
    const char *type = PQgetvalue(event, 0, 0), *id = PQgetvalue(event, 0, 1);
    const char *chosen = NULL;
    for (int i = 0; i < PQntuples(parts); i++) {
        const char *name = PQgetvalue(parts, i, 0);
        if (!owns(name, type, id))
            continue;
        if (chosen != NULL)
            return mr__error(MR_E_USAGE, "%s and %s can both handle position %s; name one slot",
                             chosen, name, c->order->argument);
        chosen = name;
    }
    if (chosen == NULL)
        return mr__error(
            MR_E_STATE, "the event at %s is of stream %s/%s, which belongs to another slot than %s",
            c->order->argument, type, id, c->order->name);
    *part = chosen;
    return NULL;
}

static mr_error *run_skip(const call *c)
{
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT p.name FROM ");
    mr__names_function(c->input->names, "consumer_parts", &sql);
    mr__buf_puts(&sql, "($1::text) AS p(name)");
    MR_AUTO_RESULT parts = NULL;
    MR_TRY(mr__pg_query(c->conn, &parts, mr__buf_text(&sql), 1, &c->order->name));
    const char *arguments[] = {c->order->name, c->order->argument};
    MR_AUTO_RESULT event = NULL;
    if (PQntuples(parts) > 0) { /* a name that nobody has is for the function to refuse */
        MR_TRY(find_event(c, &event));
        MR_TRY(choose_part(c, parts, event, &arguments[0]));
    }
    return run_function(c, "skip_position", arguments, 2);
}

/* ---- One door ------------------------------------------------------------------------------ */

static const struct {
    const char *action, *argument; /* what the argument is, NULL for none */
    mr_error *(*run)(const call *c);
} actions[] = {{"pause", NULL, run_pause},
               {"resume", NULL, run_resume},
               {"reset", "where to", run_reset},
               {"skip", "the position", run_skip}};

static mr_error *check_order(const mr_order *order, size_t *index)
{
    size_t i = 0, count = sizeof(actions) / sizeof(actions[0]);
    while (i < count && strcmp(actions[i].action, order->action) != 0)
        i++;
    if (i == count)
        return mr__error(MR_E_USAGE, "there is no '%s'; use pause, resume, reset or skip",
                         order->action);
    if (order->name == NULL || order->name[0] == '\0')
        return mr__error(MR_E_USAGE, "%s needs a consumer's name", order->action);
    if ((order->argument == NULL) != (actions[i].argument == NULL))
        return order->argument == NULL
                   ? mr__error(MR_E_USAGE, "%s must be told %s", order->action, actions[i].argument)
                   : mr__error(MR_E_USAGE, "%s takes no argument", order->action);
    int64_t position = 0;
    if (actions[i].run == run_skip && (!mr__text_int(order->argument, &position) || position < 1))
        return mr__error(MR_E_USAGE, "'%s' is not a position", order->argument);
    MR_TRY(mr__operate_check_text("the consumer's name", order->name));
    MR_TRY(mr__operate_check_text(order->action, order->argument));
    MR_TRY(mr__operate_check_text("actor", order->actor));
    *index = i;
    return mr__operate_check_text("reason", order->reason);
}

mr_error *mr__operate(PGconn *conn, const mr_operate_input *input, const mr_order *order,
                      PGresult **rows)
{
    size_t index = 0;
    MR_TRY(check_order(order, &index));
    MR_AUTO_RESULT done = NULL;
    call c = {.conn = conn, .input = input, .order = order, .rows = &done};
    MR_TRY(mr__operate_begin(conn, input));
    MR_TRY(mr__operate_end(conn, actions[index].run(&c)));
    if (rows != NULL) {
        *rows = done;
        done = NULL;
    }
    return NULL;
}
