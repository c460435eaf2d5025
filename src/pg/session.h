/* An executor's connection and the pipelined transaction on it: statements are queued, results
 * drained as they arrive, an error is attributed to the piece of work that queued the statement.
 * One thread. */
#ifndef MR_PG_SESSION_H
#define MR_PG_SESSION_H

#include "base/clock.h"
#include "pg/conn.h"

#include <stdatomic.h>

typedef struct mr_session mr_session;

typedef struct mr_session_params {
    mr_conn_params conn;
    bool prepare;                 /* named prepared statements */
    const mr_clock *clock;        /* borrowed */
    const atomic_bool *cancelled; /* borrowed; true = give up what runs */
} mr_session_params;

mr_error *mr__session_open(const mr_session_params *params, mr_session **out) MR_MUST_CHECK;
void mr__session_close(mr_session *session);
/* False once the connection is of no further use: close it and open another. */
bool mr__session_usable(const mr_session *session);
PGconn *mr__session_conn(mr_session *session);
/* How often this session waited for the server since it was opened. */
int64_t mr__session_round_trips(const mr_session *session);

/* Queues BEGIN (READ COMMITTED, READ WRITE). `deadline` is on the session's clock: when it passes,
 * the running statement is cancelled on the server and the transaction fails with MR_E_TIMEOUT. */
mr_error *mr__tx_begin(mr_session *session, int64_t deadline, mr_tx **out) MR_MUST_CHECK;
/* Statements queued from here on belong to this piece of work; -1 = none. */
void mr__tx_tag(mr_tx *tx, int tag);
int mr__tx_current(const mr_tx *tx); /* the tag in force */
/* Queues COMMIT, flushes, waits. Success means it is committed. On MR_E_CONNECT the outcome is
 * unknown. The transaction is over either way: rolled back unless committed. Ends the life of `tx`.
 */
mr_error *mr__tx_commit(mr_tx *tx, int *failed_tag) MR_MUST_CHECK;
/* Gives up: rolls back whatever happened so far. Ends the life of `tx`. `failed_tag` may be NULL;
 * else it tells whose statement failed first, -1 when none did. The error, if any, is that
 * statement's. */
mr_error *mr__tx_rollback(mr_tx *tx, int *failed_tag) MR_MUST_CHECK;
/* As mr_tx_query with everything of PQsendQueryParams and a result format. */
mr_error *mr__tx_query_params(mr_tx *tx, const char *sql, int count, const Oid *types,
                              const char *const *values, const int *lengths, const int *formats,
                              int result_format, PGresult **rows) MR_MUST_CHECK;
/* The keyword when `sql` starts with one that ends or begins a transaction, else NULL. */
const char *mr__tx_control_word(const char *sql);

#endif
