/* JSON as text: checked, stripped of blanks and walked without being decoded. */
#include "base/json.h"

#include "base/text.h"

#include <jansson.h>
#include <string.h>

/* ---- Checking ------------------------------------------------------------------------------ */

typedef struct scan {
    const char *p, *end;
    const char *from; /* what lies between here and p is still to be copied */
    mr_buf *out;
} scan;

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void skip_blanks(scan *s)
{
    const char *q = s->p;
    while (q < s->end && is_blank(*q))
        q++;
    if (q == s->p)
        return;
    mr__buf_add(s->out, s->from, (size_t)(s->p - s->from));
    s->p = s->from = q;
}

static bool take(scan *s, char c)
{
    if (s->p == s->end || *s->p != c)
        return false;
    s->p++;
    return true;
}

static bool word(scan *s, const char *text)
{
    size_t length = strlen(text);
    if ((size_t)(s->end - s->p) < length || memcmp(s->p, text, length) != 0)
        return false;
    s->p += length;
    return true;
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* After a backslash. */
static bool escape(scan *s)
{
    if (s->p == s->end || *s->p == '\0' || strchr("\"\\/bfnrtu", *s->p) == NULL)
        return false;
    if (*s->p++ != 'u')
        return true;
    for (int i = 0; i < 4; i++, s->p++)
        if (s->p == s->end || !is_hex(*s->p))
            return false;
    return true;
}

static bool string(scan *s)
{
    if (!take(s, '"'))
        return false;
    while (s->p < s->end) {
        unsigned char c = (unsigned char)*s->p++;
        if (c == '"')
            return true;
        if (c < 0x20 || (c == '\\' && !escape(s)))
            return false;
    }
    return false;
}

static bool digits(scan *s)
{
    const char *start = s->p;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9')
        s->p++;
    return s->p > start;
}

static bool number(scan *s)
{
    (void)take(s, '-');
    if (!take(s, '0') && !digits(s))
        return false;
    if (take(s, '.') && !digits(s))
        return false;
    if (!take(s, 'e') && !take(s, 'E'))
        return true;
    if (!take(s, '+'))
        (void)take(s, '-');
    return digits(s);
}

static bool scalar(scan *s)
{
    if (s->p == s->end)
        return false;
    switch (*s->p) {
    case '"':
        return string(s);
    case 't':
        return word(s, "true");
    case 'f':
        return word(s, "false");
    case 'n':
        return word(s, "null");
    default:
        return number(s);
    }
}

/* Up to and including the colon. */
static bool member_name(scan *s)
{
    skip_blanks(s);
    if (!string(s))
        return false;
    skip_blanks(s);
    return take(s, ':');
}

/* One value, nested ones on a stack of our own: hostile input cannot use up the thread's. */
static bool value(scan *s)
{
    char closers[MR_JSON_DEPTH];
    int depth = 0;
    for (;;) {
        skip_blanks(s);
        char open = s->p < s->end ? *s->p : '\0';
        if (open == '{' || open == '[') {
            if (depth == MR_JSON_DEPTH)
                return false;
            s->p++;
            skip_blanks(s);
            closers[depth++] = open == '{' ? '}' : ']';
            if (!take(s, closers[depth - 1])) {
                if (open == '{' && !member_name(s))
                    return false;
                continue;
            }
            depth--;
        } else if (!scalar(s)) {
            return false;
        }
        /* A value has ended: so may those around it. */
        for (;;) {
            skip_blanks(s);
            if (depth == 0)
                return true;
            if (!take(s, closers[depth - 1]))
                break;
            depth--;
        }
        if (!take(s, ',') || (closers[depth - 1] == '}' && !member_name(s)))
            return false;
    }
}

bool mr__json_compact(mr_buf *out, const char *text, size_t length)
{
    if (length == 0 || !mr__text_utf8(text, length))
        return false;
    size_t before = out->length;
    scan s = {.p = text, .end = text + length, .from = text, .out = out};
    if (value(&s) && s.p == s.end) {
        mr__buf_add(out, s.from, (size_t)(s.p - s.from));
        return true;
    }
    if (out->data != NULL)
        out->data[before] = '\0';
    out->length = before;
    return false;
}

/* ---- Quoting ------------------------------------------------------------------------------- */

static void put_special(mr_buf *out, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";
    char text[] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15], '\0'};
    switch (c) {
    case '"':
    case '\\':
        text[1] = (char)c;
        text[2] = '\0';
        break;
    case '\n':
        text[1] = 'n';
        text[2] = '\0';
        break;
    case '\t':
        text[1] = 't';
        text[2] = '\0';
        break;
    default:
        break;
    }
    mr__buf_puts(out, text);
}

