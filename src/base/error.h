/* Errors as values: how the rooms make, wrap and pass on mr_error. */
#ifndef MR_BASE_ERROR_H
#define MR_BASE_ERROR_H

#include "millrace/millrace.h"

#include <stdarg.h>

/* Not retryable. */
mr_error *mr__error(mr_code code, const char *format, ...) MR_PRINTF(2, 3) MR_MUST_CHECK;
/* With the server's SQLSTATE (may be NULL) and a retryable flag. */
mr_error *mr__error_db(mr_code code, const char *sqlstate, bool retryable, const char *format, ...)
    MR_PRINTF(4, 5) MR_MUST_CHECK;
mr_error *mr__error_nomem(void) MR_MUST_CHECK;
/* Puts "text: " before the message; takes `error` and returns it (NULL stays NULL). */
mr_error *mr__error_prefix(mr_error *error, const char *format, ...) MR_PRINTF(2, 3) MR_MUST_CHECK;
/* A copy that is the caller's own. */
mr_error *mr__error_copy(const mr_error *error) MR_MUST_CHECK;

/* Returns from the current function when an expression gives an error. */
#define MR_TRY(expression)                                                                         \
    do {                                                                                           \
        mr_error *mr_try_error_ = (expression);                                                    \
        if (mr_try_error_ != NULL)                                                                 \
            return mr_try_error_;                                                                  \
    } while (0)

/* For the cleanup attribute. */
void mr__error_cleanup(mr_error **error);
#define MR_AUTO_ERROR __attribute__((cleanup(mr__error_cleanup))) mr_error *

#endif
