/* An order expression understood. Pure. */
#include "queue/order.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static void skip_blanks(const char **cursor)
{
    while (isspace((unsigned char)**cursor))
        (*cursor)++;
}

static bool word_start(char c)
{
    return isalpha((unsigned char)c) || c == '_';
}

static bool word_char(char c)
{
    return word_start(c) || isdigit((unsigned char)c) || c == '$';
}

static bool read_quoted(const char **cursor, char out[MR_IDENT_MAX + 1])
{
    const char *p = *cursor + 1;
    size_t length = 0;
    for (;; p++) {
        if (*p == '\0')
            return false;
        if (*p == '"') {
            if (p[1] != '"')
                break;
            p++;
        }
        if (length == MR_IDENT_MAX)
            return false;
        out[length++] = *p;
    }
    out[length] = '\0';
    *cursor = p + 1;
    return length > 0;
}

/* A name as SQL reads it: quoted as it stands, otherwise in lower case. Letters beyond ASCII are
 * folded by the server's locale or not at all, so they need quotes here. */
static bool read_name(const char **cursor, char out[MR_IDENT_MAX + 1])
{
    skip_blanks(cursor);
    if (**cursor == '"')
        return read_quoted(cursor, out);
    if (!word_start(**cursor))
        return false;
    size_t length = 0;
    for (; word_char(**cursor); (*cursor)++) {
        if (length == MR_IDENT_MAX)
            return false;
        out[length++] = (char)tolower((unsigned char)**cursor);
    }
    out[length] = '\0';
    return true;
}

/* [alias.]column */
static bool read_column(const char **cursor, const char *alias, char out[MR_IDENT_MAX + 1])
{
    if (!read_name(cursor, out))
        return false;
    skip_blanks(cursor);
    if (**cursor != '.')
        return true;
    (*cursor)++;
    return strcmp(out, alias) == 0 && read_name(cursor, out);
}

static bool read_word(const char **cursor, const char *word)
{
    skip_blanks(cursor);
    size_t length = strlen(word);
    if (strncasecmp(*cursor, word, length) != 0 || word_char((*cursor)[length]))
        return false;
    *cursor += length;
    return true;
}

static bool parse(const char *text, const char *alias, mr_order *order)
{
    const char *cursor = text;
    for (;;) {
        if (order->count == MR_ORDER_KEYS ||
            !read_column(&cursor, alias, order->column[order->count]))
            return false;
        bool down = read_word(&cursor, "desc");
        if (!down)
            (void)read_word(&cursor, "asc");
        if (order->count > 0 && down != order->descending)
            return false;
        order->descending = down;
        order->count++;
        skip_blanks(&cursor);
        if (*cursor == '\0')
            return true;
        if (*cursor++ != ',')
            return false;
    }
}

void mr__order_parse(const char *text, const char *alias, mr_order *out)
{
    mr_order order = {0};
    if (!parse(text, alias, &order))
        order = (mr_order){0};
    *out = order;
}
