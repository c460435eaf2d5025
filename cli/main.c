/* The program `millrace`: global options, the table of commands, and their exit codes. */
#include "cli.h"

#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const cli_command *const commands[] = {
    &cli_cmd_demo,      &cli_cmd_dev,          &cli_cmd_schema,  &cli_cmd_run,
    &cli_cmd_append,    &cli_cmd_enqueue,      &cli_cmd_status,  &cli_cmd_workers,
    &cli_cmd_consumers, &cli_cmd_dead_letters, &cli_cmd_gaps,    &cli_cmd_queues,
    &cli_cmd_jobs,      &cli_cmd_ring,         &cli_cmd_options, &cli_cmd_demo_worker,
};
enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

cli_exit cli_exit_of(const mr_error *error)
{
    switch (mr_error_code(error)) {
    case MR_OK:
        return CLI_DONE;
    case MR_E_USAGE:
    case MR_E_CONFIG:
        return CLI_USAGE;
    case MR_E_CONNECT:
        return CLI_UNREACHABLE;
    case MR_E_CONFLICT:
        return CLI_CONFLICT;
    case MR_E_CHECK:
        return CLI_CHECK;
    case MR_E_NOMEM:
    case MR_E_IO:
    case MR_E_PARSE:
    case MR_E_DB:
    case MR_E_SCHEMA:
    case MR_E_LOG:
    case MR_E_FENCED:
    case MR_E_TIMEOUT:
    case MR_E_CANCELLED:
    case MR_E_HANDLER:
    case MR_E_FATAL:
    case MR_E_STATE:
    case MR_E_INTERNAL:
    default:
        return CLI_FAILED;
    }
}

void cli_say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    flockfile(stderr);
    (void)fputs("millrace: ", stderr);
    (void)vfprintf(stderr, format, args);
    (void)fputc('\n', stderr);
    funlockfile(stderr);
    va_end(args);
}

void cli_report(const mr_error *error)
{
    char *message = cli_plain(mr_error_message(error), true);
    const char *hint = "";
    if (mr_error_code(error) == MR_E_SCHEMA && strstr(message, "schema apply") == NULL &&
        strstr(message, "newer millrace") == NULL && strstr(message, "GRANT ") == NULL)
        hint = "; run 'millrace schema apply' against this database first";
    cli_say("%s%s", message, hint);
    free(message);
}

static void print_overview(FILE *out)
{
    (void)fputs("millrace: durable work on PostgreSQL\n\n"
                "usage: millrace [--database URI] [--schema NAME] [--json] [-v] COMMAND ...\n\n"
                "commands:\n",
                out);
    for (size_t i = 0; i < COMMANDS; i++)
        if (commands[i]->summary != NULL)
            (void)fprintf(out, "  %-12s %s\n", commands[i]->name, commands[i]->summary);
    (void)fputs("\noptions:\n", out);
    cli_print_options(out, cli_global_options);
    (void)fputs(
        "\nThe database is --database, else MILLRACE_DATABASE, else DATABASE_URL, else the config\n"
        "file's, else the embedded PostgreSQL in .millrace/ (or MILLRACE_HOME).\n"
        "'millrace COMMAND --help' explains a command.\n"
        "Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 database unreachable,\n"
        "4 conflict, 5 check failed.\n",
        out);
}

static void print_help(const cli_command *command)
{
    (void)printf("usage: millrace %s %s\n\n", command->name, command->usage);
    if (command->summary != NULL)
        (void)printf("%s.\n", command->summary);
    if (command->details[0] != '\0')
        (void)printf("\n%s\n", command->details);
    if (command->options != NULL && command->options[0].name != NULL) {
        (void)printf("\noptions:\n");
        cli_print_options(stdout, command->options);
    }
    (void)printf("\nglobal options:\n");
    cli_print_options(stdout, cli_global_options);
}

static void print_version(void)
{
    (void)printf("millrace %s\n", mr_version());
}

static const cli_command *find_command(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

static mr_error *unknown_command(const char *name)
{
    const char *names[COMMANDS];
    size_t count = 0;
    for (size_t i = 0; i < COMMANDS; i++)
        if (commands[i]->summary != NULL)
            names[count++] = commands[i]->name;
    return cli_unknown("command", name, names, count, "millrace --help");
}

static mr_error *run_command(cli_context *cli, const cli_command *command, int argc, char **argv)
{
    cli_args args;
    CLI_TRY(cli_parse(cli, command, argc, argv, &args));
    if (args.help) {
        print_help(command);
        return NULL;
    }
    if (cli->version) {
        print_version();
        return NULL;
    }
    return command->run(cli, &args);
}

static mr_error *run(int argc, char **argv)
{
    cli_context cli = {0};
    cli_args args;
    CLI_TRY(cli_parse(&cli, NULL, argc - 1, argv + 1, &args));
    if (cli.version) {
        print_version();
        return NULL;
    }
    bool help_word = args.count > 0 && strcmp(args.rest[0], "help") == 0;
    if (help_word) {
        args.rest++;
        args.count--;
        args.help = true;
    }
    if (args.count == 0) {
        print_overview(args.help ? stdout : stderr);
        return args.help ? NULL : mr_error_new(MR_E_USAGE, false, "no command given");
    }
    const cli_command *command = find_command(args.rest[0]);
    if (command == NULL)
        return unknown_command(args.rest[0]);
    if (args.help) {
        print_help(command);
        return NULL;
    }
    return run_command(&cli, command, args.count - 1, args.rest + 1);
}

int main(int argc, char **argv)
{
    (void)setlocale(LC_CTYPE, "");
    (void)signal(SIGPIPE, SIG_IGN);
    mr_error *error = run(argc, argv);
    /* Output that did not reach its reader (a full disk, say) must not look like success. */
    if (error == NULL && (fflush(stdout) != 0 || ferror(stdout)))
        error = cli_io_error("cannot write the output");
    if (error != NULL)
        cli_report(error);
    cli_exit code = cli_exit_of(error);
    mr_error_free(error);
    return (int)code;
}
