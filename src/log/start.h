/* Where to start reading a log, from what a person wrote. Blocking, on the caller's connection. */
#ifndef MR_LOG_START_H
#define MR_LOG_START_H

#include "log/shape.h"

/* `from` is beginning, now, a position (the last one that counts as handled) or a time, which means
 * the position just before the first event at or after it. `*position` is 0 or more; a position is
 * not compared with the head. Text that is none of these is an error of code `code`. */
mr_error *mr__log_start(PGconn *conn, const mr_log_shape *shape, const char *from, mr_code code,
                        int64_t *position) MR_MUST_CHECK;

#endif
