/* Any text where a number, a duration or a size is wanted: what is accepted survives a round trip.
 */
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"batch_size", "batch_pause", "batch_timeout"};
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';

    int64_t value = 0;
    int64_t again = 0;
    if (mr__text_duration(text, &value)) {
        char formatted[32];
        mr__text_duration_format(value, formatted);
        if (value < 0 || !mr__text_duration(formatted, &again) || again != value)
            __builtin_trap();
    }
    if (mr__text_size(text, &value) && value < 0)
        __builtin_trap();
    if (mr__text_int(text, &value) && strtoll(text, NULL, 10) != value)
        __builtin_trap();
    bool flag = false;
    (void)mr__text_bool(text, &flag);
    if (mr__text_utf8(text, size) && memchr(text, 0, size) != NULL)
        __builtin_trap();
    if (size < 64)
        (void)mr__text_nearest(text, names, sizeof(names) / sizeof(names[0]));
    free(text);
    return 0;
}
