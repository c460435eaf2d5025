/* The text of SQL handlers: named parameters to numbered ones, and the relation `batch` in front.
 * Pure. */
#ifndef MR_HANDLER_SQLTEXT_H
#define MR_HANDLER_SQLTEXT_H

#include "log/shape.h"

enum { MR_SQL_PARAMS = 16 }; /* at least the different parameters of an event */

/* A parameter is a column of the log, or the payload as jsonb. */
typedef enum mr_sql_param { MR_SQL_DATA = MR_COL_COUNT, MR_SQL_PARAM_COUNT } mr_sql_param;

typedef struct mr_sql_text {
    char *sql;
    int *params; /* what $1, $2 … stand for: for an event mr_column or MR_SQL_DATA */
    int count;
} mr_sql_text;

/* Which parameter a name is: its number, and the type it is cast to (NULL = none). An error that
 * names the nearest when there is none. */
typedef mr_error *(*mr_sql_find_fn)(const void *user, const char *name, int *param,
                                    const char **type);
/* Replaces :name by $n, as `find` says. Quotes, comments, dollar quotes and :: casts are left
 * alone. */
mr_error *mr__sqltext_named(const char *text, mr_sql_find_fn find, const void *user,
                            mr_sql_text *out) MR_MUST_CHECK;

/* The same for the parameters of an event, each a typed $n. */
mr_error *mr__sqltext_params(const char *text, mr_sql_text *out) MR_MUST_CHECK;
/* Puts the definition of `batch` in front: merges with a leading WITH. `definition` is the SELECT.
 */
mr_error *mr__sqltext_batch(const char *text, const char *definition, char **out) MR_MUST_CHECK;
/* Length of a quoted text, a comment or a word at `p`, in which no parameter can be; 0 when an
 * ordinary character stands there. */
size_t mr__sqltext_opaque(const char *p);
/* The first keyword in a script that would begin or end a transaction, NULL when there is none.
 * What functions do inside is not looked at. */
const char *mr__sqltext_control(const char *script);
void mr__sqltext_free(mr_sql_text *text);

#endif
