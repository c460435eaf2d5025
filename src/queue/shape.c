/* A mapping checked against the catalog: relations, columns, types. Everything that is wrong is
 * gathered and told at once, with the statement that mends it where there is one. */
#include "queue/shape.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mr__queue_shape_say(mr_buf *lines, const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (lines->length > 0)
        mr__buf_putc(lines, '\n');
    mr__buf_puts(lines, text);
}

#define say mr__queue_shape_say

static const char *shown(const mr_qname *name, char out[2 * MR_IDENT_MAX + 2])
{
    (void)snprintf(out, 2 * MR_IDENT_MAX + 2, "%s%s%s", name->schema,
                   name->schema[0] == '\0' ? "" : ".", name->name);
    return out;
}

/* ---- Relations ----------------------------------------------------------------------------- */

static void check_table_kind(const mr_relation_info *table, const mr_qname *wanted,
                             mr_buf *problems)
{
    char name[2 * MR_IDENT_MAX + 2];
    (void)shown(wanted, name);
    if (table->oid[0] == '\0')
        say(problems, "there is no table %s%s; create it or name yours with `table:`", name,
            wanted->schema[0] == '\0' ? " on the search path" : "");
    else if (table->kind == 'v' || table->kind == 'm')
        say(problems,
            "%s is a view, and rows cannot be locked through one; name the table that holds the "
            "rows with `table:` and this one with `view:`",
            name);
    else if (table->kind == 'f')
        say(problems,
            "%s is a foreign table, whose rows cannot be locked; a queue needs a table "
            "of its own database",
            name);
    else if (table->kind != 'r' && table->kind != 'p')
        say(problems, "%s is not a table", name);
}

static void check_view_kind(const mr_relation_info *view, const mr_qname *wanted, mr_buf *problems)
{
    char name[2 * MR_IDENT_MAX + 2];
    (void)shown(wanted, name);
    if (view->oid[0] == '\0')
        say(problems, "there is no view %s%s; create it or leave `view:` out", name,
            wanted->schema[0] == '\0' ? " on the search path" : "");
    else if (view->kind != 'v' && view->kind != 'r' && view->kind != 'p')
        say(problems,
            "%s shows what was stored earlier or elsewhere, not the rows as they are; a "
            "queue's `view:` must be a plain view or a table",
            name);
}

/* ---- Columns ------------------------------------------------------------------------------- */

static const char *nearest(const mr_relation_info *info, const char *name)
{
    enum { MOST = 1600 }; /* PostgreSQL's own limit of columns */
    const char *names[MOST];
    size_t count = 0;
    for (int i = 0; i < info->count && count < MOST; i++)
        names[count++] = PQgetvalue(info->columns, i, MR_REL_NAME);
    int found = mr__text_nearest(name, names, count);
    return found < 0 ? NULL : names[found];
}

static void missing_column(const mr_queue_shape *shape, const mr_relation_info *table,
                           mr_job_column column, mr_buf *problems)
{
    const char *own = mr__job_column_name(column);
    const char *name = mr__mapping_actual(shape->mapping, column);
    char where[2 * MR_IDENT_MAX + 2];
    MR_AUTO_BUF target = {0};
    mr__qname_quote(&target, &shape->table);
    MR_AUTO_BUF quoted = {0};
    mr__ident_quote(&quoted, name);
    const char *near = nearest(table, name);
    MR_AUTO_BUF hint = {0};
    if (near != NULL)
        mr__buf_printf(&hint, "name the right one with `columns: {%s: %s}` or ", own, near);
    say(problems, "%s has no column '%s'%s%s; %sadd it: ALTER TABLE %s ADD COLUMN %s %s",
        shown(&shape->table, where), name,
        shape->mapping->column[column][0] == '\0' ? "" : ", which `columns:` names for ",
        shape->mapping->column[column][0] == '\0' ? "" : own, mr__buf_text(&hint),
        mr__buf_text(&target), mr__buf_text(&quoted), mr__job_column_ddl(column));
}

