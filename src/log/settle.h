/* The settled horizon: waits, by evidence, until every transaction that could still fill a hole is
 * gone. Pure: it is fed what the lock table shows.
 *
 * Why it holds: an INSERT takes its table lock before it draws a position and gives it back only
 * after its outcome is visible to new snapshots. So once M was seen, and after that the writers
 * were listed, and all those are gone, what a new snapshot does not show below M will never exist.
 */
#ifndef MR_LOG_SETTLE_H
#define MR_LOG_SETTLE_H

#include "base/error.h"

/* Who holds a lock able to insert, as pg_locks names it. A transaction that gets PREPAREd changes
 * its name and shows up as prepared, so prepared ones count as possible heirs of those waited for.
 */
typedef struct mr_holder {
    char id[40]; /* virtualtransaction and pid, or the prepared transaction's */
    bool prepared;
} mr_holder;

typedef struct mr_settle {
    bool active;
    int64_t mark; /* M: what is proven once nobody is left */
    mr_holder *waiting;
    size_t count, capacity;
} mr_settle;

void mr__settle_free(mr_settle *settle);
/* Starts waiting: `mark` was observed before `holders` were listed. `*done` when nobody need be
 * waited for. */
mr_error *mr__settle_begin(mr_settle *settle, int64_t mark, const mr_holder *holders, size_t count,
                           bool *done) MR_MUST_CHECK;
/* A later listing. `*done` when all are gone: positions up to `mark` are decided for any snapshot
 * taken after this listing. */
mr_error *mr__settle_step(mr_settle *settle, const mr_holder *holders, size_t count,
                          bool *done) MR_MUST_CHECK;
void mr__settle_cancel(mr_settle *settle);

#endif
