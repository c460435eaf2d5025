/* Applies the schema to a database: each step in its own transaction, under an advisory lock, and
 * only what is missing. */
#include "cluster/schema.h"

#include "base/hash.h"
#include "base/text.h"
#include "cluster/schema_files.h"
#include "pg/conn.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* An application under way. */
typedef struct apply {
    PGconn *conn;
    mr_template_input input;
    int applied;
} apply;

static mr_error *query_value(PGconn *conn, const char *sql, int count, const char *const *values,
                             char *out, size_t size)
{
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, sql, count, values));
    bool none = PQntuples(rows) == 0 || PQgetisnull(rows, 0, 0);
    (void)snprintf(out, size, "%s", none ? "" : PQgetvalue(rows, 0, 0));
    return NULL;
}

static mr_error *exists(PGconn *conn, const mr_qname *table, bool *yes)
{
    MR_AUTO_BUF name = {0};
    mr__qname_quote(&name, table);
    const char *values[] = {mr__buf_text(&name)};
    char oid[16];
    /* By way of pg_class: to_regclass() alone may answer from what this session cached before
     * another one created the table. */
    MR_TRY(query_value(
        conn, "SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass($1)", 1,
        values, oid, sizeof(oid)));
    *yes = oid[0] != '\0';
    return NULL;
}

static mr_error *read_version(PGconn *conn, const mr_names *names, int *current)
{
    bool there = false;
    *current = 0;
    MR_TRY(exists(conn, &names->table[MR_TABLE_MIGRATIONS], &there));
    if (!there)
        return NULL;
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT max(version) FROM ");
    mr__qname_quote(&sql, &names->table[MR_TABLE_MIGRATIONS]);
    mr__buf_puts(&sql, " WHERE fleet = $1");
    char fleet[MR_FLEET_MAX], text[16];
    mr__names_fleet(names, fleet);
    const char *values[] = {fleet};
    MR_TRY(query_value(conn, mr__buf_text(&sql), 1, values, text, sizeof(text)));
    int64_t version = 0;
    if (text[0] != '\0' && !mr__text_int(text, &version))
        return mr__error(MR_E_SCHEMA, "the table of migrations holds no version but '%s'", text);
    *current = (int)version;
    return NULL;
}

static mr_error *refuse_newer(int current)
{
    int latest = mr__schema_latest();
    if (current <= latest)
        return NULL;
    return mr__error(MR_E_SCHEMA,
                     "the database's schema is at version %d, newer than version %d of this "
                     "program (millrace %s); use a newer millrace",
                     current, latest, MR_VERSION);
}

mr_error *mr__schema_status(PGconn *conn, const mr_schema_input *input, int *current, int *latest)
{
    int found = 0;
    MR_TRY(read_version(conn, input->names, &found));
    *current = found;
    *latest = mr__schema_latest();
    return NULL;
}

mr_error *mr__schema_require(PGconn *conn, const mr_schema_input *input)
{
    int current = 0;
    MR_TRY(read_version(conn, input->names, &current));
    MR_TRY(refuse_newer(current));
    if (current == 0)
        return mr__error(MR_E_SCHEMA,
                         "Millrace's tables are not in this database (schema %s); run: millrace "
                         "schema apply",
                         input->names->schema);
    if (current < mr__schema_latest())
        return mr__error(MR_E_SCHEMA,
                         "the database's schema is at version %d and this program needs %d; run: "
                         "millrace schema apply",
                         current, mr__schema_latest());
    return NULL;
}

