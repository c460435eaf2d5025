/* What a batch writes around its handler's own statements: the fence and the checkpoint, the audit
 * of holes and of skipped events, dead letters. */
#include "consumer/batch.h"

#include "cluster/template.h"
#include "pg/conn.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Statements ---------------------------------------------------------------------------- */

static void put_advance(mr_buf *sql, const mr_names *names)
{
    /* A process that stops between two flights of a batch must not hold its checkpoint's row for
     * ever. In the middle of a flight the server waits without a limit: then the leader ends the
     * session (bury_workers), or the executor that lost it. */
    mr__buf_puts(sql, "SELECT pg_catalog.set_config('idle_in_transaction_session_timeout',"
                      " $5::text, true), ");
    mr__names_function(names, "advance_checkpoint", sql);
    /* What was read on a server that has been replaced means nothing on its successor, where the
     * same positions may be other events: no checkpoint is at -1, so the fence holds. */
    mr__buf_puts(sql, "($1::text, $2::uuid, CASE WHEN $6::int8 IN (0, " MR_SERVER_SQL ")"
                      " THEN $3::int8 ELSE -1 END, $4::int8, $7::int8)");
}

static void put_skips(mr_buf *sql, const mr_names *names)
{
    mr__buf_puts(sql, "INSERT INTO ");
    mr__qname_quote(sql, &names->table[MR_TABLE_GAP_SKIPS]);
    mr__buf_puts(
        sql, " (consumer_name, worker_id, gap_position, gap_end, skip_to_position,"
             " highest_visible_position, first_seen_at, strategy, reason)"
             " SELECT $1::text, $2::uuid, h.first, h.last, h.last + 1, h.visible,"
             " pg_catalog.clock_timestamp() - h.age * interval '1 microsecond', $3::text, $4::text"
             " FROM unnest($5::int8[], $6::int8[], $7::int8[], $8::int8[])"
             " AS h(first, last, visible, age)");
}

/* An event that was given up before, and handled again after a reset, has its row still. */
static void put_letters(mr_buf *sql, const mr_names *names)
{
    mr__buf_puts(sql, "INSERT INTO ");
    mr__qname_quote(sql, &names->table[MR_TABLE_DEAD_LETTERS]);
    mr__buf_puts(
        sql, " AS d (consumer_name, worker_id, global_position, state, aggregate_type,"
             " aggregate_id, event_type, event_id, error, sqlstate, attempts, first_failed_at)"
             " SELECT $1::text, $2::uuid, l.position, l.state, l.aggregate_type, l.aggregate_id,"
             " l.event_type, l.event_id, l.error, l.sqlstate, l.attempts,"
             " pg_catalog.clock_timestamp() - l.age * interval '1 microsecond'"
             " FROM pg_catalog.jsonb_to_recordset($3::jsonb) AS l(position int8, state text,"
             " aggregate_type text, aggregate_id text, event_type text, event_id text, error text,"
             " sqlstate text, attempts int4, age int8)"
             " ON CONFLICT (consumer_name, global_position) DO UPDATE SET state = excluded.state,"
             " error = excluded.error, sqlstate = excluded.sqlstate,"
             " attempts = d.attempts + excluded.attempts, worker_id = excluded.worker_id,"
             " updated_at = pg_catalog.clock_timestamp(), replay_at = NULL, replay_by = NULL");
}

mr_error *mr__batch_sql_render(const mr_names *names, mr_batch_sql *out)
{
    MR_AUTO_BUF advance = {0};
    put_advance(&advance, names);
    MR_AUTO_BUF skips = {0};
    put_skips(&skips, names);
    MR_AUTO_BUF letters = {0};
    put_letters(&letters, names);
    MR_AUTO_BUF passed = {0};
    mr__buf_puts(&passed, "SELECT ");
    mr__names_function(names, "pass_skips", &passed);
    mr__buf_puts(&passed, "($1::text, $2::uuid, $3::int8[])");
    *out = (mr_batch_sql){.advance = mr__buf_take(&advance),
                          .skips = mr__buf_take(&skips),
                          .letters = mr__buf_take(&letters),
                          .passed = mr__buf_take(&passed)};
    if (out->advance != NULL && out->skips != NULL && out->letters != NULL && out->passed != NULL)
        return NULL;
    mr__batch_sql_free(out);
    return mr__error_nomem();
}

void mr__batch_sql_free(mr_batch_sql *sql)
{
    free(sql->advance);
    free(sql->skips);
    free(sql->letters);
    free(sql->passed);
    *sql = (mr_batch_sql){0};
}

/* ---- The fence ----------------------------------------------------------------------------- */

