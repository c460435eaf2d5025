/* millrace demo: writers that commit out of order and roll back, consumers that must miss nothing,
 * a worker killed in the middle, and a count at the end that proves it. */
#include "demo.h"
#include "devserver.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SECONDS, WORKERS };
enum { FRAME_MS = 100, TICK_MS = 20, STUCK_MS = 20000, AFTERWARDS_MS = 1000 };

static const cli_option options[] = {
    [SECONDS] = {"seconds", "N", "how long the writers write (default 10)"},
    [WORKERS] = {"workers", "N", "worker processes (default 3); of several, one is killed"},
    {NULL, NULL, NULL}};

typedef struct demo {
    int64_t seconds, worker_count, begin, frame_at;
    bool json;
    char *directory, *uri, *yaml; /* directory: .millrace/demo */
    int lock;
    mr_conf *conf;
    PGconn *conn;
    demo_tally tally;
    demo_counts counts;
    demo_writers *writers;
    demo_workers workers;
    demo_fleet fleet;
    demo_accident accident;
    demo_view view;
} demo;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static void catch_interrupts(void)
{
    struct sigaction action = {.sa_handler = on_interrupt};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

/* ---- Set up -------------------------------------------------------------------------------- */

/* Two demos in one home would drop each other's database. */
static mr_error *lock_directory(demo *d)
{
    if (mkdir(d->directory, 0700) != 0 && errno != EEXIST)
        return cli_io_error("cannot create %s", d->directory);
    char *path = cli_format("%s/lock", d->directory);
    d->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    mr_error *error = d->lock < 0 ? cli_io_error("cannot open %s", path) : NULL;
    free(path);
    if (error == NULL && flock(d->lock, LOCK_EX | LOCK_NB) != 0)
        error = mr_error_new(MR_E_STATE, false, "another demo is running in %s", d->directory);
    return error;
}

static mr_error *start_server(const cli_context *cli, demo *d)
{
    dev_server *server = NULL;
    CLI_TRY(dev_open(&server));
    bool started = false;
    mr_error *error = dev_start(server, cli->verbose, &started);
    if (error == NULL) {
        cli_say("%s the embedded PostgreSQL in %s", started ? "started" : "using", server->home);
        d->directory = cli_format("%s/demo", server->home);
        d->uri = dev_uri(server, "millrace_demo");
        error = lock_directory(d);
    }
    PGconn *conn = NULL;
    if (error == NULL)
        error = cli_connect_to(server->uri, "millrace demo", &conn);
    if (error == NULL)
        error = cli_exec(conn, "DROP DATABASE IF EXISTS millrace_demo WITH (FORCE)");
    if (error == NULL)
        error = cli_exec(conn, "CREATE DATABASE millrace_demo");
    PQfinish(conn);
    dev_free(server);
    return error;
}

static mr_error *write_yaml(demo *d)
{
    d->yaml = cli_format("%s/worker.yaml", d->directory);
    FILE *file = fopen(d->yaml, "we");
    if (file == NULL)
        return cli_io_error("cannot write %s", d->yaml);
    (void)fprintf(file,
                  "database: '%s'\n"
                  "worker: { batch_size: 200 }\n"
                  "consumers:\n"
                  "  - name: %s\n"
                  "    sql: INSERT INTO effects (consumer, position) VALUES ('%s', "
                  ":global_position)\n"
                  "  - name: %s\n"
                  "    sql_batch: |\n"
                  "      INSERT INTO effects (consumer, position)\n"
                  "      SELECT '%s', global_position FROM batch ORDER BY global_position\n",
                  d->uri, demo_consumers[0].name, demo_consumers[0].name, demo_consumers[1].name,
                  demo_consumers[1].name);
    return fclose(file) == 0 ? NULL : cli_io_error("cannot write %s", d->yaml);
}

static mr_error *set_up(const cli_context *cli, demo *d)
{
    CLI_TRY(start_server(cli, d));
    CLI_TRY(write_yaml(d));
    d->conf = mr_conf_new();
    if (d->conf == NULL)
        return mr_error_new(MR_E_NOMEM, false, "out of memory");
    CLI_TRY(cli_connect_to(d->uri, "millrace demo", &d->conn));
    return demo_prepare(d->conn, d->conf);
}

/* ---- Run ----------------------------------------------------------------------------------- */

/* Counting costs more than a look at the fleet: it is done once a frame. */
static mr_error *show(demo *d, const char *phase)
{
    if (cli_now_ms() - d->frame_at < FRAME_MS)
        return NULL;
    d->frame_at = cli_now_ms();
    CLI_TRY(demo_count(d->conn, &d->counts));
    demo_scene scene = {.phase = phase,
                        .tally = &d->tally,
                        .counts = &d->counts,
                        .workers = &d->workers,
                        .fleet = &d->fleet};
    demo_view_show(&d->view, &scene);
    return NULL;
}

static mr_error *tick(demo *d, const char *phase)
{
    char *news = NULL;
    CLI_TRY(demo_workers_check(&d->workers));
    CLI_TRY(demo_fleet_read(d->conn, d->conf, &d->workers, &d->fleet));
    CLI_TRY(demo_accident_step(&d->accident, &d->workers, &d->fleet, &news));
    if (news != NULL)
        demo_view_note(&d->view, news);
    free(news);
    CLI_TRY(show(d, phase));
    if (interrupted)
        return mr_error_new(MR_E_CANCELLED, false, "demo interrupted");
    cli_sleep_ms(TICK_MS);
    return NULL;
}

/* The time is up, the accident is over, and the survivors had a moment to show what they do. */
static bool written_enough(const demo *d, int64_t end)
{
    const demo_accident *a = &d->accident;
    int64_t now = cli_now_ms();
    return now >= end && !demo_accident_pending(a) &&
           now >= a->killed_at + a->moved_ms + AFTERWARDS_MS;
}

static mr_error *write_for_a_while(demo *d)
{
    int64_t end = cli_now_ms() + d->seconds * 1000;
    mr_error *error = demo_writers_start(d->uri, &d->tally, &d->writers);
    while (error == NULL && !written_enough(d, end) && !demo_writers_failed(d->writers))
        error = tick(d, "writing");
    mr_error *written = demo_writers_stop(d->writers);
    d->writers = NULL;
    if (error == NULL)
        return written;
    mr_error_free(written);
    return error;
}

/* Until every consumer has everything, or none has moved for a long time. */
static mr_error *drain(demo *d)
{
    int64_t moved = cli_now_ms(), before = -1;
    for (;;) {
        CLI_TRY(tick(d, "draining"));
        int64_t sum = 0;
        for (int i = 0; i < DEMO_CONSUMERS; i++)
            sum += d->counts.handled[i];
        if (d->counts.least >= d->tally.committed || cli_now_ms() - moved > STUCK_MS)
            return NULL;
        if (sum != before)
            moved = cli_now_ms();
        before = sum;
    }
}

static json_t *accident_json(const demo_accident *a)
{
    if (a->killed_at == 0)
        return json_null();
    json_t *names = json_array();
    for (int i = 0; i < DEMO_CONSUMERS; i++)
        if (a->owned[i])
            (void)json_array_append_new(names, json_string(demo_consumers[i].name));
    return json_pack("{s:i, s:i, s:b, s:o, s:I}", "worker", a->victim + 1, "pid", (int)a->pid,
                     "leader", a->leader, "consumers", names, "moved_ms", (json_int_t)a->moved_ms);
}

static mr_error *print_result(const demo *d, bool good)
{
    const demo_counts *c = &d->counts;
    if (!d->json) {
        (void)printf(
            "demo: %" PRId64 " committed, %" PRId64 " handled by each of %d consumers, %" PRId64
            " rolled back, %" PRId64 " lost, %" PRId64 " doubled\n",
            c->committed, c->least, DEMO_CONSUMERS, d->tally.rolled_back, c->lost, c->doubled);
        (void)fflush(stdout);
        return NULL;
    }
    json_t *handled = json_object();
    for (int i = 0; i < DEMO_CONSUMERS; i++)
        (void)json_object_set_new(handled, demo_consumers[i].name, json_integer(c->handled[i]));
    return cli_print_json(
        json_pack("{s:b, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:i, s:I, s:I, s:o}", "ok", good,
                  "committed", (json_int_t)c->committed, "handled", handled, "rolled_back",
                  (json_int_t)d->tally.rolled_back, "lost", (json_int_t)c->lost, "doubled",
                  (json_int_t)c->doubled, "out_of_order", (json_int_t)c->disorder, "holes_settled",
                  (json_int_t)c->holes, "writers", DEMO_WRITERS, "workers",
                  (json_int_t)d->worker_count, "duration_ms", (json_int_t)(cli_now_ms() - d->begin),
                  "killed", accident_json(&d->accident)));
}

static mr_error *conclude(demo *d)
{
    CLI_TRY(demo_verify(d->conn, &d->counts));
    const demo_counts *c = &d->counts;
    int64_t wrote = d->tally.committed;
    bool good = c->committed == wrote && c->lost == 0 && c->doubled == 0 && c->disorder == 0;
    CLI_TRY(print_result(d, good));
    if (c->committed != wrote)
        return mr_error_new(MR_E_CHECK, false,
                            "the writers committed %" PRId64 " events, the log holds %" PRId64,
                            wrote, c->committed);
    if (c->lost != 0 || c->doubled != 0)
        return mr_error_new(MR_E_CHECK, false, "events were lost or handled twice");
    if (c->disorder != 0)
        return mr_error_new(MR_E_CHECK, false, "%" PRId64 " events were handled out of order",
                            c->disorder);
    return NULL;
}

static mr_error *play(demo *d)
{
    d->begin = cli_now_ms();
    mr_error *error = NULL;
    if (d->worker_count > 1)
        error = demo_accident_plan(d->conn, d->seconds * 1000 / 2, &d->accident);
    demo_view_start(&d->view, d->json);
    if (error == NULL)
        error = demo_workers_start(&d->workers, d->directory, d->yaml, (int)d->worker_count);
    if (error == NULL)
        error = write_for_a_while(d);
    if (error == NULL)
        error = drain(d);
    demo_workers_stop(&d->workers);
    demo_view_end(&d->view);
    return error != NULL ? error : conclude(d);
}

static mr_error *run(cli_context *cli, const cli_args *args)
{
    demo d = {.seconds = 10, .worker_count = 3, .lock = -1, .json = cli->json};
    CLI_TRY(cli_at_most(args, 0));
    if (cli->database != NULL)
        return mr_error_new(MR_E_USAGE, false,
                            "the demo runs on the embedded PostgreSQL; leave --database out");
    if (args->value[SECONDS] != NULL)
        CLI_TRY(cli_number("seconds", args->value[SECONDS], 1, 3600, &d.seconds));
    if (args->value[WORKERS] != NULL)
        CLI_TRY(cli_number("workers", args->value[WORKERS], 1, DEMO_MAX_WORKERS, &d.worker_count));
    catch_interrupts();
    mr_error *error = set_up(cli, &d);
    if (error == NULL)
        error = play(&d);
    PQfinish(d.conn);
    mr_conf_free(d.conf);
    if (d.lock >= 0)
        (void)close(d.lock);
    free(d.directory);
    free(d.uri);
    free(d.yaml);
    return error;
}

const cli_command cli_cmd_demo = {
    .name = "demo",
    .summary = "A guided tour on the embedded PostgreSQL, under a minute",
    .usage = "[--seconds N] [--workers N] [--json]",
    .details =
        "Concurrent writers commit out of order and roll some transactions back, while consumers\n"
        "of several handler kinds, shared by three worker processes, write one row an event. In\n"
        "the middle one worker is killed (kill -9), and the others take its consumers over. At\n"
        "the end the tables are compared: exit code 5 when anything was lost, doubled or out of\n"
        "order. What it did stays in the database millrace_demo until the next run.\n"
        "With --json it prints nothing but a JSON object at the end.",
    .options = options,
    .run = run,
};
