/* A statement with its values: arrays as the server reads them, and sending it. */
#include "queue/store.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void mr__queue_call_free(mr_queue_call *call)
{
    for (int i = 0; i < MR_QUEUE_PARAMS; i++)
        mr__buf_free(&call->text[i]);
    free(call->own_sql);
    *call = (mr_queue_call){0};
}

mr_error *mr__queue_run(mr_queue_on on, const mr_queue_call *call, PGresult **rows)
{
    if (on.tx != NULL)
        return mr_tx_query(on.tx, call->sql, call->count, call->values, rows);
    return mr__pg_query(on.conn, rows, call->sql, call->count, call->values);
}

/* Length of the character at `p` when it is well formed, else 0. */
static size_t character(const char *p)
{
    for (size_t length = 1; length <= 4; length++)
        if (strnlen(p, length) == length && mr__text_utf8(p, length))
            return length;
    return 0;
}

/* A handler's message may be anything; one bad byte must not fail the outcomes of a whole batch. */
static void add_text(mr_buf *array, const char *text)
{
    mr__buf_putc(array, '"');
    bool clean = mr__text_utf8(text, strlen(text));
    for (const char *p = text; *p != '\0';) {
        size_t length = clean ? 1 : character(p);
        if (length == 0) {
            mr__buf_putc(array, '?');
            p++;
            continue;
        }
        if (*p == '"' || *p == '\\')
            mr__buf_putc(array, '\\');
        mr__buf_add(array, p, length);
        p += length;
    }
    mr__buf_putc(array, '"');
}

void mr__array_add(mr_buf *array, bool first, const char *element)
{
    mr__buf_putc(array, first ? '{' : ',');
    if (element == NULL)
        mr__buf_puts(array, "NULL");
    else
        add_text(array, element);
}

void mr__array_add_number(mr_buf *array, bool first, int64_t number)
{
    mr__buf_printf(array, "%c%" PRId64, first ? '{' : ',', number);
}

mr_error *mr__queue_call_arrays(mr_queue_call *call, int first, int last)
{
    for (int i = first; i <= last; i++) {
        mr__buf_puts(&call->text[i], call->text[i].length == 0 ? "{}" : "}");
        if (call->text[i].failed)
            return mr__error_nomem();
        call->values[i] = mr__buf_text(&call->text[i]);
    }
    return NULL;
}
