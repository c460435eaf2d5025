/* millrace run: a worker from a YAML file. */
#include "worker.h"

enum { ONCE, CHECK, LOG_FORMAT, LOG_LEVEL };

static const cli_option options[] = {
    [ONCE] = {"once", NULL,
              "handle everything in the log now and all jobs that are due, then exit"},
    [CHECK] = {"check", NULL, "check the file, the database and the handlers; handle nothing"},
    [LOG_FORMAT] = {"log-format", "json|logfmt", "form of the log lines on stderr"},
    [LOG_LEVEL] = {"log-level", "LEVEL", "debug, info, warn or error (-v is debug)"},
    {NULL, NULL, NULL}};

static mr_error *set_options(const cli_context *cli, mr_conf *conf, const cli_args *args)
{
    if (args->value[ONCE] != NULL)
        CLI_TRY(mr_conf_set(conf, "once", "true"));
    if (args->value[LOG_FORMAT] != NULL)
        CLI_TRY(mr_conf_set(conf, "log_format", args->value[LOG_FORMAT]));
    if (args->value[LOG_LEVEL] != NULL)
        return mr_conf_set(conf, "log_level", args->value[LOG_LEVEL]);
    return cli->verbose ? mr_conf_set(conf, "log_level", "debug") : NULL;
}

static mr_error *prepare(cli_context *cli, const cli_args *args, const char *file, mr_conf *conf)
{
    CLI_TRY(set_options(cli, conf, args));
    if (mr_conf_consumer_count(conf) + mr_conf_queue_count(conf) == 0)
        return mr_error_new(MR_E_CONFIG, false,
                            "%s: no consumers and no queues; add a 'consumers:' or a 'queues:' "
                            "list with a name and a handler "
                            "(sql, sql_batch, exec, plugin) each",
                            file);
    CLI_TRY(cli_database(cli, conf));
    if (!cli->embedded)
        return NULL;
    PGconn *conn = NULL;
    CLI_TRY(cli_connect(conf, &conn));
    mr_error *error = cli_embedded_schema(cli, conf, conn);
    PQfinish(conn);
    return error;
}

static mr_error *run(cli_context *cli, const cli_args *args)
{
    CLI_TRY(cli_at_most(args, 1));
    const char *file = args->count == 1 ? args->rest[0] : cli->config;
    if (file == NULL)
        return mr_error_new(MR_E_USAGE, false, "which file? usage: millrace run FILE");
    mr_conf *conf = NULL;
    CLI_TRY(cli_conf(cli, file, &conf));
    mr_error *error = prepare(cli, args, file, conf);
    if (error != NULL) {
        mr_conf_free(conf);
        return error;
    }
    if (args->value[CHECK] == NULL)
        return worker_run(conf);
    size_t count = mr_conf_consumer_count(conf), queues = mr_conf_queue_count(conf);
    CLI_TRY(worker_check(conf));
    (void)printf("%s: ok, %zu consumer%s", file, count, count == 1 ? "" : "s");
    if (queues > 0)
        (void)printf(", %zu queue%s", queues, queues == 1 ? "" : "s");
    (void)printf("\n");
    return NULL;
}

const cli_command cli_cmd_run = {
    .name = "run",
    .summary = "Run a worker from a YAML file",
    .usage = "FILE [--once] [--check] [--log-format json|logfmt] [--log-level LEVEL]",
    .details = "SIGTERM or SIGINT lets running batches finish and stops; a second one cancels\n"
               "them; a third one ends the process at once. 'millrace options' lists what the\n"
               "file may hold.",
    .options = options,
    .run = run,
};
