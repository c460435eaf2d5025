/* millrace append: events from JSON lines, in batches that are written whole or not at all. */
#include "append_line.h"
#include "line_batches.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM_TYPE, STREAM_ID, EXPECTED, BATCH, NOTIFY, NOTIFY_MODE };

static const cli_option options[] = {
    [STREAM_TYPE] = {"stream-type", "TYPE", "aggregate type of lines that name none"},
    [STREAM_ID] = {"stream-id", "ID", "aggregate id of lines that name none"},
    [EXPECTED] = {"expected", "any|none|N", "expected version of lines that name none"},
    [BATCH] = {"batch", "N", "lines a transaction (default 1000)"},
    [NOTIFY] = {"notify", "CHANNEL", "tell listeners on this channel"},
    [NOTIFY_MODE] = {"notify-mode", "after|transaction",
                     "after each commit (default), or inside: that serialises commits"},
    {NULL, NULL, NULL}};

/* One run of the command. */
typedef struct append_job {
    const cli_args *args;
    PGconn *conn;
    mr_log *log;
    mr_draft *draft;
    json_t *versions;      /* "type\x1fid" -> version we brought it to, for --expected */
    int64_t *expectations; /* explicit ones by index in the draft */
    json_t *order;         /* the streams of the batch, by index in the draft */
    int64_t expected, last_position;
    bool notify_inside;
    line_batches lines;
} append_job;

static char *stream_key(const append_line *line)
{
    return cli_format("%s\x1f%s", line->aggregate_type, line->aggregate_id);
}

/* --expected says where a stream was before this command; later batches go on from where this
 * command left it. */
static int64_t default_expectation(const append_job *job, const append_line *line)
{
    if (job->expected == MR_EXPECT_ANY)
        return MR_EXPECT_ANY;
    char *key = stream_key(line);
    const json_t *version = json_object_get(job->versions, key);
    free(key);
    return version != NULL ? json_integer_value(version) : job->expected;
}

static mr_error *set_fields(mr_draft *draft, const append_line *line)
{
    const struct {
        const char *name, *value;
    } fields[] = {{"event_id", line->event_id},         {"event_version", line->event_version},
                  {"trace_id", line->trace_id},         {"correlation_id", line->correlation_id},
                  {"causation_id", line->causation_id}, {"metadata", line->metadata}};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (fields[i].value != NULL)
            CLI_TRY(mr_draft_field(draft, fields[i].name, fields[i].value));
    return NULL;
}

static mr_error *add_line(append_job *job, const append_line *line)
{
    size_t index = mr_draft_count(job->draft);
    bool given = line->expected != APPEND_EXPECT_UNSET;
    int64_t expected = given ? line->expected : default_expectation(job, line);
    CLI_TRY(mr_draft_stream(job->draft, line->aggregate_type, line->aggregate_id, expected));
    CLI_TRY(mr_draft_event(job->draft, line->event_type, line->payload, line->length));
    job->expectations[index] = given ? line->expected : MR_EXPECT_ANY;
    return set_fields(job->draft, line);
}

/* A draft checks the first expectation of a stream; lines further down may state theirs too. */
static mr_error *check_expectations(const append_job *job)
{
    for (size_t i = 0; i < mr_draft_count(job->draft); i++) {
        int64_t before = mr_draft_version(job->draft, i) - 1;
        if (job->expectations[i] != MR_EXPECT_ANY && job->expectations[i] != before)
            return mr_error_new(MR_E_CONFLICT, false,
                                "event %zu of the batch expects its stream at version %" PRId64
                                ", but it is at %" PRId64,
                                i + 1, job->expectations[i], before);
    }
    return NULL;
}

static mr_error *append_in_transaction(append_job *job)
{
    CLI_TRY(mr_append(job->conn, job->log, job->draft));
    CLI_TRY(check_expectations(job));
    int64_t last = 0;
    for (size_t i = 0; i < mr_draft_count(job->draft); i++)
        if (mr_draft_position(job->draft, i) > last)
            last = mr_draft_position(job->draft, i);
    if (job->notify_inside)
        CLI_TRY(mr_log_notify(job->conn, job->args->value[NOTIFY], last));
    mr_error *error = cli_exec(job->conn, "COMMIT");
    job->lines.unsure = mr_error_code(error) == MR_E_CONNECT;
    if (error == NULL)
        job->last_position = last;
    return error;
}

static void remember_versions(append_job *job)
{
    size_t index;
    json_t *key;
    json_array_foreach(job->order, index, key)
    {
        (void)json_object_set_new(job->versions, json_string_value(key),
                                  json_integer(mr_draft_version(job->draft, index)));
    }
    (void)json_array_clear(job->order);
}

