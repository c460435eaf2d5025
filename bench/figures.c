/* Time and order statistics for the benchmark. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

double bench_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void bench_sleep(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    (void)nanosleep(&t, NULL);
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double bench_quantile(double *values, int count, double share)
{
    if (count == 0)
        return 0;
    qsort(values, (size_t)count, sizeof(*values), compare);
    int index = (int)(share * count);
    return values[index < count ? index : count - 1];
}

double bench_median(const double *values, int count)
{
    double sorted[BENCH_RUNS_MOST];
    if (count == 0 || count > BENCH_RUNS_MOST)
        return 0;
    memcpy(sorted, values, (size_t)count * sizeof(*values));
    qsort(sorted, (size_t)count, sizeof(*sorted), compare);
    return count % 2 == 1 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}