static bool one_of(const char *type, const char *const *list)
{
    for (; *list != NULL; list++)
        if (strcmp(type, *list) == 0)
            return true;
    return false;
}

static const char *const family_types[][4] = {
    [MR_FAMILY_ID] = {NULL},
    [MR_FAMILY_STATE] = {"text", "varchar", NULL},
    [MR_FAMILY_TEXT] = {"text", "varchar", NULL},
    [MR_FAMILY_TIME] = {"timestamptz", "timestamp", NULL},
    [MR_FAMILY_NUMBER] = {"int4", "int8", "int2", NULL},
    [MR_FAMILY_WIDE] = {"int8", "int4", NULL},
    [MR_FAMILY_LOGS] = {"_json", "_jsonb", NULL},
    [MR_FAMILY_BOOL] = {"bool", NULL},
};

static const char *const family_words[] = {
    [MR_FAMILY_ID] = "anything",
    [MR_FAMILY_STATE] = "text, varchar or an enum of the six states",
    [MR_FAMILY_TEXT] = "text or varchar",
    [MR_FAMILY_TIME] = "timestamptz (or timestamp, then in UTC)",
    [MR_FAMILY_NUMBER] = "integer",
    [MR_FAMILY_WIDE] = "bigint or integer",
    [MR_FAMILY_LOGS] = "json[] or jsonb[]",
    [MR_FAMILY_BOOL] = "boolean",
};

/* An enum must know every state that a job can be in. */
static mr_error *check_enum(PGconn *conn, const mr_queue_shape *shape, const char *oid,
                            mr_buf *problems)
{
    const char *values[] = {oid};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(
        conn, &rows,
        "SELECT s FROM unnest('{queued,processing,completed,errored,failed,canceled}'::text[]) s"
        " WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_enum e"
        "  WHERE e.enumtypid = $1::oid AND e.enumlabel = s)",
        1, values));
    for (int i = 0; i < PQntuples(rows); i++)
        say(problems, "the type of the column '%s' lacks a state: ALTER TYPE %s ADD VALUE '%s'",
            mr__mapping_actual(shape->mapping, MR_JOB_STATE), shape->type[MR_JOB_STATE],
            PQgetvalue(rows, i, 0));
    return NULL;
}

static mr_error *check_type(PGconn *conn, mr_queue_shape *shape, const mr_relation_info *table,
                            int found, mr_job_column column, mr_buf *problems)
{
    mr_family family = mr__job_column_family(column);
    const char *base = PQgetvalue(table->columns, found, MR_REL_BASE);
    bool is_enum = PQgetvalue(table->columns, found, MR_REL_KIND)[0] == 'e';
    if (family == MR_FAMILY_ID)
        return NULL;
    if (family == MR_FAMILY_STATE && is_enum)
        return check_enum(conn, shape, PQgetvalue(table->columns, found, MR_REL_OID), problems);
    if (!one_of(base, family_types[family]))
        say(problems, "the column '%s' is of type %s; %s must be %s",
            mr__mapping_actual(shape->mapping, column),
            PQgetvalue(table->columns, found, MR_REL_TYPE), mr__job_column_name(column),
            family_words[family]);
    return NULL;
}

static void take_column(mr_queue_shape *shape, const mr_relation_info *table, int found,
                        mr_job_column column)
{
    shape->has[column] = true;
    (void)snprintf(shape->type[column], MR_QUEUE_TYPE_MAX, "%s",
                   PQgetvalue(table->columns, found, MR_REL_TYPE));
    shape->utc[column] = strcmp(PQgetvalue(table->columns, found, MR_REL_BASE), "timestamp") == 0;
    int64_t limit = -1;
    (void)mr__text_int(PQgetvalue(table->columns, found, MR_REL_LIMIT), &limit);
    shape->limit[column] = (int)limit;
    if (column == MR_JOB_EXECUTION_LOGS)
        shape->logs_filled = PQgetvalue(table->columns, found, MR_REL_NOT_NULL)[0] == 't';
}

