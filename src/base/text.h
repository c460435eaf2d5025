/* Small pure text helpers: durations, sizes, numbers, UTF-8, nearest names. */
#ifndef MR_BASE_TEXT_H
#define MR_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "250ms", "5s", "2m", "1h", "0" -> microseconds. False for anything else, negative or too large.
 */
bool mr__text_duration(const char *text, int64_t *micros);
/* Writes the shortest exact form of a duration, e.g. "1500ms", "5s". */
void mr__text_duration_format(int64_t micros, char out[32]);
/* "4096", "64KiB", "64MiB", "1GiB" -> bytes. */
bool mr__text_size(const char *text, int64_t *bytes);
/* Whole decimal number, optional sign, nothing around it. */
bool mr__text_int(const char *text, int64_t *value);
/* true/false, yes/no, on/off (YAML's). */
bool mr__text_bool(const char *text, bool *value);
/* Well-formed UTF-8 without NUL: what PostgreSQL's text accepts. */
bool mr__text_utf8(const char *bytes, size_t length);
/* Where to cut a text so that at most `most` bytes stay and no character is halved; its length when
 * it is short enough. */
size_t mr__text_cut(const char *text, size_t most);
/* Makes it well-formed UTF-8 in place: what is not becomes '?'. */
void mr__text_mend(char *text);
/* Edit distance (insert, delete, substitute, swap of neighbours). */
size_t mr__text_distance(const char *a, const char *b);
/* Index of the nearest of `count` names, or -1 when none is near enough to suggest. */
int mr__text_nearest(const char *word, const char *const *names, size_t count);

#endif
