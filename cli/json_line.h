/* One line of JSON from the input: decoded, its keys checked, its values as text. Pure: knows no
 * database. Errors say what is wrong, without the line's number. */
#ifndef MILLRACE_CLI_JSON_LINE_H
#define MILLRACE_CLI_JSON_LINE_H

#include "cli.h"

/* Any value; numbers come as reals. `*value` is the caller's, NULL on failure. */
mr_error *json_line_load(const char *text, size_t length, json_t **value) MR_MUST_CHECK;
/* An object with no other keys than these; `see` is the help. `*object` is the caller's in either
 * case. */
mr_error *json_line_object(const char *text, size_t length, const char *const *keys, size_t count,
                           const char *see, json_t **object) MR_MUST_CHECK;
/* A key that must be a string when it is there; null counts as absent. `*text` belongs to the
 * object. */
mr_error *json_line_text(const json_t *object, const char *key, const char **text) MR_MUST_CHECK;
bool json_line_whole(const json_t *value, int64_t *number);
/* The value of a key that is there, as JSON text in the way it was written; `text` is the line that
 * the object was read from. free(). */
char *json_line_value(const json_t *object, const char *text, const char *key);
/* "metadata": an object, or absent. free(). */
mr_error *json_line_metadata(const json_t *object, const char *text, char **metadata) MR_MUST_CHECK;

#endif
