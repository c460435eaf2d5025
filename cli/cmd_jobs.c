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
    KEY,
    FILTERS,
    ALL = FILTERS,
    COUNTERS,
    REASON,
    AT,
    IN,
    ACTOR,
};

static const char *const fields[FILTERS] = {"state", "error", "before", "after", "limit", "key"};

static const cli_option options[] = {
    [STATE] = {"state", "STATE[,STATE]",
               "in these states: queued, errored, processing, completed, failed, canceled"},
    [ERROR] = {"error", "TEXT", "whose failure message has this text in it, in any case"},
    [BEFORE] = {"before", "TIME", "that ended (or, when they have not, were queued) before this"},
    [AFTER] = {"after", "TIME", "the same, after this"},
    [LIMIT] = {"limit", "N", "so many at most (list: 50 unless given)"},
    [KEY] = {"key", "KEY", "of this key (built-in queues)"},
    [ALL] = {"all", NULL, "retry, cancel, requeue: all that it is for; needed without a filter"},
    [COUNTERS] = {"reset-counters", NULL, "retry, requeue: errors and resets count from 0 again"},
    [REASON] = {"reason", "TEXT",
                "why: for the audit of a built-in queue; cancel: the jobs' failure message"},
    [AT] = {"at", "TIME", "requeue: due at this time (default: at once)"},
    [IN] = {"in", "DURATION", "requeue: due after so long: 500ms, 30s, 5m, 1h"},
    [ACTOR] = {"actor", "NAME", "who, for the audit; user@host unless given"},
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

static mr_error *decide(jobs_run *run, mr_decision *decision)
{
    const char *const *value = run->args->value;
    if (value[ALL] != NULL)
        mr_decision_all(decision);
    if (value[COUNTERS] != NULL)
        mr_decision_reset_counters(decision);
    CLI_TRY(mr_decision_due(decision, value[AT], run->delay_ms));
    char *actor = cli_actor(value[ACTOR]);
    mr_error *error = mr_decision_by(decision, actor, value[REASON]);
    free(actor);
    return error;
}

static mr_error *change(jobs_run *run, const char *done, PGresult **rows)
{
    mr_decision *decision = mr_decision_new();
    if (decision == NULL)
        return mr_error_new(MR_E_NOMEM, false, "out of memory");
    mr_error *error = decide(run, decision);
    if (error == NULL)
        error = mr_queue_control(run->conn, run->conf, run->queue, run->args->rest[0], run->filter,
                                 decision, rows);
    mr_decision_free(decision);
    return error != NULL ? error : cli_jobs_told(run->cli, *rows, done);
}

static mr_error *put_back(jobs_run *run, PGresult **rows)
{
    return change(run, "queued", rows);
}

static mr_error *cancel(jobs_run *run, PGresult **rows)
{
    return change(run, "canceled", rows);
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
                                        [KEY] = CHANGES | 1U << LIST,
                                        [ALL] = CHANGES,
                                        [COUNTERS] = 1U << RETRY | 1U << REQUEUE,
                                        [REASON] = CHANGES,
                                        [AT] = 1U << REQUEUE,
                                        [IN] = 1U << REQUEUE,
                                        [ACTOR] = CHANGES};
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
        return mr_error_new(MR_E_USAGE, false, "usage: millrace jobs %s QUEUE%s [--config FILE]",
                            names[which],
                            which == SHOW   ? " ID"
                            : which == LIST ? ""
                                            : " ID ... | FILTER ... | --all");
    if (which == SHOW)
        return cli_at_most(args, 3);
    bool any = args->value[ALL] != NULL || args->count > 2;
    for (int i = 0; i < FILTERS; i++)
        any = any || (i != LIMIT && args->value[i] != NULL);
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
    static mr_error *(*const actions[])(jobs_run *, PGresult **) = {list, show, put_back, cancel,
                                                                    put_back};
    int which = 0;
    CLI_TRY(cli_subcommand("jobs", args, names, &which));
    CLI_TRY(check_words(args, which));
    jobs_run run = {
        .cli = cli, .args = args, .queue = args->rest[1], .filter = mr_job_filter_new()};
    if (run.filter == NULL)
        return mr_error_new(MR_E_NOMEM, false, "out of memory");
    mr_error *error = fill_filter(&run, which);
    if (error == NULL)
        error = cli_open(cli, &run.conf, &run.conn);
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
        "Jobs of the built-in table are found in the database alone, those that are over in its\n"
        "archive; for a queue on a table of its own --config FILE describes it.\n\n"
        "  list     one line a job, the highest id first\n"
        "  show     everything about one: its execution log, what its handler gets; of a built-in\n"
        "           one also where it stands, its errors so far and its progress\n"
        "  retry    failed, errored and canceled jobs are queued again, due at once. Errors and\n"
        "           resets stay counted, so a job that used up max_retries gets one more try,\n"
        "           unless --reset-counters; a failed one of a built-in queue gets all its\n"
        "           attempts, behind the jobs of its key\n"
        "  cancel   waiting jobs become canceled. The worker of a running one is asked to stop\n"
        "           it, which needs a boolean column `cancel` in a table of its own\n"
        "  requeue  queues jobs as if they had just come, --at a time or --in a while. One that\n"
        "           runs is left alone unless its worker is silent for stalled_max_age;\n"
        "           completed ones are meant only by id or by --state completed. One that is in\n"
        "           the archive of a built-in queue is queued as a new job\n\n"
        "Filters narrow down together. Every job that was meant is told with what became of it;\n"
        "exits with 1 when some were left alone.",
    .options = options,
    .run = run_jobs,
};
