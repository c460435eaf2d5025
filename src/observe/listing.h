/* Listings for people and scripts, straight from the database. */
#ifndef MR_OBSERVE_LISTING_H
#define MR_OBSERVE_LISTING_H

#include "cluster/names.h"
#include "log/shape.h"

/* What a listing has to know of the configuration. */
typedef struct mr_list_input {
    const mr_names *names;
    const mr_log_spec *log;
    int64_t heartbeat_timeout; /* microseconds: a worker silent for longer counts as silent */
    int64_t leader_key;        /* key of the leader's advisory lock, -1 = derived from the names */
    int64_t lag_threshold;     /* positions above which lag is a problem, -1 = never */
} mr_list_input;

/* See mr_list() in the public header. */
mr_error *mr__list_rows(PGconn *conn, const mr_list_input *input, const char *what,
                        PGresult **rows) MR_MUST_CHECK;

/* Runs a statement; tables that are missing or do not fit become MR_E_SCHEMA. */
mr_error *mr__list_query(PGconn *conn, const mr_buf *sql, int count, const char *const *parameters,
                         PGresult **rows) MR_MUST_CHECK;
/* Runs a statement over the fleet's relations, with as many of their parameters as it uses:
 * $1 = the heartbeat's timeout (interval), $2 = key of the leader's lock (int8),
 * $3 = the lag's threshold (int8), $4 = version of the schema (int4). */
mr_error *mr__list_run(PGconn *conn, const mr_list_input *input, const mr_buf *sql, int parameters,
                       PGresult **rows) MR_MUST_CHECK;

/* ---- relations.c: what the statements are made of ---- */
/* SQL: the name of a consumer without its slot ("#2/8"). */
#define MR_LIST_BASE(name) "regexp_replace(" name ", '#[0-9]{1,9}/[0-9]{1,9}$', '')"
/* "WITH …, worker AS (…)": one row a worker, with the state one sees from outside. */
void mr__relation_workers(mr_buf *sql, const mr_names *names);
/* The same and "…, head, letter, consumer AS (…)": one row a consumer or slot. */
void mr__relation_consumers(mr_buf *sql, const mr_names *names, const mr_log_shape *shape);

/* ---- listing_fleet.c: statements over them ---- */
void mr__list_workers(mr_buf *sql, const mr_names *names);
void mr__list_consumers(mr_buf *sql, const mr_names *names, const mr_log_shape *shape);
void mr__list_status(mr_buf *sql, const mr_names *names, const mr_log_shape *shape);

/* ---- listing_past.c: what happened, newest first ---- */
/* Of all consumers or, with `one`, of $1 (text) and its slots. False for an unknown `what`. */
bool mr__list_past(mr_buf *sql, const mr_names *names, const char *what, bool one);

#endif
