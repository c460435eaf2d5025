/* The health report: what is wrong with the fleet's consumers, for programs. */
#ifndef MR_OBSERVE_HEALTH_H
#define MR_OBSERVE_HEALTH_H

#include "observe/listing.h"

/* See mr_health() in the public header. */
mr_error *mr__health(PGconn *conn, const mr_list_input *input, char **json) MR_MUST_CHECK;

#endif
