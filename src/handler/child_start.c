/* How a child process is started: everything between fork and exec, and what comes right before. */
#include "handler/child_private.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;

/* ---- Finding the program ------------------------------------------------------------------- */

/* 0 when the file can be executed, else the errno that says why not. */
static int executable(const char *path)
{
    struct stat about;
    if (stat(path, &about) != 0)
        return errno;
    if (S_ISDIR(about.st_mode))
        return EISDIR;
    return access(path, X_OK) == 0 ? 0 : errno;
}

static mr_error *take_path(mr_buf *path, char **out)
{
    *out = mr__buf_take(path);
    return *out == NULL ? mr__error_nomem() : NULL;
}

mr_error *mr__child_find(const char *program, char **path)
{
    MR_AUTO_BUF candidate = {0};
    if (strchr(program, '/') != NULL) {
        int problem = executable(program);
        if (problem != 0)
            return mr_error_new(MR_E_IO, true, "cannot execute '%s': %s", program,
                                strerror(problem));
        mr__buf_puts(&candidate, program);
        return take_path(&candidate, path);
    }
    const char *where = getenv("PATH");
    if (where == NULL || where[0] == '\0')
        where = "/usr/local/bin:/usr/bin:/bin";
    int found = ENOENT;
    for (const char *p = where; program[0] != '\0'; p++) {
        size_t length = strcspn(p, ":");
        mr__buf_clear(&candidate);
        mr__buf_add(&candidate, length == 0 ? "." : p, length == 0 ? 1 : length);
        mr__buf_printf(&candidate, "/%s", program);
        int problem = executable(mr__buf_text(&candidate));
        if (problem == 0)
            return take_path(&candidate, path);
        if (problem == EACCES)
            found = problem; /* says more than that it is in none of the other directories */
        p += length;
        if (*p == '\0')
            break;
    }
    return mr_error_new(MR_E_IO, true, "there is no program '%s' in PATH that can be executed%s",
                        program, found == EACCES ? " (one is there, without permission)" : "");
}

/* ---- Pipes --------------------------------------------------------------------------------- */

static void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

/* A program may run with its own stdin closed; 0, 1 and 2 must stay free for the child's ends. */
static int above_standard(int fd)
{
    if (fd > 2 || fd < 0)
        return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int kept = errno;
    (void)close(fd);
    errno = kept;
    return moved;
}

static bool make_pipe(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0) {
        ends[0] = ends[1] = -1;
        return false;
    }
    ends[0] = above_standard(ends[0]);
    ends[1] = above_standard(ends[1]);
    return ends[0] >= 0 && ends[1] >= 0;
}

/* in, out, err, and one that carries the errno of a failed exec; [0] is read from. */
enum { IN, OUT, ERR, STATUS, PIPES };

static bool make_pipes(int pipes[PIPES][2])
{
    for (int i = 0; i < PIPES; i++)
        pipes[i][0] = pipes[i][1] = -1;
    for (int i = 0; i < PIPES; i++)
        if (!make_pipe(pipes[i]))
            return false;
    return true;
}

static void close_pipes(int pipes[PIPES][2])
{
    for (int i = 0; i < PIPES; i++) {
        close_fd(&pipes[i][0]);
        close_fd(&pipes[i][1]);
    }
}

/* ---- Environment --------------------------------------------------------------------------- */

static bool same_name(const char *a, const char *b)
{
    size_t length = strcspn(a, "=");
    return strcspn(b, "=") == length && strncmp(a, b, length) == 0;
}

static bool overridden(const char *entry, const char *const *vars)
{
    for (size_t i = 0; vars != NULL && vars[i] != NULL; i++)
        if (same_name(entry, vars[i]))
            return true;
    return false;
}

/* This process's variables and the given ones; the strings are borrowed. */
static char **make_environment(const char *const *vars)
{
    size_t count = 0, added = 0;
    while (environ != NULL && environ[count] != NULL)
        count++;
    while (vars != NULL && vars[added] != NULL)
        added++;
    char **list = calloc(count + added + 1, sizeof(*list));
    if (list == NULL)
        return NULL;
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        if (!overridden(environ[i], vars))
            list[n++] = environ[i];
    for (size_t i = 0; i < added; i++)
        list[n++] = (char *)(uintptr_t)vars[i];
    return list;
}

