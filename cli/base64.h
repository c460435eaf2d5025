/* Base64 as RFC 4648 has it. */
#ifndef MILLRACE_CLI_BASE64_H
#define MILLRACE_CLI_BASE64_H

#include <stddef.h>

/* The decoded bytes, free(); NULL when the text is not base64. Padding is required. */
char *base64_decode(const char *text, size_t *length);

/* As text, free(). */
char *base64_encode(const void *bytes, size_t length);

#endif
