/* millrace schema: install Millrace's tables, print or write the script, show the version. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OUTPUT, FILENAME, FORCE, NO_LOG, LOG_TABLE, HEADS_TABLE, LOG_NAMING, FIRST_TABLE };

static const cli_option options[] = {
    [OUTPUT] = {"output", "DIR", "generate: directory to write to (default: this one)"},
    [FILENAME] = {"filename", "FILE", "generate: default is a UTC time + _init_millrace.sql"},
    [FORCE] = {"force", NULL, "generate: replace a file that is there"},
    [NO_LOG] = {"no-log", NULL, "leave the log's tables out"},
    [LOG_TABLE] = {"log-table", "NAME", "name of the log's table (default events)"},
    [HEADS_TABLE] = {"heads-table", "NAME", "name of the table of stream versions"},
    [LOG_NAMING] = {"log-naming", "WORD", "columns named 'aggregate' (default) or 'stream'"},
    {"worker-nodes-table", "NAME", "names of Millrace's own tables; each may have"},
    {"consumer-assignments-table", "NAME", "a schema of its own: infra.worker_nodes"},
    {"consumer-checkpoints-table", "NAME", ""},
    {"consumer-gap-skips-table", "NAME", ""},
    {"consumer-dead-letters-table", "NAME", ""},
    {"consumer-controls-table", "NAME", ""},
    {"worker-leader-election-table", "NAME", ""},
    {"log-published-table", "NAME", ""},
    {"schema-migrations-table", "NAME", ""},
    {NULL, NULL, NULL}};

static mr_error *set_named(mr_conf *conf, const char *flag, const char *value)
{
    char *name = cli_strdup(flag);
    for (char *p = name; *p != '\0'; p++)
        if (*p == '-')
            *p = '_';
    mr_error *error = mr_conf_set(conf, name, value);
    free(name);
    return error;
}

static mr_error *set_options(mr_conf *conf, const cli_args *args)
{
    static const struct {
        int option;
        const char *name;
    } plain[] = {{NO_LOG, "no_log"},
                 {LOG_TABLE, "log.table"},
                 {HEADS_TABLE, "log.heads_table"},
                 {LOG_NAMING, "log.naming"}};
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
        if (args->value[plain[i].option] != NULL)
            CLI_TRY(mr_conf_set(conf, plain[i].name, args->value[plain[i].option]));
    for (int i = FIRST_TABLE; options[i].name != NULL; i++)
        if (args->value[i] != NULL)
            CLI_TRY(set_named(conf, options[i].name, args->value[i]));
    return NULL;
}

static mr_error *print_script(const mr_conf *conf)
{
    char *script = NULL;
    CLI_TRY(mr_schema_script(conf, &script));
    (void)fputs(script, stdout);
    mr_free(script);
    return NULL;
}

/* ---- generate ------------------------------------------------------------------------------ */

static mr_error *make_directory(const char *path)
{
    char *copy = cli_format("%s/", path);
    mr_error *error = NULL;
    for (char *slash = strchr(copy + 1, '/'); slash != NULL && error == NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            error = cli_io_error("cannot create directory %s", copy);
        *slash = '/';
    }
    free(copy);
    return error;
}

static char *default_filename(void)
{
    char text[32];
    time_t now = time(NULL);
    struct tm parts;
    (void)gmtime_r(&now, &parts);
    (void)strftime(text, sizeof(text), "%Y%m%d%H%M%S", &parts);
    return cli_format("%s_init_millrace.sql", text);
}

/* Complete or not there at all: written beside its place and then put there. */
static mr_error *write_file(const char *path, const char *text, bool force)
{
    char *part = cli_format("%s.part-%d", path, (int)getpid());
    int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    mr_error *error = file == NULL ? cli_io_error("cannot write %s", path) : NULL;
    if (file != NULL) {
        bool bad = fputs(text, file) == EOF || fflush(file) != 0 || fsync(fd) != 0;
        if (fclose(file) != 0 || bad)
            error = cli_io_error("cannot write %s", path);
    }
    if (error == NULL && force && rename(part, path) != 0)
        error = cli_io_error("cannot write %s", path);
    if (error == NULL && !force && link(part, path) != 0)
        error = errno == EEXIST
                    ? mr_error_new(MR_E_USAGE, false, "%s exists; --force replaces it", path)
                    : cli_io_error("cannot write %s", path);
    (void)unlink(part);
    free(part);
    return error;
}

