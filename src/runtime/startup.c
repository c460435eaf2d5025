/* What a worker does once before its loop runs: checks server, schema, log and handlers. */
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

/* Checkpoints and controls in one snapshot, in the order of loading.c's columns. $2 names those
 * that have to know the streams which wait behind dead letters. */
static void put_load(mr_buf *sql, const mr_names *names)
{
    MR_AUTO_BUF letters = {0};
    mr__qname_quote(&letters, &names->table[MR_TABLE_DEAD_LETTERS]);
    mr__buf_printf(
        sql,
        "SELECT c.consumer_name, c.last_position, coalesce(k.epoch, 0), coalesce(k.paused, false),"
        " k.paused_by, k.pause_reason, coalesce(k.skips, '[]')::text,"
        " EXISTS (SELECT FROM %s d WHERE d.consumer_name = c.consumer_name"
        " AND d.replay_at IS NOT NULL), CASE WHEN c.consumer_name = ANY($2::text[]) THEN"
        " (SELECT jsonb_agg(DISTINCT jsonb_build_array(d.aggregate_type, d.aggregate_id))"
        " FROM %s d WHERE d.consumer_name = c.consumer_name)::text END FROM ",
        mr__buf_text(&letters), mr__buf_text(&letters));
    mr__qname_quote(sql, &names->table[MR_TABLE_CHECKPOINTS]);
    mr__buf_puts(sql, " c LEFT JOIN ");
    mr__qname_quote(sql, &names->table[MR_TABLE_CONTROLS]);
    mr__buf_puts(sql, " k ON k.consumer_name = c.consumer_name"
                      " WHERE c.consumer_name = ANY($1::text[])");
}

mr_error *mr__worker_statements(mr_worker *w)
{
    MR_TRY(mr__batch_sql_render(&w->names, &w->batch_sql));
    MR_AUTO_BUF load = {0};
    put_load(&load, &w->names);
    MR_TRY(take_text(&load, &w->load_sql));
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

mr_error *mr__worker_handler(mr_worker *w, const mr_place *place, mr_handler **out)
{
    const mr_consumer *c = place->spec;
    if (c->on_event != NULL)
        return mr__handler_event(c->on_event, c->user, out);
    if (c->on_batch != NULL)
        return mr__handler_batch(c->on_batch, c->user, out);
    const char *sql = mr__bag_text(&c->bag, MR_OPT_C_SQL);
    if (sql[0] != '\0')
        return mr__handler_sql(sql, out);
    const char *exec = mr__bag_text(&c->bag, MR_OPT_C_EXEC);
    if (exec[0] != '\0')
        return mr__handler_exec(mr__place_base(place), exec, &w->logger, out);
    const char *plugin = mr__bag_text(&c->bag, MR_OPT_C_PLUGIN);
    if (plugin[0] != '\0')
        return mr__handler_plugin(mr__place_base(place), plugin,
                                  mr__bag_text(&c->bag, MR_OPT_C_PLUGIN_CONFIG), out);
    return mr__handler_sql_batch(mr__bag_text(&c->bag, MR_OPT_C_SQL_BATCH), &w->shape,
                                 &place->filter, out);
}

static mr_error *check_place(mr_worker *w, const mr_place *place, const mr_handler *handler)
{
    if (place->detached && handler->deliver == NULL)
        return mr__error(MR_E_CONFIG, "detached needs exec, plugin or a handler in C");
    if (place->slots > 1 && w->shape.column[MR_COL_AGGREGATE_ID][0] == '\0')
        return mr__error(MR_E_CONFIG,
                         "partitions: the log has no aggregate_id column to tell streams by");
    if (place->by_lock && mr__bag_number(&w->conf->bag, MR_OPT_LEADER_STRATEGY) == 1)
        return mr__error(MR_E_CONFIG, "ownership: lock needs a session of its own, which "
                                      "leader_strategy: lease goes without; use one or the other");
    return NULL;
}

static mr_error *prepare_handler(mr_worker *w, PGconn *conn, mr_place **places, size_t count)
{
    mr_handler *handler = NULL;
    MR_TRY(mr__worker_handler(w, places[0], &handler));
    for (size_t i = 0; i < count; i++) {
        mr__handler_free(places[i]->handler);
        places[i]->handler = i == 0 ? handler : mr__handler_ref(handler);
    }
    MR_TRY(check_place(w, places[0], handler));
    return handler->check == NULL ? NULL : handler->check(handler, conn);
}

/* Its tables first: the handler's statements are checked against them. */
mr_error *mr__worker_prepare_places(mr_worker *w, PGconn *conn, mr_place **places, size_t count,
                                    bool trial)
{
    mr_error *error = mr__enrol_setup(w, conn, places[0], trial);
    if (error == NULL)
        error = prepare_handler(w, conn, places, count);
    if (error == NULL)
        error = mr__enrol_setup_end(places[0], conn, trial);
    return mr__error_prefix(error, "consumer '%s'", mr__place_base(places[0]));
}

/* ---- Rights -------------------------------------------------------------------------------- */

/* One right, asked of the server by `sql` with the object and the right as parameters. What does
 * not exist yet is not missing a right: the schema's own check says what to do about that. */
static mr_error *has_right(PGconn *conn, const char *sql, const char *object, const char *right,
                           bool *has)
{
    const char *values[] = {object, right};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, sql, 2, values));
    *has = *has && PQgetvalue(rows, 0, 0)[0] == 't';
    return NULL;
}