/* One column cannot be two of a queue's. */
static void check_twice(const mr_mapping *mapping, mr_job_column column, mr_buf *problems)
{
    const char *name = mr__mapping_actual(mapping, column);
    for (int i = 0; i < (int)column; i++)
        if (strcmp(name, mr__mapping_actual(mapping, (mr_job_column)i)) == 0)
            say(problems, "`columns:` names '%s' for both %s and %s; each needs one of its own",
                name, mr__job_column_name((mr_job_column)i), mr__job_column_name(column));
}

static mr_error *check_columns(PGconn *conn, mr_queue_shape *shape, const mr_relation_info *table,
                               mr_buf *problems)
{
    for (int i = 0; i < MR_JOB_COLUMN_COUNT; i++) {
        mr_job_column column = (mr_job_column)i;
        const char *name = mr__mapping_actual(shape->mapping, column);
        int found = mr__relation_find(table, name);
        if (found < 0) {
            if (mr__job_column_required(column) || shape->mapping->column[i][0] != '\0')
                missing_column(shape, table, column, problems);
            continue;
        }
        check_twice(shape->mapping, column, problems);
        take_column(shape, table, found, column);
        MR_TRY(check_type(conn, shape, table, found, column, problems));
        if (mr__job_column_cleared(column) &&
            PQgetvalue(table->columns, found, MR_REL_NOT_NULL)[0] == 't') {
            MR_AUTO_BUF target = {0};
            MR_AUTO_BUF quoted = {0};
            mr__qname_quote(&target, &shape->table);
            mr__ident_quote(&quoted, name);
            say(problems, "the column '%s' must take NULL: ALTER TABLE %s ALTER %s DROP NOT NULL",
                name, mr__buf_text(&target), mr__buf_text(&quoted));
        }
    }
    return NULL;
}

/* Without a generation the time of the claim is the fence, and whole seconds are none. */
static void check_fence(const mr_queue_shape *shape, mr_buf *problems, mr_buf *notes)
{
    if (shape->has[MR_JOB_GENERATION] || !shape->has[MR_JOB_STARTED_AT])
        return;
    MR_AUTO_BUF target = {0};
    mr__qname_quote(&target, &shape->table);
    MR_AUTO_BUF add = {0};
    mr__buf_printf(&add, "ALTER TABLE %s ADD COLUMN %s %s", mr__buf_text(&target),
                   mr__job_column_name(MR_JOB_GENERATION), mr__job_column_ddl(MR_JOB_GENERATION));
    if (shape->limit[MR_JOB_STARTED_AT] >= 0 && shape->limit[MR_JOB_STARTED_AT] < 6)
        say(problems,
            "the column '%s' keeps less than microseconds and there is no lease_generation, so one "
            "claim cannot be told from the next: %s",
            mr__mapping_actual(shape->mapping, MR_JOB_STARTED_AT), mr__buf_text(&add));
    else
        say(notes,
            "without lease_generation a claim is known by the time it was made and the worker's "
            "name only; to close that: %s",
            mr__buf_text(&add));
}

/* ---- The view ------------------------------------------------------------------------------ */

static mr_error *keep_view_columns(mr_queue_shape *shape, const mr_relation_info *view)
{
    shape->view_columns = calloc((size_t)view->count + 1, sizeof(char *));
    if (shape->view_columns == NULL)
        return mr__error_nomem();
    for (int i = 0; i < view->count; i++) {
        char *name = strdup(PQgetvalue(view->columns, i, MR_REL_NAME));
        if (name == NULL)
            return mr__error_nomem();
        shape->view_columns[shape->view_column_count++] = name;
    }
    return NULL;
}

