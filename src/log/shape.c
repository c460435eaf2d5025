/* The log as the catalog describes it: which columns it has under which names, what feeds its
 * positions. */
#include "log/shape.h"

#include "base/text.h"
#include "pg/conn.h"

#include <stdio.h>
#include <string.h>

enum { MAX_COLUMNS = 1600 }; /* PostgreSQL's own limit */

/* The columns of one table, as strings of the result that holds them. */
typedef struct catalog {
    PGresult *rows;
    int count;
} catalog;

enum { CAT_NAME, CAT_TYPE, CAT_HAS_DEFAULT, CAT_TYPE_NAME, CAT_NUMBER };

static const char catalog_sql[] =
    "SELECT a.attname, quote_ident(n.nspname) || '.' || quote_ident(t.typname),"
    " a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '', t.typname, a.attnum"
    " FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid"
    " JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace"
    " WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";

static void copy(char *out, size_t size, const char *text)
{
    (void)snprintf(out, size, "%s", text);
}

static int catalog_find(const catalog *cat, const char *name)
{
    for (int i = 0; i < cat->count; i++)
        if (strcmp(PQgetvalue(cat->rows, i, CAT_NAME), name) == 0)
            return i;
    return -1;
}

static const char *catalog_nearest(const catalog *cat, const char *name)
{
    const char *names[MAX_COLUMNS];
    size_t count = 0;
    for (int i = 0; i < cat->count && count < MAX_COLUMNS; i++)
        names[count++] = PQgetvalue(cat->rows, i, CAT_NAME);
    int nearest = mr__text_nearest(name, names, count);
    return nearest < 0 ? NULL : names[nearest];
}

static mr_error *missing_column(const catalog *cat, const mr_log_spec *spec, const char *table,
                                mr_column column, const char *name)
{
    const char *own = mr__log_column_name(column);
    const char *near = catalog_nearest(cat, name);
    if (spec->column[column][0] != '\0')
        return mr__error(MR_E_LOG,
                         "the log %s has no column '%s', which `log: columns:` maps %s to%s%s%s",
                         table, name, own, near == NULL ? "" : "; did you mean '",
                         near == NULL ? "" : near, near == NULL ? "" : "'?");
    return mr__error(MR_E_LOG,
                     "the log %s has no column '%s'%s%s%s; name the right one with `log: columns: "
                     "{%s: %s}`",
                     table, name, near == NULL ? "" : " (the nearest is '",
                     near == NULL ? "" : near, near == NULL ? "" : "')", own,
                     near == NULL ? "its_column" : near);
}

/* stream_* only where the table has it and lacks the aggregate_* twin. */
static mr_naming detect_naming(const catalog *cat, mr_naming wanted)
{
    if (wanted != MR_NAMING_DETECT)
        return wanted;
    static const char *const twins[][2] = {{"aggregate_type", "stream_type"},
                                           {"aggregate_id", "stream_id"}};
    for (size_t i = 0; i < 2; i++)
        if (catalog_find(cat, twins[i][0]) < 0 && catalog_find(cat, twins[i][1]) >= 0)
            return MR_NAMING_STREAM;
    return MR_NAMING_AGGREGATE;
}

static mr_error *payload_kind(const char *table, const char *type, mr_payload_kind *kind)
{
    static const struct {
        const char *type;
        mr_payload_kind kind;
    } known[] = {{"bytea", MR_PAYLOAD_BYTEA},  {"jsonb", MR_PAYLOAD_JSONB},
                 {"json", MR_PAYLOAD_JSONB},   {"text", MR_PAYLOAD_TEXT},
                 {"varchar", MR_PAYLOAD_TEXT}, {"bpchar", MR_PAYLOAD_TEXT}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(known[i].type, type) == 0) {
            *kind = known[i].kind;
            return NULL;
        }
    }
    return mr__error(MR_E_LOG,
                     "the payload of the log %s is of type %s; it must be bytea, jsonb, json or "
                     "text",
                     table, type);
}

