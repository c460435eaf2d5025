/* The lines of the exec protocol: an event or a job to a JSON line, a line to an answer.
 * docs/handlers.md is the protocol. Pure. */
#ifndef MR_HANDLER_EXEC_LINE_H
#define MR_HANDLER_EXEC_LINE_H

#include "base/buf.h"
#include "log/event.h"

/* Version 1 of the protocol, as children see it in MILLRACE_PROTOCOL. */
#define MR_EXEC_PROTOCOL "1"
enum {
    MR_EXEC_PARAMS = 65535,    /* most parameters of a statement: the server's own limit */
    MR_EXEC_ERROR_TEXT = 8192, /* bytes of an error's text that are kept */
    MR_EXEC_QUOTE = 120,       /* bytes of a bad line that are shown */
};

/* Appends the event's line, newline included. The event must have its payload. */
void mr__exec_line_event(mr_buf *out, const char *consumer, int attempt, const mr_event *event);

/* One value of a job; text NULL = SQL NULL, `json`: it is of type json or jsonb. */
typedef struct mr_exec_value {
    const char *name, *text;
    bool json;
} mr_exec_value;

/* Appends the job's line, newline included. */
void mr__exec_line_job(mr_buf *out, const char *queue, const char *id, const mr_exec_value *values,
                       size_t count);
/* Appends the request to give the job up. */
void mr__exec_line_cancel(mr_buf *out, const char *queue, const char *id, const char *reason);

typedef enum mr_exec_kind {
    MR_EXEC_OK,
    MR_EXEC_ERROR,
    MR_EXEC_LOG,
    MR_EXEC_SNOOZE, /* this and what follows: of jobs only */
    MR_EXEC_REQUEUE,
    MR_EXEC_PROGRESS
} mr_exec_kind;

typedef struct mr_exec_sql {
    char *text;
    char **params; /* NULL among them for SQL NULL */
    int count;
} mr_exec_sql;

typedef struct mr_exec_answer {
    mr_exec_kind kind;
    char *text;        /* of an error, a log line, progress (or NULL), else NULL */
    bool retry, fatal; /* of an error */
    mr_level level;    /* of a log line */
    bool placed;       /* it names the position it is for */
    int64_t position;
    mr_exec_sql *sql; /* of an ok, a snooze, a requeue */
    size_t sql_count;
    /* Of jobs only. */
    char *id;      /* the job it says that it is for; NULL = it does not say */
    int64_t delay; /* microseconds; of a snooze, a requeue */
    int percent;   /* of progress */
    char *entry;   /* of a log line: what goes into the execution log, JSON text; NULL = nothing */
} mr_exec_answer;

/* Reads a line (without its newline). MR_E_PARSE says what is wrong with it, without quoting it;
 * `*answer` is empty then. */
mr_error *mr__exec_line_answer(const char *line, size_t length,
                               mr_exec_answer *answer) MR_MUST_CHECK;
/* The same of a job's child. */
mr_error *mr__exec_line_job_answer(const char *line, size_t length,
                                   mr_exec_answer *answer) MR_MUST_CHECK;
void mr__exec_answer_free(mr_exec_answer *answer);
/* Appends the beginning of a line as it may stand in a message: printable, at most MR_EXEC_QUOTE
 * bytes of it. */
void mr__exec_line_quote(mr_buf *out, const char *line, size_t length);

#endif