/* Begins a step: a transaction that holds the schema's lock. */
static mr_error *step_begin(apply *a)
{
    MR_TRY(mr__pg_script(a->conn, "BEGIN; SET LOCAL client_min_messages = warning"));
    MR_AUTO_BUF name = {0};
    mr__buf_puts(&name, "millrace schema ");
    mr__qname_quote(&name, &a->input.names->table[MR_TABLE_MIGRATIONS]);
    char key[24];
    (void)snprintf(key, sizeof(key), "%" PRId64,
                   (int64_t)mr__hash_fnv1a64(mr__buf_text(&name), name.length));
    const char *values[] = {key};
    mr_error *error = mr__pg_query(
        a->conn, NULL, "SELECT pg_catalog.pg_advisory_xact_lock($1::bigint)", 1, values);
    if (error != NULL)
        mr_error_free(mr__pg_script(a->conn, "ROLLBACK")); /* the first error tells more */
    return error;
}

/* Ends a step by its outcome; passes the error on. */
static mr_error *step_end(apply *a, mr_error *error, const char *what)
{
    if (error == NULL)
        error = mr__pg_script(a->conn, "COMMIT");
    if (error == NULL)
        return NULL;
    mr_error_free(mr__pg_script(a->conn, "ROLLBACK"));
    return mr__error_prefix(error, "%s", what);
}

/* CREATE SCHEMA needs a right even with IF NOT EXISTS, so only for what is not there. */
static mr_error *create_prefixes(apply *a)
{
    const char *schemas[MR_SCHEMAS_MAX];
    size_t count = mr__schema_prefixes(&a->input, schemas);
    for (size_t i = 0; i < count; i++) {
        char found[8];
        const char *values[] = {schemas[i]};
        MR_TRY(query_value(a->conn, "SELECT 'yes' FROM pg_catalog.pg_namespace WHERE nspname = $1",
                           1, values, found, sizeof(found)));
        if (found[0] != '\0')
            continue;
        MR_AUTO_BUF sql = {0};
        /* Another program may be making the same schema for tables of its own. */
        mr__buf_puts(&sql, "CREATE SCHEMA IF NOT EXISTS ");
        mr__ident_quote(&sql, schemas[i]);
        MR_TRY(mr__pg_script(a->conn, mr__buf_text(&sql)));
    }
    return NULL;
}

static mr_error *run_file(apply *a, const mr_embed *file)
{
    MR_AUTO_BUF sql = {0};
    MR_TRY(mr__template_render(file, &a->input, &sql));
    return mr__pg_script(a->conn, mr__buf_text(&sql));
}

static mr_error *bootstrap(apply *a)
{
    MR_TRY(create_prefixes(a));
    for (const mr_embed *file = mr__sql_bootstrap; file->name != NULL; file++)
        MR_TRY(run_file(a, file));
    return NULL;
}

static mr_error *migrate_one(apply *a, const mr_embed *file)
{
    int current = 0;
    MR_TRY(read_version(a->conn, a->input.names, &current));
    MR_TRY(refuse_newer(current));
    if (current >= mr__schema_file_version(file))
        return NULL; /* another process was here first */
    MR_TRY(run_file(a, file));
    MR_AUTO_BUF sql = {0};
    mr__schema_record(file, &a->input, &sql);
    MR_TRY(mr__pg_script(a->conn, mr__buf_text(&sql)));
    a->applied++;
    return NULL;
}

static mr_error *migrate(apply *a)
{
    int current = 0;
    MR_TRY(read_version(a->conn, a->input.names, &current));
    MR_TRY(refuse_newer(current));
    if (current == mr__schema_latest())
        return NULL;
    if (current == 0) {
        MR_TRY(step_begin(a));
        MR_TRY(step_end(a, bootstrap(a), "creating the schema"));
    }
    for (const mr_embed *file = mr__sql_migrations; file->name != NULL; file++) {
        if (mr__schema_file_version(file) <= current)
            continue;
        MR_TRY(step_begin(a));
        MR_TRY(step_end(a, migrate_one(a, file), file->name));
    }
    return NULL;
}

static mr_error *create_log(apply *a, const mr_log_spec *spec)
{
    bool there = false;
    MR_TRY(exists(a->conn, &spec->table, &there));
    if (there)
        return NULL;
    MR_TRY(create_prefixes(a));
    for (const mr_embed *file = mr__sql_log; file->name != NULL; file++)
        MR_TRY(run_file(a, file));
    a->applied++;
    return NULL;
}

