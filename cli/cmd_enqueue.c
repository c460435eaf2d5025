/* millrace enqueue: jobs from JSON lines, in batches that are enqueued whole or not at all. */
#include "enqueue_line.h"
#include "line_batches.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE_MOST = 255 }; /* bytes of its name */
/* The fields' defaults first, in the order of enqueue_field_names. */
enum {
    KEY,
    PRIORITY,
    RUN_AT,
    IDEMPOTENCY_KEY,
    MAX_ATTEMPTS,
    TIMEOUT,
    METADATA,
    PAYLOAD,
    BATCH,
    NO_WAKE
};
_Static_assert((int)METADATA + 1 == (int)ENQUEUE_FIELDS, "every field has its option");

static const cli_option options[] = {
    [KEY] = {"key", "KEY", "key of jobs that name none: they run one after the other"},
    [PRIORITY] = {"priority", "N", "0 (first) to 9 (last) for jobs that say none (default 5)"},
    [RUN_AT] = {"run-at", "TIME", "not before then, for jobs that say nothing"},
    [IDEMPOTENCY_KEY] = {"idempotency-key", "KEY", "for an input of one job: enqueue it only once"},
    [MAX_ATTEMPTS] = {"max-attempts", "N", "instead of the queue's, for jobs that say none"},
    [TIMEOUT] = {"timeout", "TIME", "of an attempt, as in 30s, for jobs that say none"},
    [METADATA] = {"metadata", "JSON", "for jobs that have none"},
    [PAYLOAD] = {"payload", NULL, "each line is the payload itself, with nothing around it"},
    [BATCH] = {"batch", "N", "lines a transaction (default 1000)"},
    [NO_WAKE] = {"no-wake", NULL, "leave workers to find the jobs by their own polling"},
    {NULL, NULL, NULL}};

/* One run of the command. */
typedef struct enqueue_run {
    const cli_args *args;
    const char *queue;
    mr_conf *conf;
    PGconn *conn;
    mr_job_draft *draft;
    int64_t *line_of; /* by index in the draft */
    json_t *jobs;     /* what --json shows; NULL without */
    int64_t created, existing;
    bool once;  /* the one job that --idempotency-key is for was there */
    char *news; /* what to say about a queue that nobody knew; NULL when it was known */
    line_batches lines;
} enqueue_run;

static mr_error *add_job(enqueue_run *run, const enqueue_line *line)
{
    const char *const *defaults = run->args->value;
    if (line->field[IDEMPOTENCY_KEY] == NULL && defaults[IDEMPOTENCY_KEY] != NULL) {
        if (run->once)
            return mr_error_new(MR_E_USAGE, false,
                                "--idempotency-key is for one job; give each line its own "
                                "'idempotency_key'");
        run->once = true;
    }
    size_t index = mr_job_draft_count(run->draft);
    CLI_TRY(mr_job_draft_add(run->draft, line->payload));
    run->line_of[index] = run->lines.line;
    for (int i = 0; i < ENQUEUE_FIELDS; i++) {
        const char *value = line->field[i] != NULL ? line->field[i] : defaults[i];
        if (value != NULL)
            CLI_TRY(mr_job_draft_field(run->draft, enqueue_field_names[i], value));
    }
    return NULL;
}

static mr_error *take_line(void *user, const char *text, size_t length)
{
    enqueue_run *run = user;
    enqueue_line line;
    mr_error *error = enqueue_line_parse(text, length, run->args->value[PAYLOAD] != NULL, &line);
    if (error == NULL)
        error = add_job(run, &line);
    enqueue_line_free(&line);
    return error;
}

/* The library counts the jobs of a batch; people count lines. */
static mr_error *by_line(enqueue_run *run, mr_error *error)
{
    static const char before[] = "job ", behind[] = ": ";
    const char *message = mr_error_message(error);
    if (strncmp(message, before, strlen(before)) != 0)
        return error;
    char *end = NULL;
    unsigned long job = strtoul(message + strlen(before), &end, 10);
    if (strncmp(end, behind, strlen(behind)) != 0 || job == 0 ||
        job > mr_job_draft_count(run->draft))
        return error;
    run->lines.culprit = run->line_of[job - 1];
    mr_error *placed =
        mr_error_new(mr_error_code(error), mr_error_retryable(error), "%s", end + strlen(behind));
    mr_error_free(error);
    return placed;
}

/* A queue may be new, and a slip looks just like that: its jobs would wait for ever. Whoever may
 * not ask hears nothing, since enqueueing is what matters. */
static void look_whether_known(enqueue_run *run)
{
    bool exists = false;
    mr_error *error = mr_queue_exists(run->conn, run->conf, run->queue, "queued", &exists);
    if (mr_error_code(error) == MR_E_USAGE) {
        const char *nearest = strstr(mr_error_message(error), "; did you mean");
        run->news = cli_format("queue %s is new: no worker has had it, nor has it had a job%s",
                               run->queue, nearest == NULL ? "" : nearest);
    }
    mr_error_free(error);
}

static void tell_news(enqueue_run *run)
{
    char *plain = run->news == NULL ? NULL : cli_plain(run->news, false);
    if (plain != NULL && run->created > 0)
        cli_say("%s", plain);
    free(plain);
    free(run->news);
}

