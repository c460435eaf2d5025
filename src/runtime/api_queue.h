/* What public calls about queues share. */
#ifndef MR_RUNTIME_API_QUEUE_H
#define MR_RUNTIME_API_QUEUE_H

#include "observe/listing.h"

struct mr_queue_store;

/* Opens a queue of the conf; `*out` is the caller's: mr__queue_close(). */
mr_error *mr__api_queue_open(PGconn *conn, const mr_conf *conf, const mr_queue *queue,
                             struct mr_queue_store **out) MR_MUST_CHECK;

/* ---- list_queues.c: for mr_list() ---- */
mr_error *mr__list_queues(PGconn *conn, const mr_conf *conf, const mr_list_input *input,
                          PGresult **rows) MR_MUST_CHECK;

#endif
