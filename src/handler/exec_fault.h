/* What can be wrong with a child's side of a conversation, as errors that name the program, its pid
 * and what it was to answer. Any thread. */
#ifndef MR_HANDLER_EXEC_FAULT_H
#define MR_HANDLER_EXEC_FAULT_H

#include "handler/exec_line.h"
#include "handler/exec_pool.h"

/* Whom, and what its next answer is due for: "the event at position 7", "job 9". */
typedef struct mr_exec_due {
    const mr_pool *pool;
    mr_child *child;
    const char *what;
} mr_exec_due;

/* Retryable: "PROGRAM (pid N) …". */
mr_error *mr__exec_complain(const mr_exec_due *due, mr_code code, const char *format, ...)
    MR_PRINTF(3, 4) MR_MUST_CHECK;
/* Takes `why`, what is wrong with the line. */
mr_error *mr__exec_bad_line(const mr_exec_due *due, mr_error *why, const char *line,
                            size_t length) MR_MUST_CHECK;
/* Its stdout is closed: it is dead, or as good as that. */
mr_error *mr__exec_died(const mr_exec_due *due, mr_code code) MR_MUST_CHECK;
mr_error *mr__exec_too_long(const mr_exec_due *due) MR_MUST_CHECK;
/* It closed its stdin before it was given all of `unsent` bytes. Called as long as that is so; it
 * gets a moment for the answers to what it heard. `*since` is 0 at first. */
mr_error *mr__exec_deaf(const mr_exec_due *due, size_t unsent, int64_t *since) MR_MUST_CHECK;
/* The error that an answer of kind MR_EXEC_ERROR stands for. */
mr_error *mr__exec_refusal(const mr_exec_answer *answer) MR_MUST_CHECK;

#endif
