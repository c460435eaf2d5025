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
} mr_list_input;

/* See mr_list() in the public header. */
mr_error *mr__list_rows(PGconn *conn, const mr_list_input *input, const char *what,
                        PGresult **rows) MR_MUST_CHECK;

/* ---- listing_fleet.c: statements over the fleet's tables ---- */
/* $1 = the heartbeat's timeout (interval), $2 = key of the leader's lock (int8). */
void mr__list_workers(mr_buf *sql, const mr_names *names);
void mr__list_consumers(mr_buf *sql, const mr_names *names, const mr_log_shape *shape);
/* $3 = version of the schema (int4). */
void mr__list_status(mr_buf *sql, const mr_names *names, const mr_log_shape *shape);

#endif
