/* The statements of a queue, written for its table once. Pure.
 *
 * Every statement is fixed text but for the claim under a hook's own conditions. Times are the
 * server's. A claim and the resetter never wait for a row: what another session has locked is left
 * to it. */
#ifndef MR_QUEUE_STATEMENTS_H
#define MR_QUEUE_STATEMENTS_H

#include "cluster/names.h"
#include "queue/mark.h"
#include "queue/shape.h"

/* How a queue deals with failure; times in microseconds. */
typedef struct mr_queue_policy {
    int64_t retry_after;     /* an errored job is tried again so long after it ended; 0 = never */
    int max_retries;         /* an error fails the job when it has had so many, itself included */
    int64_t stalled_max_age; /* a running job without a heartbeat for so long is reset */
    int max_resets;          /* a job that was reset so often fails instead */
    const char *reset_failure_message; /* NULL = a text that says why */
    int reset_batch;                   /* at most so many a statement */
    int candidates;                    /* through a view: at least so many rows are looked at */
    /* Of the built-in table alone; see sql/functions/claim_jobs.sql and finish_jobs.sql. */
    bool builtin;
    int64_t retry_base, retry_most; /* the wait before a retry: doubles, with jitter */
    int64_t max_running;            /* over the fleet; -1 = no limit */
    bool hold;                      /* a dead letter keeps its key */
    bool keep;                      /* finished jobs go to the archive */
} mr_queue_policy;

/* The reference's usual settings. */
mr_queue_policy mr__queue_policy_default(void);

typedef enum mr_queue_statement {
    MR_QUEUE_CLAIM_ALL,   /* count, worker, key… -> id, fence, beyond, key…, value… */
    MR_QUEUE_CLAIM_MARK,  /* the same, from the key on */
    MR_QUEUE_FINISH,      /* ids, fences, worker, kinds, messages, ats, delays -> n, state */
    MR_QUEUE_FINISH_FREE, /* the same for rows that nobody has locked; the state of others is NULL
                           */
    MR_QUEUE_FINISH_OR_FAIL, /* the same; raises MR010 unless every row was changed */
    MR_QUEUE_HEARTBEAT,      /* ids, fences, worker -> n, cancel, stamped */
    MR_QUEUE_RESET,          /* -> id, state, age; built-in: see sql/functions/reset_jobs.sql */
    MR_QUEUE_LOG_ADD,        /* id, fence or NULL, worker, entry -> length */
    MR_QUEUE_LOG_SET,        /* id, fence or NULL, worker, entry, index -> changed, length */
    MR_QUEUE_COUNT,          /* states -> state, count */
    MR_QUEUE_EXISTS,         /* states -> bool */
    MR_QUEUE_WAIT,           /* -> longest wait, microseconds */
    /* Of the built-in table alone. A claim has one more parameter there: owned buckets. */
    MR_QUEUE_TAKE_ALL,     /* as the claims; the rows are locked, not changed */
    MR_QUEUE_TAKE_MARK,    /* the same, from the key on */
    MR_QUEUE_FINISH_TAKEN, /* as FINISH; fails unless every row was changed */
    MR_QUEUE_PROMOTE,      /* keys -> those to ask about again */
    MR_QUEUE_STATEMENT_COUNT
} mr_queue_statement;

enum { MR_CLAIM_ID, MR_CLAIM_FENCE, MR_CLAIM_BEYOND, MR_CLAIM_KEYS };

/* One more condition on what may be claimed now, from a hook: SQL over the view's columns, with $1,
 * $2 … for its own values. */
typedef struct mr_condition {
    const char *sql;
    int count;
    const char *const *values; /* text; NULL = SQL NULL */
} mr_condition;

typedef struct mr_queue_sql {
    char *text[MR_QUEUE_STATEMENT_COUNT];
} mr_queue_sql;

/* What the statements are written from; all borrowed. */
typedef struct mr_queue_source {
    const mr_queue_shape *shape;
    const mr_queue_policy *policy;
    const mr_names *names; /* where Millrace's functions are */
} mr_queue_source;

mr_error *mr__queue_sql_render(const mr_queue_source *source, mr_queue_sql *out) MR_MUST_CHECK;
void mr__queue_sql_free(mr_queue_sql *sql);
/* A claim under further conditions; their values follow the claim's own parameters. `*out` is the
 * caller's: free(). */
mr_error *mr__queue_sql_claim(const mr_queue_source *source, mr_scan scan,
                              const mr_condition *conditions, size_t count,
                              char **out) MR_MUST_CHECK;
/* How many values a handler gets, and what each is called. */
size_t mr__queue_shape_values(const mr_queue_shape *shape);
const char *mr__queue_shape_value(const mr_queue_shape *shape, size_t index);
/* Number of a claim's own parameters. */
int mr__queue_claim_params(const mr_queue_shape *shape);

/* ---- Between the files that write statements --------------------------------------------------
 */

/* Fills a template: words in braces stand for the queue's names and the pieces below.
 *   {table} {view}       relation AS alias; {t} {v} the alias alone
 *   {t.COLUMN} {v.COLUMN} {=COLUMN}   a column by its name in Millrace: of the table, of the view,
 *                        bare (to be set)
 *   {type.COLUMN}        its type; {utc.COLUMN} turns a timestamptz into it; {fit.COLUMN} cuts a
 * text {now.COLUMN}         the server's clock as that column keeps it {if:COLUMN} {else} {end} by
 * whether the table has an optional column; not nested and the pieces in render.c. */
mr_error *mr__queue_expand(const mr_queue_source *source, const char *template,
                           mr_buf *out) MR_MUST_CHECK;
/* "expression AS name, …": what a handler gets, over the view's columns. */
void mr__queue_put_values(const mr_queue_shape *shape, mr_buf *out);
/* The text that a job fails with when it was reset too often, as a literal. */
void mr__queue_put_reset_message(const mr_queue_policy *policy, mr_buf *out);
/* Appends a condition with its $1, $2 … moved up by `shift`; `count` says how many there may be. */
mr_error *mr__condition_shift(const mr_condition *condition, int shift, mr_buf *out) MR_MUST_CHECK;
mr_error *mr__queue_render_claim(const mr_queue_source *source, mr_scan scan,
                                 const mr_condition *conditions, size_t count,
                                 mr_buf *out) MR_MUST_CHECK;

#endif
