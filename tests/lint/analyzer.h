/* Given to clang-tidy before each file, never compiled in: tells the analyzer, which does not
 * believe attributes, that the calls that make an error never return NULL. */
#if __has_include("base/error.h")
#include "base/error.h"

static inline mr_error *mr_lint_some(mr_error *error)
{
    if (error == NULL)
        __builtin_unreachable();
    return error;
}
#define mr__error(...) mr_lint_some(mr__error(__VA_ARGS__))
#define mr__error_db(...) mr_lint_some(mr__error_db(__VA_ARGS__))
#define mr__error_nomem(...) mr_lint_some(mr__error_nomem(__VA_ARGS__))
#define mr_error_new(...) mr_lint_some(mr_error_new(__VA_ARGS__))
#endif
