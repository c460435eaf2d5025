/* Millrace's own table of jobs as a queue: the mapping that listings and handlers go by, and the
 * statements, which call the functions in sql/functions. Pure. */
#ifndef MR_QUEUE_BUILTIN_H
#define MR_QUEUE_BUILTIN_H

#include "queue/statements.h"

/* Fills a mapping that was made for the queue's name. */
mr_error *mr__builtin_mapping(const mr_names *names, mr_mapping *mapping) MR_MUST_CHECK;
/* Puts the table's own statements in the place of those that any table has. */
mr_error *mr__builtin_render(const mr_queue_source *source, mr_queue_sql *sql) MR_MUST_CHECK;

/* Values of each job that the worker itself goes by. */
#define MR_BUILTIN_KEY "key"
#define MR_BUILTIN_ORDERED "ordered"
#define MR_BUILTIN_TIMEOUT "timeout_ms"

#endif
