/* Enqueueing jobs into the built-in table on the caller's own connection. */
#ifndef MR_QUEUE_ENQUEUE_H
#define MR_QUEUE_ENQUEUE_H

#include "cluster/names.h"
#include "queue/draft.h"

/* As mr_enqueue_many(). */
mr_error *mr__enqueue(PGconn *conn, const mr_names *names, const char *queue,
                      mr_job_draft *draft) MR_MUST_CHECK;

mr_error *mr__queue_name_check(const char *queue) MR_MUST_CHECK;

/* ---- enqueue_encode.c: jobs as the binary parameters of enqueue_rows(), in its order. Pure. ----
 */

enum { MR_ENQUEUE_PARAMS = 9 };
typedef struct mr_enqueue_params {
    mr_buf data[MR_ENQUEUE_PARAMS];
    const char *values[MR_ENQUEUE_PARAMS];
    int lengths[MR_ENQUEUE_PARAMS], formats[MR_ENQUEUE_PARAMS];
    Oid types[MR_ENQUEUE_PARAMS];
} mr_enqueue_params;

/* `count` jobs from `first` on. */
mr_error *mr__enqueue_encode(const mr_job_draft *draft, const char *queue, size_t first,
                             size_t count, mr_enqueue_params *params) MR_MUST_CHECK;
/* The queue and the keys of all jobs that have one: the first two parameters. */
mr_error *mr__enqueue_encode_keys(const mr_job_draft *draft, const char *queue,
                                  mr_enqueue_params *params) MR_MUST_CHECK;
void mr__enqueue_params_free(mr_enqueue_params *params);
/* How many jobs from `first` on go into one statement. */
size_t mr__enqueue_chunk(const mr_job_draft *draft, size_t first);

#endif
