/* One child process that is spoken to in lines: start, write, read, what it says on stderr, end. It
 * knows nothing of what the lines mean.
 *
 * The child has a process group of its own, so that what it starts ends with it, and the kernel
 * kills it when the thread that started it ends (PR_SET_PDEATHSIG): start it on a thread that lives
 * as long as the child may. No signal handler is needed or installed, and SIGPIPE never reaches the
 * program. stdin and stdout are used by one thread at a time; mr__child_listen and mr__child_words
 * by any. */
#ifndef MR_HANDLER_CHILD_H
#define MR_HANDLER_CHILD_H

#include "base/buf.h"
#include "base/error.h"

#include <sys/types.h>

enum {
    MR_CHILD_LINE = 16 << 20, /* bytes of the longest line it may write */
    MR_CHILD_WORDS = 8192,    /* bytes kept of a line on stderr */
};

typedef struct mr_child mr_child;

/* A whole line of stderr, cut and without its newline. Any thread, one at a time for a child. */
typedef void (*mr_child_say_fn)(void *user, const mr_child *child, const char *line);

typedef struct mr_child_spec {
    char *const *argv;       /* program and arguments, NULL at the end */
    const char *const *vars; /* "NAME=value" added to the environment, NULL at the end */
    mr_child_say_fn say;
    void *user;
} mr_child_spec;

/* The file that a program's name stands for, by PATH when it has no slash; yours: free(). MR_E_IO
 * that names it when there is none that can be executed. */
mr_error *mr__child_find(const char *program, char **path) MR_MUST_CHECK;

/* Starts it, and returns once the program really runs. MR_E_IO, retryable, with the reason when it
 * cannot. */
mr_error *mr__child_start(const mr_child_spec *spec, mr_child **out) MR_MUST_CHECK;
/* Kills what is left of it. */
void mr__child_free(mr_child *child);

pid_t mr__child_pid(const mr_child *child);
/* For poll(): readable means that the next call finds something, the end included. */
int mr__child_stdout(const mr_child *child);
int mr__child_stderr(mr_child *child); /* -1 once the child has closed it */

/* OPEN: all is well. ENDED: its stdout is closed; whole lines may still be there to be taken.
 * TOO_LONG: more than MR_CHILD_LINE bytes without a newline. */
typedef enum mr_child_state { MR_CHILD_OPEN, MR_CHILD_ENDED, MR_CHILD_TOO_LONG } mr_child_state;

/* Writes what it takes of `bytes` and reads what it has written, waiting up to `wait_ms` until
 * either is possible. `*written` is how much was taken. Once its stdin is closed nothing is, see
 * mr__child_deaf. Never blocks longer, whatever the child does with its pipes. */
mr_child_state mr__child_pump(mr_child *child, const char *bytes, size_t length, int wait_ms,
                              size_t *written);
bool mr__child_deaf(const mr_child *child); /* it has closed its stdin */
/* Bytes that were written to it and that nobody has read; once it is found to have closed its
 * stdin, those that it left there. */
size_t mr__child_unread(const mr_child *child);
/* The next whole line, without its newline; valid until the next call for this child. False when
 * there is none yet. */
bool mr__child_line(mr_child *child, const char **line, size_t *length);
size_t mr__child_pending(const mr_child *child); /* bytes read and not taken */

/* Takes what is on stderr, without waiting, and says each line. False when it is closed. */
bool mr__child_listen(mr_child *child);
/* Appends its last line on stderr; nothing when there was none. */
void mr__child_words(mr_child *child, mr_buf *out);

/* Tells it that nothing more comes. */
void mr__child_close(mr_child *child);
/* To its whole group. */
void mr__child_signal(mr_child *child, int number);
/* Waits until it has ended by itself. Its group is left alone. */
bool mr__child_await(mr_child *child, int wait_ms);
/* Kills the group and collects the child. False when even that does not end it in time. */
bool mr__child_kill(mr_child *child);
/* Appends how it ended: "exited with status 3", "was killed by signal 11 (Segmentation fault)". */
void mr__child_fate(const mr_child *child, mr_buf *out);

#endif
