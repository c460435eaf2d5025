/* millrace consumers pause|resume|reset|skip: does it and says what was done. */
#include "consumers.h"

#include <stdlib.h>
#include <string.h>

static const char *text_of(const json_t *detail, const char *key)
{
    const char *text = json_string_value(json_object_get(detail, key));
    return text == NULL ? "" : text;
}

static json_int_t number_of(const json_t *detail, const char *key)
{
    return json_integer_value(json_object_get(detail, key));
}

/* ", since … by …" of the pause that was there before. */
static char *was_paused(const json_t *detail)
{
    const json_t *was = json_object_get(detail, "was");
    const char *by = text_of(was, "by");
    return cli_format(", since %s%s%s", text_of(was, "at"), by[0] == '\0' ? "" : " by ", by);
}

static char *tell_pause(const json_t *detail)
{
    if (!json_is_true(json_object_get(detail, "already")))
        return cli_format("paused at %" JSON_INTEGER_FORMAT, number_of(detail, "position"));
    char *was = was_paused(detail);
    bool failure = strcmp(text_of(json_object_get(detail, "was"), "kind"), "failure") == 0;
    char *text = failure
                     ? cli_format("was paused after a failure%s; stays paused until resumed", was)
                     : cli_format("was paused already%s", was);
    free(was);
    return text;
}

static char *tell_resume(const json_t *detail)
{
    if (json_is_true(json_object_get(detail, "already")))
        return cli_strdup("was not paused");
    char *was = was_paused(detail);
    char *text = cli_format("goes on after %" JSON_INTEGER_FORMAT "; it was paused%s",
                            number_of(detail, "position"), was);
    free(was);
    return text;
}

static char *tell_reset(const json_t *detail)
{
    json_int_t from = number_of(detail, "from"), to = number_of(detail, "to");
    size_t letters = json_array_size(json_object_get(detail, "letters"));
    size_t skips = json_array_size(json_object_get(detail, "skips"));
    char *passed = to > from ? cli_format("; %" JSON_INTEGER_FORMAT " to %" JSON_INTEGER_FORMAT
                                          " are passed over without being handled",
                                          from + 1, to)
                             : cli_strdup("");
    char *gone = letters > 0 ? cli_format("; %zu dead letters removed", letters) : cli_strdup("");
    char *asked = skips > 0 ? cli_format("; %zu requests to skip removed", skips) : cli_strdup("");
    char *text = cli_format(
        "reset from %" JSON_INTEGER_FORMAT " to %" JSON_INTEGER_FORMAT "%s%s%s%s", from, to, passed,
        gone, asked, json_is_true(json_object_get(detail, "resumed")) ? "; goes on" : "");
    free(passed);
    free(gone);
    free(asked);
    return text;
}

static char *tell_skip(const json_t *detail)
{
    return cli_format("position %" JSON_INTEGER_FORMAT " will not be handled%s",
                      number_of(detail, "position"),
                      json_is_true(json_object_get(detail, "resumed")) ? "; goes on" : "");
}

static const struct {
    const char *action, *usage;
    int words; /* with the action itself */
    char *(*tell)(const json_t *detail);
} actions[] = {{"pause", "NAME", 2, tell_pause},
               {"resume", "NAME", 2, tell_resume},
               {"reset", "NAME --to WHERE", 2, tell_reset},
               {"skip", "NAME POSITION", 3, tell_skip}};

static void print_done(const PGresult *rows, size_t index)
{
    for (int row = 0; row < PQntuples(rows); row++) {
        json_t *detail = json_loads(cli_cell(rows, row, "detail"), 0, NULL);
        char *done = actions[index].tell(detail);
        char *line = cli_format("%s: %s", cli_cell(rows, row, "consumer"), done);
        cli_print_line("", line);
        free(line);
        free(done);
        json_decref(detail);
    }
}

static mr_error *check_words(const cli_args *args, size_t index)
{
    bool reset = strcmp(actions[index].action, "reset") == 0;
    if (args->count < actions[index].words || (reset && args->value[CONSUMERS_TO] == NULL))
        return mr_error_new(MR_E_USAGE, false, "usage: millrace consumers %s %s [--reason TEXT]",
                            actions[index].action, actions[index].usage);
    return cli_at_most(args, actions[index].words);
}

mr_error *cli_consumers_control(cli_context *cli, const cli_args *args)
{
    const char *action = args->rest[0];
    size_t index = 0;
    while (strcmp(actions[index].action, action) != 0)
        index++;
    CLI_TRY(check_words(args, index));
    const char *argument = actions[index].words == 3 ? args->rest[2] : args->value[CONSUMERS_TO];
    mr_conf *conf = NULL;
    PGconn *conn = NULL;
    CLI_TRY(cli_open(cli, &conf, &conn));
    char *actor = cli_actor(args->value[CONSUMERS_ACTOR]);
    PGresult *rows = NULL;
    mr_error *error = mr_consumer_control(conn, conf, args->rest[1], action, argument, actor,
                                          args->value[CONSUMERS_REASON], &rows);
    if (error == NULL && cli->json)
        error = cli_print_rows(cli, rows, "");
    else if (error == NULL)
        print_done(rows, index);
    PQclear(rows);
    free(actor);
    PQfinish(conn);
    mr_conf_free(conf);
    return error;
}
