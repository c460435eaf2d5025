/* What a worker does once before its loop runs: checks server, schema, log and handlers, makes
 * missing checkpoints, registers itself. */
#include "cluster/schema.h"
#include "log/rows.h"
#include "runtime/worker.h"

#include "base/list.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mr_error *take_text(mr_buf *sql, char **out)
{
    free(*out);
    *out = mr__buf_take(sql);
    return *out == NULL ? mr__error_nomem() : NULL;
}

mr_error *mr__worker_statements(mr_worker *w)
{
    MR_TRY(mr__batch_sql_render(&w->names, &w->batch_sql));
    MR_AUTO_BUF checkpoints = {0};
    mr__buf_puts(&checkpoints, "SELECT consumer_name, last_position FROM ");
    mr__qname_quote(&checkpoints, &w->names.table[MR_TABLE_CHECKPOINTS]);
    mr__buf_puts(&checkpoints, " WHERE consumer_name = ANY($1::text[])");
    MR_TRY(take_text(&checkpoints, &w->checkpoints_sql));
    MR_AUTO_BUF published = {0};
    mr__buf_puts(&published, "SELECT max(position), " MR_SERVER_SQL " FROM ");
    mr__qname_quote(&published, &w->names.table[MR_TABLE_PUBLISHED]);
    MR_TRY(take_text(&published, &w->published_sql));
    if (mr__bag_number(&w->conf->bag, MR_OPT_DISPATCHER) != 1)
        return NULL;
    MR_AUTO_BUF notify = {0};
    mr__buf_puts(&notify, "LISTEN ");
    mr__ident_quote(&notify, mr__bag_text(&w->conf->bag, MR_OPT_NOTIFY_CHANNEL));
    return take_text(&notify, &w->notify_sql);
}

/* ---- Checks -------------------------------------------------------------------------------- */

static mr_error *make_handler(mr_worker *w, mr_place *place)
{
    const mr_consumer *c = place->spec;
    mr__handler_free(place->handler);
    place->handler = NULL;
    if (c->on_event != NULL)
        return mr__handler_event(c->on_event, c->user, &place->handler);
    if (c->on_batch != NULL)
        return mr__handler_batch(c->on_batch, c->user, &place->handler);
    const char *sql = mr__bag_text(&c->bag, MR_OPT_C_SQL);
    if (sql[0] != '\0')
        return mr__handler_sql(sql, &place->handler);
    return mr__handler_sql_batch(mr__bag_text(&c->bag, MR_OPT_C_SQL_BATCH), &w->shape,
                                 &place->filter, &place->handler);
}

mr_error *mr__worker_prepare_place(mr_worker *w, PGconn *conn, mr_place *place)
{
    mr_error *error = make_handler(w, place);
    if (error == NULL && place->handler != NULL && place->handler->check != NULL)
        error = place->handler->check(place->handler, conn);
    return mr__error_prefix(error, "consumer '%s'", place->name);
}

/* One right, asked of the server by `sql` with the object and the right as parameters. What does
 * not exist yet is not missing a right: the schema's own check says what to do about that. */
static mr_error *check_right(PGconn *conn, const char *sql, const char *object, const char *right,
                             const char *grant)
{
    const char *values[] = {object, right};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, sql, 2, values));
    if (PQgetvalue(rows, 0, 0)[0] == 't')
        return NULL;
    return mr__error(MR_E_SCHEMA, "the role %s lacks %s on %s; run: GRANT %s TO %s", PQuser(conn),
                     right, object, grant, PQuser(conn));
}

static mr_error *check_table(PGconn *conn, const mr_qname *table, const char *rights)
{
    MR_AUTO_BUF schema = {0};
    MR_AUTO_BUF name = {0};
    MR_AUTO_BUF grant = {0};
    mr__ident_quote(&schema, table->schema);
    mr__qname_quote(&name, table);
    mr__buf_printf(&grant, "USAGE ON SCHEMA %s", mr__buf_text(&schema));
    MR_TRY(check_right(conn, "SELECT coalesce(has_schema_privilege(to_regnamespace($1), $2), true)",
                       mr__buf_text(&schema), "USAGE", mr__buf_text(&grant)));
    mr__buf_clear(&grant);
    mr__buf_printf(&grant, "%s ON %s", rights, mr__buf_text(&name));
    MR_AUTO_BUF right = {0};
    while (mr__list_next(&rights, &right, NULL))
        MR_TRY(check_right(conn, "SELECT coalesce(has_table_privilege(to_regclass($1), $2), true)",
                           mr__buf_text(&name), mr__buf_text(&right), mr__buf_text(&grant)));
    return NULL;
}

