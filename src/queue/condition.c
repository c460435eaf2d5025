/* A hook's condition as part of a claim: its parameters get the numbers that are free there. Pure.
 */
#include "queue/statements.h"

#include "handler/sqltext.h"

#include <ctype.h>

/* Reads $n at `p`; 0 when it is none. */
static int parameter(const char *p, size_t *length)
{
    if (*p != '$' || !isdigit((unsigned char)p[1]))
        return 0;
    int number = 0;
    size_t i = 1;
    for (; isdigit((unsigned char)p[i]); i++)
        number = number > 9999 ? number : number * 10 + (p[i] - '0');
    *length = i;
    return number;
}

mr_error *mr__condition_shift(const mr_condition *condition, int shift, mr_buf *out)
{
    for (const char *p = condition->sql; *p != '\0';) {
        size_t length = mr__sqltext_opaque(p);
        if (length > 0) {
            mr__buf_add(out, p, length);
            p += length;
            continue;
        }
        int number = parameter(p, &length);
        if (number == 0) {
            mr__buf_putc(out, *p++);
            continue;
        }
        if (number > condition->count)
            return mr__error(MR_E_USAGE, "a condition asks for $%d but brings %d values: %s",
                             number, condition->count, condition->sql);
        mr__buf_printf(out, "$%d", number + shift);
        p += length;
    }
    return NULL;
}
