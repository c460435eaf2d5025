/* A worker in a thread of the test, with one queue on a table `work` and a handler that does what
 * the test says. */
#ifndef TESTS_PG_LANE_FIXTURE_H
#define TESTS_PG_LANE_FIXTURE_H

#include "scratch.h"

#include <pthread.h>
#include <stdatomic.h>

/* Makes Millrace's schema, `work` (queued_at is called created_at; `what` is w1, w2 …) and
 * `effects (job)`. */
int lane_setup(void **state);
#define LANE_TEST(name) cmocka_unit_test_setup_teardown(name, lane_setup, scratch_teardown)

void add_jobs(PGconn *conn, int count);
int64_t in_state(PGconn *conn, const char *state);
/* Waits until the statement gives the number. */
void await(PGconn *conn, const char *sql, int64_t wanted);
/* Waits until the number is at least so much. */
void await_count(const atomic_int *number, int wanted);

typedef struct running {
    mr_worker *worker;
    pthread_t thread;
    mr_error *error;
} running;

mr_conf *conf_for(const scratch *s);
/* Takes conf and queue. */
void start(running *r, mr_conf *conf, mr_queue *queue);
void wait_end(running *r); /* it ends by itself, without an error */
void stop(running *r);

/* What the handler does, and what it has seen. */
typedef struct probe {
    atomic_int calls, inside, most_inside, before, after, asked, cancelled;
    atomic_bool hold; /* handlers wait while it is set */
    atomic_bool deaf; /* … whatever they are told */
    bool effects;     /* write one through the job's transaction */
    const char *error;
    bool retryable;
    bool refuse;
} probe;

/* The queue `work` with that handler and short intervals. */
mr_queue *queue_for(probe *p);

#endif