static mr_error *flush(void *user)
{
    enqueue_run *run = user;
    if (run->lines.batches == 0)
        look_whether_known(run);
    mr_error *error = mr_enqueue_many(run->conn, run->conf, run->queue, run->draft);
    run->lines.unsure = mr_error_code(error) == MR_E_CONNECT;
    if (error != NULL)
        return by_line(run, error);
    for (size_t i = 0; i < mr_job_draft_count(run->draft); i++) {
        bool created = mr_job_draft_created(run->draft, i);
        run->created += created;
        run->existing += !created;
        if (run->jobs != NULL)
            (void)json_array_append_new(
                run->jobs,
                json_pack("{s:I, s:I, s:b}", "line", (json_int_t)run->line_of[i], "id",
                          (json_int_t)mr_job_draft_id(run->draft, i), "created", (int)created));
    }
    mr_job_draft_clear(run->draft);
    return NULL;
}

/* A hint only: jobs that are enqueued are not to be reported as failed because of it. */
static void wake(const enqueue_run *run)
{
    if (run->created == 0 || run->args->value[NO_WAKE] != NULL)
        return;
    mr_error *error = mr_queue_wake(run->conn, run->conf, run->queue);
    if (error != NULL)
        cli_say("workers were not woken, they will find the jobs by themselves: %s",
                mr_error_message(error));
    mr_error_free(error);
}

static mr_error *enqueue_all(cli_context *cli, enqueue_run *run)
{
    CLI_TRY(cli_open(cli, &run->conf, &run->conn));
    run->draft = mr_job_draft_new();
    run->line_of = cli_alloc((size_t)run->lines.most, sizeof(*run->line_of));
    mr_error *error =
        line_batches_file(&run->lines, run->args->count > 1 ? run->args->rest[1] : NULL);
    wake(run);
    tell_news(run);
    free(run->line_of);
    mr_job_draft_free(run->draft);
    PQfinish(run->conn);
    mr_conf_free(run->conf);
    return error;
}

/* What a default says is checked before anything is read, by the one that checks it in a line. */
static mr_error *check_defaults(const cli_args *args)
{
    mr_job_draft *draft = mr_job_draft_new();
    mr_error *error = mr_job_draft_add(draft, NULL);
    for (int i = 0; error == NULL && i < ENQUEUE_FIELDS; i++)
        if (args->value[i] != NULL)
            error = mr_job_draft_field(draft, enqueue_field_names[i], args->value[i]);
    mr_job_draft_free(draft);
    if (error == NULL)
        return NULL;
    mr_error *told = mr_error_new(MR_E_USAGE, false, "an option: %s", mr_error_message(error));
    mr_error_free(error);
    return told;
}

static mr_error *set_up(enqueue_run *run)
{
    const cli_args *args = run->args;
    if (args->count == 0)
        return mr_error_new(MR_E_USAGE, false,
                            "which queue? millrace enqueue QUEUE; see 'millrace enqueue --help'");
    CLI_TRY(cli_at_most(args, 2));
    run->queue = args->rest[0];
    if (run->queue[0] == '\0' || strlen(run->queue) > QUEUE_MOST)
        return mr_error_new(MR_E_USAGE, false, "a queue's name has 1 to %d bytes", (int)QUEUE_MOST);
    if (args->value[BATCH] != NULL)
        CLI_TRY(cli_number("batch", args->value[BATCH], 1, 100000, &run->lines.most));
    return check_defaults(args);
}

/* Also after a failure: what was enqueued before it is there. */
static mr_error *print(const cli_context *cli, enqueue_run *run)
{
    if (cli->json)
        return cli_print_json(json_pack("{s:s, s:I, s:I, s:O}", "queue", run->queue, "enqueued",
                                        (json_int_t)run->created, "existing",
                                        (json_int_t)run->existing, "jobs", run->jobs));
    (void)printf("enqueued %" PRId64 " job%s in %" PRId64 " transaction%s", run->created,
                 run->created == 1 ? "" : "s", run->lines.batches,
                 run->lines.batches == 1 ? "" : "s");
    if (run->existing > 0)
        (void)printf("; %" PRId64 " had been enqueued before", run->existing);
    (void)printf("\n");
    return NULL;
}

static mr_error *run_command(cli_context *cli, const cli_args *args)
{
    enqueue_run run = {
        .args = args,
        .lines = {
            .take = take_line, .flush = flush, .things = "jobs", .past = "enqueued", .most = 1000}};
    run.lines.user = &run;
    CLI_TRY(set_up(&run));
    run.jobs = cli->json ? json_array() : NULL;
    mr_error *error = enqueue_all(cli, &run);
    if (error == NULL || (cli->json && run.lines.done > 0)) {
        mr_error *shown = print(cli, &run);
        if (error == NULL)
            error = shown;
        else
            mr_error_free(shown);
    }
    json_decref(run.jobs);
    return error;
}

const cli_command cli_cmd_enqueue = {
    .name = "enqueue",
    .summary = "Enqueue jobs: JSON lines on stdin, or from a file",
    .usage = "[OPTIONS] QUEUE [FILE]",
    .details =
        "Each line is an object, all of it optional:\n"
        "  payload           any JSON, what the handler gets (default {})\n"
        "  key               jobs of a key run one after the other, in this order\n"
        "  priority          0 (first) to 9 (last)\n"
        "  run_at            not before this time: \"2026-01-31T12:00:00Z\", \"tomorrow\"\n"
        "  idempotency_key   a second job of the same one is not enqueued\n"
        "  max_attempts, timeout (\"30s\", \"1 day\"), metadata (an object)\n"
        "With --payload each line is the payload itself.\n\n"
        "A batch is one transaction. A line that is refused names its number and nothing of its\n"
        "batch is enqueued; earlier batches stay. --json lists the ids, also of those.",
    .options = options,
    .run = run_command,
};
