/* millrace consumers wait: returns once a consumer has applied a position. */
#include "consumers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

static mr_error *read_position(const char *text, int64_t *position)
{
    char *end = NULL;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || number < 0)
        return mr_error_new(MR_E_USAGE, false,
                            "'%.80s' is not a position: give a whole number, 0 or more", text);
    *position = number;
    return NULL;
}

static mr_error *say_reached(const cli_context *cli, const char *name, int64_t position,
                             int64_t waited)
{
    if (cli->json)
        return cli_print_json(json_pack("{s:s, s:I, s:b, s:I}", "consumer", name, "position",
                                        (json_int_t)position, "reached", 1, "waited_ms",
                                        (json_int_t)waited));
    char *line = cli_format("%s has applied position %" PRId64, name, position);
    cli_print_line("", line);
    free(line);
    return NULL;
}

mr_error *cli_consumers_wait(cli_context *cli, const cli_args *args)
{
    enum { NAME = 1, POSITION = 2, WORDS = 3 };
    CLI_TRY(cli_at_most(args, WORDS));
    if (args->count < WORDS)
        return mr_error_new(MR_E_USAGE, false,
                            "'millrace consumers wait' needs a consumer and a position: "
                            "millrace consumers wait NAME POSITION");
    int64_t position = 0, timeout = 0;
    CLI_TRY(read_position(args->rest[POSITION], &position));
    const char *text = args->value[CONSUMERS_TIMEOUT];
    CLI_TRY(cli_duration("timeout", text == NULL ? "30s" : text, &timeout));
    mr_conf *conf = NULL;
    PGconn *conn = NULL;
    CLI_TRY(cli_open(cli, &conf, &conn));
    int64_t began = cli_now_ms();
    mr_error *error = mr_consumer_wait(conn, conf, args->rest[NAME], position, timeout);
    if (error == NULL)
        error = say_reached(cli, args->rest[NAME], position, cli_now_ms() - began);
    PQfinish(conn);
    mr_conf_free(conf);
    return error;
}
