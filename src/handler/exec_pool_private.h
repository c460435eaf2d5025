/* A pool's innards, shared by the takers' side and the minder's. */
#ifndef MR_HANDLER_EXEC_POOL_PRIVATE_H
#define MR_HANDLER_EXEC_POOL_PRIVATE_H

#include "handler/exec_pool.h"

#include <pthread.h>

/* FREE: waits for a batch. USED: a batch has it. GONE: dead; only the minder frees it. */
typedef enum mr_kid_state { MR_KID_FREE, MR_KID_USED, MR_KID_GONE } mr_kid_state;

typedef struct mr_kid {
    mr_child *child;
    mr_kid_state state;
    struct mr_kid *next;
} mr_kid;

/* A taker that waits for a new child; on its stack. */
typedef struct mr_order {
    struct mr_order *next;
    bool done;
    mr_kid *kid;
    mr_error *error;
} mr_order;

struct mr_pool {
    char *kind, *name, *program;
    char **argv, **vars;
    mr_logger *logger;
    int wake; /* an eventfd the minder polls */
    pthread_t minder;

    pthread_mutex_t lock; /* guards what follows; never held while a child is started */
    pthread_cond_t changed;
    bool minding, ending;
    mr_kid *kids;
    mr_order *orders;
    mr_error *fault; /* what a free child did wrong: the next batch hears of it */
    int failures;    /* in a row */
    int64_t not_before;
    bool praised;
};

void *mr__pool_mind(void *argument); /* the minder's thread */
void mr__pool_wake(mr_pool *pool);
/* Reads what a free child wrote; it is GONE afterwards when it ended or answered unasked. Under the
 * lock. */
void mr__pool_settle(mr_pool *pool, mr_kid *kid);

#endif