static mr_error *map_columns(const catalog *cat, const mr_log_spec *spec, const char *table,
                             mr_log_shape *shape)
{
    shape->naming = detect_naming(cat, spec->naming);
    for (int i = 0; i < MR_COL_COUNT; i++) {
        mr_column column = (mr_column)i;
        const char *name = mr__log_spec_column(spec, shape->naming, column);
        int found = catalog_find(cat, name);
        if (found < 0) {
            if (mr__log_column_required(column) || spec->column[i][0] != '\0')
                return missing_column(cat, spec, table, column, name);
            continue;
        }
        copy(shape->column[i], sizeof(shape->column[i]), name);
        copy(shape->column_type[i], MR_TYPE_MAX, PQgetvalue(cat->rows, found, CAT_TYPE));
        const char *type = PQgetvalue(cat->rows, found, CAT_TYPE_NAME);
        if (column == MR_COL_PAYLOAD)
            MR_TRY(payload_kind(table, type, &shape->payload_kind));
        if (column == MR_COL_POSITION && strcmp(type, "int8") != 0 && strcmp(type, "int4") != 0)
            return mr__error(MR_E_LOG, "the position %s of the log %s is of type %s, not bigint",
                             name, table, type);
        if (column == MR_COL_EVENT_ID)
            shape->event_id_is_uuid = strcmp(type, "uuid") == 0;
        if (column == MR_COL_METADATA)
            shape->metadata_is_text = strncmp(type, "json", 4) != 0;
        if (column == MR_COL_CREATED_AT)
            shape->created_at_default = PQgetvalue(cat->rows, found, CAT_HAS_DEFAULT)[0] == 't';
    }
    return NULL;
}

/* Finds a relation; *oid "" when there is none. */
static mr_error *find_relation(PGconn *conn, const mr_qname *name, mr_qname *real, char oid[16],
                               char *kind)
{
    MR_AUTO_BUF quoted = {0};
    mr__qname_quote(&quoted, name);
    if (quoted.failed)
        return mr__error_nomem();
    const char *values[] = {mr__buf_text(&quoted)};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows,
                        "SELECT c.oid, n.nspname, c.relname, c.relkind FROM pg_catalog.pg_class c"
                        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
                        " WHERE c.oid = pg_catalog.to_regclass($1)",
                        1, values));
    oid[0] = '\0';
    if (PQntuples(rows) == 0)
        return NULL;
    copy(oid, 16, PQgetvalue(rows, 0, 0));
    copy(real->schema, sizeof(real->schema), PQgetvalue(rows, 0, 1));
    copy(real->name, sizeof(real->name), PQgetvalue(rows, 0, 2));
    *kind = PQgetvalue(rows, 0, 3)[0];
    return NULL;
}

static mr_error *find_log(PGconn *conn, const mr_log_spec *spec, mr_log_shape *shape)
{
    char kind = 0;
    MR_TRY(find_relation(conn, &spec->table, &shape->table, shape->table_oid, &kind));
    const char *dot = spec->table.schema[0] == '\0' ? "" : ".";
    if (shape->table_oid[0] == '\0')
        return mr__error(MR_E_LOG,
                         "there is no table %s%s%s%s; create it with `millrace schema apply` or "
                         "name yours with `log: table:`",
                         spec->table.schema, dot, spec->table.name,
                         dot[0] == '\0' ? " on the search path" : "");
    if (kind != 'r' && kind != 'p')
        return mr__error(MR_E_LOG, "the log %s%s%s is not a table", spec->table.schema, dot,
                         spec->table.name);
    shape->partitioned = kind == 'p';
    return NULL;
}

