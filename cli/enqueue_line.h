/* One JSON line of `millrace enqueue`, checked and decoded. Pure: knows no database. */
#ifndef MILLRACE_CLI_ENQUEUE_LINE_H
#define MILLRACE_CLI_ENQUEUE_LINE_H

#include "cli.h"

enum { ENQUEUE_FIELDS = 7 };
/* Their names: as mr_job_draft_field() takes them, and as keys of a line. */
extern const char *const enqueue_field_names[ENQUEUE_FIELDS];

typedef struct enqueue_line {
    char *payload;               /* JSON text; NULL for none */
    char *field[ENQUEUE_FIELDS]; /* by the order of the names; NULL when absent */
} enqueue_line;

/* Decodes `length` bytes that a NUL follows: an object with "payload" and fields or, when `bare`,
 * the payload itself, which is left to be checked. The error says what is wrong, without the line's
 * number. Call enqueue_line_free() in either case. */
mr_error *enqueue_line_parse(const char *text, size_t length, bool bare,
                             enqueue_line *line) MR_MUST_CHECK;
void enqueue_line_free(enqueue_line *line);

#endif
