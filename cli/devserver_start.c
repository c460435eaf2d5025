/* Starting and stopping the embedded PostgreSQL. Everything that changes something happens under
 * one file lock, so that commands started at the same moment do not meet half-made things. */
#include "devserver.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READY_MS = 120000, STOP_MS = 60000, LOG_KEEP_BYTES = 16 * 1024 * 1024 };

static mr_error *lock_home(const dev_server *server, int *fd)
{
    char *path = cli_format("%s/lock", server->home);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    mr_error *error = NULL;
    if (*fd < 0)
        error = cli_io_error("cannot open %s (it may belong to another user; set MILLRACE_HOME to "
                             "a directory of your own)",
                             path);
    while (error == NULL && flock(*fd, LOCK_EX) != 0)
        if (errno != EINTR)
            error = cli_io_error("cannot lock %s", path);
    if (error != NULL && *fd >= 0)
        (void)close(*fd);
    free(path);
    return error;
}

/* An error with the end of a log file, which says more than an exit status. */
static mr_error *with_log(const char *what, const char *log)
{
    char *tail = cli_tail(log, 12);
    mr_error *error = mr_error_new(MR_E_IO, false, "%s; the end of %s:\n%s", what, log, tail);
    free(tail);
    return error;
}

/* Opened by us and handed to the server: its user need not be able to write the directory. */
static mr_error *open_log(const char *path, bool fresh, int *fd)
{
    struct stat info;
    if (stat(path, &info) == 0 && info.st_size > LOG_KEEP_BYTES) {
        char *old = cli_format("%s.1", path);
        (void)rename(path, old);
        free(old);
    }
    *fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0)
        return cli_io_error("cannot write %s", path);
    /* Root may be writing in another user's directory: only into a plain file with one name. */
    mr_error *error = NULL;
    if (fstat(*fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink != 1)
        error = mr_error_new(MR_E_IO, false, "%s is not a plain file; remove it", path);
    else if (fresh && ftruncate(*fd, 0) != 0)
        error = cli_io_error("cannot write %s", path);
    if (error != NULL) {
        (void)close(*fd);
        *fd = -1;
    }
    return error;
}

/* ---- initdb -------------------------------------------------------------------------------- */

static int add_settings(const void *directory)
{
    char *path = cli_format("%s/postgresql.conf", (const char *)directory);
    FILE *file = fopen(path, "ae");
    free(path);
    if (file == NULL)
        return 1;
    (void)fputs("\n# Millrace's embedded server\n"
                "listen_addresses = ''\n"
                "max_connections = 200\n"
                "max_prepared_transactions = 64\n"
                "log_line_prefix = '%m [%p] %a '\n"
                "log_timezone = 'UTC'\n",
                file);
    return fflush(file) == 0 && fsync(fileno(file)) == 0 && fclose(file) == 0 ? 0 : 1;
}

/* It holds the lock as well: when this program is killed meanwhile, the next one waits until the
 * orphan has ended before it clears the directory. */
