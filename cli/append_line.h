/* One JSON line of `millrace append`, checked and decoded. Pure: knows no database. */
#ifndef MILLRACE_CLI_APPEND_LINE_H
#define MILLRACE_CLI_APPEND_LINE_H

#include "cli.h"

enum { APPEND_EXPECT_UNSET = -2 }; /* beside MR_EXPECT_ANY and MR_EXPECT_NONE */

typedef struct append_line {
    json_t *object; /* owns the strings below unless said otherwise */
    const char *aggregate_type, *aggregate_id, *event_type;
    char *payload; /* free() */
    size_t length;
    int64_t expected;
    /* The rest as mr_draft_field() takes it; NULL when absent. */
    const char *event_id, *trace_id, *correlation_id, *causation_id;
    char *event_version, *metadata; /* free() */
} append_line;

/* Decodes `length` bytes; the defaults (may be NULL) stand in for a missing stream. The error says
 * what is wrong, without the line's number. Call append_line_free() in either case. */
mr_error *append_line_parse(const char *text, size_t length, const char *default_type,
                            const char *default_id, append_line *line) MR_MUST_CHECK;
void append_line_free(append_line *line);
/* "any", "none" or a version, 1 or more. */
bool append_expected(const char *text, int64_t *expected);

#endif
