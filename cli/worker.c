/* A worker in this process, with signals and log lines connected. */
#include "worker.h"

#include <signal.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* For the signal handler, which gets no argument of ours. */
static mr_worker *volatile running;
static volatile sig_atomic_t signals;

static void on_signal(int number)
{
    (void)number;
    signals = signals + 1;
    if (signals > 2)
        _exit(CLI_FAILED);
    mr_worker *worker = running;
    if (worker != NULL)
        mr_worker_stop(worker);
}

/* One system call a line, so that lines of several processes do not mix. */
static void write_line(void *user, mr_level level, const char *line)
{
    (void)user;
    (void)level;
    struct iovec parts[] = {{.iov_base = (void *)line, .iov_len = strlen(line)},
                            {.iov_base = "\n", .iov_len = 1}};
    ssize_t written = writev(STDERR_FILENO, parts, 2);
    (void)written; /* a log that cannot be written stops no work */
}

static void handle_signals(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
}

static mr_error *make(mr_conf *conf, mr_worker **worker)
{
    mr_conf_on_log(conf, write_line, NULL);
    mr_error *error = mr_worker_new(conf, worker);
    if (error != NULL)
        mr_conf_free(conf);
    return error;
}

mr_error *worker_run(mr_conf *conf)
{
    mr_worker *worker = NULL;
    CLI_TRY(make(conf, &worker));
    running = worker;
    handle_signals(on_signal);
    mr_error *error = mr_worker_run(worker);
    handle_signals(SIG_DFL);
    running = NULL;
    mr_worker_free(worker);
    return error;
}

mr_error *worker_check(mr_conf *conf)
{
    mr_worker *worker = NULL;
    CLI_TRY(make(conf, &worker));
    mr_error *error = mr_worker_check(worker);
    mr_worker_free(worker);
    return error;
}
