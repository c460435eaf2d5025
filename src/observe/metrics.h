/* The one table of counters of a worker. */
#ifndef MR_OBSERVE_METRICS_H
#define MR_OBSERVE_METRICS_H

#include "millrace/millrace.h"

#include <stdatomic.h>

/* X(symbol, name, meaning) */
#define MR_METRICS(X)                                                                              \
    X(BATCHES, "batches", "batches committed")                                                     \
    X(BATCHES_FAILED, "batches_failed", "batches rolled back, for whatever reason")                \
    X(EVENTS, "events_handled", "events handled and committed, summed over the consumers")         \
    X(FENCED, "batches_fenced",                                                                    \
      "batches refused because the checkpoint had moved or the owner changed")                     \
    X(ROUND_TRIPS, "batch_round_trips", "waits for the server in batches")                         \
    X(LOG_READS, "log_reads", "reads of the log")                                                  \
    X(LOG_ROWS, "log_rows_read", "rows those reads fetched")                                       \
    X(WINDOWS, "windows", "decided stretches of the log kept for the consumers")                   \
    X(SETTLE_STEPS, "settle_steps", "looks at who could still fill a hole")                        \
    X(HOLES, "holes_settled", "runs of missing positions decided")                                 \
    X(RECONNECTS, "reconnects", "times a connection of the loop came back")                        \
    X(CONNECTIONS, "connections", "connections open now")

typedef enum mr_metric {
#define MR_METRIC_ENUM(symbol, name, meaning) MR_METRIC_##symbol,
    MR_METRICS(MR_METRIC_ENUM)
#undef MR_METRIC_ENUM
        MR_METRIC_COUNT
} mr_metric;

/* Index by name, or -1. */
int mr__metric_find(const char *name);

#endif
