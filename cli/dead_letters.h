/* What the files of `millrace dead-letters` share. */
#ifndef MILLRACE_CLI_DEAD_LETTERS_H
#define MILLRACE_CLI_DEAD_LETTERS_H

#include "cli.h"

/* One run of the command. */
typedef struct letters_run {
    cli_context *cli;
    mr_conf *conf;
    PGconn *conn;
    mr_letters *letters;
    char *actor;
    const char *reason;
    bool all;
    bool events, jobs;     /* which kinds are meant */
    const char *queue;     /* NULL: of all built-in ones */
    mr_job_filter *filter; /* of jobs; failed ones, always */
} letters_run;

/* ---- dead_letters_jobs.c: the letters of queues ---- */

/* Those that are meant, as mr_queue_jobs() gives them. */
mr_error *cli_dead_jobs(const letters_run *run, PGresult **rows) MR_MUST_CHECK;
/* Both kinds in one table; with --json one list, in which `kind` tells them apart. */
mr_error *cli_dead_print(const letters_run *run, const PGresult *events,
                         const PGresult *jobs) MR_MUST_CHECK;
mr_error *cli_dead_job_show(const letters_run *run, const char *id) MR_MUST_CHECK;
/* What was done to jobs of several queues. */
typedef struct dead_told {
    json_t *rows; /* a list of objects: those of mr_queue_control(), and queue */
    int done, left;
} dead_told;
/* Retries or drops those that are meant. `told` is empty; its list is the caller's. */
mr_error *cli_dead_jobs_change(const letters_run *run, const char *action,
                               dead_told *told) MR_MUST_CHECK;
/* Says which queues of the file were not asked, since only --queue NAME means one on a table of its
 * own. */
void cli_dead_left_out(const letters_run *run);
/* A line each. */
void cli_dead_jobs_told(const dead_told *told, const char *done);

/* ---- dead_letters_show.c: the letters of consumers ---- */

/* Prints the letters of mr_letters_list(): one line each. */
mr_error *cli_letters_print(const cli_context *cli, const PGresult *rows) MR_MUST_CHECK;
/* Prints everything about the only row of a whole listing. */
mr_error *cli_letters_show(const cli_context *cli, const PGresult *rows) MR_MUST_CHECK;

#endif
