/* A connection driven by the loop: connects and reconnects by itself, runs flights of statements.
 *
 * A flight is a few statements sent together; its callback gets all results at once. Flights run in
 * order. When the connection is lost every flight under way or waiting ends with MR_E_CONNECT, then
 * `on_state` hears of it; nothing is sent again by itself. Loop thread only. */
#ifndef MR_PG_ACONN_H
#define MR_PG_ACONN_H

#include "base/log.h"
#include "pg/conn.h"

#include <stdatomic.h>
#include <uv.h>

enum { MR_FLIGHT_STATEMENTS = 4, MR_FLIGHT_PARAMS = 12 };

typedef struct mr_aconn mr_aconn;

/* `results` holds one result per statement and belongs to the callee's caller: take one by setting
 * it to NULL. `error` is the callee's. On error the results are whatever came before it, NULL after
 * it. */
typedef void (*mr_flight_fn)(void *user, PGresult **results, mr_error *error);

typedef struct mr_flight_statement {
    const char *sql; /* must outlive the flight */
    int count;
    const char *values[MR_FLIGHT_PARAMS]; /* copied */
    bool binary;                          /* format of the result */
} mr_flight_statement;

typedef struct mr_aconn_params {
    uv_loop_t *loop;
    mr_conn_params conn; /* borrowed */
    const char *what;    /* "control", "reader": for log lines */
    mr_logger *logger;
    int64_t timeout;       /* microseconds a flight may take before the connection counts as dead */
    _Atomic int64_t *open; /* counts connections that are up; borrowed, may be NULL */
    void (*on_state)(void *user, bool up);
    /* A notification came; NULL drops them. Payloads are whatever somebody sent. */
    void (*on_notify)(void *user, const char *channel, const char *payload);
    void *user;
} mr_aconn_params;

mr_error *mr__aconn_new(const mr_aconn_params *params, mr_aconn **out) MR_MUST_CHECK;
/* Starts connecting. */
void mr__aconn_start(mr_aconn *conn);
bool mr__aconn_up(const mr_aconn *conn);
/* Queues a flight of `count` statements. When it cannot be sent the callback still comes, from the
 * loop. */
void mr__aconn_send(mr_aconn *conn, const mr_flight_statement *statements, int count,
                    mr_flight_fn callback, void *user);
/* Number of flights not yet answered. */
int mr__aconn_pending(const mr_aconn *conn);
int64_t mr__aconn_flights(const mr_aconn *conn); /* sent since the start */
int64_t mr__aconn_connects(const mr_aconn *conn);
/* Drops the connection and connects anew after a backoff, e.g. because it reached a standby. */
void mr__aconn_restart(mr_aconn *conn, const char *reason);
/* Ends flights with MR_E_CANCELLED, closes everything; memory goes once the loop has run the
 * closing callbacks. */
void mr__aconn_close(mr_aconn *conn);

#endif
