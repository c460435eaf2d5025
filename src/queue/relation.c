/* What the catalog says about one relation: kind and columns. */
#include "queue/shape.h"

#include <stdio.h>
#include <string.h>

/* A domain counts as what it is made of; varchar(n) tells n. */
static const char columns_sql[] =
    "SELECT a.attname, quote_ident(n.nspname) || '.' || quote_ident(t.typname),"
    " b.typname, b.typtype, a.attnotnull,"
    " CASE WHEN b.typname IN ('varchar', 'bpchar') AND a.atttypmod > 4 THEN a.atttypmod - 4"
    "      WHEN b.typname IN ('timestamptz', 'timestamp') AND a.atttypmod >= 0 THEN a.atttypmod"
    "      ELSE -1 END, b.oid,"
    " CASE WHEN a.attidentity <> '' THEN 'nextval()' ELSE coalesce("
    "  pg_catalog.pg_get_expr(d.adbin, d.adrelid), '') END"
    " FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid"
    " JOIN pg_catalog.pg_type b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)"
    " JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace"
    " LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum"
    " WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";

static const char relation_sql[] =
    "SELECT c.oid, n.nspname, c.relname, c.relkind FROM pg_catalog.pg_class c"
    " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.oid = pg_catalog.to_regclass($1)";

mr_error *mr__relation_read(PGconn *conn, const mr_qname *name, mr_relation_info *out)
{
    *out = (mr_relation_info){0};
    MR_AUTO_BUF quoted = {0};
    mr__qname_quote(&quoted, name);
    if (quoted.failed)
        return mr__error_nomem();
    const char *values[] = {mr__buf_text(&quoted)};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, relation_sql, 1, values));
    if (PQntuples(rows) == 0)
        return NULL;
    (void)snprintf(out->oid, sizeof(out->oid), "%s", PQgetvalue(rows, 0, 0));
    (void)snprintf(out->name.schema, sizeof(out->name.schema), "%s", PQgetvalue(rows, 0, 1));
    (void)snprintf(out->name.name, sizeof(out->name.name), "%s", PQgetvalue(rows, 0, 2));
    out->kind = PQgetvalue(rows, 0, 3)[0];
    const char *oid[] = {out->oid};
    MR_TRY(mr__pg_query(conn, &out->columns, columns_sql, 1, oid));
    out->count = PQntuples(out->columns);
    return NULL;
}

void mr__relation_clear(mr_relation_info *info)
{
    PQclear(info->columns);
    *info = (mr_relation_info){0};
}

int mr__relation_find(const mr_relation_info *info, const char *column)
{
    for (int i = 0; i < info->count; i++)
        if (strcmp(PQgetvalue(info->columns, i, MR_REL_NAME), column) == 0)
            return i;
    return -1;
}
