/* Input of one JSON value a line, written in batches: what the commands that read it share. Says
 * with each error which lines it is about and what of the input has been written. */
#ifndef MILLRACE_CLI_LINE_BATCHES_H
#define MILLRACE_CLI_LINE_BATCHES_H

#include "cli.h"

typedef struct line_batches {
    /* Takes a line into the batch; writes the batch, whole or not at all. */
    mr_error *(*take)(void *user, const char *text, size_t length);
    mr_error *(*flush)(void *user);
    mr_error *(*after)(void *user); /* once a batch was written; may be NULL */
    void *user;
    const char *things; /* "events" */
    const char *past;   /* "written" */
    int64_t most;       /* lines of a batch */
    int64_t line;       /* read so far */
    int64_t waiting;    /* in the batch */
    int64_t done;       /* in batches that were written */
    int64_t batches;    /* that were written */
    int64_t culprit;    /* set by flush to the line that its error is about, if it knows */
    bool unsure;        /* set by flush when it cannot tell whether the batch was written */
} line_batches;

/* Reads to the end. Progress goes to stderr when that is a terminal. */
mr_error *line_batches_read(line_batches *b, FILE *input) MR_MUST_CHECK;
/* The file `name`, "-" or NULL for stdin. */
mr_error *line_batches_file(line_batches *b, const char *name) MR_MUST_CHECK;

#endif
