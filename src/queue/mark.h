/* The low-water mark of a queue: where claims start to look. Pure; whoever claims owns it.
 *
 * An index keeps the entries of rows that were claimed until vacuum may remove them, and a claim
 * that starts at the beginning walks over all of them. So most claims start at the key of the last
 * row that was claimed. What comes to lie below the mark (put back by anybody, due only now,
 * committed late, skipped because it was locked) is found by a look from the beginning: the first
 * claim, one every `interval`, and the next one after this process put something back itself. Such
 * a look is made seldomer when it is slow, so that all of them together take a twentieth of the
 * time at most.
 */
#ifndef MR_QUEUE_MARK_H
#define MR_QUEUE_MARK_H

#include "base/error.h"
#include "queue/order.h"

typedef struct mr_mark {
    int keys;                 /* columns of the order; 0 = every claim looks at everything */
    char *key[MR_ORDER_KEYS]; /* as the server wrote them; NULL = no mark yet */
    int64_t interval;         /* microseconds between two looks below */
    int64_t next_look;        /* on the clock that `now` is of */
} mr_mark;

typedef enum mr_scan { MR_SCAN_ALL, MR_SCAN_MARK } mr_scan;

void mr__mark_init(mr_mark *mark, int keys, int64_t interval);
void mr__mark_free(mr_mark *mark);
/* Where the next claim starts. */
mr_scan mr__mark_plan(const mr_mark *mark, int64_t now);

/* What a claim gave. */
typedef struct mr_mark_news {
    mr_scan scan;
    int wanted, got;
    const char *last[MR_ORDER_KEYS]; /* key of the last row in order; entries may be NULL */
    bool beyond;                     /* that key is not below the mark */
    int64_t now, took;               /* when it ended, how long it took; microseconds */
} mr_mark_news;
mr_error *mr__mark_claimed(mr_mark *mark, const mr_mark_news *news) MR_MUST_CHECK;
/* Something may lie below the mark: the next claim looks there. */
void mr__mark_stir(mr_mark *mark);

#endif
