/* millrace status: the whole cluster at a glance; exit code 5 when it is not well. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* "3 idle, 1 paused" from {"idle": 3, "paused": 1}; free(). */
static char *counts_text(const json_t *counts, const char *none)
{
    char *text = cli_strdup("");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)counts, key, value)
    {
        char *more = cli_format("%s%s%lld %s", text, text[0] == '\0' ? "" : ", ",
                                (long long)json_integer_value(value), key);
        free(text);
        text = more;
    }
    if (text[0] == '\0') {
        free(text);
        return cli_strdup(none);
    }
    return text;
}

static void print_status(const PGresult *rows, const json_t *status)
{
    char *workers = counts_text(json_object_get(status, "workers"), "none");
    char *consumers = counts_text(json_object_get(status, "consumers"), "none");
    const char *leader = cli_cell(rows, 0, "leader");
    const char *seconds = cli_cell(rows, 0, "max_lag_seconds");
    (void)printf("%-14s %s\n", "health", cli_cell(rows, 0, "healthy")[0] == 't' ? "good" : "bad");
    (void)printf("%-14s %s\n", "workers", workers);
    (void)printf("%-14s %s\n", "leader", leader[0] != '\0' ? leader : "none");
    (void)printf("%-14s %s\n", "consumers", consumers);
    (void)printf("%-14s head %s, largest lag %s%s%s%s\n", "log", cli_cell(rows, 0, "head"),
                 cli_cell(rows, 0, "max_lag"), seconds[0] != '\0' ? ", " : "", seconds,
                 seconds[0] != '\0' ? " s" : "");
    (void)printf("%-14s %s\n", "open holes", cli_cell(rows, 0, "open_holes"));
    if (strcmp(cli_cell(rows, 0, "dead_letters"), "0") != 0)
        (void)printf("%-14s %s\n", "dead letters", cli_cell(rows, 0, "dead_letters"));
    (void)printf("%-14s version %s\n", "schema", cli_cell(rows, 0, "schema_version"));
    free(workers);
    free(consumers);
    size_t i;
    json_t *problem;
    json_array_foreach(json_object_get(status, "problems"), i, problem)
    {
        cli_print_line(i == 0 ? "\n- " : "- ", json_string_value(problem));
    }
}

/* The report for programs; JSON with or without --json. */
static mr_error *run_health(cli_context *cli)
{
    mr_conf *conf = NULL;
    PGconn *conn = NULL;
    CLI_TRY(cli_open(cli, &conf, &conn));
    char *text = NULL;
    mr_error *error = mr_health(conn, conf, &text);
    PQfinish(conn);
    mr_conf_free(conf);
    if (error != NULL)
        return error;
    json_t *report = json_loads(text, 0, NULL);
    mr_free(text);
    const char *status = json_string_value(json_object_get(report, "status"));
    bool healthy = status != NULL && strcmp(status, "healthy") == 0;
    size_t reasons = json_array_size(json_object_get(report, "reasons"));
    CLI_TRY(cli_print_json(report));
    return healthy ? NULL
                   : mr_error_new(MR_E_CHECK, false, "degraded: %zu reason%s", reasons,
                                  reasons == 1 ? "" : "s");
}

enum { STATUS_HEALTH };
static const cli_option options[] = {
    [STATUS_HEALTH] = {"health", NULL, "print the health report as JSON instead"},
    {NULL, NULL, NULL}};

static mr_error *run(cli_context *cli, const cli_args *args)
{
    CLI_TRY(cli_at_most(args, 0));
    if (args->value[STATUS_HEALTH] != NULL)
        return run_health(cli);
    PGresult *rows = NULL;
    CLI_TRY(cli_list(cli, "status", &rows));
    json_t *status = cli_row_json(rows, 0);
    size_t problems = json_array_size(json_object_get(status, "problems"));
    mr_error *error = NULL;
    if (cli->json)
        error = cli_print_json(json_incref(status));
    else
        print_status(rows, status);
    json_decref(status);
    PQclear(rows);
    if (error == NULL && problems > 0)
        error = mr_error_new(MR_E_CHECK, false, "unhealthy: %zu problem%s", problems,
                             problems == 1 ? "" : "s");
    return error;
}

const cli_command cli_cmd_status = {
    .name = "status",
    .summary = "The whole cluster at a glance; exit code 5 when it is not well",
    .usage = "[--health] [--json]",
    .details =
        "Not well (exit code 5, each problem in a line of its own) is: consumers but no worker\n"
        "alive; workers but no leader; a consumer that is paused or failing, has no owner, or\n"
        "whose owner is silent or gone; dead letters; lag above lag_threshold of the file given\n"
        "by --config. Other lag and open holes are shown and are no problem by themselves.\n"
        "Otherwise the exit code is 0.\n\n"
        "--health prints status (healthy, degraded), reasons and consumers as JSON, for programs\n"
        "that watch. It is degraded (exit code 5) for the same reasons, and while a consumer\n"
        "waits before a hole.",
    .options = options,
    .run = run,
};
