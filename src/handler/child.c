/* One child process that is spoken to in lines: pipes, stderr, and how it ends. */
#include "handler/child_private.h"

#include "base/text.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    CHUNK = 64 << 10, /* bytes of one read */
    KEEP = 1 << 20,   /* a buffer that grew beyond this is given back when it is empty */
    KILL_WAIT = 2000, /* ms until a killed child is believed to be stuck in the kernel */
    NAP = 2,          /* ms between looks at a child that should end */
};

mr_child *mr__child_alloc(const mr_child_spec *spec)
{
    mr_child *child = calloc(1, sizeof(*child));
    if (child == NULL)
        return NULL;
    child->in = child->out = child->err = -1;
    child->say = spec->say;
    child->user = spec->user;
    (void)pthread_mutex_init(&child->lock, NULL);
    return child;
}

static void close_end(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

void mr__child_free(mr_child *child)
{
    if (child == NULL)
        return;
    if (child->pid > 0)
        (void)mr__child_kill(child);
    close_end(&child->in);
    close_end(&child->out);
    close_end(&child->err);
    mr__buf_free(&child->lines);
    (void)pthread_mutex_destroy(&child->lock);
    free(child);
}

pid_t mr__child_pid(const mr_child *child)
{
    return child->pid;
}

int mr__child_stdout(const mr_child *child)
{
    return child->out;
}

int mr__child_stderr(mr_child *child)
{
    (void)pthread_mutex_lock(&child->lock);
    int fd = child->silent ? -1 : child->err;
    (void)pthread_mutex_unlock(&child->lock);
    return fd;
}

bool mr__child_deaf(const mr_child *child)
{
    return child->in < 0;
}

/* ---- Writing and reading ------------------------------------------------------------------- */

/* write() to a pipe nobody reads raises SIGPIPE, which ends a program by default. It is held back
 * in this thread alone, and taken away if it was ours. */
static ssize_t write_quietly(int fd, const char *bytes, size_t length)
{
    sigset_t pipe_set, before, pending;
    (void)sigemptyset(&pipe_set);
    (void)sigaddset(&pipe_set, SIGPIPE);
    (void)sigpending(&pending);
    bool had_one = sigismember(&pending, SIGPIPE) == 1;
    (void)pthread_sigmask(SIG_BLOCK, &pipe_set, &before);
    ssize_t n = write(fd, bytes, length);
    int problem = errno;
    if (n < 0 && problem == EPIPE && !had_one) {
        struct timespec now = {0};
        while (sigtimedwait(&pipe_set, NULL, &now) < 0 && errno == EINTR)
            ;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = problem;
    return n;
}

static size_t write_some(mr_child *child, const char *bytes, size_t length)
{
    size_t total = 0;
    while (total < length && child->in >= 0) {
        ssize_t n = write_quietly(child->in, bytes + total, length - total);
        if (n >= 0) {
            total += (size_t)n;
        } else if (errno == EAGAIN) {
            break;
        } else if (errno != EINTR) {
            child->unread = mr__child_unread(child);
            close_end(&child->in);
        }
    }
    return total;
}

/* Makes room: what was given out goes. */
static void pack(mr_buf *lines, size_t *taken, size_t *searched)
{
    if (*taken == 0)
        return;
    lines->length -= *taken;
    *searched -= *taken < *searched ? *taken : *searched;
    if (lines->length == 0 && lines->capacity > KEEP)
        mr__buf_free(lines);
    else if (lines->length > 0)
        memmove(lines->data, lines->data + *taken, lines->length);
    *taken = 0;
}

/* One read, so that a child that writes without end cannot keep us here. */
static mr_child_state read_some(mr_child *child)
{
    char chunk[CHUNK];
    if (child->out < 0)
        return MR_CHILD_ENDED;
    ssize_t n = read(child->out, chunk, sizeof(chunk));
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? MR_CHILD_OPEN : MR_CHILD_ENDED;
    if (n == 0)
        return MR_CHILD_ENDED;
    pack(&child->lines, &child->taken, &child->searched);
    mr__buf_add(&child->lines, chunk, (size_t)n);
    if (child->lines.failed)
        return MR_CHILD_TOO_LONG;
    bool whole = memchr(child->lines.data + child->searched, '\n',
                        child->lines.length - child->searched) != NULL;
    return whole || child->lines.length <= MR_CHILD_LINE ? MR_CHILD_OPEN : MR_CHILD_TOO_LONG;
}

mr_child_state mr__child_pump(mr_child *child, const char *bytes, size_t length, int wait_ms,
                              size_t *written)
{
    *written = 0;
    if (child->out < 0)
        return MR_CHILD_ENDED;
    struct pollfd fds[] = {{.fd = child->out, .events = POLLIN},
                           {.fd = length > 0 ? child->in : -1, .events = POLLOUT}};
    int ready = poll(fds, 2, wait_ms);
    if (ready <= 0)
        return MR_CHILD_OPEN;
    if (fds[1].revents != 0)
        *written = write_some(child, bytes, length);
    return fds[0].revents != 0 ? read_some(child) : MR_CHILD_OPEN;
}

size_t mr__child_unread(const mr_child *child)
{
    int count = 0;
    if (child->in < 0)
        return child->unread;
    return ioctl(child->in, FIONREAD, &count) != 0 || count < 0 ? 0 : (size_t)count;
}

bool mr__child_line(mr_child *child, const char **line, size_t *length)
{
    mr_buf *lines = &child->lines;
    size_t from = child->searched > child->taken ? child->searched : child->taken;
    if (lines->data == NULL || from >= lines->length)
        return false;
    char *newline = memchr(lines->data + from, '\n', lines->length - from);
    if (newline == NULL) {
        child->searched = lines->length;
        return false;
    }
    *newline = '\0';
    *line = lines->data + child->taken;
    *length = (size_t)(newline - *line);
    /* Programs of another system's habits end lines by two characters. */
    if (*length > 0 && newline[-1] == '\r')
        --*length;
    child->taken = child->searched = (size_t)(newline + 1 - lines->data);
    return true;
}

size_t mr__child_pending(const mr_child *child)
{
    return child->lines.length - child->taken;
}

/* ---- stderr -------------------------------------------------------------------------------- */

/* The line is complete: said, and kept as the last one. */
static void say(mr_child *child)
{
    child->words[child->word_count] = '\0';
    if (child->word_count > 0) {
        memcpy(child->last, child->words, child->word_count + 1);
        if (child->say != NULL)
            child->say(child->user, child, child->words);
    }
    child->word_count = 0;
    child->cutting = false;
}

/* The line is full. `next` goes where its end belongs, so that no character is halved. */
static void cut(mr_child *child, char next)
{
    child->words[child->word_count] = next;
    child->word_count = mr__text_cut(child->words, child->word_count);
    child->cutting = true;
}

static void hear(mr_child *child, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        char c = bytes[i];
        if (c == '\n')
            say(child);
        else if (child->cutting)
            continue;
        else if (child->word_count < MR_CHILD_WORDS)
            child->words[child->word_count++] = c == '\0' ? ' ' : c;
        else
            cut(child, c);
    }
}

bool mr__child_listen(mr_child *child)
{
    char chunk[4096];
    (void)pthread_mutex_lock(&child->lock);
    /* A bounded number of reads: others wait for whoever calls this. */
    for (int i = 0; i < 16 && !child->silent; i++) {
        ssize_t n = read(child->err, chunk, sizeof(chunk));
        if (n > 0) {
            hear(child, chunk, (size_t)n);
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        say(child);
        child->silent = true; /* not closed: another thread may be about to poll it */
    }
    bool open = !child->silent;
    (void)pthread_mutex_unlock(&child->lock);
    return open;
}

void mr__child_words(mr_child *child, mr_buf *out)
{
    (void)pthread_mutex_lock(&child->lock);
    child->words[child->word_count] = '\0';
    mr__buf_puts(out, child->word_count > 0 ? child->words : child->last);
    (void)pthread_mutex_unlock(&child->lock);
}

/* ---- The end ------------------------------------------------------------------------------- */

void mr__child_close(mr_child *child)
{
    close_end(&child->in);
}

void mr__child_signal(mr_child *child, int number)
{
    /* Until it is collected the number is its own, also when it is dead. */
    if (child->pid <= 0 || child->collected)
        return;
    if (kill(-child->pid, number) != 0)
        (void)kill(child->pid, number);
}

/* Looks at it, and with `collect` lets the kernel forget it. */
static bool look(mr_child *child, bool collect)
{
    if (child->collected || child->pid <= 0)
        return true;
    siginfo_t info = {0};
    int flags = WEXITED | WNOHANG | (collect ? 0 : WNOWAIT);
    if (waitid(P_PID, (id_t)child->pid, &info, flags) != 0) {
        if (errno != ECHILD)
            return false;
        child->strange = child->collected = true;
        return true;
    }
    if (info.si_pid == 0)
        return false;
    child->code = info.si_code;
    child->status = info.si_status;
    child->collected = collect;
    return true;
}

static bool wait_for_it(mr_child *child, bool collect, int wait_ms)
{
    for (int waited = 0; !look(child, collect); waited += NAP) {
        if (waited >= wait_ms)
            return false;
        struct timespec nap = {.tv_nsec = NAP * 1000000L};
        (void)nanosleep(&nap, NULL);
    }
    return true;
}

bool mr__child_await(mr_child *child, int wait_ms)
{
    return wait_for_it(child, false, wait_ms);
}

bool mr__child_kill(mr_child *child)
{
    /* Before it is collected: while it is a zombie its number names this group and no other. */
    mr__child_signal(child, SIGKILL);
    return wait_for_it(child, true, KILL_WAIT);
}

void mr__child_fate(const mr_child *child, mr_buf *out)
{
    if (child->strange)
        mr__buf_puts(out, "ended (something else in this process collected its status)");
    else if (child->code == CLD_EXITED)
        mr__buf_printf(out, "exited with status %d", child->status);
    else if (child->code == CLD_KILLED || child->code == CLD_DUMPED)
        mr__buf_printf(out, "was killed by signal %d (%s)", child->status,
                       strsignal(child->status));
    else
        mr__buf_puts(out, "closed its standard output");
}
