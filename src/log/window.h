/* A window: an immutable, decided stretch of the log, shared by the consumers of a process; and the
 * bounded cache of them. */
#ifndef MR_LOG_WINDOW_H
#define MR_LOG_WINDOW_H

#include "log/rows.h"

#include <stdatomic.h>

/* A run of positions that will never exist. */
typedef struct mr_hole {
    int64_t first, last;
    int64_t seen;    /* clock microseconds when it was first seen */
    int64_t visible; /* the highest visible position when it was decided */
} mr_hole;

/* Covers (from, to]. Made by the loop thread; read by executors; the last reference frees it. */
typedef struct mr_window {
    atomic_int references;
    int64_t from, to;
    mr_event *events;
    size_t count;
    mr_hole *holes;
    size_t hole_count;
    size_t bytes;
    PGresult *result;
    int64_t server;         /* which server showed it (MR_SERVER_SQL); 0 = unknown */
    struct mr_window *next; /* in the cache */
    bool side;              /* read for a consumer far behind, not at the tail */
} mr_window;

/* Takes `result` (also on failure); its first `rows` rows are in the window. */
mr_error *mr__window_new(PGresult *result, bool light, int64_t from, int64_t to, size_t rows,
                         int64_t seen, int64_t visible, mr_window **out) MR_MUST_CHECK;
mr_window *mr__window_ref(mr_window *window);
void mr__window_unref(mr_window *window);
/* Index of the first event above `position`. */
size_t mr__window_seek(const mr_window *window, int64_t position);

/* Windows by age: tail windows form one unbroken chain up to the tail; side windows come and go.
 * Loop thread only. */
typedef struct mr_cache {
    mr_window *first, *last;
    size_t tail_bytes, side_bytes, limit; /* bytes; the limit holds for each kind by half */
} mr_cache;

void mr__cache_clear(mr_cache *cache);
/* Takes the reference. Side windows beyond their share push out the oldest of their kind. */
void mr__cache_add(mr_cache *cache, mr_window *window, bool side);
/* The window that holds the position after `position`, not referenced; NULL when none does. */
mr_window *mr__cache_find(const mr_cache *cache, int64_t position);
bool mr__cache_tail_full(const mr_cache *cache);
/* Drops what nobody below or at `position` needs any more. */
void mr__cache_release(mr_cache *cache, int64_t position);
/* Drops the oldest tail window to make room. */
void mr__cache_evict_tail(mr_cache *cache);

#endif
