/* Workers of the demo: child processes that run every consumer, so that any of them can take over
 * from another. The SQL handlers come from a YAML file, the C ones from here. */
#include "demo.h"
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

const demo_consumer demo_consumers[DEMO_CONSUMERS] = {
    {"ledger", "sql"}, {"totals", "sql_batch"}, {"audit", "C, an event"}, {"index", "C, a batch"}};

/* ---- In the child -------------------------------------------------------------------------- */

static mr_error *note_event(mr_tx *tx, const mr_event *event, void *user)
{
    char position[24];
    (void)snprintf(position, sizeof(position), "%lld", (long long)mr_event_position(event));
    const char *const values[] = {user, position};
    return mr_tx_exec(tx, "INSERT INTO effects (consumer, position) VALUES ($1, $2)", 2, values);
}

static mr_error *note_batch(mr_tx *tx, const mr_event *const *events, size_t count, void *user)
{
    size_t size = count * 21 + 3, used = 1;
    char *list = cli_alloc(size, 1);
    list[0] = '{';
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(list + used, size - used, "%s%lld", i == 0 ? "" : ",",
                                 (long long)mr_event_position(events[i]));
    list[used] = '}';
    const char *const values[] = {user, list};
    mr_error *error = mr_tx_exec(tx,
                                 "INSERT INTO effects (consumer, position) "
                                 "SELECT $1, unnest($2::bigint[])",
                                 2, values);
    free(list);
    return error;
}

static mr_error *run(cli_context *cli, const cli_args *args)
{
    if (args->count != 1)
        return mr_error_new(MR_E_USAGE, false, "usage: millrace demo-worker FILE");
    mr_conf *conf = NULL;
    CLI_TRY(cli_conf(cli, args->rest[0], &conf));
    mr_error *error = NULL;
    for (int i = 2; i < DEMO_CONSUMERS && error == NULL; i++) {
        mr_consumer *consumer = mr_consumer_new(demo_consumers[i].name);
        if (i == 2)
            mr_consumer_on_event(consumer, note_event, (void *)demo_consumers[i].name, NULL);
        else
            mr_consumer_on_batch(consumer, note_batch, (void *)demo_consumers[i].name, NULL);
        error = mr_conf_take_consumer(conf, consumer);
    }
    if (error != NULL) {
        mr_conf_free(conf);
        return error;
    }
    return worker_run(conf);
}

const cli_command cli_cmd_demo_worker = {
    .name = "demo-worker",
    .summary = NULL,
    .usage = "FILE",
    .details = "A worker of 'millrace demo', which starts it by itself.",
    .options = NULL,
    .run = run,
};

/* ---- In the demo --------------------------------------------------------------------------- */

static _Noreturn void become_worker(const char *program, const char *yaml, int output, pid_t parent)
{
    char *const argv[] = {(char *)program, "demo-worker", (char *)yaml, NULL};
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    /* A worker must not outlive a demo that was killed; nor get its Ctrl-C: the demo stops it. */
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || getppid() != parent || setpgid(0, 0) != 0 ||
        dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0)
        _exit(126);
    (void)execv(program, argv);
    _exit(127);
}

static mr_error *start_one(demo_workers *workers, int index, const char *directory,
                           const char *yaml)
{
    workers->log[index] = cli_format("%s/worker-%d.log", directory, index + 1);
    int output =
        open(workers->log[index], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0600);
    if (output < 0)
        return cli_io_error("cannot write %s", workers->log[index]);
    char *program = cli_program();
    (void)fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        become_worker(program, yaml, output, parent);
    mr_error *error = pid < 0 ? cli_io_error("cannot start a worker") : NULL;
    workers->pid[index] = pid > 0 ? pid : 0;
    (void)close(output);
    free(program);
    return error;
}

mr_error *demo_workers_start(demo_workers *workers, const char *directory, const char *yaml,
                             int count)
{
    *workers = (demo_workers){.count = count, .killed = -1};
    for (int i = 0; i < count; i++)
        CLI_TRY(start_one(workers, i, directory, yaml));
    return NULL;
}

static bool ended(demo_workers *workers, int index)
{
    if (workers->pid[index] == 0)
        return true;
    if (waitpid(workers->pid[index], NULL, WNOHANG) == 0)
        return false;
    workers->pid[index] = 0;
    return true;
}

mr_error *demo_workers_check(demo_workers *workers)
{
    for (int i = 0; i < workers->count; i++) {
        if (workers->pid[i] == 0 || !ended(workers, i))
            continue;
        char *tail = cli_tail(workers->log[i], 8);
        mr_error *error =
            mr_error_new(MR_E_CHECK, false, "worker %d ended by itself; its log:\n%s", i + 1, tail);
        free(tail);
        return error;
    }
    return NULL;
}

void demo_workers_kill(demo_workers *workers, int index)
{
    if (workers->pid[index] == 0)
        return;
    (void)kill(workers->pid[index], SIGKILL);
    (void)waitpid(workers->pid[index], NULL, 0);
    workers->pid[index] = 0;
    workers->killed = index;
}

void demo_workers_stop(demo_workers *workers)
{
    enum { PATIENCE_MS = 8000 };
    for (int i = 0; i < workers->count; i++)
        if (workers->pid[i] != 0)
            (void)kill(workers->pid[i], SIGTERM);
    for (int i = 0; i < workers->count; i++) {
        int64_t begin = cli_now_ms();
        while (!ended(workers, i)) {
            if (cli_now_ms() - begin > PATIENCE_MS)
                (void)kill(workers->pid[i], SIGKILL);
            cli_sleep_ms(10);
        }
        free(workers->log[i]);
        workers->log[i] = NULL;
    }
    workers->count = 0;
}
