/* Base64 as RFC 4648 has it. */
#include "base64.h"

#include "cli.h"

#include <stdlib.h>
#include <string.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static int digit(char c)
{
    const char *at = c == '\0' ? NULL : strchr(alphabet, c);
    return at == NULL ? -1 : (int)(at - alphabet);
}

char *base64_decode(const char *text, size_t *length)
{
    size_t count = strlen(text), size = 0, padding = 0;
    if (count % 4 != 0)
        return NULL;
    while (padding < 2 && padding < count && text[count - 1 - padding] == '=')
        padding++;
    unsigned char *out = cli_alloc(count / 4 * 3 + 1, 1);
    unsigned bits = 0;
    for (size_t i = 0; i < count - padding; i++) {
        int value = digit(text[i]);
        if (value < 0) {
            free(out);
            return NULL;
        }
        bits = bits << 6 | (unsigned)value;
        if (i % 4 != 0)
            out[size++] = (unsigned char)(bits >> (6 - 2 * (i % 4)));
    }
    *length = size;
    return (char *)out;
}

char *base64_encode(const void *bytes, size_t length)
{
    const unsigned char *in = bytes;
    char *out = cli_alloc((length + 2) / 3 * 4 + 1, 1), *p = out;
    for (size_t i = 0; i < length; i += 3) {
        size_t left = length - i;
        unsigned bits = (unsigned)in[i] << 16 | (left > 1 ? (unsigned)in[i + 1] << 8 : 0) |
                        (left > 2 ? in[i + 2] : 0);
        *p++ = alphabet[bits >> 18];
        *p++ = alphabet[bits >> 12 & 63];
        *p++ = left > 1 ? alphabet[bits >> 6 & 63] : '=';
        *p++ = left > 2 ? alphabet[bits & 63] : '=';
    }
    return out;
}
