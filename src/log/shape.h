/* The log as the catalog describes it: real names, types, partitions, sequence; and whether it is
 * fit to be read safely. */
#ifndef MR_LOG_SHAPE_H
#define MR_LOG_SHAPE_H

#include "log/spec.h"

typedef enum mr_payload_kind {
    MR_PAYLOAD_BYTEA,
    MR_PAYLOAD_JSONB,
    MR_PAYLOAD_TEXT
} mr_payload_kind;

enum { MR_TYPE_MAX = 2 * MR_IDENT_MAX + 8 };

typedef struct mr_log_shape {
    mr_qname table; /* schema always filled in */
    mr_qname heads; /* name "" = this log has no heads table, so it cannot be appended to */
    mr_naming naming;
    char column[MR_COL_COUNT][MR_IDENT_MAX + 1]; /* "" = the table has no such column */
    char heads_column[3][MR_IDENT_MAX + 1];      /* type, id, version */
    /* The columns' real types, quoted and qualified: what an insert casts to. */
    char column_type[MR_COL_COUNT][MR_TYPE_MAX];
    char heads_column_type[3][MR_TYPE_MAX];
    bool heads_updated_at;   /* the heads table has an updated_at to keep */
    bool created_at_default; /* the table fills created_at by itself */
    mr_payload_kind payload_kind;
    bool event_id_is_uuid, metadata_is_text; /* what casts an insert needs */
    bool partitioned;
    char table_oid[16];
    /* Of the sequence that feeds the position; "" when there is none. */
    char sequence[2 * MR_IDENT_MAX + 8]; /* quoted, qualified */
    int64_t sequence_cache, sequence_increment;
} mr_log_shape;

/* The shape by the spec alone, for scripts written without a database: `naming` DETECT means
 * aggregate. */
void mr__log_shape_assume(const mr_log_spec *spec, const char *default_schema, mr_log_shape *shape);
/* Reads it from the catalog. MR_E_LOG names the missing table or column and the way out. */
mr_error *mr__log_shape_read(PGconn *conn, const mr_log_spec *spec,
                             mr_log_shape *out) MR_MUST_CHECK;
/* What settling by evidence needs: the primary, a sequence with CACHE 1, an index on the position,
 * the right to SELECT. Each failure is one clear sentence with what to do. `settled` false skips
 * what only that strategy needs. */
mr_error *mr__log_shape_check(PGconn *conn, const mr_log_shape *shape, bool settled) MR_MUST_CHECK;

/* The public handle is the shape. */
struct mr_log {
    mr_log_shape shape;
    char schema[MR_IDENT_MAX + 1]; /* where the append functions are */
};

#endif