/* The rights that would otherwise be found missing in the middle of a batch. */
static mr_error *check_rights(mr_worker *w, PGconn *conn)
{
    static const struct {
        mr_table table;
        const char *rights;
    } needed[] = {{MR_TABLE_MIGRATIONS, "SELECT"},
                  {MR_TABLE_CHECKPOINTS, "SELECT,INSERT,UPDATE"},
                  {MR_TABLE_GAP_SKIPS, "INSERT"},
                  {MR_TABLE_ASSIGNMENTS, "SELECT,INSERT,UPDATE"},
                  {MR_TABLE_LEADER, "SELECT,INSERT,UPDATE"},
                  {MR_TABLE_WORKER_NODES, "SELECT,INSERT,UPDATE,DELETE"}};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        MR_TRY(check_table(conn, &w->names.table[needed[i].table], needed[i].rights));
    MR_AUTO_BUF skips = {0};
    mr__qname_quote(&skips, &w->names.table[MR_TABLE_GAP_SKIPS]);
    MR_AUTO_BUF grant = {0};
    mr__buf_printf(&grant, "USAGE ON ALL SEQUENCES IN SCHEMA %s",
                   w->names.table[MR_TABLE_GAP_SKIPS].schema);
    return check_right(conn,
                       "SELECT CASE WHEN to_regclass($1) IS NULL THEN true ELSE coalesce("
                       "has_sequence_privilege(pg_get_serial_sequence($1, 'id'), $2), true) END",
                       mr__buf_text(&skips), "USAGE", mr__buf_text(&grant));
}

/* Batches say READ WRITE themselves; registering and ticking are plain statements. */
static mr_error *check_writable(PGconn *conn)
{
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, "SHOW default_transaction_read_only", 0, NULL));
    if (strcmp(PQgetvalue(rows, 0, 0), "on") != 0)
        return NULL;
    return mr__error(MR_E_SCHEMA,
                     "default_transaction_read_only is on for the role %s or its database, so a "
                     "worker cannot register; run: ALTER ROLE %s SET default_transaction_read_only "
                     "= off",
                     PQuser(conn), PQuser(conn));
}

/* Session locks do not survive a transaction pooler, and what goes wrong then is hard to see. */
static mr_error *warn_pooler(mr_worker *w, PGconn *conn)
{
    if (mr__bag_number(&w->conf->bag, MR_OPT_LEADER_STRATEGY) == 1)
        return NULL;
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, "SELECT pg_backend_pid()", 0, NULL));
    if (strtol(PQgetvalue(rows, 0, 0), NULL, 10) != PQbackendPID(conn))
        mr__log(&w->logger, MR_WARN, "the connection goes through a pooler", "hint=%s",
                "with a pooler in transaction mode set leader_strategy: lease and "
                "prepared_statements: false");
    return NULL;
}

mr_error *mr__worker_prepare(mr_worker *w, PGconn *conn)
{
    mr_gap_strategy strategy = (mr_gap_strategy)mr__bag_number(&w->conf->bag, MR_OPT_GAP_STRATEGY);
    mr_schema_input schema = {.names = &w->names, .log = &w->log_spec, .no_log = true};
    /* The log first: on a standby or a wrong database that is the message that helps. */
    MR_TRY(mr__log_shape_read(conn, &w->log_spec, &w->shape));
    MR_TRY(mr__log_shape_check(conn, &w->shape, strategy == MR_GAP_SETTLED));
    MR_TRY(check_rights(w, conn));
    MR_TRY(check_writable(conn));
    MR_TRY(mr__schema_require(conn, &schema));
    MR_TRY(warn_pooler(w, conn));
    for (size_t i = 0; i < w->place_count; i++)
        MR_TRY(mr__worker_prepare_place(w, conn, w->places[i]));
    return NULL;
}

