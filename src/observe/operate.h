/* What people do to consumers: pause, resume, reset, skip. Commands straight to the database, each
 * one transaction; running workers hear of it by the fleet's channel and by
 * consumer_controls.epoch. Blocking, on the caller's connection. */
#ifndef MR_OBSERVE_OPERATE_H
#define MR_OBSERVE_OPERATE_H

#include "cluster/names.h"
#include "log/shape.h"

/* What a command has to know of the configuration. */
typedef struct mr_operate_input {
    const mr_names *names;
    const mr_log_spec *log;
    int64_t heartbeat_timeout; /* microseconds: a worker silent for longer does not count */
} mr_operate_input;

/* One command. */
typedef struct mr_order {
    const char *action;         /* "pause", "resume", "reset", "skip" */
    const char *name;           /* the consumer, or one of its slots */
    const char *argument;       /* reset: where to; skip: the position; else NULL */
    const char *actor, *reason; /* may be NULL */
    int64_t *position;          /* reset: where it stands now; may be NULL */
} mr_order;

/* See mr_consumer_control() in the public header. `rows` may be NULL. */
mr_error *mr__operate(PGconn *conn, const mr_operate_input *input, const mr_order *order,
                      PGresult **rows) MR_MUST_CHECK;

/* ---- Shared with letters.c ---- */

/* Begins a command's transaction on a connection that must be outside of one. */
mr_error *mr__operate_begin(PGconn *conn, const mr_operate_input *input) MR_MUST_CHECK;
/* Ends it by its outcome; takes the error, says it better where it can, and passes it on. */
mr_error *mr__operate_end(PGconn *conn, mr_error *error) MR_MUST_CHECK;
/* Text that goes into the database and is not valid there is the caller's mistake. */
mr_error *mr__operate_check_text(const char *what, const char *text) MR_MUST_CHECK;

#endif
