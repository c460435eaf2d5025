/* What can be wrong with a child's side of a conversation, as errors. */
#include "handler/exec_fault.h"

#include "base/clock.h"
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    DEAF_GRACE = 1000000, /* microseconds for the last answers of a child that closed its stdin */
    FAREWELL = 1000,      /* ms for a child that closed its stdout to end by itself */
};

mr_error *mr__exec_complain(const mr_exec_due *due, mr_code code, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&text, format, args);
    va_end(args);
    if (length < 0)
        return mr__error_nomem();
    mr_error *error = mr_error_new(code, true, "%s (pid %d) %s", mr__pool_program(due->pool),
                                   (int)mr__child_pid(due->child), text);
    free(text);
    return error;
}

mr_error *mr__exec_bad_line(const mr_exec_due *due, mr_error *why, const char *line, size_t length)
{
    MR_AUTO_BUF quote = {0};
    mr__exec_line_quote(&quote, line, length);
    mr_error *error = mr__exec_complain(
        due, MR_E_HANDLER, "wrote a line that is no answer (%s) where that to %s was due: %s",
        mr_error_message(why), due->what, mr__buf_text(&quote));
    mr_error_free(why);
    return error;
}

mr_error *mr__exec_died(const mr_exec_due *due, mr_code code)
{
    (void)mr__child_await(due->child, FAREWELL);
    MR_AUTO_BUF fate = {0};
    mr__child_fate(due->child, &fate);
    (void)mr__child_listen(due->child); /* its last words; a pipe holds no more than this takes */
    MR_AUTO_BUF words = {0};
    mr__child_words(due->child, &words);
    return mr__exec_complain(due, code, "%s before it answered %s%s%s", mr__buf_text(&fate),
                             due->what, words.length > 0 ? "; it said last: " : "",
                             mr__buf_text(&words));
}

mr_error *mr__exec_too_long(const mr_exec_due *due)
{
    return mr__exec_complain(due, MR_E_HANDLER,
                             "wrote %zu bytes without a newline where the answer to %s was due",
                             mr__child_pending(due->child), due->what);
}

mr_error *mr__exec_deaf(const mr_exec_due *due, size_t unsent, int64_t *since)
{
    if (!mr__child_deaf(due->child) || unsent == 0)
        return NULL;
    /* It cannot hear the rest; what it heard it may still answer. */
    int64_t now = mr__clock_now(&mr__clock_system);
    if (*since == 0)
        *since = now;
    if (now - *since < DEAF_GRACE)
        return NULL;
    return mr__exec_complain(due, MR_E_HANDLER, "closed its standard input before it answered %s",
                             due->what);
}

mr_error *mr__exec_refusal(const mr_exec_answer *answer)
{
    const char *text = answer->text[0] == '\0' ? "the handler gave no reason" : answer->text;
    return mr_error_new(answer->fatal ? MR_E_FATAL : MR_E_HANDLER, answer->retry, "%s", text);
}
