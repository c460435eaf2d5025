/* The SQL files of the schema, embedded at build, and what applying and printing them share. */
#ifndef MR_CLUSTER_SCHEMA_FILES_H
#define MR_CLUSTER_SCHEMA_FILES_H

#include "cluster/template.h"

extern const mr_embed mr__sql_bootstrap[];     /* the table of migrations itself */
extern const mr_embed mr__sql_migrations[];    /* NNNN_name.sql, in order */
extern const mr_embed mr__sql_log[];           /* the log's tables */
extern const mr_embed mr__sql_functions[];     /* name.sql makes {{fn:name}} */
extern const mr_embed mr__sql_log_functions[]; /* name.sql makes {{schema}}.name */

int mr__schema_file_version(const mr_embed *file); /* of a migration */
int mr__schema_latest(void);
/* INSERT that records a migration; a second run changes nothing. */
void mr__schema_record(const mr_embed *file, const mr_template_input *input, mr_buf *out);
/* One function: its statement and a comment that carries a fingerprint of the statement. `name`
 * (may be NULL) gets the function's plain name, `mark` (may be NULL) the comment. */
mr_error *mr__schema_function(const mr_embed *file, const mr_template_input *input, bool of_log,
                              mr_buf *out, char name[MR_IDENT_MAX + 1],
                              char mark[64]) MR_MUST_CHECK;
/* The schemas that the tables live in, each once, `public` left out. Returns how many. */
enum { MR_SCHEMAS_MAX = MR_TABLE_COUNT + 3 };
size_t mr__schema_prefixes(const mr_template_input *input, const char *out[MR_SCHEMAS_MAX]);

#endif
