/* millrace queues: how queues stand; pause and resume them. */
#include "jobs.h"

#include <stdlib.h>
#include <string.h>

enum {
    QUEUE,
    QUEUED,
    ERRORED,
    RUNNING,
    STALLED,
    FAILED,
    CANCELED,
    COMPLETED,
    WAIT,
    WORKERS,
    PAUSED,
    ALL
};
static const struct {
    const char *column, *title;
    bool number;
} columns[ALL] = {
    [QUEUE] = {"queue", "queue", false},
    [QUEUED] = {"queued", "queued", true},
    [ERRORED] = {"errored", "errored", true},
    [RUNNING] = {"processing", "running", true},
    [STALLED] = {"stalled", "stalled", true},
    [FAILED] = {"failed", "failed", true},
    [CANCELED] = {"canceled", "canceled", true},
    [COMPLETED] = {"completed", "completed", true},
    [WAIT] = {"oldest_wait_seconds", "oldest wait (s)", true},
    [WORKERS] = {"workers", "workers", true},
    [PAUSED] = {"paused", "paused", false},
};

/* "10000+" for a bound, "~12345" for an estimate; free(). */
static char *number_text(const PGresult *rows, int row, const char *column, const json_t *rough)
{
    const char *value = cli_cell(rows, row, column);
    const char *kind = json_string_value(json_object_get(rough, column));
    if (PQgetisnull(rows, row, PQfnumber(rows, column)))
        return cli_strdup("-");
    if (strcmp(column, "paused") == 0)
        return cli_strdup(value[0] == 't' ? "paused" : "");
    if (kind == NULL)
        return cli_strdup(value);
    return strcmp(kind, "at least") == 0 ? cli_format("%s+", value) : cli_format("~%s", value);
}

/* What a number cannot say; free(), or NULL. */
static char *pause_note(const PGresult *rows, int row)
{
    if (cli_cell(rows, row, "paused")[0] != 't')
        return NULL;
    const char *by = cli_cell(rows, row, "paused_by"), *why = cli_cell(rows, row, "pause_reason");
    return cli_format("%s: paused%s%s since %.19s%s%s", cli_cell(rows, row, "queue"),
                      by[0] == '\0' ? "" : " by ", by, cli_cell(rows, row, "paused_at"),
                      why[0] == '\0' ? "" : ": ", why);
}

static char *problem_note(const PGresult *rows, int row)
{
    const char *problem = cli_cell(rows, row, "problem");
    if (problem[0] != '\0')
        return cli_strdup(problem);
    if (strcmp(cli_cell(rows, row, "kind"), "unknown") == 0)
        return cli_format("%s: only its workers know its table; name their file: --config",
                          cli_cell(rows, row, "queue"));
    return NULL;
}

static void print_notes(const PGresult *rows)
{
    static char *(*const notes[])(const PGresult *, int) = {pause_note, problem_note};
    static const char *const titles[] = {"\npaused:\n", "\nproblems:\n"};
    for (int kind = 0; kind < 2; kind++) {
        bool any = false;
        for (int row = 0; row < PQntuples(rows); row++) {
            char *note = notes[kind](rows, row);
            if (note == NULL)
                continue;
            cli_print_line(any ? "" : titles[kind], note);
            any = true;
            free(note);
        }
    }
}

static void print_queues(const PGresult *rows)
{
    int count = PQntuples(rows);
    cli_column titles[ALL];
    for (int i = 0; i < ALL; i++)
        titles[i] = (cli_column){columns[i].title, columns[i].number};
    const char **cells = cli_alloc((size_t)count * ALL, sizeof(*cells));
    for (int row = 0; row < count; row++) {
        json_t *rough = json_loads(cli_cell(rows, row, "rough"), 0, NULL);
        for (int i = 0; i < ALL; i++)
            cells[row * ALL + i] = number_text(rows, row, columns[i].column, rough);
        json_decref(rough);
    }
    cli_print_table(titles, ALL, cells, count);
    for (int i = 0; i < count * ALL; i++)
        free((void *)cells[i]);
    free(cells);
    print_notes(rows);
}

/* ---- Pause and resume ------------------------------------------------------------------------ */

