/* A queue on a table as a user would have it, and short words for what the tests do with it. */
#ifndef TESTS_PG_QUEUE_FIXTURE_H
#define TESTS_PG_QUEUE_FIXTURE_H

#include "scratch.h"

#include "cluster/schema.h"
#include "queue/store.h"

/* What the queue lies on. The scenarios of the reference hold for each. */
typedef enum queue_form {
    FORM_PLAIN,      /* the twelve columns and cancel, nothing else; fenced by started_at */
    FORM_GENERATION, /* with lease_generation */
    FORM_VIEW,       /* read through a view that adds new_field = 7 * id; with lease_generation */
    FORM_COUNT
} queue_form;

typedef struct queue_test {
    scratch *s;
    PGconn *conn;
    queue_form form;
    mr_queue_policy policy;
    mr_queue_store *store;
    mr_names names;
} queue_test;

#define MINUTES(n) ((n)*60 * INT64_C(1000000))
#define SECONDS(n) ((n)*INT64_C(1000000))

/* The form that tests of the running group use. */
extern queue_form queue_test_form;
const char *queue_form_name(queue_form form);

/* Makes the table `work` (order by created_at; queued_at is called created_at) with the scenarios'
 * settings: stalled after 5 s, 5 resets, 3 retries. Change `policy`, then queue_open(). */
void queue_begin(void **state, queue_test *t);
void queue_open(queue_test *t);
/* Installs Millrace's own schema, whose function the outcomes in a transaction need. */
void queue_schema(queue_test *t);
void queue_end(queue_test *t);
/* A mapping for that table. */
void queue_mapping(const queue_test *t, mr_mapping *mapping);
/* An executor's session on the scratch database; mr__session_close() is the test's. */
mr_session *queue_session(const queue_test *t);
/* The store on another connection. */
mr_queue_on on_conn(PGconn *conn);

/* Inserts rows: "(id, state, …), …" for the given columns; created_at falls back to now. */
void rows(queue_test *t, const char *columns, const char *values);
/* Claims up to `count` as `worker`; the result is the test's. */
mr_jobs *claim_as(queue_test *t, PGconn *conn, const char *worker, int count);
mr_jobs *claim(queue_test *t, int count);
/* Claims one and tells its id, 0 for none. */
int claim_one(queue_test *t);
int claim_where(queue_test *t, const mr_condition *conditions, size_t count);
const char *job_value(const mr_job_row *job, const char *name);

/* The fence that the row has now, and a finish under it by the worker in the row. Returns what the
 * job became, "" when nothing was changed. */
int64_t fence_of(queue_test *t, int id);
const char *finish(queue_test *t, int id, mr_outcome_kind kind, const char *message);
/* One finish under a given claim. */
const char *finish_as(queue_test *t, PGconn *conn, const char *worker, mr_outcome outcome);
/* The row's columns as one text. */
const char *row(queue_test *t, int id, const char *columns);

#endif
