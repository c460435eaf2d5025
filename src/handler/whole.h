/* A batch's events with the payloads that were too large to be read with their windows. */
#ifndef MR_HANDLER_WHOLE_H
#define MR_HANDLER_WHOLE_H

#include "handler/handler.h"

/* Zero-initialise. */
typedef struct mr_whole {
    const mr_event **events; /* as many as the run's, each with its payload */
    mr_event *copies;
    PGresult **rows;
    size_t loaded;
} mr_whole;

/* Fetches what is missing, in the batch's transaction, tagged by event; the tag is -1 afterwards.
 * Free it also after an error. */
mr_error *mr__whole_load(mr_tx *tx, const mr_run *run, mr_whole *whole) MR_MUST_CHECK;
void mr__whole_free(mr_whole *whole);
bool mr__whole_needed(const mr_run *run); /* some payload is missing */

#endif