/* Adds a GRANT to those that are missing, once. */
static void want_grant(mr_buf *missing, PGconn *conn, bool has, const char *what)
{
    MR_AUTO_BUF grant = {0};
    mr__buf_printf(&grant, "GRANT %s TO %s; ", what, PQuser(conn));
    if (!has && strstr(mr__buf_text(missing), mr__buf_text(&grant)) == NULL)
        mr__buf_puts(missing, mr__buf_text(&grant));
}

static mr_error *check_table(PGconn *conn, const mr_qname *table, const char *rights,
                             mr_buf *missing)
{
    MR_AUTO_BUF schema = {0};
    MR_AUTO_BUF name = {0};
    MR_AUTO_BUF grant = {0};
    mr__ident_quote(&schema, table->schema);
    mr__qname_quote(&name, table);
    bool has = true;
    MR_TRY(has_right(conn, "SELECT coalesce(has_schema_privilege(to_regnamespace($1), $2), true)",
                     mr__buf_text(&schema), "USAGE", &has));
    mr__buf_printf(&grant, "USAGE ON SCHEMA %s", mr__buf_text(&schema));
    want_grant(missing, conn, has, mr__buf_text(&grant));
    mr__buf_clear(&grant);
    mr__buf_printf(&grant, "%s ON %s", rights, mr__buf_text(&name));
    if (!has)
        return NULL; /* the table cannot even be looked up */
    MR_AUTO_BUF right = {0};
    while (mr__list_next(&rights, &right, NULL))
        MR_TRY(has_right(conn, "SELECT coalesce(has_table_privilege(to_regclass($1), $2), true)",
                         mr__buf_text(&name), mr__buf_text(&right), &has));
    want_grant(missing, conn, has, mr__buf_text(&grant));
    return NULL;
}

/* The sequence behind a table's id. */
static mr_error *check_sequence(PGconn *conn, const mr_qname *table, mr_buf *missing)
{
    MR_AUTO_BUF name = {0};
    MR_AUTO_BUF grant = {0};
    mr__qname_quote(&name, table);
    bool has = true;
    MR_TRY(has_right(conn,
                     "SELECT CASE WHEN to_regclass($1) IS NULL THEN true ELSE coalesce("
                     "has_sequence_privilege(pg_get_serial_sequence($1, 'id'), $2), true) END",
                     mr__buf_text(&name), "USAGE", &has));
    mr__buf_puts(&grant, "USAGE ON ALL SEQUENCES IN SCHEMA ");
    mr__ident_quote(&grant, table->schema);
    want_grant(missing, conn, has, mr__buf_text(&grant));
    return NULL;
}

