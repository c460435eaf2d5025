/* The one clock: monotonic, in microseconds, movable by tests. */
#ifndef MR_BASE_CLOCK_H
#define MR_BASE_CLOCK_H

#include <stdint.h>

/* A source of monotonic microseconds. The default reads CLOCK_MONOTONIC. */
typedef struct mr_clock {
    int64_t (*now)(const struct mr_clock *clock);
    int64_t manual; /* what a manual clock shows */
} mr_clock;

extern const mr_clock mr__clock_system;
/* A clock that shows `manual` and moves only when a test moves it. */
mr_clock mr__clock_manual(int64_t start);

static inline int64_t mr__clock_now(const mr_clock *clock)
{
    return clock->now(clock);
}

/* Wall-clock microseconds since 1970, for log lines only: decisions use the database's clock. */
int64_t mr__clock_wall(void);

#endif
