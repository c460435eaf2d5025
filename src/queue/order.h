/* An order expression understood: which plain columns it goes by, when it does. Only then can a
 * claim start at a low-water mark. Pure. */
#ifndef MR_QUEUE_ORDER_H
#define MR_QUEUE_ORDER_H

#include "pg/ident.h"

enum { MR_ORDER_KEYS = 4 };

typedef struct mr_order {
    char column[MR_ORDER_KEYS][MR_IDENT_MAX + 1]; /* as the catalog spells them */
    int count;                                    /* 0 = not by plain columns */
    bool descending;                              /* all of them */
} mr_order;

/* Reads "queued_at, id", "j.created_at DESC, j.id DESC" and the like: up to four columns, perhaps
 * with the alias in front, all in one direction. Anything else (expressions, mixed directions,
 * NULLS FIRST or LAST, COLLATE) gives a count of 0: it is not wrong, only not understood. */
void mr__order_parse(const char *text, const char *alias, mr_order *out);

#endif
