/* SQL identifiers: quoting, qualified names, derived names within 63 bytes. Pure. */
#include "pg/ident.h"

#include "base/hash.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

/* Reads one part of a name from `*cursor`; stops at an unquoted dot or at the end. */
static mr_error *read_part(const char **cursor, const char *what, const char *whole,
                           char out[MR_IDENT_MAX + 1])
{
    const char *p = *cursor;
    size_t length = 0;
    bool quoted = *p == '"';
    if (quoted)
        p++;
    for (;; p++) {
        if (*p == '\0' && quoted)
            return mr__error(MR_E_CONFIG, "%s: the double quote in '%s' is never closed", what,
                             whole);
        if (*p == '\0' || (*p == '.' && !quoted))
            break;
        if (quoted && *p == '"') {
            if (p[1] != '"') {
                p++;
                break;
            }
            p++;
        }
        if (length == MR_IDENT_MAX)
            return mr__error(MR_E_CONFIG, "%s: a name in '%.80s' is longer than 63 bytes", what,
                             whole);
        out[length++] = *p;
    }
    out[length] = '\0';
    if (length == 0)
        return mr__error(MR_E_CONFIG, "%s: '%s' has an empty name", what, whole);
    if (*p != '\0' && *p != '.')
        return mr__error(MR_E_CONFIG, "%s: unexpected text after the closing quote in '%s'", what,
                         whole);
    *cursor = p;
    return NULL;
}

mr_error *mr__qname_parse(const char *text, const char *what, mr_qname *out)
{
    if (!mr__text_utf8(text, strlen(text)))
        return mr__error(MR_E_CONFIG, "%s: the name is not valid UTF-8", what);
    const char *cursor = text;
    mr_qname name = {0};
    MR_TRY(read_part(&cursor, what, text, name.name));
    if (*cursor == '.') {
        memcpy(name.schema, name.name, sizeof(name.schema));
        cursor++;
        MR_TRY(read_part(&cursor, what, text, name.name));
    }
    if (*cursor != '\0')
        return mr__error(MR_E_CONFIG, "%s: '%s' has more than two parts; write schema.table", what,
                         text);
    *out = name;
    return NULL;
}

void mr__ident_quote(mr_buf *buf, const char *name)
{
    mr__buf_putc(buf, '"');
    for (const char *p = name; *p != '\0'; p++) {
        if (*p == '"')
            mr__buf_putc(buf, '"');
        mr__buf_putc(buf, *p);
    }
    mr__buf_putc(buf, '"');
}

void mr__qname_quote(mr_buf *buf, const mr_qname *name)
{
    if (name->schema[0] != '\0') {
        mr__ident_quote(buf, name->schema);
        mr__buf_putc(buf, '.');
    }
    mr__ident_quote(buf, name->name);
}

void mr__ident_derive(char out[MR_IDENT_MAX + 1], const char *prefix, const char *table,
                      const char *suffix)
{
    char whole[3 * MR_IDENT_MAX + 1];
    int length = snprintf(whole, sizeof(whole), "%s%s%s", prefix, table, suffix);
    if (length <= MR_IDENT_MAX) {
        memcpy(out, whole, (size_t)length + 1);
        return;
    }
    enum { HASH = 9 }; /* "_" and eight digits */
    size_t keep = MR_IDENT_MAX - HASH;
    while (keep > 0 && ((unsigned char)whole[keep] & 0xC0U) == 0x80U)
        keep--;
    uint32_t hash = mr__hash_fnv1a(whole, strlen(whole));
    (void)snprintf(out, MR_IDENT_MAX + 1, "%.*s_%08x", (int)keep, whole, hash);
}

void mr__literal_quote(mr_buf *buf, const char *text)
{
    if (strchr(text, '\\') != NULL)
        mr__buf_puts(buf, " E");
    mr__buf_putc(buf, '\'');
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '\'' || *p == '\\')
            mr__buf_putc(buf, *p);
        mr__buf_putc(buf, *p);
    }
    mr__buf_putc(buf, '\'');
}
