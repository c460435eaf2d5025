/* What session.c and tx.c share: the connection's innards. */
#ifndef MR_PG_SESSION_PRIVATE_H
#define MR_PG_SESSION_PRIVATE_H

#include "pg/session.h"

enum { MR_STATEMENTS = 128 }; /* beyond that statements are parsed each time */

typedef struct mr_statement {
    char *key; /* its SQL */
    uint64_t hash;
    char name[24];
    /* NEW: the server does not know it; SENT: a Parse is queued; READY: the server confirmed it. */
    enum { MR_STATEMENT_NEW, MR_STATEMENT_SENT, MR_STATEMENT_READY } state;
} mr_statement;

/* One thing whose result is still to come. */
typedef struct mr_entry {
    int tag;
    enum { MR_ENTRY_EXEC, MR_ENTRY_PREPARE, MR_ENTRY_QUERY, MR_ENTRY_SYNC } kind;
    mr_statement *statement; /* PREPARE */
    PGresult **rows;         /* QUERY: where its result goes */
    bool answered;
} mr_entry;

struct mr_tx {
    mr_session *session;
    int64_t deadline;
    const atomic_int *watched; /* see mr__tx_watch(); NULL = nothing */
    int64_t cancel_sent_at;    /* 0 = not cancelled */
    bool timed_out, stopped;
    bool traces;       /* a statement changed the session beyond this transaction */
    mr_entry *entries; /* ring of `capacity`, `count` from `first` */
    size_t first, count, capacity;
    int tag, failed_tag;
    int first_tag;     /* what tag 0 stands for */
    mr_error *failure; /* the first */
};

typedef struct mr_cancel mr_cancel;

struct mr_session {
    mr_session_params params;
    PGconn *conn;            /* NULL with a script */
    const mr_script *script; /* NULL with a server */
    bool broken;
    bool spent;        /* a transaction left something behind: nobody is to begin another here */
    mr_cancel *cancel; /* a cancel request that was sent for this transaction */
    mr_tx tx;          /* one at a time */
    mr_statement statements[MR_STATEMENTS];
    size_t statement_count;
    int64_t round_trips;
};

/* Whoever owns the work wants it to end, whatever its deadline. */
bool mr__tx_unwanted(const mr_tx *tx);
/* Marks the connection broken and says why. */
mr_error *mr__session_lost(mr_session *session) MR_MUST_CHECK;
/* Sends what can be sent, waits for input a short while, reads it, minds the deadline. */
mr_error *mr__session_wait(mr_session *session) MR_MUST_CHECK;
/* After a transaction: a cancel request sent for it must be over before the connection is used
 * again.
 */
void mr__session_cancel_end(mr_session *session);
/* The cache entry of a statement, made when new; NULL when the cache is full. */
mr_statement *mr__session_statement(mr_session *session, const char *sql, int count,
                                    const Oid *types);

#endif
