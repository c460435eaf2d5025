/* millrace dead-letters: what consumers gave up on; look, replay, drop. */
#include "consumers.h"
#include "dead_letters.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The first ones are filters, in the order of `fields`. */
enum {
    CONSUMER,
    POSITION,
    FROM,
    TO,
    TYPE,
    ID,
    EVENT_TYPE,
    STATE,
    ERROR,
    BEFORE,
    AFTER,
    FILTERS,
    ALL = FILTERS,
    REASON,
    TIMEOUT,
    ACTOR
};

static const char *const fields[FILTERS] = {"consumer",       "position",     "from",       "to",
                                            "aggregate_type", "aggregate_id", "event_type", "state",
                                            "error",          "before",       "after"};

static const cli_option options[] = {
    [CONSUMER] = {"consumer", "NAME", "of this consumer"},
    [POSITION] = {"position", "N", "at this position"},
    [FROM] = {"from", "N", "at this position or later"},
    [TO] = {"to", "N", "at this position or earlier"},
    [TYPE] = {"type", "TYPE", "of this aggregate type"},
    [ID] = {"id", "ID", "of this aggregate id"},
    [EVENT_TYPE] = {"event-type", "TYPE", "of this event type"},
    [STATE] = {"state", "poison|parked", "that failed, or that wait behind one of their stream"},
    [ERROR] = {"error", "TEXT", "whose error has this text in it, in any case"},
    [BEFORE] = {"before", "TIME", "given up before this time"},
    [AFTER] = {"after", "TIME", "given up after this time"},
    [ALL] = {"all", NULL, "replay, drop: all of them; needed when nothing else is said"},
    [REASON] = {"reason", "TEXT", "drop: why; goes into the audit"},
    [TIMEOUT] = {"timeout", "TIME", "replay: how long to wait for the workers (default 30s)"},
    [ACTOR] = {"actor", "NAME", "who; user@host unless given"},
    {NULL, NULL, NULL}};

/* One run of the command. */
typedef struct letters_job {
    cli_context *cli;
    const cli_args *args;
    mr_conf *conf;
    PGconn *conn;
    mr_letters *letters;
    char *actor;
} letters_job;

static mr_error *list(letters_job *job)
{
    PGresult *rows = NULL;
    CLI_TRY(mr_letters_list(job->conn, job->conf, job->letters, false, &rows));
    mr_error *error = cli_letters_print(job->cli, rows);
    PQclear(rows);
    return error;
}

static mr_error *show(letters_job *job)
{
    PGresult *rows = NULL;
    CLI_TRY(mr_letters_list(job->conn, job->conf, job->letters, true, &rows));
    mr_error *error = NULL;
    const char *position = job->args->value[POSITION];
    if (PQntuples(rows) == 0)
        error = mr_error_new(MR_E_STATE, false,
                             "there is no such dead letter at %s; see 'millrace dead-letters list'",
                             position);
    else if (PQntuples(rows) > 1)
        error = mr_error_new(MR_E_USAGE, false,
                             "%d consumers have a dead letter at %s, %s and %s among them; say "
                             "which with --consumer NAME",
                             PQntuples(rows), position, cli_cell(rows, 0, "consumer"),
                             cli_cell(rows, 1, "consumer"));
    else
        error = cli_letters_show(job->cli, rows);
    PQclear(rows);
    return error;
}

static mr_error *drop(letters_job *job)
{
    int64_t dropped = 0;
    CLI_TRY(mr_letters_drop(job->conn, job->conf, job->letters, job->args->value[ALL] != NULL,
                            job->actor, job->args->value[REASON], &dropped));
    if (job->cli->json)
        return cli_print_json(json_pack("{s:I}", "dropped", (json_int_t)dropped));
    (void)printf("dropped %" PRId64 " dead letter%s\n", dropped, dropped == 1 ? "" : "s");
    return NULL;
}

