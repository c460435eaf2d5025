/* One claimed job, run by the test as an executor would. */
#ifndef TESTS_PG_JOB_FIXTURE_H
#define TESTS_PG_JOB_FIXTURE_H

#include "queue_fixture.h"

#include "queue/job.h"

#include <pthread.h>

typedef struct job_test {
    queue_test q;
    mr_session *session;
    int opens;         /* how often the job asked for the session */
    mr_error *refusal; /* what it is told then, once; taken */
    mr_logger logger;
    pthread_mutex_t lock;
    mr_buf said; /* what was logged */
    mr_job_handler *handler;
    mr_job job;
} job_test;

/* The table `work` with column data jsonb, an `effects (n int)` beside it, Millrace's schema, a
 * session. */
void job_begin(void **state, job_test *t);
void job_end(job_test *t);
/* Claims the job `id` of the rows, as worker "me", with the handler that is set; its handler may
 * run for `max_runtime` microseconds (-1 = any time). */
void job_claim(job_test *t, int id, int64_t max_runtime);
void job_callback(job_test *t, mr_job_fn function, void *user);
/* Runs it, and writes the outcome as the runtime does when that is left to do. Returns what the row
 * is then: "state|num_failures|failure_message". */
const char *job_run(job_test *t);
/* The two halves. */
void job_only_run(job_test *t);
const char *job_write(job_test *t);
/* All of it for a new row. */
const char *job_outcome(job_test *t, int id, mr_job_fn function, void *user);
int64_t effects(job_test *t);

#endif