/* A heads table calls its columns as the log does, or by either of the two namings. */
static mr_error *map_heads(PGconn *conn, const char *oid, mr_log_shape *shape)
{
    static const char *const usual[3][2] = {{"aggregate_type", "stream_type"},
                                            {"aggregate_id", "stream_id"},
                                            {"aggregate_version", "stream_version"}};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, catalog_sql, 1, &oid));
    const catalog cat = {rows, PQntuples(rows)};
    for (int i = 0; i < 3; i++) {
        const char *names[] = {shape->column[MR_COL_AGGREGATE_TYPE + i], usual[i][0], usual[i][1]};
        int found = -1;
        for (int k = 0; k < 3 && found < 0; k++)
            found = catalog_find(&cat, names[k]);
        if (found < 0)
            return mr__error(MR_E_LOG, "the heads table %s.%s has no column '%s'",
                             shape->heads.schema, shape->heads.name,
                             names[0][0] == '\0' ? names[1] : names[0]);
        copy(shape->heads_column[i], sizeof(shape->heads_column[i]),
             PQgetvalue(rows, found, CAT_NAME));
        copy(shape->heads_column_type[i], MR_TYPE_MAX, PQgetvalue(rows, found, CAT_TYPE));
    }
    shape->heads_updated_at = catalog_find(&cat, "updated_at") >= 0;
    return NULL;
}

static mr_error *find_heads(PGconn *conn, const mr_log_spec *spec, mr_log_shape *shape)
{
    char oid[16] = "", kind = 0;
    mr_qname wanted = spec->heads;
    if (wanted.schema[0] == '\0')
        copy(wanted.schema, sizeof(wanted.schema), shape->table.schema);
    if (spec->heads.name[0] != '\0') {
        MR_TRY(find_relation(conn, &wanted, &shape->heads, oid, &kind));
        if (oid[0] == '\0')
            return mr__error(MR_E_LOG, "there is no heads table %s.%s (`log: heads_table:`)",
                             wanted.schema, wanted.name);
        return map_heads(conn, oid, shape);
    }
    static const char *const usual[] = {"aggregate_heads", "stream_heads"};
    int first = shape->naming == MR_NAMING_STREAM ? 1 : 0;
    for (int i = 0; i < 2 && oid[0] == '\0'; i++) {
        copy(wanted.name, sizeof(wanted.name), usual[(first + i) % 2]);
        MR_TRY(find_relation(conn, &wanted, &shape->heads, oid, &kind));
    }
    return oid[0] == '\0' ? NULL : map_heads(conn, oid, shape);
}

/* The sequence that the column's default draws from; else the one its identity owns. */
static mr_error *find_sequence(PGconn *conn, mr_log_shape *shape)
{
    static const char sql[] =
        "WITH col AS (SELECT a.attrelid, a.attnum FROM pg_catalog.pg_attribute a"
        "  WHERE a.attrelid = $1::oid AND a.attname = $2)"
        " SELECT quote_ident(n.nspname) || '.' || quote_ident(s.relname), q.seqcache,"
        "  q.seqincrement FROM ("
        "  SELECT d.refobjid AS seq, 1 AS rank FROM col"
        "   JOIN pg_catalog.pg_attrdef f ON f.adrelid = col.attrelid AND f.adnum = col.attnum"
        "   JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::regclass"
        "    AND d.objid = f.oid AND d.refclassid = 'pg_catalog.pg_class'::regclass"
        "  UNION ALL"
        "  SELECT d.objid, 2 FROM col JOIN pg_catalog.pg_depend d"
        "    ON d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = col.attrelid"
        "    AND d.refobjsubid = col.attnum AND d.classid = 'pg_catalog.pg_class'::regclass"
        "    AND d.deptype = 'i') x"
        " JOIN pg_catalog.pg_class s ON s.oid = x.seq AND s.relkind = 'S'"
        " JOIN pg_catalog.pg_namespace n ON n.oid = s.relnamespace"
        " JOIN pg_catalog.pg_sequence q ON q.seqrelid = s.oid ORDER BY x.rank LIMIT 1";
    const char *values[] = {shape->table_oid, shape->column[MR_COL_POSITION]};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, sql, 2, values));
    if (PQntuples(rows) == 0)
        return NULL;
    copy(shape->sequence, sizeof(shape->sequence), PQgetvalue(rows, 0, 0));
    if (!mr__text_int(PQgetvalue(rows, 0, 1), &shape->sequence_cache) ||
        !mr__text_int(PQgetvalue(rows, 0, 2), &shape->sequence_increment))
        return mr__error(MR_E_INTERNAL, "the catalog gave no numbers for sequence %s",
                         shape->sequence);
    return NULL;
}

