/* millrace queues: how the queues of a configuration stand. */
#include "jobs.h"

#include <stdlib.h>
#include <string.h>

mr_error *cli_queue_open(cli_context *cli, const char *command, mr_conf **conf, PGconn **conn)
{
    if (cli->config == NULL)
        return mr_error_new(MR_E_USAGE, false,
                            "'millrace %s' must know which table a queue is: name the file that "
                            "describes it, as for 'millrace run': --config worker.yaml",
                            command);
    return cli_open(cli, conf, conn);
}

enum { QUEUE, QUEUED, ERRORED, RUNNING, STALLED, FAILED, CANCELED, COMPLETED, WAIT, WORKERS, ALL };
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
};

/* "10000+" for a bound, "~12345" for an estimate; free(). */
static char *number_text(const PGresult *rows, int row, const char *column, const json_t *rough)
{
    const char *value = cli_cell(rows, row, column);
    const char *kind = json_string_value(json_object_get(rough, column));
    if (PQgetisnull(rows, row, PQfnumber(rows, column)))
        return cli_strdup("-");
    if (kind == NULL)
        return cli_strdup(value);
    return strcmp(kind, "at least") == 0 ? cli_format("%s+", value) : cli_format("~%s", value);
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
    bool any = false;
    for (int row = 0; row < count; row++) {
        const char *problem = cli_cell(rows, row, "problem");
        if (problem[0] == '\0')
            continue;
        cli_print_line(any ? "" : "\nproblems:\n", problem);
        any = true;
    }
}

static mr_error *run(cli_context *cli, const cli_args *args)
{
    static const char *const names[] = {"list", NULL};
    int which = 0;
    CLI_TRY(cli_subcommand("queues", args, names, &which));
    CLI_TRY(cli_at_most(args, 1));
    mr_conf *conf = NULL;
    PGconn *conn = NULL;
    CLI_TRY(cli_queue_open(cli, "queues", &conf, &conn));
    PGresult *rows = NULL;
    mr_error *error = mr_list(conn, conf, "queues", &rows);
    if (error == NULL && (cli->json || PQntuples(rows) == 0))
        error = cli_print_rows(cli, rows, "The configuration has no queues.");
    else if (error == NULL)
        print_queues(rows);
    PQclear(rows);
    PQfinish(conn);
    mr_conf_free(conf);
    return error;
}

const cli_command cli_cmd_queues = {
    .name = "queues",
    .summary = "How queues stand: waiting, running, ended, the longest wait",
    .usage = "list --config FILE",
    .details =
        "The queues are those of the file, with their tables.\n\n"
        "  errored    ended with an error and waits for its retry\n"
        "  running    claimed by a worker; stalled: those whose worker is silent for\n"
        "             stalled_max_age, so that the resetter will take them\n"
        "  workers    that are alive and have the queue\n\n"
        "Jobs are counted up to 10000 a state (10000+). Where no index serves and the table is\n"
        "large, the number is the planner's estimate (~). With --json `rough` says which are so.",
    .options = NULL,
    .run = run,
};
