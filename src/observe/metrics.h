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
    X(DEAD_LETTERS, "dead_letters", "events given up and put into the dead letters")               \
    X(REPLAYED, "dead_letters_replayed", "dead letters handled after all")                         \
    X(JOBS_CLAIMED, "jobs_claimed", "jobs claimed, summed over the queues")                        \
    X(JOBS_COMPLETED, "jobs_completed", "jobs handled and completed")                              \
    X(JOBS_FAILED, "jobs_failed", "jobs whose handler failed, to be tried again or not")           \
    X(JOBS_LATE, "jobs_late", "outcomes that came too late and changed nothing")                   \
    X(JOBS_LOST, "jobs_lost", "running jobs that turned out to be another worker's")               \
    X(JOBS_RESET, "jobs_reset", "stalled jobs put back, or failed, by this worker")                \
    X(JOBS_IN_LINE, "jobs_in_line",                                                                \
      "jobs of the built-in table that could be claimed at the last housekeeping, up to 10000; 0 " \
      "where another worker does it")                                                              \
    X(JOBS_DEAD, "jobs_dead", "dead letters of the built-in table, likewise")                      \
    X(JOBS_OLDEST, "jobs_oldest_ms", "how long the first of those in line had waited, likewise")   \
    X(KEYS_SWEPT, "keys_swept", "keys whose next job came into line only by the sweep")            \
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
