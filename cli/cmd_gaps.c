/* millrace gaps: what holds readers back, and the audit of positions passed over. */
#include "cli.h"

static mr_error *run(cli_context *cli, const cli_args *args)
{
    enum { LIST, OPEN };
    static const char *const names[] = {"list", "open", NULL};
    int which = 0;
    CLI_TRY(cli_subcommand("gaps", args, names, &which));
    CLI_TRY(cli_at_most(args, 1));
    mr_conf *conf = NULL;
    PGconn *conn = NULL;
    CLI_TRY(cli_open(cli, &conf, &conn));
    PGresult *rows = NULL;
    mr_error *error = mr_list(conn, conf, which == LIST ? "gaps.list" : "gaps.open", &rows);
    if (error == NULL)
        error = cli_print_rows(cli, rows,
                               which == LIST ? "No position was ever passed over."
                                             : "Nothing holds readers back.");
    PQclear(rows);
    PQfinish(conn);
    mr_conf_free(conf);
    return error;
}

const cli_command cli_cmd_gaps = {
    .name = "gaps",
    .summary = "Holes in the log: what is being waited for, and what was passed over",
    .usage = "list|open [--json]",
    .details = "  list   positions that were passed over, newest first: who, when, up to where\n"
               "  open   what holds readers back now: the transactions that can still fill a\n"
               "         hole, with pid, age, state, application, user and query",
    .options = NULL,
    .run = run,
};
