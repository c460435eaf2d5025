/* The settled horizon: waits, by evidence, until every transaction that could still fill a hole is
 * gone. */
#include "log/settle.h"

#include <stdlib.h>
#include <string.h>

void mr__settle_free(mr_settle *settle)
{
    free(settle->waiting);
    *settle = (mr_settle){0};
}

void mr__settle_cancel(mr_settle *settle)
{
    settle->active = false;
    settle->count = 0;
}

static mr_error *reserve(mr_settle *settle, size_t count)
{
    if (count <= settle->capacity)
        return NULL;
    mr_holder *grown = realloc(settle->waiting, count * sizeof(*grown));
    if (grown == NULL)
        return mr__error_nomem();
    settle->waiting = grown;
    settle->capacity = count;
    return NULL;
}

mr_error *mr__settle_begin(mr_settle *settle, int64_t mark, const mr_holder *holders, size_t count,
                           bool *done)
{
    MR_TRY(reserve(settle, count));
    if (count > 0)
        memcpy(settle->waiting, holders, count * sizeof(*holders));
    settle->count = count;
    settle->mark = mark;
    settle->active = count > 0;
    *done = count == 0;
    return NULL;
}

static bool waits_for(const mr_settle *settle, const mr_holder *holder)
{
    for (size_t i = 0; i < settle->count; i++)
        if (strcmp(settle->waiting[i].id, holder->id) == 0)
            return true;
    return false;
}

/* Whether one that was waited for and is no prepared transaction is missing from the new listing.
 */
static bool plain_one_vanished(const mr_settle *settle, const mr_holder *holders, size_t count)
{
    for (size_t i = 0; i < settle->count; i++) {
        bool there = settle->waiting[i].prepared;
        for (size_t k = 0; k < count && !there; k++)
            there = strcmp(settle->waiting[i].id, holders[k].id) == 0;
        if (!there)
            return true;
    }
    return false;
}

mr_error *mr__settle_step(mr_settle *settle, const mr_holder *holders, size_t count, bool *done)
{
    mr_holder *kept = malloc((count + 1) * sizeof(*kept));
    if (kept == NULL)
        return mr__error_nomem();
    /* A plain transaction that vanished may have been PREPAREd: every prepared one listed now is a
     * possible heir and is waited for. A prepared one turns into nothing else, so this ends: each
     * round of heirs needs a plain one to vanish, and no plain one is ever added. */
    bool heirs = plain_one_vanished(settle, holders, count);
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        if ((heirs && holders[i].prepared) || waits_for(settle, &holders[i]))
            kept[n++] = holders[i];
    free(settle->waiting);
    settle->waiting = kept;
    settle->capacity = count + 1;
    settle->count = n;
    settle->active = n > 0;
    *done = n == 0;
    return NULL;
}
