/* Structured log lines: an event name and key-value pairs, as logfmt or JSON, to a sink. */
#ifndef MR_BASE_LOG_H
#define MR_BASE_LOG_H

#include "millrace/millrace.h"

#include <pthread.h>

typedef struct mr_logger {
    mr_log_fn sink; /* NULL drops everything */
    void *user;
    mr_level level; /* the lowest that is written */
    bool json;
    pthread_mutex_t lock; /* the sink is called by one thread at a time */
} mr_logger;

void mr__logger_init(mr_logger *logger, mr_log_fn sink, void *user, mr_level level, bool json);
void mr__logger_destroy(mr_logger *logger);

/* One line: `event` says what happened in plain words. `pairs` is a format whose expansion is
 * "key=value" separated by MR_SEP; values may hold spaces and quotes. It is built so that a call
 * reads in one line:
 *   mr__log(log, MR_INFO, "batch failed", "consumer=%s" MR_SEP "error=%s", name, message);
 * Any thread. */
#define MR_SEP "\x1f"
void mr__log(mr_logger *logger, mr_level level, const char *event, const char *pairs, ...)
    MR_PRINTF(4, 5);
bool mr__log_level_parse(const char *text, mr_level *level);

#endif
