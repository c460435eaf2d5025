/* A growable string: the only place that builds text of unknown length. */
#ifndef MR_BASE_BUF_H
#define MR_BASE_BUF_H

#include "millrace/millrace.h"

/* Zero-initialise. `data` always ends in NUL once something was added. When memory runs out
 * `failed` is set and stays set; callers check it once at the end. */
typedef struct mr_buf {
    char *data;
    size_t length, capacity;
    bool failed;
} mr_buf;

void mr__buf_add(mr_buf *buf, const void *bytes, size_t length);
void mr__buf_puts(mr_buf *buf, const char *text);
void mr__buf_putc(mr_buf *buf, char c);
void mr__buf_printf(mr_buf *buf, const char *format, ...) MR_PRINTF(2, 3);
void mr__buf_clear(mr_buf *buf); /* keeps the memory */
void mr__buf_free(mr_buf *buf);
/* Hands the string over (free()); NULL when memory ran out. An empty buffer gives "". */
char *mr__buf_take(mr_buf *buf);
const char *mr__buf_text(const mr_buf *buf); /* never NULL */

/* A piece of a buffer's bytes; offset MR_SLICE_NULL stands for SQL NULL. */
typedef struct mr_slice {
    size_t offset, length;
} mr_slice;
#define MR_SLICE_NULL SIZE_MAX

#define MR_AUTO_BUF __attribute__((cleanup(mr__buf_free))) mr_buf

#endif
