/* Lists of texts kept as one string: "a,b" with backslash before a comma, an equals sign or a
 * backslash. */
#ifndef MR_BASE_LIST_H
#define MR_BASE_LIST_H

#include "base/buf.h"

/* Appends one item, escaped, with a comma before it unless it is the first. */
void mr__list_add(mr_buf *list, const char *item);
/* Appends "key=value" as one item. */
void mr__list_add_pair(mr_buf *list, const char *key, const char *value);
/* Reads the next item from `*cursor` into `item`; false at the end. Blanks around an item are
 * dropped. When `value` is given the item is split at its first plain equals sign; without one
 * `value` is empty. */
bool mr__list_next(const char **cursor, mr_buf *item, mr_buf *value);

#endif
