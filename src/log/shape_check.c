/* Whether a log can be read safely as it is: each answer of no says what is wrong and what to run.
 */
#include "log/shape.h"
#include "pg/conn.h"

enum { IN_RECOVERY, MAY_USE, MAY_SELECT, HAS_INDEX, USER };

static mr_error *check_sequence(const mr_log_shape *shape, const char *table)
{
    if (shape->sequence[0] == '\0')
        return mr__error(MR_E_LOG,
                         "the positions of %s do not come from a sequence by default, so holes "
                         "cannot be settled by evidence; give \"%s\" a sequence default or choose "
                         "another gap_strategy",
                         table, shape->column[MR_COL_POSITION]);
    if (shape->sequence_cache > 1)
        return mr__error(MR_E_LOG,
                         "sequence %s has CACHE %lld, which hands out positions out of order; run: "
                         "ALTER SEQUENCE %s CACHE 1",
                         shape->sequence, (long long)shape->sequence_cache, shape->sequence);
    if (shape->sequence_increment < 1)
        return mr__error(MR_E_LOG, "sequence %s counts down; run: ALTER SEQUENCE %s INCREMENT 1",
                         shape->sequence, shape->sequence);
    return NULL;
}

static mr_error *check_rights(PGresult *row, const mr_log_shape *shape, const char *table)
{
    const char *user = PQgetvalue(row, 0, USER);
    if (PQgetvalue(row, 0, MAY_USE)[0] != 't')
        return mr__error(MR_E_LOG,
                         "user %s may not use schema %s; run: GRANT USAGE ON SCHEMA \"%s\" TO %s",
                         user, shape->table.schema, shape->table.schema, user);
    if (PQgetvalue(row, 0, MAY_SELECT)[0] != 't')
        return mr__error(MR_E_LOG, "user %s may not read the log; run: GRANT SELECT ON %s TO %s",
                         user, table, user);
    return NULL;
}

mr_error *mr__log_shape_check(PGconn *conn, const mr_log_shape *shape, bool settled)
{
    static const char sql[] =
        "SELECT pg_catalog.pg_is_in_recovery(),"
        " pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE'),"
        " pg_catalog.has_table_privilege(c.oid, 'SELECT'),"
        " EXISTS (SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a"
        "  ON a.attrelid = c.oid AND a.attname = $2 AND i.indkey[0] = a.attnum"
        "  WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL),"
        " pg_catalog.quote_ident(current_user)"
        " FROM pg_catalog.pg_class c WHERE c.oid = $1::oid";
    const char *values[] = {shape->table_oid, shape->column[MR_COL_POSITION]};
    MR_AUTO_RESULT row = NULL;
    MR_TRY(mr__pg_query(conn, &row, sql, 2, values));
    MR_AUTO_BUF table = {0};
    mr__qname_quote(&table, &shape->table);
    const char *name = mr__buf_text(&table);
    if (PQntuples(row) == 0)
        return mr__error(MR_E_LOG, "the log %s was dropped meanwhile", name);
    if (PQgetvalue(row, 0, IN_RECOVERY)[0] == 't')
        return mr__error_db(MR_E_LOG, NULL, true,
                            "this server is a standby; a worker needs the primary "
                            "(target_session_attrs=read-write finds it among several hosts)");
    MR_TRY(check_rights(row, shape, name));
    if (PQgetvalue(row, 0, HAS_INDEX)[0] != 't')
        return mr__error(MR_E_LOG,
                         "the log %s has no index on its position; run: CREATE UNIQUE INDEX ON %s "
                         "(\"%s\")",
                         name, name, shape->column[MR_COL_POSITION]);
    return settled ? check_sequence(shape, name) : NULL;
}
