/* Holes: the proof that one is dead, and the strategies that go by time or trust instead. */
#include "log/reader_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { GAP_WARN_AFTER = 5000000, GAP_WARN_EVERY = 30000000 }; /* microseconds */

const char *mr__gap_strategy_name(mr_gap_strategy strategy)
{
    static const char *const names[] = {"settled",  "harbor",    "timeout",
                                        "snapshot", "published", "single_writer"};
    return names[strategy];
}

/* ---- Proof --------------------------------------------------------------------------------- */

void mr__reader_proven(mr_reader *r, int64_t mark)
{
    if (mark > r->horizon)
        r->horizon = mark;
    r->step = MR_READER_STEP_FIRST;
    mr__settle_cancel(&r->settle);
    r->snapshot_xid = 0;
}

bool mr__reader_proof_active(const mr_reader *r)
{
    return r->settle.active || r->snapshot_xid != 0;
}

static mr_error *read_holders(const PGresult *rows, mr_holder **out)
{
    int count = PQntuples(rows);
    mr_holder *holders = calloc((size_t)count + 1, sizeof(*holders));
    if (holders == NULL)
        return mr__error_nomem();
    for (int i = 0; i < count; i++) {
        (void)snprintf(holders[i].id, sizeof(holders[i].id), "%s", PQgetvalue(rows, i, 0));
        holders[i].prepared = PQgetvalue(rows, i, 1)[0] == 't';
    }
    *out = holders;
    return NULL;
}

/* Feeds the proof with what the server shows; `mark` is M when it starts. */
static mr_error *feed_settled(mr_reader *r, const PGresult *rows, bool begin, int64_t mark)
{
    mr_holder *holders = NULL;
    MR_TRY(read_holders(rows, &holders));
    size_t count = (size_t)PQntuples(rows);
    bool done = false;
    mr_error *error = begin ? mr__settle_begin(&r->settle, mark, holders, count, &done)
                            : mr__settle_step(&r->settle, holders, count, &done);
    free(holders);
    if (error == NULL && done)
        mr__reader_proven(r, r->settle.mark);
    return error;
}

/* Whoever drew a position up to M owned a transaction id by then, so a lower one than the id that
 * we drew after seeing M. Once nothing that old runs any more, all of it is decided. */
static void feed_snapshot(mr_reader *r, const PGresult *rows, bool begin, int64_t mark)
{
    int64_t xid = strtoll(PQgetvalue(rows, 0, 0), NULL, 10);
    if (begin) {
        r->snapshot_mark = mark;
        r->snapshot_xid = xid;
    } else if (xid > r->snapshot_xid) {
        mr__reader_proven(r, r->snapshot_mark);
    }
}

mr_error *mr__reader_feed_proof(mr_reader *r, const PGresult *rows, bool begin, int64_t mark)
{
    r->params.counts->settle_steps++;
    if (r->params.gap.strategy == MR_GAP_SETTLED)
        return feed_settled(r, rows, begin, mark);
    feed_snapshot(r, rows, begin, mark);
    return NULL;
}

/* ---- Holes that time or trust decide ------------------------------------------------------- */

void mr__reader_note_gap(mr_reader *r, int64_t gap)
{
    if (r->gap == gap)
        return;
    r->gap = gap;
    r->gap_seen = mr__reader_now(r);
    r->gap_warned = 0;
}

/* gap_action error reports at gap_timeout; otherwise a hole is worth a line when it is a few
 * seconds old. */
void mr__reader_warn_gap(mr_reader *r)
{
    const mr_gap_options *gap = &r->params.gap;
    bool error = gap->strategy == MR_GAP_TIMEOUT && !gap->skip;
    int64_t t = mr__reader_now(r);
    if (t - r->gap_seen < (error ? gap->timeout : GAP_WARN_AFTER) ||
        (r->gap_warned != 0 && t - r->gap_warned < GAP_WARN_EVERY))
        return;
    r->gap_warned = t;
    mr__log(r->params.logger, error ? MR_ERROR : MR_WARN, "waiting for a hole in the log",
            "position=%" PRId64 MR_SEP "seconds=%" PRId64 MR_SEP "strategy=%s" MR_SEP
            "hint=millrace gaps open names who holds it",
            r->gap, (t - r->gap_seen) / 1000000, mr__gap_strategy_name(gap->strategy));
}

/* How old a hole must be to be skipped: gap_timeout, but never more than max_gap_wait. */
static int64_t skip_after(const mr_gap_options *gap)
{
    return gap->max_wait > 0 && gap->max_wait < gap->timeout ? gap->max_wait : gap->timeout;
}

/* The consumer furthest ahead may have been put there by its start_from: that says nothing about
 * the holes behind it, so time has to pass for these as for any other. */
void mr__reader_believe(mr_reader *r, int64_t tail)
{
    if (mr__reader_by_evidence(r))
        return;
    if (r->params.gap.strategy == MR_GAP_HARBOR || r->params.gap.strategy == MR_GAP_TIMEOUT)
        r->below_since = mr__reader_now(r);
    else
        mr__reader_proven(r, tail);
}

void mr__reader_age(mr_reader *r)
{
    const mr_gap_options *gap = &r->params.gap;
    bool harbor = gap->strategy == MR_GAP_HARBOR;
    if (r->below_since == 0 || (!harbor && !gap->skip) ||
        r->sent_at - r->below_since < (harbor ? gap->stale_threshold : skip_after(gap)))
        return;
    r->below_since = 0;
    mr__reader_proven(r, r->tail);
}

/* Where a strategy without proof lets readers go on past the hole; 0 = stay. The rows come from a
 * read that was sent after the hole was due, so they are the last look at it. */
int64_t mr__reader_forced_target(mr_reader *r, const int64_t *beyond, size_t count)
{
    const mr_gap_options *gap = &r->params.gap;
    int64_t age = r->sent_at - r->gap_seen;
    switch (gap->strategy) {
    case MR_GAP_HARBOR:
        return age >= gap->stale_threshold ? mr__harbor(r->gap, beyond, count, gap->harbor_lag) : 0;
    case MR_GAP_TIMEOUT:
        if (gap->skip)
            return age >= skip_after(gap) && count > 0 ? beyond[0] - 1 : 0;
        if (gap->max_wait > 0 && age >= gap->max_wait)
            r->params.on_stuck(r->params.user,
                               mr__error(MR_E_LOG,
                                         "position %" PRId64
                                         " is missing from the log for longer than "
                                         "max_gap_wait (gap_strategy timeout, gap_action error)",
                                         r->gap));
        return 0;
    case MR_GAP_SINGLE_WRITER:
        r->params.on_stuck(
            r->params.user,
            mr__error(MR_E_LOG,
                      "position %" PRId64 " is missing from the log, which gap_strategy "
                      "single_writer rules out; is there a second writer, or did one roll "
                      "back? gap_strategy settled copes with both",
                      r->gap));
        return 0;
    case MR_GAP_SETTLED:
    case MR_GAP_SNAPSHOT:
    case MR_GAP_PUBLISHED:
    default:
        return 0;
    }
}
