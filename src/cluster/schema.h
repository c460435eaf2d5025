/* The schema in a database: migrations, the log's tables and the functions; applied, printed or
 * looked up. */
#ifndef MR_CLUSTER_SCHEMA_H
#define MR_CLUSTER_SCHEMA_H

#include "cluster/names.h"
#include "cluster/template.h"
#include "log/spec.h"

typedef struct mr_schema_input {
    const mr_names *names;
    const mr_log_spec *log;
    bool no_log; /* do not create the log's tables */
} mr_schema_input;

/* Applies what is missing; each step in its own transaction, under an advisory lock that goes with
 * the transaction (so a pooler does not matter). A step looks again once it has the lock, so two
 * processes may apply at once. An up-to-date schema is not written to. `*applied` (may be NULL)
 * counts the migrations, and one for the log when it was created. The connection must be idle. */
mr_error *mr__schema_apply(PGconn *conn, const mr_schema_input *input, int *applied) MR_MUST_CHECK;
/* The whole schema for psql or a migration tool; runs twice without error. `*out` is the caller's:
 * free(). A log without a schema of its own is written for `public`. */
mr_error *mr__schema_script(const mr_schema_input *input, char **out) MR_MUST_CHECK;
mr_error *mr__schema_status(PGconn *conn, const mr_schema_input *input, int *current,
                            int *latest) MR_MUST_CHECK;
/* NULL when the database has exactly this program's version; MR_E_SCHEMA that says what to do
 * otherwise. For a worker's start. */
mr_error *mr__schema_require(PGconn *conn, const mr_schema_input *input) MR_MUST_CHECK;

#endif