enum { REASON, ACTOR };
static const cli_option options[] = {
    [REASON] = {"reason", "TEXT", "pause, resume: why; goes into the audit"},
    [ACTOR] = {"actor", "NAME", "pause, resume: who; user@host unless given"},
    {NULL, NULL, NULL}};

static mr_error *control(const cli_context *cli, const cli_args *args, const mr_conf *conf,
                         PGconn *conn)
{
    char *actor = cli_actor(args->value[ACTOR]);
    mr_decision *decision = mr_decision_new();
    PGresult *rows = NULL;
    mr_error *error = decision == NULL ? mr_error_new(MR_E_NOMEM, false, "out of memory")
                                       : mr_decision_by(decision, actor, args->value[REASON]);
    const char *action = args->rest[0], *queue = args->rest[1];
    if (error == NULL)
        error = mr_queue_control(conn, conf, queue, action, NULL, decision, &rows);
    if (error == NULL && cli->json) {
        error = cli_print_json(cli_row_json(rows, 0));
    } else if (error == NULL) {
        json_t *detail = json_loads(cli_cell(rows, 0, "detail"), 0, NULL);
        bool already = json_is_true(json_object_get(detail, "already"));
        bool pause = strcmp(action, "pause") == 0;
        char *line = cli_format("%s: %s", queue,
                                already ? (pause ? "is paused already" : "is not paused")
                                : pause ? "paused; jobs that run finish, no other is claimed"
                                        : "resumed");
        cli_print_line("", line);
        free(line);
        json_decref(detail);
    }
    PQclear(rows);
    mr_decision_free(decision);
    free(actor);
    return error;
}

static mr_error *list(const cli_context *cli, const mr_conf *conf, PGconn *conn)
{
    PGresult *rows = NULL;
    mr_error *error = mr_list(conn, conf, "queues", &rows);
    if (error == NULL && (cli->json || PQntuples(rows) == 0))
        error = cli_print_rows(cli, rows, "There are no queues.");
    else if (error == NULL)
        print_queues(rows);
    PQclear(rows);
    return error;
}

static mr_error *run(cli_context *cli, const cli_args *args)
{
    enum { LIST };
    static const char *const names[] = {"list", "pause", "resume", NULL};
    int which = 0;
    CLI_TRY(cli_subcommand("queues", args, names, &which));
    CLI_TRY(cli_at_most(args, which == LIST ? 1 : 2));
    if (which != LIST && args->count < 2)
        return mr_error_new(MR_E_USAGE, false, "usage: millrace queues %s QUEUE [--reason TEXT]",
                            names[which]);
    for (int i = 0; which == LIST && i <= ACTOR; i++)
        if (args->value[i] != NULL)
            return mr_error_new(MR_E_USAGE, false, "'millrace queues list' has no --%s",
                                options[i].name);
    mr_conf *conf = NULL;
    PGconn *conn = NULL;
    CLI_TRY(cli_open(cli, &conf, &conn));
    mr_error *error = which == LIST ? list(cli, conf, conn) : control(cli, args, conf, conn);
    PQfinish(conn);
    mr_conf_free(conf);
    return error;
}

const cli_command cli_cmd_queues = {
    .name = "queues",
    .summary = "How queues stand: waiting, running, ended, the longest wait; pause, resume",
    .usage = "list | pause QUEUE | resume QUEUE, [--config FILE]",
    .details =
        "The queues of the built-in table of jobs are found in the database; those on tables of\n"
        "their own are described by --config FILE.\n\n"
        "  list     one line a queue\n"
        "  pause    no further job of a built-in queue is claimed; those that run finish\n"
        "  resume   ends that\n\n"
        "  errored    ended with an error and waits for its retry\n"
        "  running    claimed by a worker; stalled: those whose worker is silent for\n"
        "             stalled_max_age (built-in: claim_lease) or gone, so that the resetter will\n"
        "             take them\n"
        "  failed     built-in: dead letters; what is completed or canceled is in the archive\n"
        "  workers    that are alive and have the queue\n\n"
        "Jobs are counted up to 10000 a state (10000+). Where no index serves and the table is\n"
        "large, the number is the planner's estimate (~). With --json `rough` says which are so.",
    .options = options,
    .run = run,
};
