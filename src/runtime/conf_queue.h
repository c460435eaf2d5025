/* A queue of the configuration, and what its options mean to src/queue. */
#ifndef MR_RUNTIME_CONF_QUEUE_H
#define MR_RUNTIME_CONF_QUEUE_H

#include "queue/statements.h"
#include "runtime/conf.h"

/* Everything about a queue that can be checked without a database. */
mr_error *mr__queue_validate(const mr_queue *queue) MR_MUST_CHECK;
/* Its jobs are in Millrace's own table. */
bool mr__queue_builtin(const mr_queue *queue);
/* How the queue lies on its table; `*out` is the caller's: mr__mapping_free(). */
mr_error *mr__queue_mapping_of(const mr_queue *queue, const mr_names *names,
                               mr_mapping *out) MR_MUST_CHECK;
bool mr__queue_ordered(const mr_queue *queue); /* built-in: jobs of a key run in order */
/* How it deals with failure; the message is borrowed from the queue. */
mr_queue_policy mr__queue_policy_of(const mr_queue *queue);
/* The conf's queue of that name; MR_E_USAGE with the nearest one when there is none. */
mr_error *mr__conf_queue_find(const mr_conf *conf, const char *name,
                              const mr_queue **out) MR_MUST_CHECK;

#endif
