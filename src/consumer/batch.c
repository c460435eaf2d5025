/* One batch from window to checkpoint: fence, handler, audit of holes, commit, in one pipelined
 * transaction. */
#include "consumer/batch.h"

#include "cluster/template.h"
#include "pg/conn.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mr_batch *mr__batch_new(void)
{
    return calloc(1, sizeof(mr_batch));
}

void mr__batch_free(mr_batch *batch)
{
    if (batch == NULL)
        return;
    for (size_t i = 0; i < batch->window_count; i++)
        mr__window_unref(batch->windows[i]);
    free(batch->windows);
    free((void *)batch->events);
    free(batch->holes);
    mr_error_free(batch->error);
    free(batch);
}

mr_error *mr__batch_add_event(mr_batch *batch, const mr_event *event)
{
    if (batch->count == batch->capacity) {
        size_t capacity = batch->capacity == 0 ? 64 : batch->capacity * 2;
        const mr_event **grown = realloc((void *)batch->events, capacity * sizeof(*grown));
        if (grown == NULL)
            return mr__error_nomem();
        batch->events = grown;
        batch->capacity = capacity;
    }
    batch->events[batch->count++] = event;
    return NULL;
}

mr_error *mr__batch_add_window(mr_batch *batch, mr_window *window)
{
    mr_window **grown = realloc(batch->windows, (batch->window_count + 1) * sizeof(*grown));
    if (grown == NULL)
        return mr__error_nomem();
    batch->windows = grown;
    batch->windows[batch->window_count++] = mr__window_ref(window);
    return NULL;
}

mr_error *mr__batch_add_holes(mr_batch *batch, const mr_window *window, int64_t from, int64_t to)
{
    batch->server = window->server;
    for (size_t i = 0; i < window->hole_count; i++) {
        mr_hole hole = window->holes[i];
        if (hole.last <= from || hole.first > to)
            continue;
        /* A checkpoint may stand inside a hole, when another strategy or a start position put it
         * there. */
        hole.first = hole.first > from ? hole.first : from + 1;
        hole.last = hole.last < to ? hole.last : to;
        mr_hole *grown = realloc(batch->holes, (batch->hole_count + 1) * sizeof(*grown));
        if (grown == NULL)
            return mr__error_nomem();
        batch->holes = grown;
        batch->holes[batch->hole_count++] = hole;
    }
    return NULL;
}

/* ---- Statements ---------------------------------------------------------------------------- */

mr_error *mr__batch_sql_render(const mr_names *names, mr_batch_sql *out)
{
    MR_AUTO_BUF advance = {0};
    /* A process that stops between two flights of a batch must not hold its checkpoint's row for
     * ever. In the middle of a flight the server waits without a limit: then the leader ends the
     * session (bury_workers), or the executor that lost it. */
    mr__buf_puts(&advance, "SELECT pg_catalog.set_config('idle_in_transaction_session_timeout',"
                           " $5::text, true), ");
    mr__names_function(names, "advance_checkpoint", &advance);
    /* What was read on a server that has been replaced means nothing on its successor, where the
     * same positions may be other events: no checkpoint is at -1, so the fence holds. */
    mr__buf_puts(&advance, "($1::text, $2::uuid, CASE WHEN $6::int8 IN (0, " MR_SERVER_SQL ")"
                           " THEN $3::int8 ELSE -1 END, $4::int8)");

    MR_AUTO_BUF skips = {0};
    mr__buf_puts(&skips, "INSERT INTO ");
    mr__qname_quote(&skips, &names->table[MR_TABLE_GAP_SKIPS]);
    mr__buf_puts(
        &skips,
        " (consumer_name, worker_id, gap_position, gap_end, skip_to_position,"
        " highest_visible_position, first_seen_at, strategy, reason)"
        " SELECT $1::text, $2::uuid, h.first, h.last, h.last + 1, h.visible,"
        " pg_catalog.clock_timestamp() - h.age * interval '1 microsecond', $3::text, $4::text"
        " FROM unnest($5::int8[], $6::int8[], $7::int8[], $8::int8[])"
        " AS h(first, last, visible, age)");
    *out = (mr_batch_sql){.advance = mr__buf_take(&advance), .skips = mr__buf_take(&skips)};
    if (out->advance != NULL && out->skips != NULL)
        return NULL;
    mr__batch_sql_free(out);
    return mr__error_nomem();
}

void mr__batch_sql_free(mr_batch_sql *sql)
{
    free(sql->advance);
    free(sql->skips);
    *sql = (mr_batch_sql){0};
}

