/* Any text as an SQL handler: rewritten or refused, never a crash or a leak, and quotes, comments
 * and casts survive: what holds no colon comes out as it went in. */
#include "base/error.h"
#include "handler/sqltext.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';

    mr_sql_text out = {0};
    mr_error *error = mr__sqltext_params(text, &out);
    if (error == NULL) {
        if (out.count < 0 || out.count > MR_SQL_PARAMS)
            __builtin_trap();
        if (strchr(text, ':') == NULL && (out.count != 0 || strcmp(out.sql, text) != 0))
            __builtin_trap();
        mr__sqltext_free(&out);
    }
    mr_error_free(error);

    char *with_batch = NULL;
    error = mr__sqltext_batch(text, "SELECT 1", &with_batch);
    if (error == NULL)
        free(with_batch);
    mr_error_free(error);
    free(text);
    return 0;
}
