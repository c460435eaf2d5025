/* The one table of counters of a worker. */
#include "observe/metrics.h"

#include <string.h>

static const struct {
    const char *name, *meaning;
} table[MR_METRIC_COUNT] = {
#define METRIC_ROW(symbol, name, meaning) {name, meaning},
    MR_METRICS(METRIC_ROW)
#undef METRIC_ROW
};

int mr__metric_find(const char *name)
{
    for (int i = 0; i < MR_METRIC_COUNT; i++)
        if (strcmp(table[i].name, name) == 0)
            return i;
    return -1;
}

size_t mr_metric_count(void)
{
    return MR_METRIC_COUNT;
}

const char *mr_metric_name(size_t index)
{
    return index < MR_METRIC_COUNT ? table[index].name : NULL;
}

const char *mr_metric_meaning(size_t index)
{
    return index < MR_METRIC_COUNT ? table[index].meaning : NULL;
}
