/* millrace jobs: the jobs of a queue; look, retry, cancel, requeue. */
#include "jobs.h"

#include <stdlib.h>
#include <string.h>

/* The first ones are filters, in the order of `fields`. */
enum {
    STATE,
    ERROR,
    BEFORE,
    AFTER,
    LIMIT,
    FILTERS,
    ALL = FILTERS,
    COUNTERS,
    REASON,
    AT,
    IN,
};

static const char *const fields[FILTERS] = {"state", "error", "before", "after", "limit"};

static const cli_option options[] = {
    [STATE] = {"state", "STATE[,STATE]",
               "in these states: queued, errored, processing, completed, failed, canceled"},
    [ERROR] = {"error", "TEXT", "whose failure message has this text in it, in any case"},
    [BEFORE] = {"before", "TIME", "that ended (or, when they have not, were queued) before this"},
    [AFTER] = {"after", "TIME", "the same, after this"},
    [LIMIT] = {"limit", "N", "so many at most (list: 50 unless given)"},
    [ALL] = {"all", NULL, "retry, cancel, requeue: all that it is for; needed without a filter"},
    [COUNTERS] = {"reset-counters", NULL, "retry, requeue: errors and resets count from 0 again"},
    [REASON] = {"reason", "TEXT", "cancel: goes into the jobs' failure message"},
    [AT] = {"at", "TIME", "requeue: due at this time (default: at once)"},
    [IN] = {"in", "DURATION", "requeue: due after so long: 500ms, 30s, 5m, 1h"},
    {NULL, NULL, NULL}};

enum { LIST, SHOW, RETRY, CANCEL, REQUEUE };
static const char *const names[] = {"list", "show", "retry", "cancel", "requeue", NULL};

/* One run of the command. */
typedef struct jobs_run {
    cli_context *cli;
    const cli_args *args;
    const char *queue;
    mr_conf *conf;
    PGconn *conn;
    mr_job_filter *filter;
    int64_t delay_ms;
} jobs_run;

/* ---- Actions --------------------------------------------------------------------------------- */

static mr_error *list(jobs_run *run, PGresult **rows)
{
    CLI_TRY(mr_queue_jobs(run->conn, run->conf, run->queue, run->filter, rows));
    bool all = true;
    for (int i = 0; i < FILTERS; i++)
        all = all && run->args->value[i] == NULL;
    return cli_jobs_print(run->cli, *rows, all && run->args->count == 2);
}

static mr_error *show(jobs_run *run, PGresult **rows)
{
    CLI_TRY(mr_queue_job(run->conn, run->conf, run->queue, run->args->rest[2], rows));
    return cli_jobs_show(run->cli, *rows);
}

static mr_error *retry(jobs_run *run, PGresult **rows)
{
    const char *const *value = run->args->value;
    CLI_TRY(mr_queue_retry(run->conn, run->conf, run->queue, run->filter, value[ALL] != NULL,
                           value[COUNTERS] != NULL, rows));
    return cli_jobs_told(run->cli, *rows, "queued");
}

static mr_error *cancel(jobs_run *run, PGresult **rows)
{
    const char *const *value = run->args->value;
    CLI_TRY(mr_queue_cancel(run->conn, run->conf, run->queue, run->filter, value[ALL] != NULL,
                            value[REASON], rows));
    return cli_jobs_told(run->cli, *rows, "canceled");
}

static mr_error *requeue(jobs_run *run, PGresult **rows)
{
    const char *const *value = run->args->value;
    CLI_TRY(mr_queue_requeue(run->conn, run->conf, run->queue, run->filter, value[ALL] != NULL,
                             value[AT], run->delay_ms, value[COUNTERS] != NULL, rows));
    return cli_jobs_told(run->cli, *rows, "queued");
}

/* ---- Words ----------------------------------------------------------------------------------- */

