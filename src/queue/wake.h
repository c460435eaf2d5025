/* Telling workers that a queue has jobs, not more often than useful. */
#ifndef MR_QUEUE_WAKE_H
#define MR_QUEUE_WAKE_H

#include "cluster/names.h"

enum { MR_WAKE_EVERY = 2000 }; /* microseconds between two wake-ups of a queue from one process */
/* Before a queue's name in the payload. */
#define MR_WAKE_PREFIX "queue:"

/* As mr_queue_wake(). */
mr_error *mr__queue_wake(PGconn *conn, const mr_names *names, const char *queue) MR_MUST_CHECK;

/* Whether a wake-up of that queue, known by a hash, is due at `now` (microseconds); if so it counts
 * as sent. Any thread. */
bool mr__wake_due(uint64_t queue, int64_t now);
/* It was not sent after all. */
void mr__wake_undo(uint64_t queue);
/* The queue that a notification names; NULL for any other payload. Payloads come from anybody. */
const char *mr__wake_queue(const char *payload);

#endif
