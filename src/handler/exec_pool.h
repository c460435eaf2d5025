/* The children of one consumer (or queue): started when a batch needs one and none is free, kept
 * for the next, restarted with backoff after failures, listened to while nobody uses them.
 *
 * A thread of the pool's own, the minder, starts every child: the kernel ties a child's life to the
 * thread that started it, and executors come and go. It also takes what children say on stderr at
 * any time. It runs from the first child on until the pool is freed. All calls from any thread. */
#ifndef MR_HANDLER_EXEC_POOL_H
#define MR_HANDLER_EXEC_POOL_H

#include "base/log.h"
#include "handler/child.h"

typedef struct mr_pool mr_pool;

typedef struct mr_pool_spec {
    const char *kind, *name; /* whose they are, as the log says it: "consumer", "mailer" */
    const char *command;     /* program and arguments, a list in its one-string form */
    const char *const *vars; /* "NAME=value" for the children, NULL at the end */
    mr_logger *logger;       /* borrowed; may be NULL */
} mr_pool_spec;

mr_error *mr__pool_new(const mr_pool_spec *spec, mr_pool **out) MR_MUST_CHECK;
/* No child may be in use. Those that are there see their stdin closed, and SIGTERM after 2 s, and
 * SIGKILL after another. */
void mr__pool_free(mr_pool *pool);
const char *mr__pool_program(const mr_pool *pool); /* the command, for messages */
/* MR_E_IO when the program is not there. Starts nothing. */
mr_error *mr__pool_check(const mr_pool *pool) MR_MUST_CHECK;

/* A free child, or a new one. After failures it waits first, at most `most_wait` microseconds, or
 * until `stop` says so (may be NULL): MR_E_CANCELLED. MR_E_IO when none can be started.
 * MR_E_IO, too, when one wrote an answer that nobody had asked for since the last batch: no event
 * of the next one is to blame for that. */
mr_error *mr__pool_take(mr_pool *pool, int64_t most_wait, bool (*stop)(void *user), void *user,
                        mr_child **out) MR_MUST_CHECK;
void mr__pool_give(mr_pool *pool, mr_child *child); /* it owes no answer */
/* It failed: it is killed, and the next start waits. It can still be asked how it ended; bury gives
 * it up. */
void mr__pool_kill(mr_pool *pool, mr_child *child);
void mr__pool_bury(mr_pool *pool, mr_child *child);
/* A child answered well: the next start does not wait. */
void mr__pool_praise(mr_pool *pool);
bool mr__pool_praised(mr_pool *pool); /* any child ever did */
/* A line that a child wrote for the log. */
void mr__pool_log(mr_pool *pool, const mr_child *child, mr_level level, const char *line);

#endif
