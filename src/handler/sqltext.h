/* The text of SQL handlers: named parameters to numbered ones, and the relation `batch` in front.
 * Pure. */
#ifndef MR_HANDLER_SQLTEXT_H
#define MR_HANDLER_SQLTEXT_H

#include "log/shape.h"

enum { MR_SQL_PARAMS = 16 };

/* A parameter is a column of the log, or the payload as jsonb. */
typedef enum mr_sql_param { MR_SQL_DATA = MR_COL_COUNT, MR_SQL_PARAM_COUNT } mr_sql_param;

typedef struct mr_sql_text {
    char *sql;
    int params[MR_SQL_PARAMS]; /* mr_column or MR_SQL_DATA for $1, $2 … */
    int count;
} mr_sql_text;

/* Replaces :name by a typed $n. Quotes, comments, dollar quotes and :: casts are left alone; an
 * unknown name is an error that names the nearest. */
mr_error *mr__sqltext_params(const char *text, mr_sql_text *out) MR_MUST_CHECK;
/* Puts the definition of `batch` in front: merges with a leading WITH. `definition` is the SELECT.
 */
mr_error *mr__sqltext_batch(const char *text, const char *definition, char **out) MR_MUST_CHECK;
void mr__sqltext_free(mr_sql_text *text);

#endif