static mr_error *queue_advance(const mr_batch *batch, mr_tx *tx)
{
    char expected[24], target[24], idle[32], server[24];
    (void)snprintf(expected, sizeof(expected), "%" PRId64, batch->expected);
    (void)snprintf(target, sizeof(target), "%" PRId64, batch->target);
    (void)snprintf(idle, sizeof(idle), "%" PRId64 "ms", batch->timeout / 1000 + 1000);
    (void)snprintf(server, sizeof(server), "%" PRId64, batch->server);
    const char *values[] = {batch->consumer, batch->worker_id, expected, target, idle, server};
    return mr_tx_exec(tx, batch->sql->advance, 6, values);
}

/* What made each strategy believe that a position will never come. */
static const char *reason_of(const char *strategy)
{
    switch (strategy[0]) {
    case 'h':
        return "older than stale_gap_threshold; a late commit may be lost";
    case 't':
        return "older than gap_timeout and absent at the last look; a late commit may be lost";
    case 'p':
        return "below the published position";
    default:
        return strategy[1] == 'n' ? "every transaction that ran when it was seen has ended"
                                  : "no transaction that could fill it is left";
    }
}

static void add_number(mr_buf *array, size_t index, int64_t value)
{
    mr__buf_printf(array, "%s%" PRId64, index == 0 ? "{" : ",", value);
}

static mr_error *queue_skips(const mr_batch *batch, mr_tx *tx)
{
    if (batch->hole_count == 0)
        return NULL;
    MR_AUTO_BUF first = {0};
    MR_AUTO_BUF last = {0};
    MR_AUTO_BUF visible = {0};
    MR_AUTO_BUF age = {0};
    int64_t now = mr__clock_now(batch->clock);
    for (size_t i = 0; i < batch->hole_count; i++) {
        const mr_hole *hole = &batch->holes[i];
        add_number(&first, i, hole->first);
        add_number(&last, i, hole->last);
        add_number(&visible, i, hole->visible);
        add_number(&age, i, now > hole->seen ? now - hole->seen : 0);
    }
    mr_buf *all[] = {&first, &last, &visible, &age};
    for (size_t i = 0; i < 4; i++)
        mr__buf_putc(all[i], '}');
    if (first.failed || last.failed || visible.failed || age.failed)
        return mr__error_nomem();
    const char *values[] = {
        batch->consumer, batch->worker_id, batch->strategy, reason_of(batch->strategy),
        first.data,      last.data,        visible.data,    age.data};
    return mr_tx_exec(tx, batch->sql->skips, 8, values);
}

/* ---- Running ------------------------------------------------------------------------------- */

static mr_error *work(mr_batch *batch, mr_tx *tx)
{
    MR_TRY(queue_advance(batch, tx));
    MR_TRY(queue_skips(batch, tx));
    if (batch->count == 0)
        return NULL;
    mr_run run = {.events = batch->events,
                  .count = batch->count,
                  .from = batch->expected,
                  .to = batch->target,
                  .shape = batch->shape};
    return batch->handler->run(batch->handler, tx, &run);
}

/* The fence as MR_SERVER_SQL raised it, in words that say so. */
static mr_error *name_other_server(mr_error *error)
{
    if (strcmp(mr_error_sqlstate(error), "MR002") != 0 ||
        strstr(mr_error_message(error), "not at -1 ") == NULL)
        return error;
    mr_error_free(error);
    return mr__error_db(MR_E_FENCED, "MR002", false,
                        "its events were read from another server than the one that answers now");
}

/* The handler's own error, unless a statement of it failed on the server: that is the cause. */
static mr_error *give_up(mr_batch *batch, mr_tx *tx, mr_error *own, int *failed)
{
    int current = mr__tx_current(tx);
    mr_error *server = mr__tx_rollback(tx, failed);
    if (server == NULL) {
        batch->handlers_own = true;
        *failed = current;
        return own;
    }
    mr_error_free(own);
    return server;
}

void mr__batch_run(mr_batch *batch, mr_session *session)
{
    int64_t before = mr__session_round_trips(session);
    int64_t deadline = mr__clock_now(batch->clock) + batch->timeout;
    mr_tx *tx = NULL;
    int failed = -1;
    batch->error = mr__tx_begin(session, deadline, &tx);
    if (batch->error == NULL) {
        mr_error *own = work(batch, tx);
        batch->error = own == NULL ? mr__tx_commit(tx, &failed) : give_up(batch, tx, own, &failed);
    }
    if (batch->error != NULL)
        batch->error = name_other_server(batch->error);
    if (batch->error != NULL && failed >= 0 && (size_t)failed < batch->count)
        batch->failed_position = batch->events[failed]->position;
    batch->round_trips = mr__session_round_trips(session) - before;
}
