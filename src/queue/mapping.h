/* How a queue lies on a table: which relation is locked, which is read, what each column is called,
 * what a handler gets, in which order and under which condition. Given by configuration only; pure.
 *
 * Expressions (order, condition, values) are SQL of the operator's and run as they stand. Names are
 * names: they are quoted wherever they are used. */
#ifndef MR_QUEUE_MAPPING_H
#define MR_QUEUE_MAPPING_H

#include "pg/ident.h"

/* What a column may be made of, for the check against the catalog. */
typedef enum mr_family {
    MR_FAMILY_ID,     /* anything with a unique index */
    MR_FAMILY_STATE,  /* text, varchar, or an enum with the six states */
    MR_FAMILY_TEXT,   /* text, varchar */
    MR_FAMILY_TIME,   /* timestamptz, or timestamp, which is then UTC */
    MR_FAMILY_NUMBER, /* int2, int4, int8 */
    MR_FAMILY_WIDE,   /* int4, int8 */
    MR_FAMILY_LOGS,   /* json[], jsonb[] */
    MR_FAMILY_BOOL
} mr_family;

/* X(symbol, name in Millrace, family, must the table have it, is it set to NULL, how to add it) */
#define MR_JOB_COLUMNS(X)                                                                          \
    X(ID, "id", MR_FAMILY_ID, true, false, "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY")      \
    X(STATE, "state", MR_FAMILY_STATE, true, false, "text NOT NULL DEFAULT 'queued'")              \
    X(FAILURE_MESSAGE, "failure_message", MR_FAMILY_TEXT, true, true, "text")                      \
    X(QUEUED_AT, "queued_at", MR_FAMILY_TIME, true, false, "timestamptz DEFAULT now()")            \
    X(STARTED_AT, "started_at", MR_FAMILY_TIME, true, true, "timestamptz")                         \
    X(FINISHED_AT, "finished_at", MR_FAMILY_TIME, true, true, "timestamptz")                       \
    X(PROCESS_AFTER, "process_after", MR_FAMILY_TIME, true, false, "timestamptz")                  \
    X(NUM_RESETS, "num_resets", MR_FAMILY_NUMBER, true, false, "integer NOT NULL DEFAULT 0")       \
    X(NUM_FAILURES, "num_failures", MR_FAMILY_NUMBER, true, false, "integer NOT NULL DEFAULT 0")   \
    X(LAST_HEARTBEAT_AT, "last_heartbeat_at", MR_FAMILY_TIME, true, false, "timestamptz")          \
    X(EXECUTION_LOGS, "execution_logs", MR_FAMILY_LOGS, true, false, "json[]")                     \
    X(WORKER_HOSTNAME, "worker_hostname", MR_FAMILY_TEXT, true, false, "text NOT NULL DEFAULT ''") \
    X(CANCEL, "cancel", MR_FAMILY_BOOL, false, false, "boolean NOT NULL DEFAULT false")            \
    X(GENERATION, "lease_generation", MR_FAMILY_WIDE, false, false, "bigint NOT NULL DEFAULT 0")

typedef enum mr_job_column {
#define MR_JOB_COLUMN_ENUM(symbol, name, family, required, cleared, ddl) MR_JOB_##symbol,
    MR_JOB_COLUMNS(MR_JOB_COLUMN_ENUM)
#undef MR_JOB_COLUMN_ENUM
        MR_JOB_COLUMN_COUNT
} mr_job_column;

typedef struct mr_relation {
    mr_qname name;                /* schema "" = found on the search path */
    char alias[MR_IDENT_MAX + 1]; /* what expressions call it; the relation's name by default */
} mr_relation;

/* One value for the handler. */
typedef struct mr_value_spec {
    char *name, *expression;
} mr_value_spec;

typedef struct mr_mapping {
    char *queue;
    mr_relation table;     /* locked and updated */
    mr_relation view;      /* candidates, counts and values come from it; name "" = the table */
    char *order;           /* "" = by id */
    char *condition;       /* "" = none; a queue is the rows that meet it */
    mr_value_spec *values; /* none = every column of the view by its own name */
    size_t value_count;
    char column[MR_JOB_COLUMN_COUNT][MR_IDENT_MAX + 1]; /* "" = its name in Millrace */
} mr_mapping;

/* An empty mapping for a queue of this name. */
mr_error *mr__mapping_init(mr_mapping *mapping, const char *queue) MR_MUST_CHECK;
void mr__mapping_free(mr_mapping *mapping);
/* "table", "schema.table", each with "alias" or "AS alias" behind it. A name with a blank in it
 * must be in double quotes. */
mr_error *mr__mapping_table(mr_mapping *mapping, const char *text) MR_MUST_CHECK;
mr_error *mr__mapping_view(mr_mapping *mapping, const char *text) MR_MUST_CHECK;
mr_error *mr__mapping_order(mr_mapping *mapping, const char *expression) MR_MUST_CHECK;
mr_error *mr__mapping_condition(mr_mapping *mapping, const char *expression) MR_MUST_CHECK;
/* `name` is one of Millrace's, `actual` the table's. */
mr_error *mr__mapping_column(mr_mapping *mapping, const char *name,
                             const char *actual) MR_MUST_CHECK;
/* One more value for the handler; `expression` NULL = the view's column of that name. */
mr_error *mr__mapping_value(mr_mapping *mapping, const char *name,
                            const char *expression) MR_MUST_CHECK;

/* The table's name for a column. */
const char *mr__mapping_actual(const mr_mapping *mapping, mr_job_column column);
const char *mr__job_column_name(mr_job_column column);
mr_family mr__job_column_family(mr_job_column column);
bool mr__job_column_required(mr_job_column column);
bool mr__job_column_cleared(mr_job_column column);
const char *mr__job_column_ddl(mr_job_column column);
/* Index by Millrace's name, or -1. */
int mr__job_column_find(const char *name);

/* "table alias" in parts; `what` names the option in errors. */
mr_error *mr__relation_parse(const char *text, const char *what, mr_relation *out) MR_MUST_CHECK;

#endif
