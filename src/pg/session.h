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

/* What a transaction does besides its statements. */
typedef enum mr_step {
    MR_STEP_BEGIN,
    MR_STEP_MARK,
    MR_STEP_UNMARK,
    MR_STEP_UNDO, /* back to the last mark */
    MR_STEP_COMMIT,
    MR_STEP_ROLLBACK, /* of what is not committed, if anything */
} mr_step;

/* What stands in for a server. */
typedef struct mr_script {
    /* One statement, with the arrays of PQexecParams. `rows` is NULL when nobody wants them. The
     * error is the statement's, and fails the transaction as a server's would. */
    mr_error *(*statement)(void *user, const char *sql, int count, const char *const *values,
                           const int *lengths, const int *formats, PGresult **rows);
    void (*step)(void *user, mr_step step);
    void *user;
} mr_script;

/* A session without a server, for transactions that are only written down. Of the parameters the
 * clock and the flag count. The script is borrowed. */
mr_error *mr__session_script(const mr_session_params *params, const mr_script *script,
                             mr_session **out) MR_MUST_CHECK;
void mr__session_close(mr_session *session);
/* False once the connection is of no further use: close it and open another. */
bool mr__session_usable(const mr_session *session);
/* False when the server may not know that it is over. */
bool mr__session_sound(const mr_session *session);
PGconn *mr__session_conn(mr_session *session); /* NULL without a server */
/* How often this session waited for the server since it was opened. */
int64_t mr__session_round_trips(const mr_session *session);

/* Queues BEGIN (READ COMMITTED, READ WRITE). `deadline` is on the session's clock: when it passes,
 * the running statement is cancelled on the server and the transaction fails with MR_E_TIMEOUT. */
mr_error *mr__tx_begin(mr_session *session, int64_t deadline, mr_tx **out) MR_MUST_CHECK;
/* One more reason to give up, besides the session's flag: `*stop` is not 0. Borrowed until the
 * transaction ends. */
void mr__tx_watch(mr_tx *tx, const atomic_int *stop);
/* Statements queued from here on belong to this piece of work; -1 = none. */
void mr__tx_tag(mr_tx *tx, int tag);
/* Tags count from `first` on: for a handler that is given a part of a batch. */
void mr__tx_tag_from(mr_tx *tx, int first);
int mr__tx_current(const mr_tx *tx); /* the tag in force */
/* Queues COMMIT, flushes, waits. Success means it is committed. On MR_E_CONNECT the outcome is
 * unknown. The transaction is over either way: rolled back unless committed. Ends the life of `tx`.
 */
mr_error *mr__tx_commit(mr_tx *tx, int *failed_tag) MR_MUST_CHECK;
/* Gives up: rolls back whatever happened so far. Ends the life of `tx`. `failed_tag` may be NULL;
 * else it tells whose statement failed first, -1 when none did. The error, if any, is that
 * statement's. */
mr_error *mr__tx_rollback(mr_tx *tx, int *failed_tag) MR_MUST_CHECK;
/* A mark, so that what follows can be undone by itself; one at a time. Queued. */
mr_error *mr__tx_mark(mr_tx *tx) MR_MUST_CHECK;
/* What follows the mark stays. The failure of its release belongs to the tag in force. Queued. */
mr_error *mr__tx_unmark(mr_tx *tx) MR_MUST_CHECK;
/* Constraints that were put off to the commit are checked now, and put off again. Their failure
 * belongs to the tag in force. Queued. */
mr_error *mr__tx_check(mr_tx *tx) MR_MUST_CHECK;
/* Waits for what was queued; the error is the first that failed, and stays for mr__tx_undo(). */
mr_error *mr__tx_settle(mr_tx *tx) MR_MUST_CHECK;
/* Waits for what was queued and undoes everything since the last mark that the server reached, so
 * that the transaction can go on, until `deadline`. `*failure` (the caller's) is the first
 * statement's that failed, NULL when none did, `*failed_tag` its tag. An error returned means that
 * the transaction cannot go on. */
mr_error *mr__tx_undo(mr_tx *tx, int64_t deadline, mr_error **failure,
                      int *failed_tag) MR_MUST_CHECK;
/* As mr_tx_query with everything of PQsendQueryParams and a result format. */
mr_error *mr__tx_query_params(mr_tx *tx, const char *sql, int count, const Oid *types,
                              const char *const *values, const int *lengths, const int *formats,
                              int result_format, PGresult **rows) MR_MUST_CHECK;
/* The keyword when `sql` starts with one that ends or begins a transaction, else NULL. */
const char *mr__tx_control_word(const char *sql);

#endif
