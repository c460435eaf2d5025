/* millrace dev: the embedded PostgreSQL by hand. */
#include "devserver.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static mr_error *start(cli_context *cli, dev_server *server)
{
    bool started = false;
    CLI_TRY(dev_start(server, cli->verbose, &started));
    dev_process process = dev_find(server);
    if (cli->json)
        return cli_print_json(json_pack("{s:b, s:i, s:s}", "started", started, "pid",
                                        (int)process.pid, "url", server->uri));
    if (strcmp(server->base, server->home) != 0)
        cli_say("the data is in %s: user %s cannot enter %s", server->data, server->user,
                server->home);
    (void)printf("%s (pid %d)\n%s\n", started ? "started" : "already running", (int)process.pid,
                 server->uri);
    return NULL;
}

static mr_error *stop(cli_context *cli, dev_server *server)
{
    bool stopped = false;
    CLI_TRY(dev_stop(server, &stopped));
    if (cli->json)
        return cli_print_json(json_pack("{s:b}", "stopped", stopped));
    (void)printf("%s\n", stopped ? "stopped" : "not running");
    return NULL;
}

/* Version of the running server, or of the data; free(). */
static char *version_of(const dev_server *server, bool running)
{
    PGconn *conn = NULL;
    mr_error *error = running ? cli_connect_to(server->uri, "millrace dev", &conn) : NULL;
    const char *live = conn != NULL ? PQparameterStatus(conn, "server_version") : NULL;
    char *version = live != NULL ? cli_strdup(live) : dev_data_version(server);
    mr_error_free(error);
    PQfinish(conn);
    return version;
}

static mr_error *status(cli_context *cli, dev_server *server)
{
    dev_process process = dev_find(server);
    bool running = process.pid != 0 && !process.foreign;
    char *version = version_of(server, running);
    const char *state = running ? "running" : process.foreign ? "foreign" : "stopped";
    mr_error *error = NULL;
    if (cli->json) {
        json_t *pid = running ? json_integer(process.pid) : json_null();
        json_t *known = version[0] != '\0' ? json_string(version) : json_null();
        error = cli_print_json(json_pack("{s:s, s:o, s:s, s:o, s:s, s:s}", "state", state, "pid",
                                         pid, "url", server->uri, "version", known, "data",
                                         server->data, "log", server->log));
    } else {
        (void)printf("state    %s\n", state);
        if (process.pid != 0)
            (void)printf("pid      %d\n", (int)process.pid);
        (void)printf("url      %s\nversion  %s\ndata     %s\nlog      %s\n", server->uri,
                     version[0] != '\0' ? version : "not created yet", server->data, server->log);
    }
    free(version);
    return error;
}

static mr_error *url(cli_context *cli, dev_server *server)
{
    if (cli->json)
        return cli_print_json(json_pack("{s:s}", "url", server->uri));
    (void)printf("%s\n", server->uri);
    return NULL;
}

/* Replaces this process, so that signals and the exit status are psql's own. */
static mr_error *psql(dev_server *server, const cli_args *args)
{
    char *program = NULL;
    CLI_TRY(dev_find_psql(&program));
    char **argv = cli_alloc((size_t)args->count + 4, sizeof(*argv));
    int count = 0;
    argv[count++] = program;
    argv[count++] = "-d";
    argv[count++] = server->uri;
    for (int i = 1; i < args->count; i++)
        argv[count++] = args->rest[i];
    (void)fflush(NULL);
    (void)execv(program, argv);
    mr_error *error = cli_io_error("cannot run %s", program);
    free(argv);
    free(program);
    return error;
}

static mr_error *run(cli_context *cli, const cli_args *args)
{
    enum { START, STOP, STATUS, URL, PSQL };
    static const char *const names[] = {"start", "stop", "status", "url", "psql", NULL};
    int which = 0;
    CLI_TRY(cli_subcommand("dev", args, names, &which));
    if (which != PSQL)
        CLI_TRY(cli_at_most(args, 1));
    dev_server *server = NULL;
    CLI_TRY(dev_open(&server));
    mr_error *error = NULL;
    bool started = false;
    if (which == URL || which == PSQL) {
        error = dev_start(server, cli->verbose, &started);
        if (error == NULL && started)
            cli_say("started the embedded PostgreSQL in %s", server->home);
    }
    if (error == NULL)
        error = which == START    ? start(cli, server)
                : which == STOP   ? stop(cli, server)
                : which == STATUS ? status(cli, server)
                : which == URL    ? url(cli, server)
                                  : psql(server, args);
    dev_free(server);
    return error;
}

const cli_command cli_cmd_dev = {
    .name = "dev",
    .summary = "The embedded PostgreSQL: start, stop, status, url, psql",
    .usage = "start|stop|status|url|psql [ARGUMENTS OF psql]",
    .details = "  start    start it (any command that needs it does so by itself)\n"
               "  stop     end its sessions and shut it down; the data stays\n"
               "  status   whether it runs, where, and which version\n"
               "  url      print its connection URI, for psql and programs of yours\n"
               "  psql     run psql on it; what follows is for psql\n\n"
               "It lives in .millrace/ of the current directory, or in MILLRACE_HOME, and is\n"
               "reached by a Unix socket that only you can open. MILLRACE_PG_BIN names the\n"
               "directory of PostgreSQL's programs when they are in an unusual place. As root\n"
               "the server runs as user postgres, or nobody.",
    .options = NULL,
    .rest_after = "psql",
    .run = run,
};
