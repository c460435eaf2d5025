/* The statements of the reader, rendered once for a log. */
#include "log/reader_sql.h"

#include "pg/conn.h"

#include <stdlib.h>

void mr__reader_sql_holders(mr_buf *sql, const mr_log_shape *shape)
{
    MR_AUTO_BUF quoted = {0};
    mr__qname_quote(&quoted, &shape->table);
    MR_AUTO_BUF literal = {0};
    mr__literal_quote(&literal, mr__buf_text(&quoted));
    /* An INSERT sent straight to a partition, or to a table that inherits, locks that one only, so
     * the whole tree is listed. Granted locks only: who still waits for the lock has not drawn its
     * position yet. */
    mr__buf_printf(sql,
                   " FROM pg_catalog.pg_locks l WHERE l.locktype = 'relation' AND l.granted"
                   " AND l.database = (SELECT oid FROM pg_catalog.pg_database"
                   " WHERE datname = pg_catalog.current_database())"
                   " AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',"
                   " 'AccessExclusiveLock')"
                   " AND l.relation IN (WITH RECURSIVE tree(id) AS ("
                   "SELECT %s::pg_catalog.regclass::pg_catalog.oid UNION"
                   " SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree"
                   " ON i.inhparent = tree.id) SELECT id FROM tree)",
                   mr__buf_text(&literal));
}

mr_error *mr__reader_sql_render(const mr_log_shape *shape, const mr_rows_want *want,
                                mr_reader_sql *out)
{
    MR_AUTO_BUF window = {0};
    mr__rows_select(&window, shape, want);
    mr__buf_puts(&window, " WHERE e.");
    mr__rows_column(&window, shape, MR_COL_POSITION);
    mr__buf_puts(&window, " > $1::int8 ORDER BY e.");
    mr__rows_column(&window, shape, MR_COL_POSITION);
    mr__buf_puts(&window, " LIMIT $2::int8");

    MR_AUTO_BUF head = {0};
    mr__buf_puts(&head, "SELECT coalesce(max(");
    mr__rows_column(&head, shape, MR_COL_POSITION);
    mr__buf_puts(&head, "), 0)::int8, pg_catalog.pg_is_in_recovery(), " MR_SERVER_SQL " FROM ");
    mr__qname_quote(&head, &shape->table);

    MR_AUTO_BUF evidence = {0};
    mr__buf_puts(&evidence, "SELECT l.virtualtransaction || ':' || coalesce(l.pid::text, ''),"
                            " l.pid IS NULL");
    mr__reader_sql_holders(&evidence, shape);

    /* An id of our own, not a snapshot's xmax: xmax is one past the highest that has *ended*, so a
     * transaction that runs and owns a lower position may lie at or above it. */
    MR_AUTO_BUF xid = {0};
    mr__buf_puts(&xid, "SELECT pg_catalog.pg_current_xact_id()::text");
    MR_AUTO_BUF snapshot = {0};
    mr__buf_puts(&snapshot,
                 "SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text");
    *out = (mr_reader_sql){.window = mr__buf_take(&window),
                           .head = mr__buf_take(&head),
                           .evidence = mr__buf_take(&evidence),
                           .xid = mr__buf_take(&xid),
                           .snapshot = mr__buf_take(&snapshot)};
    if (out->window != NULL && out->head != NULL && out->evidence != NULL && out->xid != NULL &&
        out->snapshot != NULL)
        return NULL;
    mr__reader_sql_free(out);
    return mr__error_nomem();
}

void mr__reader_sql_free(mr_reader_sql *sql)
{
    free(sql->window);
    free(sql->head);
    free(sql->evidence);
    free(sql->xid);
    free(sql->snapshot);
    *sql = (mr_reader_sql){0};
}
