/* A set of streams: those whose events wait behind a dead letter. */
#ifndef MR_CONSUMER_STREAMS_H
#define MR_CONSUMER_STREAMS_H

#include "base/error.h"

/* Zero = empty. */
typedef struct mr_streams {
    char **keys; /* "type", a zero byte, "id"; NULL = free place */
    size_t count, capacity;
} mr_streams;

mr_error *mr__streams_add(mr_streams *set, const char *type, const char *id) MR_MUST_CHECK;
bool mr__streams_has(const mr_streams *set, const char *type, const char *id);
void mr__streams_clear(mr_streams *set); /* and frees */

#endif
