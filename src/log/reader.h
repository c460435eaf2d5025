/* The one reader of a process: follows the tail of the log, decides holes, keeps decided windows
 * for all consumers, and reads older stretches for those far behind. Loop thread only. */
#ifndef MR_LOG_READER_H
#define MR_LOG_READER_H

#include "base/clock.h"
#include "log/window.h"
#include "pg/aconn.h"

/* In the order of the option's choices. */
typedef enum mr_gap_strategy {
    MR_GAP_SETTLED,
    MR_GAP_HARBOR,
    MR_GAP_TIMEOUT,
    MR_GAP_SNAPSHOT,
    MR_GAP_PUBLISHED,
    MR_GAP_SINGLE_WRITER,
} mr_gap_strategy;

typedef struct mr_gap_options {
    mr_gap_strategy strategy;
    int64_t stale_threshold; /* harbor */
    size_t harbor_lag;
    int64_t timeout, max_wait; /* timeout */
    bool skip;
} mr_gap_options;

/* Raised by the loop thread, read by any. */
typedef struct mr_reader_counts {
    _Atomic int64_t reads, rows, windows, settle_steps, holes;
} mr_reader_counts;

typedef struct mr_reader_params {
    uv_loop_t *loop;
    mr_logger *logger;
    const mr_clock *clock;
    mr_conn_params conn;
    const mr_log_shape *shape; /* borrowed */
    mr_gap_options gap;
    const char *published_sql; /* gives the published position; borrowed */
    mr_rows_want want;
    int read_size;
    size_t cache_size;
    _Atomic int64_t *open;    /* counts its connection; borrowed */
    mr_reader_counts *counts; /* borrowed */
    int64_t interval;         /* microseconds between two looks at the head; -1 = adaptive */
    int64_t idle;             /* microseconds between two looks when nothing comes, if adaptive */
    /* The connection is there: call mr__reader_follow() once the consumers' places are known. */
    void (*on_up)(void *user);
    /* Windows came, the horizon moved, or a wanted stretch was read. */
    void (*on_progress)(void *user);
    /* The strategy says this log cannot go on; the error is the callee's. */
    void (*on_stuck)(void *user, mr_error *error);
    void *user;
} mr_reader_params;

typedef struct mr_reader mr_reader;

mr_error *mr__reader_new(const mr_reader_params *params, mr_reader **out) MR_MUST_CHECK;
void mr__reader_start(mr_reader *reader); /* begins to connect */
void mr__reader_close(mr_reader *reader); /* memory goes with the loop's closing callbacks */

/* The reader's own connection, for flights that belong with its coming up. */
mr_aconn *mr__reader_conn(mr_reader *reader);
/* Follows the log from `tail` on, the place of the consumer furthest ahead. */
void mr__reader_follow(mr_reader *reader, int64_t tail);
/* A window that holds the position after `position`, borrowed; NULL when there is none yet. */
mr_window *mr__reader_find(mr_reader *reader, int64_t position);
/* Asks for the stretch after `position`, which lies below the tail; on_progress tells when to look.
 */
void mr__reader_want(mr_reader *reader, int64_t position);
/* Where consumers stand now: the lowest place still needed (-1: nobody needs anything, and the
 * reader rests), and whether somebody waits at the tail. */
void mr__reader_places(mr_reader *reader, int64_t lowest, bool waiting);
/* A consumer stands beyond the tail: follow from there. */
void mr__reader_raise(mr_reader *reader, int64_t position);
/* Looks at the head now. */
void mr__reader_wake(mr_reader *reader);

int64_t mr__reader_tail(const mr_reader *reader);
int64_t mr__reader_head(const mr_reader *reader); /* highest visible position seen */
bool mr__reader_ready(const mr_reader *reader);   /* has looked at the head since it came up */
/* The hole that holds the tail back, 0 when none. */
int64_t mr__reader_gap(const mr_reader *reader);
const char *mr__gap_strategy_name(mr_gap_strategy strategy);

#endif
