/* The leader's picture of the fleet, from the JSON that control_tick() returns. */
#ifndef MR_CLUSTER_PICTURE_H
#define MR_CLUSTER_PICTURE_H

#include "cluster/assignment.h"

/* A worker counts as a member unless its session lock is missing now and was missing at the last
 * look: one look may fall between a broken connection and the next. `missing` carries the ids from
 * look to look. */
typedef struct mr_absent {
    char **ids;
    size_t count;
} mr_absent;

void mr__absent_free(mr_absent *absent);
/* Reads the picture; `*absent` is replaced by who is missing in this one. `*stale` gets the ids
 * whose heartbeat is over, as a text[] literal, NULL when there are none; free(). */
mr_error *mr__picture_read(const char *json, mr_absent *absent, mr_fleet *fleet,
                           char **stale) MR_MUST_CHECK;

#endif
