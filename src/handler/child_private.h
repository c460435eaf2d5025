/* A child process's innards, shared by the two files that are it. */
#ifndef MR_HANDLER_CHILD_PRIVATE_H
#define MR_HANDLER_CHILD_PRIVATE_H

#include "handler/child.h"

#include <pthread.h>

struct mr_child {
    pid_t pid;        /* 0 = none was started */
    int in, out, err; /* our ends; -1 = closed */
    bool collected;   /* waited for: the pid may be somebody else's by now */
    bool strange;     /* somebody else waited for it */
    int code, status; /* as waitid gives them, once it has ended */
    mr_buf lines;     /* read from stdout */
    size_t unread;    /* bytes that were left in its stdin when that was found closed */
    size_t taken;     /* bytes of it that were given out */
    size_t searched;  /* bytes of it known to hold no further newline */

    pthread_mutex_t lock;           /* guards what follows */
    char words[MR_CHILD_WORDS + 1]; /* the line on stderr that grows */
    size_t word_count;
    bool silent;  /* stderr has ended */
    bool cutting; /* it is full: drop the rest of the line */
    char last[MR_CHILD_WORDS + 1];
    mr_child_say_fn say;
    void *user;
};

mr_child *mr__child_alloc(const mr_child_spec *spec);

#endif
