/* One event as read from the log: views into the result that holds it. */
#ifndef MR_LOG_EVENT_H
#define MR_LOG_EVENT_H

#include "millrace/millrace.h"

/* Strings point into the PGresult of the window or read that owns the event. */
struct mr_event {
    int64_t position;
    int64_t aggregate_version;
    int64_t created_at; /* microseconds since 1970 */
    const char *aggregate_type, *aggregate_id, *event_id, *event_type;
    const char *trace_id, *correlation_id, *causation_id, *metadata; /* NULL when SQL NULL */
    const char *payload;   /* NULL while it is only known by reference (too large to inline) */
    size_t payload_length; /* also known when `payload` is NULL */
    int event_version;
};

#endif
