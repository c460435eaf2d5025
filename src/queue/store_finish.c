/* What becomes of claimed jobs: outcomes, heartbeats, resets. Every row is changed only under its
 * own fence. */
#include "queue/store.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {
    [MR_OUTCOME_COMPLETE] = "complete", [MR_OUTCOME_ERROR] = "error",
    [MR_OUTCOME_FAIL] = "fail",         [MR_OUTCOME_CANCEL] = "cancel",
    [MR_OUTCOME_REQUEUE] = "requeue",   [MR_OUTCOME_SNOOZE] = "snooze",
    [MR_OUTCOME_RELEASE] = "release",
};

/* The place in the caller's array that a row is about, from 0; false when the server talks
 * nonsense.
 */
static bool place_of(const PGresult *rows, int row, size_t count, size_t *place)
{
    int64_t n = 0;
    if (!mr__text_int(PQgetvalue(rows, row, 0), &n) || n < 1 || (uint64_t)n > count)
        return false;
    *place = (size_t)n - 1;
    return true;
}

static mr_error *nonsense(void)
{
    return mr__error(MR_E_INTERNAL, "the server answered for a job that was not asked about");
}

/* ---- Outcomes -------------------------------------------------------------------------------- */

/* $1 ids, $2 fences, $3 worker, $4 kinds, $5 messages, $6 times, $7 delays. */
static mr_error *fill_finish(const mr_queue_store *store, const char *worker,
                             const mr_outcome *outcomes, size_t count, mr_queue_call *call)
{
    /* The built-in table has a short way for those that all went well. */
    bool plain = store->policy.builtin;
    for (size_t i = 0; i < count && plain; i++)
        plain = outcomes[i].kind == MR_OUTCOME_COMPLETE;
    for (size_t i = 0; i < count; i++) {
        const mr_outcome *o = &outcomes[i];
        bool first = i == 0;
        mr__array_add(&call->text[0], first, o->id);
        mr__array_add_number(&call->text[1], first, o->fence);
        if (plain)
            continue;
        mr__array_add(&call->text[3], first, kinds[o->kind]);
        mr__array_add(&call->text[4], first, o->message);
        mr__array_add(&call->text[5], first, o->at);
        mr__array_add_number(&call->text[6], first, o->delay);
    }
    MR_TRY(mr__queue_call_arrays(call, 0, plain ? 1 : 6));
    call->values[2] = worker;
    call->count = 7;
    return NULL;
}

mr_error *mr__queue_finish_call(const mr_queue_store *store, const char *worker,
                                const mr_outcome *outcomes, size_t count, bool free_only,
                                mr_queue_call *out)
{
    out->sql = store->sql.text[free_only ? MR_QUEUE_FINISH_FREE : MR_QUEUE_FINISH];
    return fill_finish(store, worker, outcomes, count, out);
}

mr_error *mr__queue_finish_take(const PGresult *rows, mr_outcome *outcomes, size_t count,
                                mr_mark *mark, size_t *late)
{
    for (size_t i = 0; i < count; i++) {
        outcomes[i].became[0] = '\0';
        outcomes[i].locked = false;
    }
    bool back = false;
    /* The built-in table's short answer: all of them. */
    if (PQntuples(rows) == 1 && strcmp(PQgetvalue(rows, 0, 0), "0") == 0) {
        for (size_t i = 0; i < count; i++)
            (void)snprintf(outcomes[i].became, sizeof(outcomes[i].became), "%s",
                           PQgetvalue(rows, 0, 1));
        if (late != NULL)
            *late = 0;
        return NULL;
    }
    for (int row = 0; row < PQntuples(rows); row++) {
        size_t place = 0;
        if (!place_of(rows, row, count, &place))
            return nonsense();
        mr_outcome *o = &outcomes[place];
        o->locked = PQgetisnull(rows, row, 1) != 0;
        (void)snprintf(o->became, sizeof(o->became), "%s", PQgetvalue(rows, row, 1));
        back = back || strcmp(o->became, "queued") == 0;
    }
    if (mark != NULL && back)
        mr__mark_stir(mark);
    if (late != NULL)
        *late = count - (size_t)PQntuples(rows);
    return NULL;
}