static mr_error *run_initdb(const dev_server *server, const char *bin, const char *directory,
                            int lock)
{
    char *log = cli_format("%s/initdb.log", server->base), *program = cli_format("%s/initdb", bin);
    char *argv[] = {
        program, "-D",         (char *)directory,   "-U", "postgres", "-A", "trust", "-E",
        "UTF8",  "--locale=C", "--no-instructions", NULL};
    int output = -1, status = 0;
    pid_t pid = 0;
    mr_error *error = open_log(log, true, &output);
    if (error == NULL)
        error = dev_spawn(server, argv, output, lock, &pid);
    while (error == NULL && waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            error = cli_io_error("cannot wait for initdb");
    if (error == NULL && status != 0)
        error = with_log("initdb failed", log);
    if (output >= 0)
        (void)close(output);
    if (error == NULL)
        (void)unlink(log);
    free(log);
    free(program);
    return error;
}

/* In a directory of its own first: `pg` exists only once everything in it is complete. */
static mr_error *make_data(const dev_server *server, const char *bin, int lock)
{
    char *fresh = cli_format("%s/pg.new", server->base);
    mr_error *error = dev_remove_tree(server, fresh);
    if (error == NULL)
        error = dev_private_dir(server, fresh);
    if (error == NULL)
        error = run_initdb(server, bin, fresh, lock);
    if (error == NULL && dev_as_user(server, add_settings, fresh) != 0)
        error = mr_error_new(MR_E_IO, false, "cannot write %s/postgresql.conf", fresh);
    if (error == NULL && rename(fresh, server->data) != 0)
        error =
            cli_io_error("cannot rename %s to %s (is there something else?)", fresh, server->data);
    free(fresh);
    return error;
}

/* ---- Start --------------------------------------------------------------------------------- */

/* Where the server is when it is not in the home: people look in the home first. */
static mr_error *leave_note(const dev_server *server)
{
    if (strcmp(server->base, server->home) == 0)
        return NULL;
    char *path = cli_format("%s/pg.location", server->home);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    mr_error *error = NULL;
    if (fd < 0 || dprintf(fd, "%s\n", server->data) < 0)
        error = cli_io_error("cannot write %s", path);
    if (fd >= 0)
        (void)close(fd);
    free(path);
    return error;
}

static mr_error *make_places(const dev_server *server)
{
    if (strcmp(server->base, server->home) != 0)
        CLI_TRY(dev_private_dir(server, server->base));
    CLI_TRY(dev_private_dir(server, server->sockets));
    return leave_note(server);
}

/* After a crash: PostgreSQL clears its pid files itself, except when another process has that pid
 * now, which it cannot tell from a running server. We can, and have waited for the orphans. */
static void clear_stale(const dev_server *server)
{
    static const char *const names[] = {".s.PGSQL.5432.lock", ".s.PGSQL.5432"};
    char *path = cli_format("%s/postmaster.pid", server->data);
    (void)unlink(path);
    free(path);
    for (size_t i = 0; i < 2; i++) {
        path = cli_format("%s/%s", server->sockets, names[i]);
        (void)unlink(path);
        free(path);
    }
}

/* unix_socket_directories is a list: quoted, so that a comma or a space is part of the name. */
static char *quote_directory(const char *path)
{
    char *out = cli_alloc(strlen(path) * 2 + 3, 1), *p = out;
    *p++ = '"';
    for (; *path != '\0'; path++) {
        if (*path == '"')
            *p++ = '"';
        *p++ = *path;
    }
    *p = '"';
    return out;
}

static mr_error *launch(const dev_server *server, const char *bin, pid_t *pid)
{
    char *program = cli_format("%s/postgres", bin), *quoted = quote_directory(server->sockets);
    char *sockets = cli_format("unix_socket_directories=%s", quoted);
    char *argv[] = {program,
                    "-D",
                    server->data,
                    "-c",
                    "listen_addresses=",
                    "-c",
                    "port=5432",
                    "-c",
                    sockets,
                    "-c",
                    "unix_socket_permissions=0700",
                    NULL};
    int output = -1;
    mr_error *error = open_log(server->log, false, &output);
    if (error == NULL)
        error = dev_spawn(server, argv, output, -1, pid);
    if (output >= 0)
        (void)close(output);
    free(program);
    free(quoted);
    free(sockets);
    return error;
}

static bool answers(const dev_server *server)
{
    char *database = dev_uri(server, "postgres"),
         *uri = cli_format("%s&connect_timeout=5", database);
    bool ok = PQping(uri) == PQPING_OK;
    free(uri);
    free(database);
    return ok;
}

/* Running and complete: a start that was killed may have left the database out. */
static bool usable(const dev_server *server)
{
    dev_process process = dev_find(server);
    if (process.pid == 0 || process.foreign)
        return false;
    mr_error *error = dev_check_private(server, server->sockets);
    PGconn *conn = NULL;
    if (error == NULL)
        error = cli_connect_to(server->uri, "millrace dev", &conn);
    bool ok = error == NULL;
    mr_error_free(error);
    PQfinish(conn);
    return ok;
}

static mr_error *wait_ready(const dev_server *server, pid_t pid)
{
    for (int64_t begin = cli_now_ms(); cli_now_ms() - begin < READY_MS; cli_sleep_ms(20)) {
        if (answers(server))
            return NULL;
        pid_t ended = waitpid(pid, NULL, WNOHANG);
        if (ended == pid || (ended < 0 && !dev_is_ours(server, pid))) /* our child, or not */
            return with_log("the embedded PostgreSQL did not start", server->log);
    }
    (void)kill(pid, SIGINT);
    return with_log("the embedded PostgreSQL was not ready in two minutes", server->log);
}

/* The role and the database are what the URI promises. */
static mr_error *make_database(const dev_server *server)
{
    char *uri = dev_uri(server, "postgres");
    PGconn *conn = NULL;
    mr_error *error = cli_connect_to(uri, "millrace dev", &conn);
    int64_t there = 0;
    if (error == NULL)
        error = cli_query_int(
            conn, "SELECT count(*) FROM pg_catalog.pg_database WHERE datname = 'millrace'", &there);
    if (error == NULL && there == 0)
        error = cli_exec(conn, "CREATE DATABASE millrace");
    PQfinish(conn);
    free(uri);
    return error;
}

static mr_error *foreign_error(const dev_server *server, pid_t pid)
{
    return mr_error_new(MR_E_STATE, false,
                        "a PostgreSQL that millrace did not start (pid %d) uses %s; stop it, or "
                        "set MILLRACE_HOME to another directory",
                        (int)pid, server->data);
}

static mr_error *start_locked(const dev_server *server, int lock, bool verbose, bool *started)
{
    dev_process process = dev_find(server);
    if (process.foreign)
        return foreign_error(server, process.pid);
    CLI_TRY(make_places(server));
    if (process.pid != 0) {
        /* Running, but not answering yet: another start was cut short after its launch. */
        CLI_TRY(wait_ready(server, process.pid));
        return make_database(server);
    }
    char *version = dev_data_version(server), *bin = NULL;
    mr_error *error = dev_find_binaries(version, &bin);
    if (error == NULL && verbose)
        cli_say("PostgreSQL's programs are in %s", bin);
    if (error == NULL && version[0] == '\0')
        error = make_data(server, bin, lock);
    if (error == NULL)
        error = dev_check_private(server, server->data);
    if (error == NULL)
        error = dev_end_orphans(server);
    pid_t pid = 0;
    if (error == NULL) {
        clear_stale(server);
        error = launch(server, bin, &pid);
    }
    if (error == NULL)
        error = wait_ready(server, pid);
    if (error == NULL)
        error = make_database(server);
    *started = error == NULL;
    free(version);
    free(bin);
    return error;
}

mr_error *dev_start(dev_server *server, bool verbose, bool *started)
{
    *started = false;
    if (!server->exists) {
        /* Once the home is there its real path is known, and who can enter it. */
        CLI_TRY(dev_make_home(server));
        dev_server *again = NULL, old = *server;
        CLI_TRY(dev_open(&again));
        *server = *again;
        *again = old;
        dev_free(again);
    }
    if (usable(server))
        return NULL;
    int lock = -1;
    CLI_TRY(lock_home(server, &lock));
    mr_error *error = start_locked(server, lock, verbose, started);
    (void)close(lock);
    return error;
}

/* ---- Stop ---------------------------------------------------------------------------------- */

static mr_error *stop_locked(const dev_server *server, bool *stopped)
{
    dev_process process = dev_find(server);
    if (process.pid == 0)
        return NULL;
    if (process.foreign)
        return foreign_error(server, process.pid);
    if (kill(process.pid, SIGINT) != 0 && errno != ESRCH)
        return cli_io_error("cannot stop the server (pid %d)", (int)process.pid);
    for (int64_t begin = cli_now_ms(); cli_now_ms() - begin < STOP_MS; cli_sleep_ms(20)) {
        *stopped = !dev_is_ours(server, process.pid);
        if (!*stopped)
            continue;
        if (strncmp(server->sockets, server->base, strlen(server->base)) != 0)
            (void)rmdir(server->sockets); /* leaves nothing behind in /tmp */
        return NULL;
    }
    return with_log("the embedded PostgreSQL did not stop in a minute", server->log);
}

mr_error *dev_stop(dev_server *server, bool *stopped)
{
    *stopped = false;
    if (!server->exists)
        return NULL;
    int lock = -1;
    CLI_TRY(lock_home(server, &lock));
    mr_error *error = stop_locked(server, stopped);
    (void)close(lock);
    return error;
}