/* Values of the two are compared, and a time with a zone is not one without. */
static bool comparable(const char *a, const char *b)
{
    static const mr_family alike[] = {MR_FAMILY_TEXT, MR_FAMILY_NUMBER};
    for (size_t i = 0; i < sizeof(alike) / sizeof(alike[0]); i++)
        if (one_of(a, family_types[alike[i]]) && one_of(b, family_types[alike[i]]))
            return true;
    return strcmp(a, b) == 0;
}

static void check_view_columns(const mr_queue_shape *shape, const mr_relation_info *table,
                               const mr_relation_info *view, mr_buf *problems)
{
    /* What decides whether a row can be claimed, and who it is. */
    static const mr_job_column wanted[] = {MR_JOB_ID, MR_JOB_STATE, MR_JOB_QUEUED_AT,
                                           MR_JOB_PROCESS_AFTER, MR_JOB_FINISHED_AT};
    char name[2 * MR_IDENT_MAX + 2];
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        const char *column = mr__mapping_actual(shape->mapping, wanted[i]);
        int seen = mr__relation_find(view, column), own = mr__relation_find(table, column);
        if (seen < 0)
            say(problems,
                "the view %s lacks the column '%s' (%s of the table), by which its rows are found; "
                "add it to the view",
                shown(&shape->view, name), column, mr__job_column_name(wanted[i]));
        else if (own >= 0 && !comparable(PQgetvalue(view->columns, seen, MR_REL_BASE),
                                         PQgetvalue(table->columns, own, MR_REL_BASE)))
            say(problems,
                "the view %s shows the column '%s' as %s, in the table it is %s; show it as it is, "
                "and what you make of it under another name",
                shown(&shape->view, name), column, PQgetvalue(view->columns, seen, MR_REL_TYPE),
                PQgetvalue(table->columns, own, MR_REL_TYPE));
    }
}

bool mr__queue_shape_changed(const mr_queue_shape *shape, const char *column)
{
    static const mr_job_column changed[] = {MR_JOB_STATE,           MR_JOB_STARTED_AT,
                                            MR_JOB_FINISHED_AT,     MR_JOB_LAST_HEARTBEAT_AT,
                                            MR_JOB_WORKER_HOSTNAME, MR_JOB_FAILURE_MESSAGE,
                                            MR_JOB_EXECUTION_LOGS,  MR_JOB_GENERATION};
    for (size_t i = 0; i < sizeof(changed) / sizeof(changed[0]); i++)
        if (shape->has[changed[i]] &&
            strcmp(column, mr__mapping_actual(shape->mapping, changed[i])) == 0)
            return true;
    return false;
}

/* Whether rows that come later have greater values in a column: a number drawn for the id, the time
 * it was queued, or any column that a sequence or the clock fills. */
static bool grows(const mr_queue_shape *shape, const mr_relation_info *table, const char *column)
{
    static const char *const sources[] = {"nextval(",
                                          "now()",
                                          "clock_timestamp()",
                                          "CURRENT_TIMESTAMP",
                                          "statement_timestamp()",
                                          "transaction_timestamp()"};
    int found = mr__relation_find(table, column);
    if (found < 0)
        return false;
    const char *base = PQgetvalue(table->columns, found, MR_REL_BASE);
    if (strcmp(column, mr__mapping_actual(shape->mapping, MR_JOB_QUEUED_AT)) == 0)
        return true;
    if (strcmp(column, mr__mapping_actual(shape->mapping, MR_JOB_ID)) == 0)
        return one_of(base, family_types[MR_FAMILY_NUMBER]);
    const char *filled = PQgetvalue(table->columns, found, MR_REL_DEFAULT);
    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
        if (strstr(filled, sources[i]) != NULL)
            return true;
    return false;
}

/* A mark is of use only where new rows come behind it. Were they to come before it (the newest
 * first, the most urgent first, random ids), each would wait for the next look below. */