static const char LOCK_TIMEOUT[] = "55P03";

static mr_error *run_finish(mr_queue_on on, const mr_queue_store *store, const char *worker,
                            const mr_outcome *outcomes, size_t count, bool free_only,
                            PGresult **rows)
{
    MR_AUTO_CALL call = {0};
    MR_TRY(mr__queue_finish_call(store, worker, outcomes, count, free_only, &call));
    return mr__queue_run(on, &call, rows);
}

mr_error *mr__queue_finish(mr_queue_on on, const mr_queue_store *store, const char *worker,
                           mr_outcome *outcomes, size_t count, mr_mark *mark, size_t *late)
{
    if (late != NULL)
        *late = 0;
    if (count == 0)
        return NULL;
    MR_AUTO_RESULT rows = NULL;
    mr_error *error = run_finish(on, store, worker, outcomes, count, false, &rows);
    /* In a transaction that failed there is nothing to try again. */
    if (error != NULL && on.tx == NULL && strcmp(mr_error_sqlstate(error), LOCK_TIMEOUT) == 0 &&
        PQtransactionStatus(on.conn) == PQTRANS_IDLE) {
        mr_error_free(error);
        error = run_finish(on, store, worker, outcomes, count, true, &rows);
    }
    MR_TRY(error);
    return mr__queue_finish_take(rows, outcomes, count, mark, late);
}

mr_error *mr__queue_finish_with(mr_tx *tx, const mr_queue_store *store, const char *worker,
                                const mr_outcome *outcomes, size_t count)
{
    if (count == 0)
        return NULL;
    MR_AUTO_CALL call = {0};
    MR_TRY(fill_finish(store, worker, outcomes, count, &call));
    return mr_tx_exec(tx, store->sql.text[MR_QUEUE_FINISH_OR_FAIL], call.count, call.values);
}

mr_error *mr__queue_finish_taken(mr_tx *tx, const mr_queue_store *store, const char *worker,
                                 const mr_outcome *outcomes, size_t count)
{
    MR_AUTO_CALL call = {0};
    MR_TRY(fill_finish(store, worker, outcomes, count, &call));
    return mr_tx_exec(tx, store->sql.text[MR_QUEUE_FINISH_TAKEN], call.count, call.values);
}

/* ---- Heartbeats ------------------------------------------------------------------------------ */

mr_error *mr__queue_heartbeat_call(const mr_queue_store *store, const char *worker,
                                   const mr_beat *beats, size_t count, mr_queue_call *out)
{
    for (size_t i = 0; i < count; i++) {
        mr__array_add(&out->text[0], i == 0, beats[i].id);
        mr__array_add_number(&out->text[1], i == 0, beats[i].fence);
    }
    MR_TRY(mr__queue_call_arrays(out, 0, 1));
    out->values[2] = worker;
    out->count = 3;
    out->sql = store->sql.text[MR_QUEUE_HEARTBEAT];
    return NULL;
}

mr_error *mr__queue_heartbeat_take(const PGresult *rows, mr_beat *beats, size_t count)
{
    size_t place = 0;
    for (int row = 0; row < PQntuples(rows); row++)
        if (!place_of(rows, row, count, &place))
            return nonsense();
    for (size_t i = 0; i < count; i++) {
        beats[i].state = MR_BEAT_LOST;
        beats[i].cancel = false;
    }
    for (int row = 0; row < PQntuples(rows); row++) {
        (void)place_of(rows, row, count, &place);
        beats[place].cancel = PQgetvalue(rows, row, 1)[0] == 't';
        beats[place].state = PQgetvalue(rows, row, 2)[0] == 't' ? MR_BEAT_OURS : MR_BEAT_LOCKED;
    }
    return NULL;
}

mr_error *mr__queue_heartbeat(mr_queue_on on, const mr_queue_store *store, const char *worker,
                              mr_beat *beats, size_t count)
{
    if (count == 0)
        return NULL;
    MR_AUTO_CALL call = {0};
    MR_TRY(mr__queue_heartbeat_call(store, worker, beats, count, &call));
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__queue_run(on, &call, &rows));
    return mr__queue_heartbeat_take(rows, beats, count);
}
