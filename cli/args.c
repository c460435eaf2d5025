/* Command lines: one parser for every command, and suggestions for what was mistyped. */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    GLOBAL_DATABASE,
    GLOBAL_SCHEMA,
    GLOBAL_CONFIG,
    GLOBAL_JSON,
    GLOBAL_VERBOSE,
    GLOBAL_HELP,
    GLOBAL_VERSION
};

const cli_option cli_global_options[] = {
    [GLOBAL_DATABASE] = {"database", "URI", "connection URI or keyword string of the database"},
    [GLOBAL_SCHEMA] = {"schema", "NAME", "schema of Millrace's own tables (default millrace)"},
    [GLOBAL_CONFIG] = {"config", "FILE", "take database and table names from this YAML file"},
    [GLOBAL_JSON] = {"json", NULL, "print JSON instead of text"},
    [GLOBAL_VERBOSE] = {"verbose", NULL, "say more on stderr (also -v)"},
    [GLOBAL_HELP] = {"help", NULL, "show this help (also -h)"},
    [GLOBAL_VERSION] = {"version", NULL, "show the version"},
    {NULL, NULL, NULL}};

static void set_global(cli_context *cli, cli_args *args, int index, const char *value)
{
    switch (index) {
    case GLOBAL_DATABASE:
        cli->database = value;
        break;
    case GLOBAL_SCHEMA:
        cli->schema = value;
        break;
    case GLOBAL_CONFIG:
        cli->config = value;
        break;
    case GLOBAL_JSON:
        cli->json = true;
        break;
    case GLOBAL_VERBOSE:
        cli->verbose = true;
        break;
    case GLOBAL_HELP:
        args->help = true;
        break;
    default:
        cli->version = true;
        break;
    }
}

static int find(const cli_option *options, const char *name, size_t length)
{
    for (int i = 0; options != NULL && options[i].name != NULL; i++)
        if (strlen(options[i].name) == length && strncmp(options[i].name, name, length) == 0)
            return i;
    return -1;
}

static size_t gather_names(const cli_option *options, const char **names, size_t count)
{
    for (int i = 0; options != NULL && options[i].name != NULL && count < CLI_MAX_OPTIONS * 2; i++)
        names[count++] = options[i].name;
    return count;
}

static mr_error *unknown_option(const cli_command *command, const char *name, size_t length)
{
    const char *names[CLI_MAX_OPTIONS * 2];
    size_t count = gather_names(command == NULL ? NULL : command->options, names, 0);
    count = gather_names(cli_global_options, names, count);
    char *word = cli_format("%.*s", (int)length, name);
    char *see = cli_format("millrace %s%s--help", command == NULL ? "" : command->name,
                           command == NULL ? "" : " ");
    mr_error *error = cli_unknown("option --", word, names, count, see);
    free(word);
    free(see);
    return error;
}

/* Takes the option at argv[*at], and its value from there or from the next word. */
static mr_error *take_option(cli_context *cli, const cli_command *command, int argc, char **argv,
                             int *at, cli_args *args)
{
    const char *word = argv[*at];
    const char *name = word + (word[1] == '-' ? 2 : 1);
    if (strcmp(word, "-v") == 0)
        name = "verbose";
    if (strcmp(word, "-h") == 0)
        name = "help";
    size_t length = strcspn(name, "=");
    const cli_option *options = command == NULL ? NULL : command->options;
    int own = find(options, name, length);
    int global = own >= 0 ? -1 : find(cli_global_options, name, length);
    if (own < 0 && global < 0)
        return unknown_option(command, name, length);
    const cli_option *option = own >= 0 ? &options[own] : &cli_global_options[global];
    const char *value = name[length] == '=' ? name + length + 1 : NULL;
    if (option->value == NULL && value != NULL)
        return mr_error_new(MR_E_USAGE, false, "option --%s takes no value", option->name);
    if (option->value != NULL && value == NULL) {
        if (*at + 1 >= argc)
            return mr_error_new(MR_E_USAGE, false, "option --%s needs a value: --%s %s",
                                option->name, option->name, option->value);
        value = argv[++*at];
    }
    if (value == NULL)
        value = "true";
    if (own >= 0)
        args->value[own] = value;
    else
        set_global(cli, args, global, value);
    return NULL;
}