/* How many bytes from here are one character; 0 when they are none. */
static size_t character(const char *p, size_t left)
{
    for (size_t n = 1; n <= 4 && n <= left; n++)
        if (mr__text_utf8(p, n))
            return n;
    return 0;
}

static void put_damaged(mr_buf *out, const char *text, size_t length)
{
    for (size_t i = 0; i < length;) {
        unsigned char c = (unsigned char)text[i];
        size_t n = c < 0x80 ? 1 : character(text + i, length - i);
        if (n == 0)
            mr__buf_puts(out, "\xEF\xBF\xBD");
        else if (c < 0x20 || c == '"' || c == '\\')
            put_special(out, c);
        else
            mr__buf_add(out, text + i, n);
        i += n == 0 ? 1 : n;
    }
}

static void put_sound(mr_buf *out, const char *text, size_t length)
{
    size_t from = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        mr__buf_add(out, text + from, i - from);
        put_special(out, c);
        from = i + 1;
    }
    mr__buf_add(out, text + from, length - from);
}

void mr__json_quote(mr_buf *out, const char *text, size_t length)
{
    mr__buf_putc(out, '"');
    if (mr__text_utf8(text, length))
        put_sound(out, text, length);
    else
        put_damaged(out, text, length);
    mr__buf_putc(out, '"');
}

/* ---- Walking ------------------------------------------------------------------------------- */

/* Long strings are walked several times, so by more than a byte at once. */
static const char *skip_string(const char *p)
{
    for (p++; *(p += strcspn(p, "\"\\")) != '"'; p += 2)
        ; /* an escape */
    return p + 1;
}

mr_json mr__json_value(const char *text)
{
    const char *p = text;
    int depth = 0;
    do {
        if (*p == '"') {
            p = skip_string(p);
        } else if (*p == '{' || *p == '[' || *p == '}' || *p == ']') {
            depth += *p == '{' || *p == '[' ? 1 : -1;
            p++;
        } else {
            p += depth == 0 ? strcspn(p, ",]}") : strcspn(p, "\"{}[]");
        }
    } while (depth > 0);
    return (mr_json){.text = text, .length = (size_t)(p - text)};
}

bool mr__json_next(mr_json outer, const char **cursor, mr_json *key, mr_json *item)
{
    const char *last = outer.text + outer.length - 1; /* the closing bracket */
    const char *p = *cursor == NULL ? outer.text + 1 : *cursor;
    if (p >= last)
        return false;
    if (*p == ',')
        p++;
    if (key != NULL) {
        *key = mr__json_value(p);
        p += key->length + 1;
    }
    *item = mr__json_value(p);
    *cursor = p + item->length;
    return true;
}

bool mr__json_unquote(mr_json quoted, mr_buf *out)
{
    if (memchr(quoted.text, '\\', quoted.length) == NULL) {
        mr__buf_add(out, quoted.text + 1, quoted.length - 2);
        return true;
    }
    json_t *decoded = json_loadb(quoted.text, quoted.length, JSON_DECODE_ANY, NULL);
    if (decoded == NULL)
        return false;
    mr__buf_add(out, json_string_value(decoded), json_string_length(decoded));
    json_decref(decoded);
    return true;
}

bool mr__json_is(mr_json given, const char *text)
{
    return strlen(text) == given.length && memcmp(given.text, text, given.length) == 0;
}
