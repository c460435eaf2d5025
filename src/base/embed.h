/* Files embedded in the library at build time. */
#ifndef MR_BASE_EMBED_H
#define MR_BASE_EMBED_H

#include <stddef.h>

typedef struct mr_embed {
    const char *name; /* file name; NULL ends the list */
    const char *text; /* ends in NUL */
    size_t length;
} mr_embed;

#endif
