/* Read your own writes: waiting until a consumer has applied a position. */
#ifndef MR_OBSERVE_WAIT_H
#define MR_OBSERVE_WAIT_H

#include "observe/listing.h"

/* See mr_consumer_wait() in the public header. Sleeps in the caller's thread. */
mr_error *mr__consumer_wait(PGconn *conn, const mr_list_input *input, const char *name,
                            int64_t position, int64_t timeout_ms) MR_MUST_CHECK;
/* MR_E_USAGE for a name that no consumer has, with the nearest one; NULL when there is one. */
mr_error *mr__consumer_known(PGconn *conn, const mr_list_input *input,
                             const char *name) MR_MUST_CHECK;

#endif
