/* Dead letters: list, replay, drop. Commands straight to the database; the replaying itself is done
 * by the consumers' own workers. Blocking, on the caller's connection. */
#ifndef MR_OBSERVE_LETTERS_H
#define MR_OBSERVE_LETTERS_H

#include "observe/operate.h"

/* See mr_letters_list() and so on in the public header. */
mr_error *mr__letters_list(PGconn *conn, const mr_operate_input *input, const mr_letters *letters,
                           bool whole, PGresult **rows) MR_MUST_CHECK;

typedef struct mr_replay_order {
    const char *actor;
    int64_t timeout_ms;
    int64_t replayed, failed; /* out */
} mr_replay_order;
mr_error *mr__letters_replay(PGconn *conn, const mr_operate_input *input, const mr_letters *letters,
                             bool all, mr_replay_order *replay) MR_MUST_CHECK;
mr_error *mr__letters_drop(PGconn *conn, const mr_operate_input *input, const mr_letters *letters,
                           bool all, const char *actor, const char *reason,
                           int64_t *dropped) MR_MUST_CHECK;

/* ---- letters_filter.c: which letters are meant ---- */

/* The filter as the JSON that find_letters takes; `*json` is the caller's, free(). NULL letters
 * mean all. */
mr_error *mr__letters_json(const mr_letters *letters, char **json) MR_MUST_CHECK;
bool mr__letters_empty(const mr_letters *letters);

#endif