static void read_order(mr_queue_shape *shape, const mr_relation_info *table,
                       const mr_relation_info *view, const char *alias)
{
    MR_AUTO_BUF by_id = {0};
    mr__ident_quote(&by_id, mr__mapping_actual(shape->mapping, MR_JOB_ID));
    const char *text = shape->mapping->order;
    mr_order order;
    mr__order_parse(text[0] == '\0' ? mr__buf_text(&by_id) : text, alias, &order);
    if (order.count == 0 || order.descending || !grows(shape, table, order.column[0]))
        return;
    for (int i = 0; i < order.count; i++) {
        int found = mr__relation_find(view, order.column[i]);
        /* What a claim itself changes says nothing about where the next one should start. */
        if (found < 0 || mr__queue_shape_changed(shape, order.column[i]))
            return;
        (void)snprintf(shape->order_type[i], MR_QUEUE_TYPE_MAX, "%s",
                       PQgetvalue(view->columns, found, MR_REL_TYPE));
    }
    shape->order = order;
}

/* ---- All of it ----------------------------------------------------------------------------- */

static mr_error *verdict(const mr_mapping *mapping, const mr_buf *problems)
{
    if (problems->failed)
        return mr__error_nomem();
    if (problems->length == 0)
        return NULL;
    return mr__error(MR_E_CONFIG, "queue %s: %s", mapping->queue, mr__buf_text(problems));
}

static mr_error *read_relations(PGconn *conn, mr_queue_shape *shape, mr_relation_info *table,
                                mr_relation_info *view, mr_buf *problems)
{
    const mr_mapping *mapping = shape->mapping;
    shape->direct = mapping->view.name.name[0] == '\0';
    MR_TRY(mr__relation_read(conn, &mapping->table.name, table));
    check_table_kind(table, &mapping->table.name, problems);
    const mr_qname *seen = shape->direct ? &mapping->table.name : &mapping->view.name;
    MR_TRY(mr__relation_read(conn, seen, view));
    if (!shape->direct)
        check_view_kind(view, seen, problems);
    shape->table = table->name;
    shape->view = view->name;
    (void)snprintf(shape->table_oid, sizeof(shape->table_oid), "%s", table->oid);
    return NULL;
}

static mr_error *read_shape(PGconn *conn, mr_queue_shape *shape)
{
    const mr_mapping *mapping = shape->mapping;
    MR_AUTO_RELATION table = {0};
    MR_AUTO_RELATION view = {0};
    MR_AUTO_BUF problems = {0};
    MR_AUTO_BUF notes = {0};
    MR_TRY(read_relations(conn, shape, &table, &view, &problems));
    MR_TRY(verdict(mapping, &problems));
    MR_TRY(check_columns(conn, shape, &table, &problems));
    check_fence(shape, &problems, &notes);
    if (!shape->direct)
        check_view_columns(shape, &table, &view, &problems);
    MR_TRY(keep_view_columns(shape, &view));
    MR_TRY(verdict(mapping, &problems));
    read_order(shape, &table, &view, shape->direct ? mapping->table.alias : mapping->view.alias);
    MR_TRY(mr__queue_shape_expressions(conn, shape, &problems));
    MR_TRY(mr__queue_shape_indexes(conn, shape, &problems, &notes));
    MR_TRY(verdict(mapping, &problems));
    shape->notes = mr__buf_take(&notes);
    return shape->notes == NULL ? mr__error_nomem() : NULL;
}

mr_error *mr__queue_shape_read(PGconn *conn, const mr_mapping *mapping, mr_queue_shape *out)
{
    mr_queue_shape shape = {.mapping = mapping};
    mr_error *error = read_shape(conn, &shape);
    if (error != NULL) {
        mr__queue_shape_free(&shape);
        return error;
    }
    *out = shape;
    return NULL;
}

void mr__queue_shape_free(mr_queue_shape *shape)
{
    for (size_t i = 0; i < shape->view_column_count; i++)
        free(shape->view_columns[i]);
    free(shape->view_columns);
    free(shape->notes);
    *shape = (mr_queue_shape){0};
}
