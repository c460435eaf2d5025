/* millrace dead-letters: what consumers and queues gave up on; look, replay, drop. */
#include "consumers.h"
#include "dead_letters.h"
#include "jobs.h"

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
    ONLY_EVENTS,
    ERROR = ONLY_EVENTS, /* of both kinds */
    BEFORE,
    AFTER,
    FILTERS,
    QUEUE = FILTERS, /* of jobs alone, from here */
    JOB,
    KEY,
    ALL_FILTERS,
    ALL = ALL_FILTERS,
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
    [QUEUE] = {"queue", "NAME", "jobs of this queue"},
    [JOB] = {"job", "ID", "this job"},
    [KEY] = {"key", "KEY", "jobs of this key"},
    [ALL] = {"all", NULL, "replay, drop: all of them; needed when nothing else is said"},
    [REASON] = {"reason", "TEXT", "drop: why; goes into the audit"},
    [TIMEOUT] = {"timeout", "TIME", "replay: how long to wait for the workers (default 30s)"},
    [ACTOR] = {"actor", "NAME", "who; user@host unless given"},
    {NULL, NULL, NULL}};

static mr_error *list(letters_run *job, const cli_args *args)
{
    (void)args;
    PGresult *events = NULL, *jobs = NULL;
    mr_error *error = NULL;
    if (job->events)
        error = mr_letters_list(job->conn, job->conf, job->letters, false, &events);
    if (error == NULL && job->jobs)
        error = cli_dead_jobs(job, &jobs);
    if (error == NULL)
        error = events != NULL && (jobs == NULL || PQntuples(jobs) == 0)
                    ? cli_letters_print(job->cli, events)
                    : cli_dead_print(job, events, jobs);
    PQclear(events);
    PQclear(jobs);
    return error;
}

