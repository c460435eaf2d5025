/* millrace workers: the registered workers, as they look from the database. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* Parts that belong together share a column, so that the table fits a terminal with the id whole.
 */
static void print_workers(const PGresult *rows)
{
    static const cli_column columns[] = {
        {"worker", false}, {"state", false},      {"leader", false},
        {"host", false},   {"version", false},    {"heartbeat", true},
        {"owns", false},   {"connections", true}, {"events", true}};
    enum { HOST = 3, HEARTBEAT = 5, OWNS = 6, COLUMNS = sizeof(columns) / sizeof(columns[0]) };
    int count = PQntuples(rows);
    const char **cells = cli_alloc((size_t)count * COLUMNS, sizeof(*cells));
    for (int row = 0; row < count; row++) {
        const char **cell = cells + (ptrdiff_t)row * COLUMNS;
        cell[0] = cli_cell(rows, row, "worker_id");
        cell[1] = cli_cell(rows, row, "state");
        cell[2] = cli_cell(rows, row, "leader")[0] == 't' ? "yes" : "no";
        cell[HOST] = cli_format("%s:%s", cli_cell(rows, row, "host"), cli_cell(rows, row, "pid"));
        cell[4] = cli_cell(rows, row, "version");
        cell[HEARTBEAT] = cli_format("%s s", cli_cell(rows, row, "heartbeat_age"));
        cell[OWNS] =
            cli_format("%s of %s", cli_cell(rows, row, "owned"), cli_cell(rows, row, "can_run"));
        cell[7] = cli_cell(rows, row, "connections");
        cell[8] = cli_cell(rows, row, "events");
    }
    cli_print_table(columns, COLUMNS, cells, count);
    for (int row = 0; row < count; row++) {
        const char **cell = cells + (ptrdiff_t)row * COLUMNS;
        free((void *)cell[HOST]);
        free((void *)cell[HEARTBEAT]);
        free((void *)cell[OWNS]);
    }
    free(cells);
}

static mr_error *run(cli_context *cli, const cli_args *args)
{
    static const char *const names[] = {"list", NULL};
    int which = 0;
    CLI_TRY(cli_subcommand("workers", args, names, &which));
    CLI_TRY(cli_at_most(args, 1));
    PGresult *rows = NULL;
    CLI_TRY(cli_list(cli, "workers", &rows));
    mr_error *error = NULL;
    if (cli->json || PQntuples(rows) == 0)
        error = cli_print_rows(cli, rows, "No worker is registered.");
    else
        print_workers(rows);
    PQclear(rows);
    return error;
}

const cli_command cli_cmd_workers = {
    .name = "workers",
    .summary = "The workers of the fleet: state, leader, load",
    .usage = "list [--json]",
    .details =
        "  list   one line a worker. State: alive; draining (it is stopping); gone (its session\n"
        "         lock is missing: the process or its connection ended); silent (no heartbeat\n"
        "         for heartbeat_timeout); dead (declared dead by the leader).\n"
        "         owns: consumers assigned to it, of those it can run. connections and events\n"
        "         are as of its last heartbeat.\n\n"
        "heartbeat_timeout, leader_key and the tables' names come from --config FILE when they\n"
        "are not the defaults.",
    .options = NULL,
    .run = run,
};
