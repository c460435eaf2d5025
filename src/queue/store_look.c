/* Looking at a queue and at one job's execution log. */
#include "queue/store.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- Execution log --------------------------------------------------------------------------- */

/* $1 id, $2 fence, $3 worker, $4 entry, $5 index. */
static void fill_log(const mr_log_target *target, const char *entry, mr_queue_call *call)
{
    call->values[0] = target->id;
    if (target->fence != NULL) {
        mr__buf_printf(&call->text[1], "%" PRId64, *target->fence);
        call->values[1] = mr__buf_text(&call->text[1]);
    }
    call->values[2] = target->worker;
    call->values[3] = entry;
    call->count = 4;
}

static mr_error *no_record(const mr_queue_store *store, const mr_log_target *target)
{
    if (target->fence != NULL)
        return mr__error(MR_E_FENCED,
                         "job %s of queue %s is not this worker's any more, so its execution log "
                         "was left alone",
                         target->id, store->mapping.queue);
    return mr__error(MR_E_USAGE, "queue %s has no job %s", store->mapping.queue, target->id);
}

mr_error *mr__queue_log_add(mr_queue_on on, const mr_queue_store *store,
                            const mr_log_target *target, const char *entry, int *index)
{
    MR_AUTO_CALL call = {.sql = store->sql.text[MR_QUEUE_LOG_ADD]};
    fill_log(target, entry, &call);
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__queue_run(on, &call, &rows));
    if (PQntuples(rows) == 0)
        return no_record(store, target);
    int64_t length = 0;
    (void)mr__text_int(PQgetvalue(rows, 0, 0), &length);
    if (index != NULL)
        *index = (int)length;
    return NULL;
}

/* $5: which one it replaces. */
static void fill_index(int index, mr_queue_call *call)
{
    mr__buf_printf(&call->text[4], "%d", index);
    call->values[4] = mr__buf_text(&call->text[4]);
    call->count = 5;
}

mr_error *mr__queue_log_with(mr_tx *tx, const mr_queue_store *store, const mr_log_target *target,
                             int index, const char *entry)
{
    MR_AUTO_CALL call = {.sql = store->sql.text[index == 0 ? MR_QUEUE_LOG_ADD : MR_QUEUE_LOG_SET]};
    fill_log(target, entry, &call);
    if (index != 0)
        fill_index(index, &call);
    return mr_tx_exec(tx, call.sql, call.count, call.values);
}

mr_error *mr__queue_log_set(mr_queue_on on, const mr_queue_store *store,
                            const mr_log_target *target, int index, const char *entry)
{
    MR_AUTO_CALL call = {.sql = store->sql.text[MR_QUEUE_LOG_SET]};
    fill_log(target, entry, &call);
    fill_index(index, &call);
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__queue_run(on, &call, &rows));
    if (PQntuples(rows) == 0 || PQgetisnull(rows, 0, 1) != 0)
        return no_record(store, target);
    if (PQgetvalue(rows, 0, 0)[0] == '0')
        return mr__error(MR_E_USAGE,
                         "the execution log of job %s of queue %s has no entry %d; it has %s",
                         target->id, store->mapping.queue, index, PQgetvalue(rows, 0, 1));
    return NULL;
}

/* ---- Counts ---------------------------------------------------------------------------------- */

static mr_error *fill_states(const mr_queue_store *store, unsigned states, mr_queue_call *call)
{
    static const char *const names[] = {"queued",    "errored", "processing",
                                        "completed", "failed",  "canceled"};
    bool first = true;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if ((states & 1U << i) == 0)
            continue;
        mr__array_add(&call->text[0], first, names[i]);
        first = false;
    }
    if (first)
        return mr__error(MR_E_USAGE, "queue %s: name one state at least", store->mapping.queue);
    call->count = 1;
    return mr__queue_call_arrays(call, 0, 0);
}

mr_error *mr__queue_count(mr_queue_on on, const mr_queue_store *store, unsigned states,
                          int64_t *count)
{
    MR_AUTO_CALL call = {.sql = store->sql.text[MR_QUEUE_COUNT]};
    MR_TRY(fill_states(store, states, &call));
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__queue_run(on, &call, &rows));
    int64_t sum = 0;
    for (int row = 0; row < PQntuples(rows); row++) {
        int64_t one = 0;
        (void)mr__text_int(PQgetvalue(rows, row, 1), &one);
        sum += one;
    }
    *count = sum;
    return NULL;
}

mr_error *mr__queue_exists(mr_queue_on on, const mr_queue_store *store, unsigned states,
                           bool *exists)
{
    MR_AUTO_CALL call = {.sql = store->sql.text[MR_QUEUE_EXISTS]};
    MR_TRY(fill_states(store, states, &call));
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__queue_run(on, &call, &rows));
    *exists = PQgetvalue(rows, 0, 0)[0] == 't';
    return NULL;
}

mr_error *mr__queue_wait(mr_queue_on on, const mr_queue_store *store, int64_t *wait)
{
    MR_AUTO_CALL call = {.sql = store->sql.text[MR_QUEUE_WAIT]};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__queue_run(on, &call, &rows));
    int64_t micros = 0;
    (void)mr__text_int(PQgetvalue(rows, 0, 0), &micros);
    *wait = micros;
    return NULL;
}
