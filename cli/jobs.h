/* millrace jobs: what its files share. */
#ifndef MILLRACE_CLI_JOBS_H
#define MILLRACE_CLI_JOBS_H

#include "cli.h"

/* Rows of mr_queue_jobs(). */
mr_error *cli_jobs_print(const cli_context *cli, const PGresult *rows, bool all) MR_MUST_CHECK;
/* The row of mr_queue_job(). */
mr_error *cli_jobs_show(const cli_context *cli, const PGresult *rows) MR_MUST_CHECK;
/* What an order did, a line a job. An error when some were left alone. */
mr_error *cli_jobs_told(const cli_context *cli, const PGresult *rows,
                        const char *done) MR_MUST_CHECK;
/* That error, when `left` of `count` jobs were; `id` is of the only one. */
mr_error *cli_jobs_left(int left, int count, const char *id) MR_MUST_CHECK;

#endif
