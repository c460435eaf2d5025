/* millrace consumers: who runs each consumer, how far it is and how it is. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

enum { OWNER = 2, HOST = 3, SECONDS = 6, COLUMNS = 7 };

static void print_errors(const PGresult *rows)
{
    bool any = false;
    for (int row = 0; row < PQntuples(rows); row++) {
        const char *error = cli_cell(rows, row, "last_error");
        if (error[0] == '\0')
            continue;
        char *line = cli_format("%s: %s", cli_cell(rows, row, "consumer"), error);
        cli_print_line(any ? "" : "\nlast errors:\n", line);
        any = true;
        free(line);
    }
}

/* The head is the same for all and stands above; errors have a line of their own below. */
static void print_consumers(const PGresult *rows)
{
    static const cli_column columns[COLUMNS] = {
        {"consumer", false},  {"state", false}, {"owner", false},  {"host", false},
        {"checkpoint", true}, {"lag", true},    {"seconds", true},
    };
    int count = PQntuples(rows);
    const char **cells = cli_alloc((size_t)count * COLUMNS, sizeof(*cells));
    for (int row = 0; row < count; row++) {
        const char **cell = cells + (ptrdiff_t)row * COLUMNS;
        bool owned = cli_cell(rows, row, "worker_id")[0] != '\0';
        cell[0] = cli_cell(rows, row, "consumer");
        cell[1] = cli_cell(rows, row, "state");
        cell[OWNER] = owned ? cli_cell(rows, row, "worker_id") : "-";
        cell[HOST] =
            owned ? cli_format("%s:%s", cli_cell(rows, row, "host"), cli_cell(rows, row, "pid"))
                  : cli_strdup("-");
        cell[4] = cli_cell(rows, row, "checkpoint");
        cell[5] = cli_cell(rows, row, "lag");
        cell[SECONDS] = cli_cell(rows, row, "lag_seconds");
    }
    (void)printf("head of the log: %s\n\n", cli_cell(rows, 0, "head"));
    cli_print_table(columns, COLUMNS, cells, count);
    for (int row = 0; row < count; row++)
        free((void *)cells[row * COLUMNS + HOST]);
    free(cells);
    print_errors(rows);
}

static mr_error *run(cli_context *cli, const cli_args *args)
{
    static const char *const names[] = {"list", NULL};
    int which = 0;
    CLI_TRY(cli_subcommand("consumers", args, names, &which));
    CLI_TRY(cli_at_most(args, 1));
    PGresult *rows = NULL;
    CLI_TRY(cli_list(cli, "consumers", &rows));
    mr_error *error = NULL;
    if (cli->json || PQntuples(rows) == 0)
        error = cli_print_rows(cli, rows, "There are no consumers yet: no worker has run here.");
    else
        print_consumers(rows);
    PQclear(rows);
    return error;
}

const cli_command cli_cmd_consumers = {
    .name = "consumers",
    .summary = "The consumers: owner, checkpoint, lag, state, last error",
    .usage = "list [--json]",
    .details =
        "  list   one line a consumer. State: running (there are events to handle), idle (caught\n"
        "         up), blocked (it waits before a hole; see 'millrace gaps open'), failing (its\n"
        "         last batch failed, it tries again), paused, unassigned, no worker can run it,\n"
        "         owner silent, owner gone.\n"
        "         lag: positions from the checkpoint to the real head of the log. seconds: age\n"
        "         of the first event after the checkpoint, empty when the log has no created_at.\n"
        "         failing, paused and errors are as of the owner's last heartbeat.",
    .options = NULL,
    .run = run,
};