static mr_error *flush(void *user)
{
    append_job *job = user;
    CLI_TRY(cli_exec(job->conn, "BEGIN"));
    mr_error *error = append_in_transaction(job);
    if (error != NULL) {
        PQclear(PQexec(job->conn, "ROLLBACK"));
        return error;
    }
    remember_versions(job);
    mr_draft_clear(job->draft);
    return NULL;
}

static mr_error *tell(void *user)
{
    append_job *job = user;
    return mr_log_notify(job->conn, job->args->value[NOTIFY], job->last_position);
}

static mr_error *take_line(void *user, const char *text, size_t length)
{
    append_job *job = user;
    append_line line;
    mr_error *error = append_line_parse(text, length, job->args->value[STREAM_TYPE],
                                        job->args->value[STREAM_ID], &line);
    if (error == NULL)
        error = add_line(job, &line);
    if (error == NULL && job->expected != MR_EXPECT_ANY) {
        char *key = stream_key(&line);
        (void)json_array_append_new(job->order, json_string(key));
        free(key);
    }
    append_line_free(&line);
    return error;
}

static mr_error *set_up(append_job *job)
{
    const cli_args *args = job->args;
    job->expected = MR_EXPECT_ANY;
    CLI_TRY(cli_at_most(args, 1));
    if (args->value[EXPECTED] != NULL && !append_expected(args->value[EXPECTED], &job->expected))
        return mr_error_new(MR_E_USAGE, false, "--expected: '%.80s' is not any, none or a version",
                            args->value[EXPECTED]);
    if (args->value[BATCH] != NULL)
        CLI_TRY(cli_number("batch", args->value[BATCH], 1, 100000, &job->lines.most));
    const char *mode = args->value[NOTIFY_MODE];
    if (mode != NULL && strcmp(mode, "after") != 0 && strcmp(mode, "transaction") != 0)
        return mr_error_new(MR_E_USAGE, false, "--notify-mode: '%.80s' is not after or transaction",
                            mode);
    if (mode != NULL && args->value[NOTIFY] == NULL)
        return mr_error_new(MR_E_USAGE, false, "--notify-mode needs --notify CHANNEL");
    job->notify_inside = mode != NULL && strcmp(mode, "transaction") == 0;
    if (args->value[NOTIFY] != NULL && !job->notify_inside)
        job->lines.after = tell;
    return NULL;
}

static mr_error *append_all(cli_context *cli, append_job *job)
{
    mr_conf *conf = NULL;
    CLI_TRY(cli_open(cli, &conf, &job->conn));
    mr_error *error = mr_log_open(job->conn, conf, &job->log);
    job->draft = mr_draft_new();
    job->versions = json_object();
    job->expectations = cli_alloc((size_t)job->lines.most, sizeof(*job->expectations));
    job->order = json_array();
    if (error == NULL)
        error = line_batches_file(&job->lines, job->args->rest[0]);
    json_decref(job->order);
    json_decref(job->versions);
    free(job->expectations);
    mr_draft_free(job->draft);
    mr_log_free(job->log);
    PQfinish(job->conn);
    mr_conf_free(conf);
    return error;
}

static mr_error *run(cli_context *cli, const cli_args *args)
{
    append_job job = {.args = args,
                      .lines = {.take = take_line,
                                .flush = flush,
                                .things = "events",
                                .past = "written",
                                .most = 1000}};
    job.lines.user = &job;
    CLI_TRY(set_up(&job));
    CLI_TRY(append_all(cli, &job));
    int64_t count = job.lines.done, batches = job.lines.batches;
    if (cli->json)
        return cli_print_json(json_pack("{s:I, s:I}", "appended", (json_int_t)count,
                                        "last_position", (json_int_t)job.last_position));
    if (count == 0) {
        (void)printf("appended 0 events\n");
        return NULL;
    }
    (void)printf("appended %" PRId64 " event%s in %" PRId64 " transaction%s, last position %" PRId64
                 "\n",
                 count, count == 1 ? "" : "s", batches, batches == 1 ? "" : "s", job.last_position);
    return NULL;
}

const cli_command cli_cmd_append = {
    .name = "append",
    .summary = "Append events: JSON lines on stdin, or from a file",
    .usage = "[OPTIONS] [FILE]",
    .details =
        "Each line is an object:\n"
        "  aggregate_type, aggregate_id   the stream (stream_type, stream_id mean the same)\n"
        "  event_type                     what happened\n"
        "  data | payload | payload_base64  any JSON | a string as it is | bytes in base64\n"
        "  expected_version               \"any\" (default), \"none\" or the stream's version\n"
        "  event_id, event_version, trace_id, correlation_id, causation_id, metadata  optional\n\n"
        "A batch is one transaction. A line that is refused names its number and nothing of its\n"
        "batch is written; earlier batches stay. A version conflict exits with 4.",
    .options = options,
    .run = run,
};
