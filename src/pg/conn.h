/* Blocking use of a libpq connection: connect, one-statement helpers, errors from results. */
#ifndef MR_PG_CONN_H
#define MR_PG_CONN_H

#include "base/error.h"

/* What a worker's connections set beyond the user's URI. */
typedef struct mr_conn_params {
    const char *conninfo;    /* URI or keyword string */
    const char *application; /* application_name */
} mr_conn_params;

/* Keywords and values for PQconnectStartParams and friends: keepalives and deadlines, which the
 * user's own conninfo overrides, then that, then the application name. `dbname` carries the
 * conninfo. */
enum { MR_CONN_KEYS = 12 };
void mr__conn_keywords(const mr_conn_params *params, const char *keys[MR_CONN_KEYS],
                       const char *values[MR_CONN_KEYS]);

/* SQL for a number that tells a server from its predecessor: a restart or a fail-over changes it.
 */
#define MR_SERVER_SQL                                                                              \
    "(pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time()) * 1000000)::int8"

/* Runs one statement and wants success. `rows` may be NULL; else *rows is the caller's, PQclear().
 * Text format both ways. Not in pipeline mode. */
mr_error *mr__pg_query(PGconn *conn, PGresult **rows, const char *sql, int count,
                       const char *const *values) MR_MUST_CHECK;
/* Several statements without parameters or results. */
mr_error *mr__pg_script(PGconn *conn, const char *sql) MR_MUST_CHECK;

/* The connection's own last error, as MR_E_CONNECT, with any password scrubbed. */
mr_error *mr__pg_conn_error(PGconn *conn) MR_MUST_CHECK;

/* True for SQLSTATEs that say nothing about the statement itself: lost connection, shutdown,
 * deadlock, serialization failure, read-only server after a fail-over, too many connections. */
bool mr__pg_sqlstate_retryable(const char *sqlstate);
/* True for SQLSTATEs that say that the data cannot be taken, now or the next time: data exceptions,
 * NOT NULL, CHECK. */
bool mr__pg_sqlstate_permanent(const char *sqlstate);
/* True when the server refused a statement for a reason that is no work's own fault. */
bool mr__pg_nobodys_fault(const mr_error *error);
/* True for SQLSTATEs that mean this connection is of no further use. */
bool mr__pg_sqlstate_connection(const char *sqlstate);

void mr__pg_clear(PGresult **result);
void mr__pg_finish(PGconn **conn);
#define MR_AUTO_RESULT __attribute__((cleanup(mr__pg_clear))) PGresult *
#define MR_AUTO_CONN __attribute__((cleanup(mr__pg_finish))) PGconn *

#endif
