/* How far a read of the log is safe: pure functions over positions. */
#include "log/frontier.h"

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

mr_frontier mr__frontier(int64_t from, int64_t horizon, const int64_t *positions, size_t count,
                         bool more)
{
    mr_frontier f = {.to = from};
    while (f.rows < count) {
        int64_t next = positions[f.rows];
        int64_t decided = larger(f.to, horizon);
        if (next > decided + 1) {
            f.blocked = true;
            f.gap = decided + 1;
            break;
        }
        f.to = next;
        f.rows++;
    }
    /* The read went past the horizon, or to the end of the log: holes up to it are decided too. */
    if (f.blocked || !more)
        f.to = larger(f.to, horizon);
    return f;
}

int64_t mr__harbor(int64_t gap, const int64_t *positions, size_t count, size_t lag)
{
    if (count == 0)
        return 0;
    size_t back = lag < count - 1 ? lag : count - 1;
    int64_t harbor = positions[count - 1 - back];
    int64_t run = positions[0];
    for (size_t i = 1; i < count && positions[i] == run + 1; i++)
        run = positions[i];
    int64_t target = harbor < run ? harbor : run;
    return target > gap ? target : 0;
}
