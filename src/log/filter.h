/* Which events a consumer wants: by aggregate type and by event type. Pure. */
#ifndef MR_LOG_FILTER_H
#define MR_LOG_FILTER_H

#include "base/error.h"
#include "log/event.h"

typedef struct mr_filter {
    char **aggregate_types; /* none = all */
    size_t aggregate_type_count;
    char **event_types;
    size_t event_type_count;
} mr_filter;

/* From the one-string form of lists (base/list.h). */
mr_error *mr__filter_init(mr_filter *filter, const char *aggregate_types,
                          const char *event_types) MR_MUST_CHECK;
void mr__filter_free(mr_filter *filter);
bool mr__filter_matches(const mr_filter *filter, const mr_event *event);
/* A text[] literal of a list, for the same filter on the server; NULL when memory is short. */
char *mr__filter_array(char *const *items, size_t count);

#endif
