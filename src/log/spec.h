/* What the configuration says about the log: table, heads table, column names. */
#ifndef MR_LOG_SPEC_H
#define MR_LOG_SPEC_H

#include "pg/ident.h"

/* X(symbol, name in Millrace, name in stream_* logs, must the table have it) */
#define MR_COLUMNS(X)                                                                              \
    X(POSITION, "global_position", "global_position", true)                                        \
    X(AGGREGATE_TYPE, "aggregate_type", "stream_type", true)                                       \
    X(AGGREGATE_ID, "aggregate_id", "stream_id", true)                                             \
    X(AGGREGATE_VERSION, "aggregate_version", "stream_version", false)                             \
    X(EVENT_ID, "event_id", "event_id", false)                                                     \
    X(EVENT_TYPE, "event_type", "event_type", true)                                                \
    X(EVENT_VERSION, "event_version", "event_version", false)                                      \
    X(PAYLOAD, "payload", "payload", true)                                                         \
    X(TRACE_ID, "trace_id", "trace_id", false)                                                     \
    X(CORRELATION_ID, "correlation_id", "correlation_id", false)                                   \
    X(CAUSATION_ID, "causation_id", "causation_id", false)                                         \
    X(METADATA, "metadata", "metadata", false)                                                     \
    X(CREATED_AT, "created_at", "created_at", false)

typedef enum mr_column {
#define MR_COLUMN_ENUM(symbol, name, stream_name, required) MR_COL_##symbol,
    MR_COLUMNS(MR_COLUMN_ENUM)
#undef MR_COLUMN_ENUM
        MR_COL_COUNT
} mr_column;

/* How the columns got their names. */
typedef enum mr_naming { MR_NAMING_DETECT, MR_NAMING_AGGREGATE, MR_NAMING_STREAM } mr_naming;

typedef struct mr_log_spec {
    mr_qname table; /* schema "" = found on the search path */
    mr_qname heads; /* name "" = aggregate_heads or stream_heads beside the log, if there */
    mr_naming naming;
    char column[MR_COL_COUNT][MR_IDENT_MAX + 1]; /* "" = the naming's default */
} mr_log_spec;

void mr__log_spec_init(mr_log_spec *spec); /* table events, everything detected */
/* The table's column for `column`, given a decided naming. */
const char *mr__log_spec_column(const mr_log_spec *spec, mr_naming naming, mr_column column);
/* Index by Millrace's name, or -1. */
int mr__log_column_find(const char *name);
const char *mr__log_column_name(mr_column column);
bool mr__log_column_required(mr_column column);

#endif
