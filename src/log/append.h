/* Appending a draft to the log on the caller's own connection. */
#ifndef MR_LOG_APPEND_H
#define MR_LOG_APPEND_H

#include "log/draft.h"
#include "log/shape.h"

/* Opens the log that `spec` describes; `schema` is where the append functions live. */
mr_error *mr__log_open(PGconn *conn, const mr_log_spec *spec, const char *schema,
                       mr_log **out) MR_MUST_CHECK;

/* The draft as the binary parameters of append_events(), in its order. Pure. */
enum { MR_APPEND_PARAMS = 15 };
typedef struct mr_append_params {
    mr_buf data[MR_APPEND_PARAMS];
    const char *values[MR_APPEND_PARAMS];
    int lengths[MR_APPEND_PARAMS], formats[MR_APPEND_PARAMS];
    Oid types[MR_APPEND_PARAMS];
} mr_append_params;

mr_error *mr__append_encode(const mr_log_shape *shape, mr_draft *draft,
                            mr_append_params *params) MR_MUST_CHECK;
void mr__append_params_free(mr_append_params *params);

#endif