/* ---- Fork ---------------------------------------------------------------------------------- */

/* In the child, where other threads' locks may be held for ever: async-signal-safe calls only. */
_Noreturn static void become(const char *path, char *const *argv, char *const *environment,
                             int pipes[PIPES][2], pid_t parent)
{
    struct sigaction standard = {.sa_handler = SIG_DFL};
    for (int number = 1; number < NSIG; number++)
        (void)sigaction(number, &standard, NULL); /* fails for those that cannot be set */
    int problem = 0;
    (void)setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        problem = errno;
    if (getppid() != parent)
        _exit(127); /* it died before it could be tied to us */
    if (problem == 0 &&
        (dup2(pipes[IN][0], 0) < 0 || dup2(pipes[OUT][1], 1) < 0 || dup2(pipes[ERR][1], 2) < 0))
        problem = errno;
#ifdef SYS_close_range
    /* Ours are all close-on-exec; the program that embeds us may have others. 4 marks them so. */
    (void)syscall(SYS_close_range, 3U, ~0U, 4U);
#endif
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (problem == 0) {
        (void)execve(path, argv, environment);
        problem = errno;
    }
    ssize_t told = write(pipes[STATUS][1], &problem, sizeof(problem));
    _exit(told < 0 ? 126 : 127);
}

/* All signals wait around the fork: a handler of the program's must not run in the child. */
static pid_t fork_quietly(const char *path, char *const *argv, char *const *environment,
                          int pipes[PIPES][2])
{
    sigset_t all, before;
    (void)sigfillset(&all);
    pid_t parent = getpid();
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = fork();
    if (pid == 0)
        become(path, argv, environment, pipes, parent);
    int kept = errno;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = kept;
    return pid;
}

/* The errno of a failed exec, 0 when the program runs: then the pipe closed without a word. */
static int exec_problem(int status)
{
    int problem = 0;
    ssize_t n;
    do
        n = read(status, &problem, sizeof(problem));
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof(problem) ? problem : 0;
}

static mr_error *cannot(const char *program, int problem)
{
    return mr_error_new(MR_E_IO, true, "cannot start '%s': %s%s", program, strerror(problem),
                        problem == ENOEXEC ? " (a script needs a first line like #!/bin/sh)" : "");
}

static mr_error *launch(mr_child *child, const mr_child_spec *spec, const char *path,
                        int pipes[PIPES][2])
{
    char **environment = make_environment(spec->vars);
    if (environment == NULL)
        return mr__error_nomem();
    pid_t pid = fork_quietly(path, spec->argv, environment, pipes);
    int problem = pid < 0 ? errno : 0;
    free(environment);
    if (problem != 0)
        return cannot(spec->argv[0], problem);
    close_fd(&pipes[STATUS][1]);
    problem = exec_problem(pipes[STATUS][0]);
    child->pid = pid;
    if (problem != 0) {
        (void)mr__child_kill(child);
        return cannot(spec->argv[0], problem);
    }
    child->in = pipes[IN][1];
    child->out = pipes[OUT][0];
    child->err = pipes[ERR][0];
    pipes[IN][1] = pipes[OUT][0] = pipes[ERR][0] = -1;
    int ours[] = {child->in, child->out, child->err};
    for (int i = 0; i < 3; i++)
        if (fcntl(ours[i], F_SETFL, O_NONBLOCK) != 0)
            return cannot(spec->argv[0], errno);
    return NULL;
}

mr_error *mr__child_start(const mr_child_spec *spec, mr_child **out)
{
    char *path = NULL;
    MR_TRY(mr__child_find(spec->argv[0], &path));
    mr_child *child = mr__child_alloc(spec);
    if (child == NULL) {
        free(path);
        return mr__error_nomem();
    }
    int pipes[PIPES][2];
    mr_error *error =
        make_pipes(pipes) ? launch(child, spec, path, pipes) : cannot(spec->argv[0], errno);
    close_pipes(pipes);
    free(path);
    if (error != NULL) {
        mr__child_free(child);
        return error;
    }
    *out = child;
    return NULL;
}
