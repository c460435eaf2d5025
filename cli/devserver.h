/* The embedded PostgreSQL: a private server for one directory, reached by a socket only its owner
 * can open. One struct describes where it lives; the calls find, start and stop it. */
#ifndef MILLRACE_CLI_DEVSERVER_H
#define MILLRACE_CLI_DEVSERVER_H

#include "cli.h"

#include <sys/types.h>

/* Where things are:
 *   home    .millrace or $MILLRACE_HOME; holds the lock file
 *   base    the home, or a directory under /var/tmp when the server's user cannot get to the home
 *   data    base/pg, made by initdb; its presence means that initdb was completed
 *   sockets base/run, or a short directory under /tmp when that path is too long for a socket */
typedef struct dev_server {
    char *home, *base, *data, *sockets, *log, *uri;
    uid_t uid; /* whom the server runs as */
    gid_t gid;
    char *user;   /* name of that user, "" when it has none */
    bool as_root; /* this program runs as root, so the server needs another user */
    bool exists;  /* the home was there already */
} dev_server;

/* A server process as its pid file describes it; pid 0 when none runs. */
typedef struct dev_process {
    pid_t pid;
    bool foreign; /* uses our data directory, but with sockets elsewhere: not started by us */
} dev_process;

/* Works out the places; creates nothing. */
mr_error *dev_open(dev_server **out) MR_MUST_CHECK;
void dev_free(dev_server *server);
/* Starts it unless it runs, making the data directory first if need be. Safe to call from several
 * processes at once. `*started` says whether this call started it. */
mr_error *dev_start(dev_server *server, bool verbose, bool *started) MR_MUST_CHECK;
/* Fast shutdown: sessions are ended, nothing is lost. */
mr_error *dev_stop(dev_server *server, bool *stopped) MR_MUST_CHECK;
/* URI of a database (a plain name) on it; free(). */
char *dev_uri(const dev_server *server, const char *database);
dev_process dev_find(const dev_server *server);
/* Major version the data directory was made with, "" when there is none; free(). */
char *dev_data_version(const dev_server *server);

/* ---- Its parts, one file each -------------------------------------------------------------- */

/* devserver_bin.c: the directory with `postgres` and `initdb`, fitting `version` if possible. */
mr_error *dev_find_binaries(const char *version, char **directory) MR_MUST_CHECK;
/* Path of psql; free(). */
mr_error *dev_find_psql(char **path) MR_MUST_CHECK;

/* devserver_dirs.c: directories with an owner. */
mr_error *dev_make_home(dev_server *server) MR_MUST_CHECK;
/* Makes `path` for the server's user alone, or checks that it is that already. */
mr_error *dev_private_dir(const dev_server *server, const char *path) MR_MUST_CHECK;
mr_error *dev_check_private(const dev_server *server, const char *path) MR_MUST_CHECK;
/* Removes a tree that the server's user owns. */
mr_error *dev_remove_tree(const dev_server *server, const char *path) MR_MUST_CHECK;

/* devserver_proc.c: processes. */
/* Becomes the server's user; only in a child. */
bool dev_drop(const dev_server *server);
/* Runs `body` in a child as the server's user; its result (0 = fine) is returned, -1 when the
 * child could not be made or died. */
int dev_as_user(const dev_server *server, int (*body)(const void *argument), const void *argument);
/* Starts a program as the server's user, in its own session, writing to `output`; it inherits the
 * descriptor `keep` (-1 = none) and no other. */
mr_error *dev_spawn(const dev_server *server, char *const argv[], int output, int keep,
                    pid_t *pid) MR_MUST_CHECK;
/* True when `pid` is a PostgreSQL process whose working directory is our data directory. */
bool dev_is_ours(const dev_server *server, pid_t pid);
/* Ends backends that outlived a killed postmaster: a new one must not share their memory. */
mr_error *dev_end_orphans(const dev_server *server) MR_MUST_CHECK;

#endif