/* ---- Replay -------------------------------------------------------------------------------- */

/* Those of the letters `before` that are still there, as failures. A letter that failed again may
 * have another error, so the filter cannot find it. */
static mr_error *find_failures(letters_job *job, const PGresult *before, json_t *failures)
{
    json_t *ids = json_object();
    for (int row = 0; row < PQntuples(before); row++)
        (void)json_object_set_new(ids, cli_cell(before, row, "id"), json_true());
    PGresult *rows = NULL;
    mr_error *error = mr_letters_list(job->conn, job->conf, NULL, false, &rows);
    for (int row = 0; error == NULL && row < PQntuples(rows); row++)
        if (json_object_get(ids, cli_cell(rows, row, "id")) != NULL)
            (void)json_array_append_new(failures, cli_row_json(rows, row));
    PQclear(rows);
    json_decref(ids);
    return error;
}

static mr_error *tell_replay(const letters_job *job, int64_t replayed, int64_t failed,
                             const json_t *failures)
{
    if (job->cli->json)
        return cli_print_json(json_pack("{s:I, s:I, s:O}", "replayed", (json_int_t)replayed,
                                        "failed", (json_int_t)failed, "failures", failures));
    size_t i = 0;
    const json_t *letter = NULL;
    json_array_foreach(failures, i, letter)
    {
        const char *text = json_string_value(json_object_get(letter, "error"));
        char *line = cli_format("failed again: %s at %" JSON_INTEGER_FORMAT ": %s",
                                json_string_value(json_object_get(letter, "consumer")),
                                json_integer_value(json_object_get(letter, "position")),
                                text == NULL ? "" : text);
        cli_print_line("", line);
        free(line);
    }
    (void)printf("replayed %" PRId64 ", failed again %" PRId64 "\n", replayed, failed);
    return NULL;
}

static mr_error *replay(letters_job *job)
{
    int64_t timeout = 30000, replayed = 0, failed = 0;
    const char *given = job->args->value[TIMEOUT];
    if (given != NULL)
        CLI_TRY(cli_duration("timeout", given, &timeout));
    PGresult *before = NULL;
    CLI_TRY(mr_letters_list(job->conn, job->conf, job->letters, false, &before));
    json_t *failures = json_array();
    mr_error *error =
        mr_letters_replay(job->conn, job->conf, job->letters, job->args->value[ALL] != NULL,
                          job->actor, timeout, &replayed, &failed);
    if (error == NULL && failed > 0)
        error = find_failures(job, before, failures);
    if (error == NULL)
        error = tell_replay(job, replayed, failed, failures);
    if (error == NULL && failed > 0)
        error = mr_error_new(MR_E_HANDLER, false,
                             "%" PRId64 " of %" PRId64 " dead letters failed again", failed,
                             failed + replayed);
    json_decref(failures);
    PQclear(before);
    return error;
}

/* ---- Words --------------------------------------------------------------------------------- */

enum { LIST, SHOW, REPLAY, DROP };
static const char *const names[] = {"list", "show", "replay", "drop", NULL};

static mr_error *check_words(const cli_args *args, int which)
{
    static const struct {
        int option;
        unsigned commands; /* a bit each */
    } belongs[] = {{ALL, 1U << REPLAY | 1U << DROP},
                   {REASON, 1U << DROP},
                   {TIMEOUT, 1U << REPLAY},
                   {ACTOR, 1U << REPLAY | 1U << DROP}};
    for (size_t i = 0; i < sizeof(belongs) / sizeof(belongs[0]); i++)
        if (args->value[belongs[i].option] != NULL && (belongs[i].commands & 1U << which) == 0)
            return mr_error_new(MR_E_USAGE, false, "'millrace dead-letters %s' has no --%s",
                                names[which], options[belongs[i].option].name);
    bool any = args->value[ALL] != NULL;
    for (int i = 0; i < FILTERS; i++)
        any = any || args->value[i] != NULL;
    if (!any && (which == REPLAY || which == DROP))
        return mr_error_new(MR_E_USAGE, false,
                            "say which dead letters to %s, by --consumer and the like, or --all",
                            names[which]);
    if (which == SHOW && args->count + (args->value[POSITION] != NULL) != 2)
        return mr_error_new(MR_E_USAGE, false,
                            "usage: millrace dead-letters show POSITION [--consumer NAME]");
    return cli_at_most(args, which == SHOW ? 2 : 1);
}

