/* JSON as text: checked, stripped of blanks and walked without being decoded, so that numbers keep
 * every digit. Pure. */
#ifndef MR_BASE_JSON_H
#define MR_BASE_JSON_H

#include "base/buf.h"

/* Deeper nesting is refused: readers in many languages recurse. */
enum { MR_JSON_DEPTH = 512 };

/* Appends the text without the blanks between its tokens. False when it is not one valid JSON value
 * in UTF-8; `out` is as before then. The result holds no control character, so it is one line. */
bool mr__json_compact(mr_buf *out, const char *text, size_t length);
/* Appends bytes as a JSON string, quotes included. What is not UTF-8 becomes U+FFFD. */
void mr__json_quote(mr_buf *out, const char *text, size_t length);

/* A value inside of text that mr__json_compact made; the text must end in NUL. */
typedef struct mr_json {
    const char *text;
    size_t length;
} mr_json;

mr_json mr__json_value(const char *text); /* the one that starts there */
/* The next member of an object, or item of an array (`key` NULL). Start with a cursor of NULL;
 * false at the end. */
bool mr__json_next(mr_json outer, const char **cursor, mr_json *key, mr_json *item);
/* Appends what a string value stands for. False when it stands for no text: a NUL, or half of a
 * surrogate pair. */
bool mr__json_unquote(mr_json quoted, mr_buf *out);
bool mr__json_is(mr_json given, const char *text); /* written exactly so: "true", "null" */

#endif
