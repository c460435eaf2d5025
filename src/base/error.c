/* Errors as values: one allocation each, freed by whoever holds it last. */
#include "base/error.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mr_error {
    mr_code code;
    bool retryable;
    bool is_static;
    char sqlstate[6];
    char message[];
};

/* Handed out when there is no memory for a real one, so that an error is never lost. The flexible
 * array of a static object needs its own storage, hence the twin type. */
static const struct {
    mr_code code;
    bool retryable;
    bool is_static;
    char sqlstate[6];
    char message[16];
} out_of_memory = {MR_E_NOMEM, true, true, "", "out of memory"};

static mr_error *error_static(void)
{
    return (mr_error *)(void *)&out_of_memory;
}

static mr_error *error_make(mr_code code, const char *sqlstate, bool retryable, const char *format,
                            va_list args) MR_PRINTF(4, 0);
static mr_error *error_make(mr_code code, const char *sqlstate, bool retryable, const char *format,
                            va_list args)
{
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (length < 0)
        length = 0;
    mr_error *error = calloc(1, sizeof(*error) + (size_t)length + 1);
    if (error == NULL)
        return error_static();
    error->code = code;
    error->retryable = retryable;
    if (sqlstate != NULL)
        (void)snprintf(error->sqlstate, sizeof(error->sqlstate), "%s", sqlstate);
    (void)vsnprintf(error->message, (size_t)length + 1, format, args);
    /* libpq ends its messages with a newline; ours are one line in a log or on a terminal. */
    while (length > 0 && (error->message[length - 1] == '\n' || error->message[length - 1] == ' '))
        error->message[--length] = '\0';
    /* It may quote a child, a plugin or a payload, and must not make the write fail that tells of
     * it. */
    mr__text_mend(error->message);
    return error;
}

mr_error *mr_error_new(mr_code code, bool retryable, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    mr_error *error = error_make(code, NULL, retryable, format, args);
    va_end(args);
    return error;
}

mr_error *mr__error(mr_code code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    mr_error *error = error_make(code, NULL, false, format, args);
    va_end(args);
    return error;
}

mr_error *mr__error_db(mr_code code, const char *sqlstate, bool retryable, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    mr_error *error = error_make(code, sqlstate, retryable, format, args);
    va_end(args);
    return error;
}

mr_error *mr__error_nomem(void)
{
    return error_static();
}

mr_error *mr__error_prefix(mr_error *error, const char *format, ...)
{
    if (error == NULL || error->is_static)
        return error;
    char *prefix = NULL;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&prefix, format, args);
    va_end(args);
    if (length < 0)
        return error;
    mr_error *longer = mr__error_db(error->code, error->sqlstate, error->retryable, "%s: %s",
                                    prefix, error->message);
    free(prefix);
    mr_error_free(error);
    return longer;
}

mr_error *mr__error_copy(const mr_error *error)
{
    if (error == NULL)
        return NULL;
    return mr__error_db(error->code, error->sqlstate, error->retryable, "%s", error->message);
}

mr_code mr_error_code(const mr_error *error)
{
    return error == NULL ? MR_OK : error->code;
}

const char *mr_error_message(const mr_error *error)
{
    return error == NULL ? "" : error->message;
}

const char *mr_error_sqlstate(const mr_error *error)
{
    return error == NULL ? "" : error->sqlstate;
}

bool mr_error_retryable(const mr_error *error)
{
    return error != NULL && error->retryable;
}

void mr_error_free(mr_error *error)
{
    if (error != NULL && !error->is_static)
        free(error);
}

void mr__error_cleanup(mr_error **error)
{
    mr_error_free(*error);
    *error = NULL;
}

static const struct {
    const char *name, *meaning;
} code_table[] = {{"ok", "success"},
#define CODE_ROW(symbol, name, meaning) {name, meaning},
                  MR_CODES(CODE_ROW)
#undef CODE_ROW
};

static bool code_known(mr_code code)
{
    return (size_t)code < sizeof(code_table) / sizeof(code_table[0]);
}

const char *mr_code_name(mr_code code)
{
    return code_known(code) ? code_table[code].name : "unknown";
}

const char *mr_code_meaning(mr_code code)
{
    return code_known(code) ? code_table[code].meaning : "";
}

const char *mr_version(void)
{
    return MR_VERSION;
}

void mr_free(void *memory)
{
    free(memory);
}
