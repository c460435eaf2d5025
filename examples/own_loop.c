/* A worker inside a program that has a main loop of its own, here poll(2).
 *
 *   own_loop [URI]        else the environment's MILLRACE_DATABASE
 *
 * Each line on standard input becomes an event; a consumer in the same process copies it to the
 * table `notes`. One thread serves both descriptors; handlers run on the worker's own threads. At
 * the end of the input, or on SIGINT and SIGTERM, the worker finishes what it has begun and the
 * program ends. */
#include <millrace/millrace.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static mr_worker *volatile the_worker; /* for the signal handler */

/* The library installs no signal handlers; mr_worker_stop() may be called from one. */
static void on_signal(int number)
{
    (void)number;
    if (the_worker != NULL)
        mr_worker_stop(the_worker);
}

typedef struct app {
    PGconn *conn; /* the program's own connection; workers open theirs */
    mr_log *log;
    mr_worker *worker;
    char text[4096]; /* input that is not a whole line yet */
    size_t length;
    bool ended; /* no more input will come */
} app;

static mr_error *append_line(app *a, const char *line, size_t length)
{
    mr_draft *draft = mr_draft_new();
    mr_error *error = mr_draft_stream(draft, "Notebook", "main", MR_EXPECT_ANY);
    if (error == NULL)
        error = mr_draft_event(draft, "NoteTaken", line, length);
    if (error == NULL)
        error = mr_append(a->conn, a->log, draft);
    mr_draft_free(draft);
    if (error == NULL)
        mr_worker_wake(a->worker); /* no need to wait for its next look at the log */
    return error;
}

static mr_error *on_input(app *a)
{
    ssize_t got = read(STDIN_FILENO, a->text + a->length, sizeof(a->text) - a->length);
    if (got <= 0) { /* end of input: the turns that follow bring the worker to its end */
        a->ended = true;
        mr_worker_stop(a->worker);
        return NULL;
    }
    a->length += (size_t)got;
    char *begin = a->text, *end = NULL;
    mr_error *error = NULL;
    while (error == NULL && (end = memchr(begin, '\n', a->length)) != NULL) {
        error = append_line(a, begin, (size_t)(end - begin));
        a->length -= (size_t)(end + 1 - begin);
        begin = end + 1;
    }
    memmove(a->text, begin, a->length);
    if (error == NULL && a->length == sizeof(a->text))
        error = mr_error_new(MR_E_PARSE, false, "a line is too long");
    return error;
}

/* The loop: wait for any descriptor or the worker's timeout, then let each have its turn. */
static mr_error *loop(app *a)
{
    bool running = true;
    mr_error *error = NULL;
    while (running && error == NULL) {
        struct pollfd fds[] = {{.fd = mr_worker_fd(a->worker), .events = POLLIN},
                               {.fd = a->ended ? -1 : STDIN_FILENO, .events = POLLIN}};
        (void)poll(fds, 2, mr_worker_timeout(a->worker)); /* a signal may end it early: no matter */
        if ((fds[1].revents & (POLLIN | POLLHUP)) != 0)
            error = on_input(a);
        /* A turn never waits. One too many does no harm. */
        if (error == NULL)
            error = mr_worker_turn(a->worker, &running);
    }
    return error;
}

static mr_error *open_all(app *a, mr_conf *conf, const char *uri)
{
    mr_error *error = mr_connect(uri, "own_loop", &a->conn);
    if (error == NULL)
        error = mr_schema_apply(a->conn, conf, NULL);
    if (error == NULL)
        error = mr_log_open(a->conn, conf, &a->log);
    if (error != NULL)
        return error;
    PQclear(PQexec(a->conn, "CREATE TABLE IF NOT EXISTS notes (position bigint, note text)"));
    mr_consumer *consumer = mr_consumer_new("notes_v1");
    error = mr_consumer_set(consumer, "sql",
                            "INSERT INTO notes VALUES (:global_position,"
                            " convert_from(:payload, 'UTF8'))");
    if (error != NULL) {
        mr_consumer_free(consumer);
        return error;
    }
    error = mr_conf_take_consumer(conf, consumer);
    return error != NULL ? error : mr_conf_set(conf, "database", uri);
}

static mr_error *run(const char *uri)
{
    app a = {0};
    mr_conf *conf = mr_conf_new();
    mr_error *error = open_all(&a, conf, uri);
    if (error == NULL)
        error = mr_worker_new(conf, &a.worker);
    if (a.worker == NULL)
        mr_conf_free(conf);
    if (error == NULL)
        error = mr_worker_start(a.worker); /* checks everything; the worker runs from here on */
    if (error == NULL) {
        the_worker = a.worker;
        struct sigaction action = {.sa_handler = on_signal};
        (void)sigaction(SIGINT, &action, NULL);
        (void)sigaction(SIGTERM, &action, NULL);
        error = loop(&a);
        the_worker = NULL;
    }
    mr_worker_free(a.worker); /* after an error of ours it still runs: this stops it */
    mr_log_free(a.log);
    PQfinish(a.conn);
    return error;
}

int main(int argc, char **argv)
{
    const char *uri = argc > 1 ? argv[1] : getenv("MILLRACE_DATABASE");
    mr_error *error =
        uri == NULL ? mr_error_new(MR_E_USAGE, false, "usage: own_loop URI") : run(uri);
    if (error != NULL)
        (void)fprintf(stderr, "own_loop: %s\n", mr_error_message(error));
    int status = error == NULL ? 0 : 1;
    mr_error_free(error);
    return status;
}
