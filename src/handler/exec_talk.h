/* One batch's conversation with a child. Any thread. */
#ifndef MR_HANDLER_EXEC_TALK_H
#define MR_HANDLER_EXEC_TALK_H

#include "handler/exec_line.h"
#include "handler/exec_pool.h"
#include "handler/handler.h"

/* The good answers of a batch, by event. */
struct mr_answers {
    mr_exec_answer *items;
    size_t count;
};

/* Gives the run's events to a child and takes its answers. The first `*good` events are answered
 * well, on failure too, and the error is the next one's: certainly with `*sure` (may be NULL), else
 * one given along with it may be to blame. With `answers` they are kept; without, the consumer is
 * detached and an answer with sql is refused. `tx` (may be NULL) is only asked whether it was
 * cancelled. After anything but an orderly refusal the child is killed. */
mr_error *mr__exec_talk(mr_pool *pool, const mr_run *run, mr_tx *tx, size_t *good, bool *sure,
                        mr_answers **answers) MR_MUST_CHECK;
void mr__answers_free(mr_answers *answers);

#endif