mr_error *mr__batch_advance(const mr_batch *batch, mr_tx *tx, int64_t to)
{
    if (batch->sql == NULL)
        return NULL;
    char expected[24], target[24], idle[32], server[24], epoch[24];
    (void)snprintf(expected, sizeof(expected), "%" PRId64, batch->expected);
    (void)snprintf(target, sizeof(target), "%" PRId64, to);
    (void)snprintf(idle, sizeof(idle), "%" PRId64 "ms", batch->timeout / 1000 + 1000);
    (void)snprintf(server, sizeof(server), "%" PRId64, batch->server);
    (void)snprintf(epoch, sizeof(epoch), "%" PRId64, batch->epoch);
    const char *values[] = {
        batch->consumer, batch->by_lock ? NULL : batch->worker_id, expected, target, idle,
        server,          batch->epoch < 0 ? NULL : epoch};
    return mr_tx_exec(tx, batch->sql->advance, 7, values);
}

/* ---- Holes --------------------------------------------------------------------------------- */

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

static void add_number(mr_buf *array, int64_t value)
{
    mr__buf_printf(array, "%s%" PRId64, array->length == 0 ? "{" : ",", value);
}

static mr_error *queue_holes(const mr_batch *batch, mr_tx *tx, int64_t upto)
{
    MR_AUTO_BUF first = {0};
    MR_AUTO_BUF last = {0};
    MR_AUTO_BUF visible = {0};
    MR_AUTO_BUF age = {0};
    int64_t now = mr__clock_now(batch->clock);
    for (size_t i = 0; i < batch->hole_count; i++) {
        const mr_hole *hole = &batch->holes[i];
        if (hole->first > upto)
            continue;
        add_number(&first, hole->first);
        add_number(&last, hole->last < upto ? hole->last : upto);
        add_number(&visible, hole->visible);
        add_number(&age, now > hole->seen ? now - hole->seen : 0);
    }
    if (first.length == 0)
        return NULL;
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

/* ---- Events set aside ---------------------------------------------------------------------- */

static mr_error *queue_passed(const mr_batch *batch, mr_tx *tx, int64_t upto)
{
    MR_AUTO_BUF positions = {0};
    for (size_t i = 0; i < batch->aside_count; i++)
        if (batch->asides[i].kind == MR_ASIDE_SKIP && batch->asides[i].event->position <= upto)
            add_number(&positions, batch->asides[i].event->position);
    if (positions.length == 0)
        return NULL;
    mr__buf_putc(&positions, '}');
    if (positions.failed)
        return mr__error_nomem();
    const char *values[] = {batch->consumer, batch->worker_id, positions.data};
    return mr_tx_exec(tx, batch->sql->passed, 3, values);
}

static json_t *letter_json(const mr_batch *batch, const mr_aside *aside)
{
    const mr_event *e = aside->event;
    const mr_sentence *s = &aside->sentence;
    bool poison = aside->kind == MR_ASIDE_POISON;
    const char *sqlstate = mr_error_sqlstate(s->error);
    bool named = e->event_id != NULL && e->event_id[0] != '\0';
    return json_pack("{s:I, s:s, s:s, s:s, s:s, s:s*, s:s, s:s*, s:i, s:I}", "position",
                     (json_int_t)e->position, "state", poison ? "poison" : "parked",
                     "aggregate_type", e->aggregate_type, "aggregate_id", e->aggregate_id,
                     "event_type", e->event_type, "event_id", named ? e->event_id : NULL, "error",
                     poison ? mr_error_message(s->error)
                            : "waits behind an earlier event of its stream",
                     "sqlstate", poison && sqlstate[0] != '\0' ? sqlstate : NULL, "attempts",
                     poison ? s->attempts : 0, "age",
                     (json_int_t)(poison ? mr__clock_now(batch->clock) - s->first_failed : 0));
}

static mr_error *queue_letters(const mr_batch *batch, mr_tx *tx, int64_t upto)
{
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; i < batch->aside_count; i++)
        if (batch->asides[i].kind != MR_ASIDE_SKIP && batch->asides[i].event->position <= upto)
            good = json_array_append_new(list, letter_json(batch, &batch->asides[i])) == 0 && good;
    bool none = json_array_size(list) == 0;
    char *text = none || !good ? NULL : json_dumps(list, JSON_COMPACT);
    json_decref(list);
    if (good && none)
        return NULL;
    if (text == NULL)
        return mr__error_nomem();
    const char *values[] = {batch->consumer, batch->worker_id, text};
    mr_error *error = mr_tx_exec(tx, batch->sql->letters, 3, values);
    free(text);
    return error;
}

mr_error *mr__batch_audit(const mr_batch *batch, mr_tx *tx, int64_t upto)
{
    if (batch->sql == NULL)
        return NULL;
    if (batch->hole_count > 0)
        MR_TRY(queue_holes(batch, tx, upto));
    if (batch->aside_count == 0)
        return NULL;
    MR_TRY(queue_passed(batch, tx, upto));
    return queue_letters(batch, tx, upto);
}
