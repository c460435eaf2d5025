/* The listing of a configuration's queues, for mr_list(). */
#ifndef MR_RUNTIME_API_QUEUE_H
#define MR_RUNTIME_API_QUEUE_H

#include "observe/listing.h"

mr_error *mr__list_queues(PGconn *conn, const mr_conf *conf, const mr_list_input *input,
                          PGresult **rows) MR_MUST_CHECK;

#endif