static mr_error *generate(const mr_conf *conf, const cli_args *args)
{
    const char *directory = args->value[OUTPUT] != NULL ? args->value[OUTPUT] : ".";
    const char *given = args->value[FILENAME];
    if (given != NULL && (given[0] == '\0' || strchr(given, '/') != NULL))
        return mr_error_new(MR_E_USAGE, false,
                            "--filename: '%.80s' is not a plain file name; --output names the "
                            "directory",
                            given);
    char *script = NULL;
    CLI_TRY(mr_schema_script(conf, &script));
    char *name = given != NULL ? cli_strdup(given) : default_filename();
    char *path = cli_format("%s/%s", directory, name);
    mr_error *error = make_directory(directory);
    if (error == NULL)
        error = write_file(path, script, args->value[FORCE] != NULL);
    if (error == NULL)
        (void)printf("%s\n", path);
    free(path);
    free(name);
    mr_free(script);
    return error;
}

/* ---- apply and status ---------------------------------------------------------------------- */

static mr_error *apply(const cli_context *cli, const mr_conf *conf, PGconn *conn)
{
    int applied = 0, current = 0, latest = 0;
    CLI_TRY(mr_schema_apply(conn, conf, &applied));
    CLI_TRY(mr_schema_status(conn, conf, &current, &latest));
    if (cli->json)
        return cli_print_json(json_pack("{s:i, s:i}", "applied", applied, "version", current));
    if (applied == 0)
        (void)printf("schema is up to date, version %d\n", current);
    else
        (void)printf("applied %d migration%s, now version %d\n", applied, applied == 1 ? "" : "s",
                     current);
    return NULL;
}

static mr_error *status(const cli_context *cli, const mr_conf *conf, PGconn *conn)
{
    int current = 0, latest = 0;
    CLI_TRY(mr_schema_status(conn, conf, &current, &latest));
    if (cli->json)
        return cli_print_json(json_pack("{s:i, s:i}", "current", current, "latest", latest));
    if (current == 0)
        (void)printf("not installed; 'millrace schema apply' installs version %d\n", latest);
    else if (current < latest)
        (void)printf("version %d; 'millrace schema apply' brings version %d\n", current, latest);
    else if (current > latest)
        (void)printf("version %d, newer than this program (%d); use a newer millrace\n", current,
                     latest);
    else
        (void)printf("version %d, up to date\n", current);
    return NULL;
}

static mr_error *on_database(cli_context *cli, mr_conf *conf,
                             mr_error *(*body)(const cli_context *, const mr_conf *, PGconn *))
{
    PGconn *conn = NULL;
    CLI_TRY(cli_database(cli, conf));
    CLI_TRY(cli_connect(conf, &conn));
    mr_error *error = body(cli, conf, conn);
    PQfinish(conn);
    return error;
}

static mr_error *run(cli_context *cli, const cli_args *args)
{
    enum { APPLY, PRINT, GENERATE, STATUS };
    static const char *const names[] = {"apply", "print", "generate", "status", NULL};
    int which = 0;
    CLI_TRY(cli_subcommand("schema", args, names, &which));
    CLI_TRY(cli_at_most(args, 1));
    for (int i = OUTPUT; which != GENERATE && i <= FORCE; i++)
        if (args->value[i] != NULL)
            return mr_error_new(MR_E_USAGE, false, "--%s is for 'schema generate' only",
                                options[i].name);
    mr_conf *conf = NULL;
    CLI_TRY(cli_conf(cli, NULL, &conf));
    mr_error *error = set_options(conf, args);
    if (error == NULL)
        error = which == APPLY      ? on_database(cli, conf, apply)
                : which == PRINT    ? print_script(conf)
                : which == GENERATE ? generate(conf, args)
                                    : on_database(cli, conf, status);
    mr_conf_free(conf);
    return error;
}

const cli_command cli_cmd_schema = {
    .name = "schema",
    .summary = "Millrace's tables: apply, print, generate a file, status",
    .usage = "apply|print|generate|status [OPTIONS]",
    .details = "  apply      install what is missing; doing it again changes nothing\n"
               "  print      the whole schema as an SQL script\n"
               "  generate   the same into a file, for migrations of your own\n"
               "  status     the installed version and the one this program brings\n\n"
               "Options may be written -output or --output, with a space or '=' before the value.",
    .options = options,
    .run = run,
};
