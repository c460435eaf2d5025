/* What a mapping needs beyond its columns: indexes that serve it, expressions that the server
 * understands. */
#include "queue/shape.h"

#include "handler/handler.h"

#include <stdio.h>
#include <string.h>

/* ---- Indexes ------------------------------------------------------------------------------- */

/* A unique index tells rows apart by id alone; one of a partitioned table needs the partition key
 * too, so there it is enough that the id comes first. */
static const char unique_sql[] =
    "SELECT 1 FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indrelid"
    " JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
    " WHERE i.indrelid = $1::oid AND a.attname = $2 AND i.indisunique AND i.indisvalid"
    " AND i.indpred IS NULL AND (i.indnkeyatts = 1 OR c.relkind = 'p')";

/* Valid indexes: their plain columns in order (an expression is ''), and their predicate. */
static const char indexes_sql[] =
    "SELECT array_to_string(ARRAY(SELECT coalesce((SELECT quote_ident(a.attname)"
    "   FROM pg_catalog.pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = k), '')"
    "   FROM unnest(i.indkey) WITH ORDINALITY AS u(k, n) ORDER BY n), ',') || ',',"
    " coalesce(pg_catalog.pg_get_expr(i.indpred, i.indrelid), '')"
    " FROM pg_catalog.pg_index i WHERE i.indrelid = $1::oid AND i.indisvalid";

static mr_error *check_unique(PGconn *conn, const mr_queue_shape *shape, mr_buf *problems)
{
    const char *id = mr__mapping_actual(shape->mapping, MR_JOB_ID);
    const char *values[] = {shape->table_oid, id};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, unique_sql, 2, values));
    if (PQntuples(rows) > 0)
        return NULL;
    MR_AUTO_BUF target = {0};
    mr__qname_quote(&target, &shape->table);
    MR_AUTO_BUF column = {0};
    mr__ident_quote(&column, id);
    mr__queue_shape_say(
        problems,
        "the column '%s' is no key: two rows may have the same; CREATE UNIQUE INDEX "
        "CONCURRENTLY ON %s (%s)",
        id, mr__buf_text(&target), mr__buf_text(&column));
    return NULL;
}

/* The order's columns as the catalog lists an index's, and as they are written in a statement. */
static void order_columns(const mr_queue_shape *shape, mr_buf *listed, mr_buf *written)
{
    for (int i = 0; i < shape->order.count; i++) {
        MR_AUTO_BUF quoted = {0};
        mr__ident_quote(&quoted, shape->order.column[i]);
        mr__buf_printf(written, "%s%s", i == 0 ? "" : ", ", mr__buf_text(&quoted));
        mr__buf_printf(listed, "%s,", shape->order.column[i]);
    }
}

/* quote_ident() quotes only what needs it; taking every quote away is enough for a comparison that
 * decides about advice. */
static void unquote(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0'; from++)
        if (*from != '"')
            *to++ = *from;
    *to = '\0';
}

typedef struct found_indexes {
    bool order, processing, heartbeat;
} found_indexes;

static mr_error *look_at_indexes(PGconn *conn, const mr_queue_shape *shape, const char *wanted,
                                 found_indexes *found)
{
    const char *oid[] = {shape->table_oid};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, indexes_sql, 1, oid));
    const char *beat = mr__mapping_actual(shape->mapping, MR_JOB_LAST_HEARTBEAT_AT);
    for (int i = 0; i < PQntuples(rows); i++) {
        char *columns = PQgetvalue(rows, i, 0);
        unquote(columns);
        const char *predicate = PQgetvalue(rows, i, 1);
        /* A whole index in that order is a help too, but finished rows are in it. */
        if (wanted[0] != '\0' && strncmp(columns, wanted, strlen(wanted)) == 0 &&
            strstr(predicate, "queued") != NULL)
            found->order = true;
        if (strstr(predicate, "'processing'") != NULL)
            found->processing = true;
        if (strstr(columns, beat) != NULL)
            found->heartbeat = true;
    }
    return NULL;
}