static mr_error *check_options(const cli_args *args, int which)
{
    enum { CHANGES = 1U << RETRY | 1U << CANCEL | 1U << REQUEUE };
    static const unsigned commands[] = {/* a bit each */
                                        [STATE] = CHANGES | 1U << LIST,
                                        [ERROR] = CHANGES | 1U << LIST,
                                        [BEFORE] = CHANGES | 1U << LIST,
                                        [AFTER] = CHANGES | 1U << LIST,
                                        [LIMIT] = CHANGES | 1U << LIST,
                                        [ALL] = CHANGES,
                                        [COUNTERS] = 1U << RETRY | 1U << REQUEUE,
                                        [REASON] = 1U << CANCEL,
                                        [AT] = 1U << REQUEUE,
                                        [IN] = 1U << REQUEUE};
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (args->value[i] != NULL && (commands[i] & 1U << which) == 0)
            return mr_error_new(MR_E_USAGE, false, "'millrace jobs %s' has no --%s", names[which],
                                options[i].name);
    if (args->value[AT] != NULL && args->value[IN] != NULL)
        return mr_error_new(MR_E_USAGE, false, "--at and --in exclude each other; keep one");
    return NULL;
}

static mr_error *check_words(const cli_args *args, int which)
{
    CLI_TRY(check_options(args, which));
    if (args->count < 2 || (which == SHOW && args->count < 3))
        return mr_error_new(MR_E_USAGE, false, "usage: millrace jobs %s QUEUE%s --config FILE",
                            names[which],
                            which == SHOW   ? " ID"
                            : which == LIST ? ""
                                            : " ID ... | FILTER ... | --all");
    if (which == SHOW)
        return cli_at_most(args, 3);
    bool any = args->value[ALL] != NULL || args->count > 2;
    for (int i = 0; i < LIMIT; i++)
        any = any || args->value[i] != NULL;
    if (!any && which != LIST)
        return mr_error_new(MR_E_USAGE, false,
                            "say which jobs to %s: their ids, --state and the like, or --all",
                            names[which]);
    return NULL;
}

static mr_error *fill_filter(jobs_run *run, int which)
{
    const cli_args *args = run->args;
    if (which == SHOW)
        return NULL;
    for (int i = 2; i < args->count; i++)
        CLI_TRY(mr_job_filter_add(run->filter, "id", args->rest[i]));
    for (int i = 0; i < FILTERS; i++)
        if (args->value[i] != NULL)
            CLI_TRY(mr_job_filter_add(run->filter, fields[i], args->value[i]));
    if (args->value[IN] != NULL)
        CLI_TRY(cli_duration("in", args->value[IN], &run->delay_ms));
    return NULL;
}

static mr_error *run_jobs(cli_context *cli, const cli_args *args)
{
    static mr_error *(*const actions[])(jobs_run *, PGresult **) = {list, show, retry, cancel,
                                                                    requeue};
    int which = 0;
    CLI_TRY(cli_subcommand("jobs", args, names, &which));
    CLI_TRY(check_words(args, which));
    jobs_run run = {
        .cli = cli, .args = args, .queue = args->rest[1], .filter = mr_job_filter_new()};
    if (run.filter == NULL)
        return mr_error_new(MR_E_NOMEM, false, "out of memory");
    mr_error *error = fill_filter(&run, which);
    if (error == NULL)
        error = cli_queue_open(cli, "jobs", &run.conf, &run.conn);
    PGresult *rows = NULL;
    if (error == NULL)
        error = actions[which](&run, &rows);
    PQclear(rows);
    PQfinish(run.conn);
    mr_conf_free(run.conf);
    mr_job_filter_free(run.filter);
    return error;
}

const cli_command cli_cmd_jobs = {
    .name = "jobs",
    .summary = "The jobs of a queue: look, retry, cancel, requeue",
    .usage = "list QUEUE | show QUEUE ID | retry|cancel|requeue QUEUE [ID ...], [FILTER ...]",
    .details =
        "The queue's table, columns and condition come from --config FILE.\n\n"
        "  list     one line a job, the highest id first\n"
        "  show     everything about one, with its execution log and what its handler gets\n"
        "  retry    failed, errored and canceled jobs are queued again, due at once. Errors and\n"
        "           resets stay counted, so a job that used up max_retries gets one more try,\n"
        "           unless --reset-counters\n"
        "  cancel   waiting jobs become canceled. The worker of a running one is asked to stop\n"
        "           it, which needs a boolean column `cancel` in the table\n"
        "  requeue  queues jobs as if they had just come, --at a time or --in a while. One that\n"
        "           runs is left alone unless its worker is silent for stalled_max_age;\n"
        "           completed ones are meant only by id or by --state completed\n\n"
        "Filters narrow down together. Every job that was meant is told with what became of it;\n"
        "exits with 1 when some were left alone.",
    .options = options,
    .run = run_jobs,
};
