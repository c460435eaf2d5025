/* SQL identifiers: quoting, qualified names, derived names within 63 bytes. Pure. */
#ifndef MR_PG_IDENT_H
#define MR_PG_IDENT_H

#include "base/buf.h"
#include "base/error.h"

enum { MR_IDENT_MAX = 63 }; /* PostgreSQL's NAMEDATALEN - 1 */

/* A table's name in parts, unquoted. `schema` is "" when the name had no prefix. */
typedef struct mr_qname {
    char schema[MR_IDENT_MAX + 1];
    char name[MR_IDENT_MAX + 1];
} mr_qname;

/* Splits "schema.table" or "table" at the first dot outside double quotes; parts may be quoted as
 * in SQL
 * ("Odd ""name""") and are taken literally otherwise: case is kept. `what` names the option in
 * errors. */
mr_error *mr__qname_parse(const char *text, const char *what, mr_qname *out) MR_MUST_CHECK;
/* Always in double quotes. */
void mr__ident_quote(mr_buf *buf, const char *name);
void mr__qname_quote(mr_buf *buf, const mr_qname *name); /* "schema"."name" or "name" */
/* `prefix` + table + `suffix`, cut to 63 bytes on a character boundary with a hash of the whole so
 * that two long names stay different. */
void mr__ident_derive(char out[MR_IDENT_MAX + 1], const char *prefix, const char *table,
                      const char *suffix);
/* As an SQL string literal, with E'' when it holds a backslash. */
void mr__literal_quote(mr_buf *buf, const char *text);

#endif