mr_error *mr__queue_shape_indexes(PGconn *conn, const mr_queue_shape *shape, mr_buf *problems,
                                  mr_buf *notes)
{
    MR_TRY(check_unique(conn, shape, problems));
    MR_AUTO_BUF wanted = {0};
    MR_AUTO_BUF written = {0};
    order_columns(shape, &wanted, &written);
    MR_AUTO_BUF target = {0};
    mr__qname_quote(&target, &shape->table);
    MR_AUTO_BUF state = {0};
    MR_AUTO_BUF id = {0};
    mr__ident_quote(&state, mr__mapping_actual(shape->mapping, MR_JOB_STATE));
    mr__ident_quote(&id, mr__mapping_actual(shape->mapping, MR_JOB_ID));
    found_indexes found = {0};
    MR_TRY(look_at_indexes(conn, shape, mr__buf_text(&wanted), &found));
    if (shape->order.count == 0)
        mr__queue_shape_say(
            notes,
            "the order does not go by plain columns, upwards, the first of which grows as rows "
            "come "
            "(id, queued_at, or one that a sequence or the clock fills), so claims cannot start at "
            "a low-water mark: they get slower while a long transaction holds vacuum back");
    else if (!found.order)
        mr__queue_shape_say(
            notes,
            "no index serves the claims' order, so they read and sort every waiting row: CREATE "
            "INDEX CONCURRENTLY ON %s (%s) WHERE %s IN ('queued', 'errored')",
            mr__buf_text(&target), mr__buf_text(&written), mr__buf_text(&state));
    if (!found.processing)
        mr__queue_shape_say(notes,
                            "no index finds running jobs, so the resetter reads the whole table: "
                            "CREATE INDEX CONCURRENTLY ON %s (%s) WHERE %s = 'processing'",
                            mr__buf_text(&target), mr__buf_text(&id), mr__buf_text(&state));
    if (found.heartbeat)
        mr__queue_shape_say(notes,
                            "the column '%s' is in an index, so every heartbeat writes to every "
                            "index of the table; the resetter does not need it there",
                            mr__mapping_actual(shape->mapping, MR_JOB_LAST_HEARTBEAT_AT));
    return NULL;
}

/* ---- Expressions --------------------------------------------------------------------------- */

/* The server's opinion of `SELECT <before> expression <after>` on the relation that expressions
 * see.
 */
static mr_error *try_expression(PGconn *conn, const mr_queue_shape *shape, const char *what,
                                const char *select, const char *where, mr_buf *problems)
{
    const mr_relation *seen = shape->direct ? &shape->mapping->table : &shape->mapping->view;
    MR_AUTO_BUF sql = {0};
    mr__buf_printf(&sql, "SELECT %s FROM ", select);
    mr__qname_quote(&sql, &shape->view);
    mr__buf_puts(&sql, " AS ");
    mr__ident_quote(&sql, seen->alias);
    mr__buf_puts(&sql, where);
    if (sql.failed)
        return mr__error_nomem();
    MR_AUTO_ERROR error = mr__handler_parse(conn, what, mr__buf_text(&sql));
    if (error == NULL)
        return NULL;
    if (mr_error_code(error) == MR_E_CONNECT) {
        mr_error *lost = error;
        error = NULL;
        return lost;
    }
    mr__queue_shape_say(problems, "%s", mr_error_message(error));
    return NULL;
}

/* One expression. In parentheses, as the statements have it, and without: `a) OR (b` is none, but
 * would be taken for one in the first form and leave the parentheses' guard in the statements. */
static mr_error *try_both(PGconn *conn, const mr_queue_shape *shape, const char *what,
                          const char *expression, bool condition, mr_buf *problems)
{
    size_t before = problems->length;
    for (int bare = 0; bare < 2 && problems->length == before; bare++) {
        MR_AUTO_BUF text = {0};
        mr__buf_printf(&text, "%s%s\n%s\n%s", condition ? " WHERE " : "", bare ? "" : "(",
                       expression, bare ? "" : ")");
        const char *tried = mr__buf_text(&text);
        MR_TRY(try_expression(conn, shape, what, condition ? "1" : tried, condition ? tried : "",
                              problems));
    }
    return NULL;
}

mr_error *mr__queue_shape_expressions(PGconn *conn, const mr_queue_shape *shape, mr_buf *problems)
{
    const mr_mapping *mapping = shape->mapping;
    if (mapping->condition[0] != '\0')
        MR_TRY(try_both(conn, shape, "condition", mapping->condition, true, problems));
    if (mapping->order[0] != '\0') {
        MR_AUTO_BUF text = {0};
        mr__buf_printf(&text, " ORDER BY\n%s\n LIMIT 1", mapping->order); /* it has no own one */
        MR_TRY(try_expression(conn, shape, "order", "1", mr__buf_text(&text), problems));
    }
    for (size_t i = 0; i < mapping->value_count; i++) {
        MR_AUTO_BUF what = {0};
        mr__buf_printf(&what, "values: %s", mapping->values[i].name);
        MR_TRY(try_both(conn, shape, mr__buf_text(&what), mapping->values[i].expression, false,
                        problems));
    }
    return NULL;
}