/* ---- Enrolment ----------------------------------------------------------------------------- */

/* The position just before the first event at or after a time; the head when there is none. */
static mr_error *position_at_time(mr_worker *w, PGconn *conn, const char *time, int64_t *position)
{
    if (w->shape.column[MR_COL_CREATED_AT][0] == '\0')
        return mr__error(MR_E_CONFIG,
                         "start_from: the log has no created_at column to find '%s' in", time);
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT coalesce(min(e.");
    mr__rows_column(&sql, &w->shape, MR_COL_POSITION);
    mr__buf_puts(&sql, ") - 1, (SELECT coalesce(max(");
    mr__rows_column(&sql, &w->shape, MR_COL_POSITION);
    mr__buf_puts(&sql, "), 0) FROM ");
    mr__qname_quote(&sql, &w->shape.table);
    mr__buf_puts(&sql, "))::int8 FROM ");
    mr__qname_quote(&sql, &w->shape.table);
    mr__buf_puts(&sql, " e WHERE e.");
    mr__rows_column(&sql, &w->shape, MR_COL_CREATED_AT);
    mr__buf_puts(&sql, " >= $1::timestamptz");
    MR_AUTO_RESULT rows = NULL;
    mr_error *error = mr__pg_query(conn, &rows, mr__buf_text(&sql), 1, &time);
    if (error != NULL && strncmp(mr_error_sqlstate(error), "22", 2) == 0) {
        mr_error_free(error);
        return mr__error(MR_E_CONFIG,
                         "start_from: '%s' is not beginning, now, a position or a time such as "
                         "2026-01-31T12:00:00Z",
                         time);
    }
    MR_TRY(error);
    *position = strtoll(PQgetvalue(rows, 0, 0), NULL, 10);
    return NULL;
}

static mr_error *start_position(mr_worker *w, PGconn *conn, const char *from, int64_t *position)
{
    *position = 0;
    if (strcmp(from, "beginning") == 0)
        return NULL;
    if (mr__text_int(from, position))
        return *position >= 0 ? NULL
                              : mr__error(MR_E_CONFIG, "start_from: a position cannot be negative");
    if (strcmp(from, "now") != 0)
        return position_at_time(w, conn, from, position);
    mr_log log = {.shape = w->shape};
    return mr_log_latest(conn, &log, position);
}

mr_error *mr__worker_enrol_place(mr_worker *w, PGconn *conn, mr_place *place)
{
    MR_AUTO_BUF table = {0};
    mr__qname_quote(&table, &w->names.table[MR_TABLE_CHECKPOINTS]);
    MR_AUTO_BUF find = {0};
    mr__buf_printf(&find, "SELECT 1 FROM %s WHERE consumer_name = $1", mr__buf_text(&table));
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, mr__buf_text(&find), 1, &place->name));
    if (PQntuples(rows) > 0)
        return NULL;
    int64_t position = 0;
    const char *from = mr__bag_text(&place->spec->bag, MR_OPT_C_START_FROM);
    MR_TRY(
        mr__error_prefix(start_position(w, conn, from, &position), "consumer '%s'", place->name));
    char text[24];
    (void)snprintf(text, sizeof(text), "%" PRId64, position);
    MR_AUTO_BUF insert = {0};
    mr__buf_printf(&insert,
                   "INSERT INTO %s (consumer_name, last_position) VALUES ($1, $2::int8)"
                   " ON CONFLICT (consumer_name) DO NOTHING",
                   mr__buf_text(&table));
    const char *values[] = {place->name, text};
    MR_TRY(mr__pg_query(conn, NULL, mr__buf_text(&insert), 2, values));
    mr__log(&w->logger, MR_INFO, "consumer is new",
            "consumer=%s" MR_SEP "start_from=%s" MR_SEP "position=%" PRId64, place->name, from,
            position);
    return NULL;
}

mr_error *mr__worker_enrol(mr_worker *w, PGconn *conn)
{
    for (size_t i = 0; i < w->place_count; i++)
        MR_TRY(mr__worker_enrol_place(w, conn, w->places[i]));
    return NULL;
}
