/* How far a read of the log is safe: pure functions over positions. */
#ifndef MR_LOG_FRONTIER_H
#define MR_LOG_FRONTIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mr_frontier {
    int64_t to;   /* everything in (from, to] is decided: present in the rows, or never to come */
    size_t rows;  /* how many of the rows lie in it */
    bool blocked; /* rows follow that must wait because `gap` is undecided */
    int64_t gap;  /* the first undecided position when blocked */
} mr_frontier;

/* `positions` are the visible ones above `from`, ascending, read by a snapshot taken after
 * `horizon` was proven: every position up to it is decided. `more` says the read stopped at its
 * limit, so that rows beyond the last one are unknown. */
mr_frontier mr__frontier(int64_t from, int64_t horizon, const int64_t *positions, size_t count,
                         bool more);

/* The reference's safe harbor: where to advance to when the hole at `gap` is stale, given what is
 * visible beyond it; 0 when there is nowhere to go. */
int64_t mr__harbor(int64_t gap, const int64_t *positions, size_t count, size_t lag);

#endif
