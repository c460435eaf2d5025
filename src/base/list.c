/* Lists of texts kept as one string: "a,b" with backslash before a comma, an equals sign or a
 * backslash. */
#include "base/list.h"

#include <string.h>

static void add_escaped(mr_buf *list, const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (strchr(",=\\", *p) != NULL)
            mr__buf_putc(list, '\\');
        mr__buf_putc(list, *p);
    }
}

void mr__list_add(mr_buf *list, const char *item)
{
    if (list->length > 0)
        mr__buf_putc(list, ',');
    add_escaped(list, item);
}

void mr__list_add_pair(mr_buf *list, const char *key, const char *value)
{
    mr__list_add(list, key);
    mr__buf_putc(list, '=');
    add_escaped(list, value);
}

static void trim_end(mr_buf *text)
{
    while (text->length > 0 && text->data[text->length - 1] == ' ')
        text->data[--text->length] = '\0';
}

bool mr__list_next(const char **cursor, mr_buf *item, mr_buf *value)
{
    const char *p = *cursor;
    mr__buf_clear(item);
    if (value != NULL)
        mr__buf_clear(value);
    if (*p == '\0')
        return false;
    mr_buf *into = item;
    p += strspn(p, " ");
    for (; *p != '\0' && *p != ','; p++) {
        if (*p == '=' && into == item && value != NULL) {
            trim_end(item);
            into = value;
            p += strspn(p + 1, " ");
            continue;
        }
        if (*p == '\\' && p[1] != '\0')
            p++;
        mr__buf_putc(into, *p);
    }
    trim_end(into);
    *cursor = *p == ',' ? p + 1 : p;
    return true;
}
