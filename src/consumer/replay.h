/* Dead letters handled again: in position order, each once, its row removed in the transaction that
 * holds its effects. Runs on an executor. */
#ifndef MR_CONSUMER_REPLAY_H
#define MR_CONSUMER_REPLAY_H

#include "consumer/batch.h"

/* Rendered once for a worker. */
typedef struct mr_replay_sql {
    char *next;   /* the next letter that is asked for and may run */
    char *event;  /* its event */
    char *done;   /* it is handled */
    char *failed; /* it is not */
    char *stuck;  /* asked for, but may not run */
} mr_replay_sql;

mr_error *mr__replay_sql_render(const mr_names *names, const mr_log_shape *shape,
                                mr_replay_sql *out) MR_MUST_CHECK;
void mr__replay_sql_free(mr_replay_sql *sql);

typedef struct mr_replay {
    const mr_batch *fence; /* consumer, worker, expected, epoch and so on; borrowed */
    const mr_replay_sql *sql;
    bool by_key, detached;
    /* What came of it. */
    size_t replayed, failed;
    mr_error *error; /* what ended it early: the fence, the connection */
} mr_replay;

void mr__replay_run(mr_replay *replay, const mr_sessions *sessions);

#endif