static mr_error *show(letters_run *job, const cli_args *args)
{
    const char *position = args->value[POSITION];
    if (job->jobs)
        return cli_dead_job_show(job, args->value[JOB]);
    PGresult *rows = NULL;
    CLI_TRY(mr_letters_list(job->conn, job->conf, job->letters, true, &rows));
    mr_error *error = NULL;
    if (PQntuples(rows) == 0)
        error = mr_error_new(MR_E_STATE, false,
                             "there is no such dead letter at %s: events go by their position, and "
                             "a job needs --queue NAME; see 'millrace dead-letters list'",
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

static mr_error *left_alone(const dead_told *told)
{
    char *id = json_dumps(json_object_get(json_array_get(told->rows, 0), "id"), JSON_ENCODE_ANY);
    mr_error *error = cli_jobs_left(told->left, told->left + told->done, id);
    free(id);
    return error;
}

static mr_error *drop(letters_run *job, const cli_args *args)
{
    (void)args;
    int64_t dropped = 0;
    dead_told told = {.rows = json_array()};
    mr_error *error = NULL;
    if (job->events)
        error = mr_letters_drop(job->conn, job->conf, job->letters, job->all, job->actor,
                                job->reason, &dropped);
    if (error == NULL && job->jobs)
        error = cli_dead_jobs_change(job, "drop", &told);
    dropped += told.done;
    bool some = json_array_size(told.rows) > 0;
    if (error == NULL && job->cli->json) {
        json_t *said = json_pack("{s:I}", "dropped", (json_int_t)dropped);
        if (some)
            (void)json_object_set(said, "jobs", told.rows);
        error = cli_print_json(said);
    } else if (error == NULL) {
        cli_dead_jobs_told(&told, "dropped");
        (void)printf("dropped %" PRId64 " dead letter%s\n", dropped, dropped == 1 ? "" : "s");
    }
    json_decref(told.rows);
    return error != NULL ? error : left_alone(&told);
}

/* ---- Replay -------------------------------------------------------------------------------- */

/* Those of the letters `before` that are still there, as failures. A letter that failed again may
 * have another error, so the filter cannot find it. */
static mr_error *find_failures(letters_run *job, const PGresult *before, json_t *failures)
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

/* What came of a replay. */
typedef struct replayed {
    int64_t replayed, failed;
    json_t *failures; /* letters of events that failed again */
    dead_told told;   /* jobs, which only come back into line */
} replayed;

static mr_error *tell_replay(const letters_run *job, const replayed *r)
{
    bool some = json_array_size(r->told.rows) > 0;
    if (job->cli->json) {
        json_t *said = json_pack("{s:I, s:I, s:O}", "replayed", (json_int_t)r->replayed, "failed",
                                 (json_int_t)r->failed, "failures", r->failures);
        if (some)
            (void)json_object_set(said, "jobs", r->told.rows);
        return cli_print_json(said);
    }
    size_t i = 0;
    const json_t *letter = NULL;
    json_array_foreach(r->failures, i, letter)
    {
        const char *text = json_string_value(json_object_get(letter, "error"));
        char *line = cli_format("failed again: %s at %" JSON_INTEGER_FORMAT ": %s",
                                json_string_value(json_object_get(letter, "consumer")),
                                json_integer_value(json_object_get(letter, "position")),
                                text == NULL ? "" : text);
        cli_print_line("", line);
        free(line);
    }
    cli_dead_jobs_told(&r->told, "queued again");
    if (job->events)
        (void)printf("replayed %" PRId64 ", failed again %" PRId64 "\n", r->replayed, r->failed);
    if (job->jobs && (some || !job->events))
        (void)printf("queued %d job%s again\n", r->told.done, r->told.done == 1 ? "" : "s");
    return NULL;
}

static mr_error *replay_events(letters_run *job, const cli_args *args, replayed *r)
{
    int64_t timeout = 30000;
    const char *given = args->value[TIMEOUT];
    if (given != NULL)
        CLI_TRY(cli_duration("timeout", given, &timeout));
    PGresult *before = NULL;
    CLI_TRY(mr_letters_list(job->conn, job->conf, job->letters, false, &before));
    mr_error *error = mr_letters_replay(job->conn, job->conf, job->letters, job->all, job->actor,
                                        timeout, &r->replayed, &r->failed);
    if (error == NULL && r->failed > 0)
        error = find_failures(job, before, r->failures);
    PQclear(before);
    return error;
}

static mr_error *replay(letters_run *job, const cli_args *args)
{
    replayed r = {.failures = json_array(), .told = {.rows = json_array()}};
    /* Jobs first: that takes no time, and workers may be slow to answer. */
    mr_error *error = job->jobs ? cli_dead_jobs_change(job, "retry", &r.told) : NULL;
    if (error == NULL && job->events)
        error = replay_events(job, args, &r);
    if (error == NULL)
        error = tell_replay(job, &r);
    if (error == NULL && r.failed > 0)
        error = mr_error_new(MR_E_HANDLER, false,
                             "%" PRId64 " of %" PRId64 " dead letters failed again", r.failed,
                             r.failed + r.replayed);
    json_decref(r.failures);
    json_decref(r.told.rows);
    return error != NULL ? error : left_alone(&r.told);
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
    for (int i = 0; i < ALL_FILTERS; i++)
        any = any || args->value[i] != NULL;
    if (!any && (which == REPLAY || which == DROP))
        return mr_error_new(
            MR_E_USAGE, false,
            "say which dead letters to %s, by --consumer, --queue and the like, or --all",
            names[which]);
    if (which == SHOW &&
        args->count + (args->value[POSITION] != NULL) + (args->value[JOB] != NULL) != 2)
        return mr_error_new(MR_E_USAGE, false,
                            "usage: millrace dead-letters show POSITION [--consumer NAME] | show "
                            "ID --queue NAME");
    return cli_at_most(args, which == SHOW ? 2 : 1);
}

static mr_error *make_job_filter(const cli_args *args, mr_job_filter *filter)
{
    static const struct {
        int option;
        const char *field;
    } map[] = {{ERROR, "error"}, {BEFORE, "before"}, {AFTER, "after"}, {JOB, "id"}, {KEY, "key"}};
    CLI_TRY(mr_job_filter_add(filter, "state", "failed"));
    CLI_TRY(mr_job_filter_add(filter, "archived", "false"));
    for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++)
        if (args->value[map[i].option] != NULL)
            CLI_TRY(mr_job_filter_add(filter, map[i].field, args->value[map[i].option]));
    return NULL;
}

/* Which kinds are meant: what only one of them has says so. */
static mr_error *make_filter(const cli_args *args, int which, letters_run *job)
{
    int event = -1, own = -1;
    for (int i = 0; i < ALL_FILTERS; i++) {
        if (args->value[i] == NULL)
            continue;
        if (i < ONLY_EVENTS)
            event = i;
        else if (i >= QUEUE)
            own = i;
    }
    if (event >= 0 && own >= 0)
        return mr_error_new(MR_E_USAGE, false,
                            "--%s is of events and --%s of jobs; ask for them one after the other",
                            options[event].name, options[own].name);
    job->events = own < 0;
    job->jobs = event < 0;
    job->queue = args->value[QUEUE];
    for (int i = 0; job->events && i < FILTERS; i++)
        if (args->value[i] != NULL)
            CLI_TRY(mr_letters_filter(job->letters, fields[i], args->value[i]));
    if (which == SHOW && job->jobs && job->queue == NULL)
        return mr_error_new(MR_E_USAGE, false, "say of which queue with --queue NAME");
    return job->jobs ? make_job_filter(args, job->filter) : NULL;
}

/* A name that nobody has would match nothing, and look as if all were well. Letters of a consumer
 * that is no more are still there to be decided about. */
static mr_error *check_consumer(const letters_run *job, const char *name)
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

static mr_error *act(letters_run *job, const cli_args *args, int which)
{
    static mr_error *(*const actions[])(letters_run *, const cli_args *) = {list, show, replay,
                                                                            drop};
    CLI_TRY(make_filter(args, which, job));
    CLI_TRY(cli_open(job->cli, &job->conf, &job->conn));
    if (args->value[CONSUMER] != NULL)
        CLI_TRY(check_consumer(job, args->value[CONSUMER]));
    cli_dead_left_out(job);
    return actions[which](job, args);
}

static mr_error *run(cli_context *cli, const cli_args *given)
{
    int which = 0;
    CLI_TRY(cli_subcommand("dead-letters", given, names, &which));
    CLI_TRY(check_words(given, which));
    cli_args args = *given;
    if (which == SHOW && args.count == 2)
        args.value[args.value[QUEUE] != NULL ? JOB : POSITION] = args.rest[1];
    letters_run job = {.cli = cli,
                       .letters = mr_letters_new(),
                       .filter = mr_job_filter_new(),
                       .actor = cli_actor(args.value[ACTOR]),
                       .reason = args.value[REASON],
                       .all = args.value[ALL] != NULL};
    mr_error *error = job.letters == NULL || job.filter == NULL
                          ? mr_error_new(MR_E_NOMEM, false, "out of memory")
                          : act(&job, &args, which);
    free(job.actor);
    PQfinish(job.conn);
    mr_conf_free(job.conf);
    mr_letters_free(job.letters);
    mr_job_filter_free(job.filter);
    return error;
}

const cli_command cli_cmd_dead_letters = {
    .name = "dead-letters",
    .summary = "Events and jobs that were given up on: look, replay, drop",
    .usage = "list | show POSITION | show ID --queue NAME | replay | drop, [FILTER ...]",
    .details =
        "Of consumers, events; of queues, jobs that failed. What only one kind has, such as\n"
        "--consumer or --queue, says which is meant; else both are. Of queues those of the\n"
        "built-in table are meant; one on a table of its own needs --queue NAME --config FILE.\n\n"
        "  list     one line a letter, by position; jobs by id\n"
        "  show     everything about one, with its payload. With --json an event's payload is\n"
        "           `data` when it is JSON, `payload` when it is text, else `payload_base64`\n"
        "  replay   events: asks the workers to run the handler again, in the order of positions,\n"
        "           each once. Those that succeed go. Exits with 1 when some failed again.\n"
        "           jobs: they come back into line with all their attempts, behind the jobs of\n"
        "           their key; nobody waits for them\n"
        "  drop     removes them for good. Of events leaves a row in consumer_audit each; jobs go\n"
        "           to the archive as failed, with a row in queue_audit\n\n"
        "Filters narrow down together. A partitioned consumer's name means all its slots.",
    .options = options,
    .run = run,
};