mr_error *cli_parse(cli_context *cli, const cli_command *command, int argc, char **argv,
                    cli_args *args)
{
    *args = (cli_args){.rest = argv};
    bool words_only = false;
    for (int i = 0; i < argc; i++) {
        if (!words_only && strcmp(argv[i], "--") == 0) {
            words_only = true;
            continue;
        }
        if (!words_only && argv[i][0] == '-' && argv[i][1] != '\0') {
            CLI_TRY(take_option(cli, command, argc, argv, &i, args));
            continue;
        }
        char *word = argv[i];
        args->rest[args->count++] = word;
        bool stop = command == NULL ||
                    (command->rest_after != NULL && strcmp(word, command->rest_after) == 0);
        while (stop && ++i < argc)
            args->rest[args->count++] = argv[i];
    }
    args->rest[args->count] = NULL;
    return NULL;
}

void cli_print_options(FILE *out, const cli_option *options)
{
    for (int i = 0; options != NULL && options[i].name != NULL; i++) {
        char *left = cli_format("--%s%s%s", options[i].name, options[i].value != NULL ? " " : "",
                                options[i].value != NULL ? options[i].value : "");
        (void)fprintf(out, "  %-32s %s\n", left, options[i].help);
        free(left);
    }
}

/* Edit distance by two rows; words here are short. */
static size_t distance(const char *a, const char *b)
{
    enum { MAX = 48 };
    size_t n = strnlen(a, MAX), m = strnlen(b, MAX), row[MAX + 1];
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[m];
}

mr_error *cli_unknown(const char *what, const char *word, const char *const *names, size_t count,
                      const char *see)
{
    size_t best = strlen(word) / 3 + 2; /* further away a suggestion is noise */
    const char *nearest = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t d = distance(word, names[i]);
        if (d < best) {
            best = d;
            nearest = names[i];
        }
    }
    const char *dashes = strstr(what, "--") != NULL ? "--" : "";
    const char *space = dashes[0] == '\0' ? " " : "";
    if (nearest != NULL)
        return mr_error_new(MR_E_USAGE, false, "unknown %s%s%.80s; did you mean %s%s? See '%s'",
                            what, space, word, dashes, nearest, see);
    return mr_error_new(MR_E_USAGE, false, "unknown %s%s%.80s; see '%s'", what, space, word, see);
}

mr_error *cli_subcommand(const char *command, const cli_args *args, const char *const *names,
                         int *index)
{
    size_t count = 0;
    while (names[count] != NULL)
        count++;
    char *see = cli_format("millrace %s --help", command);
    mr_error *error = NULL;
    if (args->count == 0) {
        error = mr_error_new(MR_E_USAGE, false, "'millrace %s' needs one more word; see '%s'",
                             command, see);
    } else {
        *index = -1;
        for (size_t i = 0; i < count; i++)
            if (strcmp(args->rest[0], names[i]) == 0)
                *index = (int)i;
        if (*index < 0) {
            char *what = cli_format("'%s' command", command);
            error = cli_unknown(what, args->rest[0], names, count, see);
            free(what);
        }
    }
    free(see);
    return error;
}

mr_error *cli_at_most(const cli_args *args, int count)
{
    if (args->count <= count)
        return NULL;
    return mr_error_new(MR_E_USAGE, false, "unexpected word '%.80s'", args->rest[count]);
}

mr_error *cli_number(const char *option, const char *text, int64_t low, int64_t high,
                     int64_t *value)
{
    char *end = NULL;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || number < low || number > high)
        return mr_error_new(MR_E_USAGE, false,
                            "--%s: '%.80s' is not a whole number from %" PRId64 " to %" PRId64,
                            option, text, low, high);
    *value = number;
    return NULL;
}

mr_error *cli_duration(const char *option, const char *text, int64_t *ms)
{
    static const struct {
        const char *name;
        int64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};
    enum { MOST_DIGITS = 9 }; /* no product of such a number overflows */
    size_t digits = strspn(text, "0123456789");
    int64_t number = digits > 0 && digits <= MOST_DIGITS ? strtoll(text, NULL, 10) : -1;
    if (number == 0 && text[digits] == '\0') {
        *ms = 0;
        return NULL;
    }
    for (size_t i = 0; number >= 0 && i < sizeof(units) / sizeof(units[0]); i++)
        if (strcmp(text + digits, units[i].name) == 0) {
            *ms = number * units[i].ms;
            return NULL;
        }
    return mr_error_new(MR_E_USAGE, false,
                        "--%s: '%.80s' is not a time; write a whole number and ms, s, m or h, as "
                        "in 30s",
                        option, text);
}
