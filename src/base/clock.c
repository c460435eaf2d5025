/* The one clock: monotonic, in microseconds, movable by tests. */
#include "base/clock.h"

#include <time.h>

static int64_t read_clock(clockid_t id)
{
    struct timespec t = {0};
    (void)clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int64_t system_now(const mr_clock *clock)
{
    (void)clock;
    return read_clock(CLOCK_MONOTONIC);
}

static int64_t manual_now(const mr_clock *clock)
{
    return clock->manual;
}

const mr_clock mr__clock_system = {.now = system_now};

mr_clock mr__clock_manual(int64_t start)
{
    return (mr_clock){.now = manual_now, .manual = start};
}

int64_t mr__clock_wall(void)
{
    return read_clock(CLOCK_REALTIME);
}
