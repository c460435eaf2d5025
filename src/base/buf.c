/* A growable string: the only place that builds text of unknown length. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool buf_reserve(mr_buf *buf, size_t extra)
{
    if (buf->failed)
        return false;
    if (extra >= SIZE_MAX / 2 - buf->length) {
        buf->failed = true;
        return false;
    }
    size_t need = buf->length + extra + 1;
    if (need <= buf->capacity)
        return true;
    size_t capacity = buf->capacity == 0 ? 64 : buf->capacity;
    while (capacity < need)
        capacity *= 2;
    char *data = realloc(buf->data, capacity);
    if (data == NULL) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->capacity = capacity;
    return true;
}

void mr__buf_add(mr_buf *buf, const void *bytes, size_t length)
{
    if (!buf_reserve(buf, length))
        return;
    if (length > 0)
        memcpy(buf->data + buf->length, bytes, length);
    buf->length += length;
    buf->data[buf->length] = '\0';
}

void mr__buf_puts(mr_buf *buf, const char *text)
{
    mr__buf_add(buf, text, strlen(text));
}

void mr__buf_putc(mr_buf *buf, char c)
{
    mr__buf_add(buf, &c, 1);
}

void mr__buf_printf(mr_buf *buf, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (length >= 0 && buf_reserve(buf, (size_t)length)) {
        (void)vsnprintf(buf->data + buf->length, (size_t)length + 1, format, args);
        buf->length += (size_t)length;
    } else {
        buf->failed = true;
    }
    va_end(args);
}

void mr__buf_clear(mr_buf *buf)
{
    buf->length = 0;
    if (buf->data != NULL)
        buf->data[0] = '\0';
}

void mr__buf_free(mr_buf *buf)
{
    free(buf->data);
    *buf = (mr_buf){0};
}

char *mr__buf_take(mr_buf *buf)
{
    if (buf->failed || !buf_reserve(buf, 0)) {
        mr__buf_free(buf);
        return NULL;
    }
    buf->data[buf->length] = '\0';
    char *data = buf->data;
    *buf = (mr_buf){0};
    return data;
}

const char *mr__buf_text(const mr_buf *buf)
{
    return buf->data == NULL ? "" : buf->data;
}
