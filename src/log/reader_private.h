/* What the files of the reader share: its innards. */
#ifndef MR_LOG_READER_PRIVATE_H
#define MR_LOG_READER_PRIVATE_H

#include "log/frontier.h"
#include "log/reader.h"
#include "log/reader_sql.h"
#include "log/settle.h"

enum {
    MR_READER_STEP_FIRST = 1, /* milliseconds between two looks at who holds a hole open */
    MR_READER_SIDE_READS = 4, /* stretches read at once for consumers far behind */
};

/* What a flight at the tail asks: rows only; a fresh proof from the start; the next look at one. */
typedef enum ask { ASK_ROWS, ASK_BEGIN, ASK_STEP, ASK_PUBLISHED } ask;

struct mr_reader {
    mr_reader_params params;
    mr_reader_sql sql;
    mr_aconn *conn;
    uv_timer_t timer;
    bool closing, following, busy, again, ready, telling;
    ask asked;
    int64_t sent_at, sent_horizon, sent_tail, limit;
    int64_t tail, horizon, head, lowest;
    bool waiting; /* a consumer stands at the tail */
    int64_t poll; /* milliseconds until the next look */
    mr_settle settle;
    int64_t snapshot_mark, snapshot_xid; /* snapshot strategy: M and whom to wait for; 0 = none */
    int64_t step;                        /* milliseconds to the next look at the proof */
    int64_t gap, gap_seen, gap_warned;
    int64_t side[MR_READER_SIDE_READS]; /* places being read; -1 = free */
    bool refused;                       /* somebody wanted a stretch while none was free */
    /* Places before an undecided hole, as of `stuck_horizon`: read again only after a while. */
    int64_t *stuck, stuck_horizon, stuck_since;
    size_t stuck_count, stuck_capacity;
    int64_t stuck_warned;
    /* By time: since when holes below the tail are waited for; 0 = they are decided. */
    int64_t below_since;
    int64_t row_bytes;
    int64_t server; /* whom this connection reached, see MR_SERVER_SQL; 0 = not yet known */
    mr_cache cache;
};

static inline int64_t mr__reader_now(const mr_reader *r)
{
    return mr__clock_now(r->params.clock);
}

/* Whether holes are decided by proof. */
static inline bool mr__reader_by_evidence(const mr_reader *r)
{
    return r->params.gap.strategy == MR_GAP_SETTLED || r->params.gap.strategy == MR_GAP_SNAPSHOT;
}

/* ---- reader_proof.c: holes ---- */
/* Everything up to `mark` is decided; a proof under way is over. */
void mr__reader_proven(mr_reader *r, int64_t mark);
bool mr__reader_proof_active(const mr_reader *r);
/* Feeds the proof with what the server shows; `mark` is M when it begins. */
mr_error *mr__reader_feed_proof(mr_reader *r, const PGresult *rows, bool begin,
                                int64_t mark) MR_MUST_CHECK;
/* A tail begins at `tail`: what a strategy without proof believes of the holes below it. */
void mr__reader_believe(mr_reader *r, int64_t tail);
/* Lets those below the tail on when their holes are as old as the strategy wants them. */
void mr__reader_age(mr_reader *r);
void mr__reader_note_gap(mr_reader *r, int64_t gap);
void mr__reader_warn_gap(mr_reader *r);
/* Where a strategy without proof lets readers go on past the hole; 0 = stay. */
int64_t mr__reader_forced_target(mr_reader *r, const int64_t *beyond, size_t count);

/* ---- reader_rows.c: rows to windows, and stretches for consumers far behind ---- */
/* The positions of the rows; free(). */
mr_error *mr__reader_positions(const PGresult *rows, int64_t **out, size_t *count) MR_MUST_CHECK;
/* How many rows the next read asks for. */
int64_t mr__reader_limit(const mr_reader *r);
/* Turns the rows after `from` up to the frontier into a window in the cache. Takes the result. */
mr_error *mr__reader_publish(mr_reader *r, PGresult *rows, int64_t from, const mr_frontier *f,
                             int64_t seen, bool side) MR_MUST_CHECK;
/* Whether somebody waits at a hole below the tail for so long that a new look at it is due. */
bool mr__reader_stuck_due(mr_reader *r);
/* Leaves out the positions above `last`; true when there were any. */
bool mr__reader_cut(const int64_t *positions, size_t *count, int64_t last);
void mr__reader_count(mr_reader *r, const PGresult *rows);
void mr__reader_number(char out[24], int64_t value);

#endif