/* The rights that would otherwise be found missing in the middle of a batch, all at once. */
static mr_error *check_rights(mr_worker *w, PGconn *conn)
{
    static const struct {
        mr_table table;
        const char *rights;
        bool sequence;
    } needed[] = {{MR_TABLE_MIGRATIONS, "SELECT", false},
                  {MR_TABLE_CHECKPOINTS, "SELECT,INSERT,UPDATE", false},
                  {MR_TABLE_GAP_SKIPS, "INSERT", true},
                  {MR_TABLE_DEAD_LETTERS, "SELECT,INSERT,UPDATE,DELETE", true},
                  {MR_TABLE_CONTROLS, "SELECT,INSERT,UPDATE", false},
                  {MR_TABLE_AUDIT, "INSERT", true},
                  {MR_TABLE_ASSIGNMENTS, "SELECT,INSERT,UPDATE", false},
                  {MR_TABLE_LEADER, "SELECT,INSERT,UPDATE", false},
                  {MR_TABLE_WORKER_NODES, "SELECT,INSERT,UPDATE,DELETE", false}};
    MR_AUTO_BUF missing = {0};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        const mr_qname *table = &w->names.table[needed[i].table];
        MR_TRY(check_table(conn, table, needed[i].rights, &missing));
        if (needed[i].sequence && missing.length == 0)
            MR_TRY(check_sequence(conn, table, &missing));
    }
    if (missing.length == 0)
        return NULL;
    return mr__error(MR_E_SCHEMA, "the role %s lacks rights on Millrace's tables; run: %s",
                     PQuser(conn), mr__buf_text(&missing));
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

/* Elsewhere the worker says it to each session (isolate() in lane.c). */
static mr_error *check_isolation(mr_worker *w, PGconn *conn)
{
    if (w->lane_count == 0 || mr__bag_number(&w->conf->bag, MR_OPT_LEADER_STRATEGY) != 1)
        return NULL;
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, "SHOW default_transaction_isolation", 0, NULL));
    const char *level = PQgetvalue(rows, 0, 0);
    if (strcmp(level, "read committed") == 0)
        return NULL;
    return mr__error(MR_E_SCHEMA,
                     "default_transaction_isolation is %s for the role %s or its database; claims "
                     "of queues need read committed, which cannot be set for a session through a "
                     "pooler; run: ALTER ROLE %s SET default_transaction_isolation = 'read "
                     "committed'",
                     level, PQuser(conn), PQuser(conn));
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

mr_error *mr__worker_prepare(mr_worker *w, PGconn *conn, bool trial)
{
    mr_gap_strategy strategy = (mr_gap_strategy)mr__bag_number(&w->conf->bag, MR_OPT_GAP_STRATEGY);
    mr_schema_input schema = {.names = &w->names, .log = &w->log_spec, .no_log = true};
    /* The log first: on a standby or a wrong database that is the message that helps. Queues alone
     * need none. */
    if (w->place_count > 0) {
        MR_TRY(mr__log_shape_read(conn, &w->log_spec, &w->shape));
        MR_TRY(mr__log_shape_check(conn, &w->shape, strategy == MR_GAP_SETTLED));
    }
    MR_TRY(check_rights(w, conn));
    MR_TRY(check_writable(conn));
    MR_TRY(check_isolation(w, conn));
    MR_TRY(mr__schema_require(conn, &schema));
    MR_TRY(warn_pooler(w, conn));
    for (size_t i = 0; i < w->lane_count; i++)
        MR_TRY(mr__lane_prepare(w->lanes[i], conn));
    if (w->place_count == 0)
        return NULL;
    mr__replay_sql_free(&w->replay_sql);
    MR_TRY(mr__replay_sql_render(&w->names, &w->shape, &w->replay_sql));
    for (size_t i = 0; i < w->place_count; i += (size_t)w->places[i]->slots)
        MR_TRY(
            mr__worker_prepare_places(w, conn, &w->places[i], (size_t)w->places[i]->slots, trial));
    return NULL;
}