static mr_error *make_filter(const cli_args *args, mr_letters *letters)
{
    for (int i = 0; i < FILTERS; i++)
        if (args->value[i] != NULL)
            CLI_TRY(mr_letters_filter(letters, fields[i], args->value[i]));
    return NULL;
}

/* A name that nobody has would match nothing, and look as if all were well. Letters of a consumer
 * that is no more are still there to be decided about. */
static mr_error *check_consumer(const letters_job *job, const char *name)
{
    mr_letters *own = mr_letters_new();
    PGresult *rows = NULL;
    mr_error *error = own == NULL ? mr_error_new(MR_E_NOMEM, false, "out of memory")
                                  : mr_letters_filter(own, "consumer", name);
    if (error == NULL)
        error = mr_letters_list(job->conn, job->conf, own, false, &rows);
    mr_letters_free(own);
    bool known = error == NULL && PQntuples(rows) > 0;
    PQclear(rows);
    if (error != NULL || known)
        return error;
    CLI_TRY(mr_list(job->conn, job->conf, "consumers", &rows));
    for (int row = 0; row < PQntuples(rows) && !known; row++)
        known = strcmp(cli_cell(rows, row, "base"), name) == 0 ||
                strcmp(cli_cell(rows, row, "consumer"), name) == 0;
    if (!known)
        error = cli_consumer_unknown(rows, name);
    PQclear(rows);
    return error;
}

static mr_error *run(cli_context *cli, const cli_args *given)
{
    static mr_error *(*const actions[])(letters_job *) = {list, show, replay, drop};
    int which = 0;
    CLI_TRY(cli_subcommand("dead-letters", given, names, &which));
    CLI_TRY(check_words(given, which));
    cli_args args = *given;
    if (which == SHOW && args.count == 2)
        args.value[POSITION] = args.rest[1];
    letters_job job = {.cli = cli, .args = &args, .letters = mr_letters_new()};
    if (job.letters == NULL)
        return mr_error_new(MR_E_NOMEM, false, "out of memory");
    mr_error *error = make_filter(&args, job.letters);
    if (error == NULL)
        error = cli_open(cli, &job.conf, &job.conn);
    if (error == NULL) {
        job.actor = cli_actor(args.value[ACTOR]);
        if (args.value[CONSUMER] != NULL)
            error = check_consumer(&job, args.value[CONSUMER]);
        if (error == NULL)
            error = actions[which](&job);
        free(job.actor);
        PQfinish(job.conn);
        mr_conf_free(job.conf);
    }
    mr_letters_free(job.letters);
    return error;
}

const cli_command cli_cmd_dead_letters = {
    .name = "dead-letters",
    .summary = "Events that consumers gave up on: look, replay, drop",
    .usage = "list | show POSITION | replay | drop, [FILTER ...]",
    .details =
        "  list     one line a letter, by position\n"
        "  show     everything about one, with the event's payload. With --json the payload is\n"
        "           `data` when it is JSON, `payload` when it is text, else `payload_base64`\n"
        "  replay   asks the workers to run the handler again, in the order of positions, each\n"
        "           once. Those that succeed go. Exits with 1 when some failed again\n"
        "  drop     removes them for good: their events will not be handled. Leaves a row in\n"
        "           consumer_audit each\n\n"
        "Filters narrow down together. A partitioned consumer's name means all its slots.",
    .options = options,
    .run = run,
};
