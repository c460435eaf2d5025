/* Processes of the embedded PostgreSQL: made as another user when we are root, recognised by
 * their working directory and never by a pid alone, since pids are used again. */
#include "devserver.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

bool dev_drop(const dev_server *server)
{
    if (!server->as_root)
        return true;
    int groups = server->user[0] != '\0' ? initgroups(server->user, server->gid)
                                         : setgroups(1, &server->gid);
    return groups == 0 && setgid(server->gid) == 0 && setuid(server->uid) == 0;
}

int dev_as_user(const dev_server *server, int (*body)(const void *argument), const void *argument)
{
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(dev_drop(server) ? body(argument) : 125);
    int status = 0;
    if (pid < 0)
        return -1;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* In the child: nothing of ours may leak into a server that outlives us. */
static _Noreturn void become(const dev_server *server, char *const argv[], int output, int keep)
{
    static const char *const drop[] = {"PGDATA", "PGHOST",    "PGPORT",     "PGUSER", "PGDATABASE",
                                       "PGTZ",   "PGSERVICE", "PGPASSWORD", "LC_ALL", "LANGUAGE"};
    for (size_t i = 0; i < sizeof(drop) / sizeof(drop[0]); i++)
        (void)unsetenv(drop[i]);
    (void)setenv("LC_ALL", "C", 1);
    (void)setsid();
    (void)umask(077);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0 ||
        chdir("/") != 0)
        _exit(126);
    if (keep >= 0 && (keep == 3 ? fcntl(3, F_SETFD, 0) : dup2(keep, 3)) < 0)
        _exit(126);
    (void)close_range(keep >= 0 ? 4 : 3, ~0U, 0);
    (void)signal(SIGPIPE, SIG_DFL);
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (!dev_drop(server)) {
        (void)dprintf(2, "cannot become user %s: %s\n", server->user, strerror(errno));
        _exit(126);
    }
    (void)execv(argv[0], argv);
    (void)dprintf(2, "cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(126);
}

mr_error *dev_spawn(const dev_server *server, char *const argv[], int output, int keep, pid_t *pid)
{
    (void)fflush(NULL);
    *pid = fork();
    if (*pid == 0)
        become(server, argv, output, keep);
    return *pid < 0 ? cli_io_error("cannot start %s", argv[0]) : NULL;
}

bool dev_is_ours(const dev_server *server, pid_t pid)
{
    char *link = cli_format("/proc/%d/cwd", (int)pid),
         *comm = cli_format("/proc/%d/comm", (int)pid);
    char name[32] = "";
    struct stat cwd, data;
    bool same = stat(link, &cwd) == 0 && stat(server->data, &data) == 0 &&
                cwd.st_dev == data.st_dev && cwd.st_ino == data.st_ino;
    FILE *file = same ? fopen(comm, "re") : NULL;
    if (file != NULL) {
        if (fgets(name, sizeof(name), file) == NULL)
            name[0] = '\0';
        (void)fclose(file);
    }
    free(link);
    free(comm);
    return same && strcmp(name, "postgres\n") == 0;
}

/* Sends `signal` (0 = none) to each process of ours; returns how many there are. */
static int each_of_ours(const dev_server *server, int signal)
{
    DIR *proc = opendir("/proc");
    int count = 0;
    for (struct dirent *entry; proc != NULL && (entry = readdir(proc)) != NULL;) {
        char *end = NULL;
        long pid = strtol(entry->d_name, &end, 10);
        if (pid <= 1 || *end != '\0' || !dev_is_ours(server, (pid_t)pid))
            continue;
        count++;
        if (signal != 0)
            (void)kill((pid_t)pid, signal);
    }
    if (proc != NULL)
        (void)closedir(proc);
    return count;
}

mr_error *dev_end_orphans(const dev_server *server)
{
    /* Idle ones notice by themselves that the postmaster is gone; a busy one has to be told. */
    enum { PATIENCE_MS = 1000, FORCE_MS = 6000, GIVE_UP_MS = 20000 };
    int64_t begin = cli_now_ms();
    bool told = false;
    for (;;) {
        int64_t waited = cli_now_ms() - begin;
        int signal = waited > FORCE_MS ? SIGKILL : waited > PATIENCE_MS && !told ? SIGQUIT : 0;
        told = told || signal == SIGQUIT;
        if (each_of_ours(server, signal) == 0)
            return NULL;
        if (waited > GIVE_UP_MS)
            return mr_error_new(MR_E_IO, false,
                                "processes of a former server still use %s and do not end",
                                server->data);
        cli_sleep_ms(20);
    }
}