mr_error *mr__log_shape_read(PGconn *conn, const mr_log_spec *spec, mr_log_shape *out)
{
    mr_log_shape shape = {0};
    MR_TRY(find_log(conn, spec, &shape));
    char table[2 * MR_IDENT_MAX + 2];
    (void)snprintf(table, sizeof(table), "%s.%s", shape.table.schema, shape.table.name);
    const char *oid = shape.table_oid;
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, catalog_sql, 1, &oid));
    const catalog cat = {rows, PQntuples(rows)};
    MR_TRY(map_columns(&cat, spec, table, &shape));
    MR_TRY(find_heads(conn, spec, &shape));
    MR_TRY(find_sequence(conn, &shape));
    *out = shape;
    return NULL;
}

void mr__log_shape_assume(const mr_log_spec *spec, const char *default_schema, mr_log_shape *shape)
{
    static const char *const types[MR_COL_COUNT] = {
        [MR_COL_POSITION] = "int8",          [MR_COL_AGGREGATE_TYPE] = "text",
        [MR_COL_AGGREGATE_ID] = "text",      [MR_COL_AGGREGATE_VERSION] = "int8",
        [MR_COL_EVENT_ID] = "uuid",          [MR_COL_EVENT_TYPE] = "text",
        [MR_COL_EVENT_VERSION] = "int4",     [MR_COL_PAYLOAD] = "bytea",
        [MR_COL_TRACE_ID] = "text",          [MR_COL_CORRELATION_ID] = "text",
        [MR_COL_CAUSATION_ID] = "text",      [MR_COL_METADATA] = "jsonb",
        [MR_COL_CREATED_AT] = "timestamptz",
    };
    *shape = (mr_log_shape){.table = spec->table,
                            .heads = spec->heads,
                            .naming = spec->naming == MR_NAMING_STREAM ? MR_NAMING_STREAM
                                                                       : MR_NAMING_AGGREGATE,
                            .payload_kind = MR_PAYLOAD_BYTEA,
                            .event_id_is_uuid = true,
                            .heads_updated_at = true,
                            .created_at_default = true,
                            .sequence_cache = 1,
                            .sequence_increment = 1};
    if (shape->table.schema[0] == '\0')
        copy(shape->table.schema, sizeof(shape->table.schema), default_schema);
    if (shape->heads.name[0] == '\0')
        copy(shape->heads.name, sizeof(shape->heads.name),
             shape->naming == MR_NAMING_STREAM ? "stream_heads" : "aggregate_heads");
    if (shape->heads.schema[0] == '\0')
        copy(shape->heads.schema, sizeof(shape->heads.schema), shape->table.schema);
    for (int i = 0; i < MR_COL_COUNT; i++) {
        copy(shape->column[i], sizeof(shape->column[i]),
             mr__log_spec_column(spec, shape->naming, (mr_column)i));
        (void)snprintf(shape->column_type[i], MR_TYPE_MAX, "pg_catalog.%s", types[i]);
    }
    for (int i = 0; i < 3; i++) {
        copy(shape->heads_column[i], sizeof(shape->heads_column[i]),
             shape->column[MR_COL_AGGREGATE_TYPE + i]);
        copy(shape->heads_column_type[i], MR_TYPE_MAX,
             shape->column_type[MR_COL_AGGREGATE_TYPE + i]);
    }
}
