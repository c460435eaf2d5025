/* The low-water mark of a queue. Pure. */
#include "queue/mark.h"

#include <stdlib.h>
#include <string.h>

enum { LOOK_SHARE = 20 }; /* a look below may take one part in so many of the time */

void mr__mark_init(mr_mark *mark, int keys, int64_t interval)
{
    *mark = (mr_mark){.keys = keys, .interval = interval, .next_look = INT64_MIN};
}

static void forget(mr_mark *mark)
{
    for (int i = 0; i < MR_ORDER_KEYS; i++) {
        free(mark->key[i]);
        mark->key[i] = NULL;
    }
}

void mr__mark_free(mr_mark *mark)
{
    forget(mark);
}

mr_scan mr__mark_plan(const mr_mark *mark, int64_t now)
{
    bool set = mark->keys > 0 && mark->key[0] != NULL;
    return set && now < mark->next_look ? MR_SCAN_MARK : MR_SCAN_ALL;
}

/* A key with a NULL in it compares with nothing: no mark then. */
static mr_error *move(mr_mark *mark, const char *const last[])
{
    forget(mark);
    for (int i = 0; i < mark->keys; i++)
        if (last[i] == NULL)
            return NULL;
    for (int i = 0; i < mark->keys; i++) {
        mark->key[i] = strdup(last[i]);
        if (mark->key[i] == NULL) {
            forget(mark);
            return mr__error_nomem();
        }
    }
    return NULL;
}

mr_error *mr__mark_claimed(mr_mark *mark, const mr_mark_news *news)
{
    if (mark->keys == 0)
        return NULL;
    if (news->scan == MR_SCAN_ALL) {
        int64_t pause = news->took * LOOK_SHARE;
        mark->next_look = news->now + (pause > mark->interval ? pause : mark->interval);
    }
    if (news->got == 0)
        return NULL;
    /* A look that got all it wanted may have left more below the mark: go on from there. One that
     * did not has emptied everything below, and the mark only moves forward. */
    bool full = news->got >= news->wanted;
    if (news->scan == MR_SCAN_ALL && !full && mark->key[0] != NULL && !news->beyond)
        return NULL;
    return move(mark, news->last);
}

void mr__mark_stir(mr_mark *mark)
{
    mark->next_look = INT64_MIN;
}