/* A log that exists, whatever it looks like, is left alone. */
static mr_error *ensure_log(apply *a, const mr_log_spec *spec)
{
    bool there = false;
    MR_TRY(exists(a->conn, &spec->table, &there));
    if (there)
        return NULL;
    char schema[MR_IDENT_MAX + 1];
    MR_TRY(query_value(a->conn, "SELECT current_schema", 0, NULL, schema, sizeof(schema)));
    if (schema[0] == '\0' && spec->table.schema[0] == '\0')
        return mr__error(MR_E_SCHEMA, "the search path names no schema to create the log in; name "
                                      "one with `log: table: schema.events`");
    mr_log_shape shape;
    mr__log_shape_assume(spec, schema, &shape);
    a->input.shape = &shape;
    mr_error *error = step_begin(a);
    if (error == NULL)
        error = step_end(a, create_log(a, spec), "creating the log");
    a->input.shape = NULL;
    return error;
}

static mr_error *function_current(apply *a, const char *name, const char *mark, bool *yes)
{
    const char *values[] = {a->input.names->schema, name, mark};
    char found[8];
    MR_TRY(query_value(a->conn,
                       "SELECT 'yes' FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n"
                       " ON n.oid = p.pronamespace WHERE n.nspname = $1 AND p.proname = $2"
                       " AND pg_catalog.obj_description(p.oid, 'pg_proc') = $3",
                       3, values, found, sizeof(found)));
    *yes = found[0] != '\0';
    return NULL;
}

static mr_error *make_functions(apply *a, const mr_embed *file, bool of_log)
{
    for (; file->name != NULL; file++) {
        MR_AUTO_BUF sql = {0};
        char name[MR_IDENT_MAX + 1], mark[64];
        bool current = false;
        MR_TRY(mr__schema_function(file, &a->input, of_log, &sql, name, mark));
        MR_TRY(function_current(a, name, mark, &current));
        if (current)
            continue;
        MR_TRY(step_begin(a));
        MR_TRY(step_end(a, mr__pg_script(a->conn, mr__buf_text(&sql)), file->name));
    }
    return NULL;
}

/* The append functions follow the log as it is; a log without heads or positions of its own can
 * only be read, and with --no-log a table that is no log at all is none of our business. */
static mr_error *make_log_functions(apply *a, const mr_schema_input *input)
{
    bool there = false;
    MR_TRY(exists(a->conn, &input->log->table, &there));
    if (!there)
        return NULL;
    mr_log_shape shape;
    mr_error *error = mr__log_shape_read(a->conn, input->log, &shape);
    if (error != NULL && input->no_log && mr_error_code(error) == MR_E_LOG) {
        mr_error_free(error);
        return NULL;
    }
    MR_TRY(error);
    if (shape.heads.name[0] == '\0' || shape.sequence[0] == '\0')
        return NULL;
    a->input.shape = &shape;
    error = make_functions(a, mr__sql_log_functions, true);
    a->input.shape = NULL;
    return error;
}

mr_error *mr__schema_apply(PGconn *conn, const mr_schema_input *input, int *applied)
{
    if (PQtransactionStatus(conn) != PQTRANS_IDLE || PQpipelineStatus(conn) != PQ_PIPELINE_OFF)
        return PQstatus(conn) == CONNECTION_OK
                   ? mr__error(MR_E_USAGE, "the schema is applied in transactions of its own: the "
                                           "connection must be idle and not in pipeline mode")
                   : mr__pg_conn_error(conn);
    apply a = {.conn = conn, .input = {.names = input->names}};
    MR_TRY(migrate(&a));
    if (!input->no_log)
        MR_TRY(ensure_log(&a, input->log));
    MR_TRY(make_functions(&a, mr__sql_functions, false));
    MR_TRY(make_log_functions(&a, input));
    if (applied != NULL)
        *applied = a.applied;
    return NULL;
}
