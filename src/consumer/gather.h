/* From windows to a batch: takes the events that are a consumer's, sets aside those that must not
 * be handed to its handler. No I/O; where windows come from is the caller's affair. */
#ifndef MR_CONSUMER_GATHER_H
#define MR_CONSUMER_GATHER_H

#include "consumer/batch.h"
#include "consumer/streams.h"
#include "log/filter.h"

/* Where windows come from: the one that holds the position after `position`, borrowed; NULL when
 * there is none yet. A worker's is its reader, a test's is a log in memory. */
typedef struct mr_source {
    mr_window *(*find)(void *from, int64_t position);
    void *from;
} mr_source;

/* What a consumer takes. */
typedef struct mr_intake {
    const mr_filter *filter;
    int slot, slots; /* of a partitioned consumer; 0 of 1 otherwise */
    size_t batch_size;
    const int64_t *skips; /* positions that somebody asked to skip */
    size_t skip_count;
    bool by_key;                 /* later events of a dead letter's stream wait behind it */
    mr_streams *blocked;         /* those streams; grows by the one that is condemned */
    const mr_sentence *sentence; /* of the event to give up; position 0 = none is */
} mr_intake;

/* Adds to the draft what follows its target, until it is full or there is nothing more. */
mr_error *mr__gather(mr_batch *draft, const mr_intake *intake,
                     const mr_source *source) MR_MUST_CHECK;

#endif
