/* Dead letters handled again.
 *
 * What must stay true: the fence is held while a letter runs, so no batch of the consumer commits
 * meanwhile; with dead_letter_order: key no letter runs while an earlier one of its stream is left.
 */
#include "consumer/replay.h"

#include "log/rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Statements ---------------------------------------------------------------------------- */

static void put_table(mr_buf *sql, const mr_names *names, const char *before, const char *after)
{
    mr__buf_puts(sql, before);
    mr__qname_quote(sql, &names->table[MR_TABLE_DEAD_LETTERS]);
    mr__buf_puts(sql, after);
}

/* True for a letter `d` that has an earlier one of its stream. $2: whether that matters. */
static void put_waits(mr_buf *sql, const mr_names *names)
{
    put_table(sql, names, "($2::bool AND EXISTS (SELECT FROM ",
              " AS b WHERE b.consumer_name = d.consumer_name"
              " AND b.aggregate_type IS NOT DISTINCT FROM d.aggregate_type"
              " AND b.aggregate_id IS NOT DISTINCT FROM d.aggregate_id"
              " AND b.global_position < d.global_position))");
}

mr_error *mr__replay_sql_render(const mr_names *names, const mr_log_shape *shape,
                                mr_replay_sql *out)
{
    MR_AUTO_BUF next = {0};
    put_table(&next, names, "SELECT d.id, d.global_position, d.attempts FROM ",
              " AS d WHERE d.consumer_name = $1::text AND d.replay_at IS NOT NULL AND NOT ");
    put_waits(&next, names);
    mr__buf_puts(&next, " ORDER BY d.global_position LIMIT 1 FOR UPDATE");
    MR_AUTO_BUF event = {0};
    mr__rows_select(&event, shape, &(mr_rows_want){.inline_payload_max = -1});
    mr__buf_puts(&event, " WHERE ");
    mr__rows_column(&event, shape, MR_COL_POSITION);
    mr__buf_puts(&event, " = $1::int8");
    MR_AUTO_BUF done = {0};
    put_table(&done, names, "DELETE FROM ", " WHERE id = $1::int8");
    MR_AUTO_BUF failed = {0};
    /* What waits behind it in its stream is not tried either. */
    put_table(&failed, names, "UPDATE ",
              " AS d SET replay_at = NULL, replay_by = NULL,"
              " updated_at = pg_catalog.clock_timestamp(),"
              " attempts = d.attempts + (d.id = $1::int8)::int4,"
              " error = CASE WHEN d.id = $1::int8 THEN $3::text ELSE d.error END,"
              " sqlstate = CASE WHEN d.id = $1::int8 THEN $4::text ELSE d.sqlstate END FROM ");
    put_table(&failed, names, "",
              " AS l WHERE l.id = $1::int8 AND (d.id = l.id OR ($2::bool"
              " AND d.consumer_name = l.consumer_name AND d.replay_at IS NOT NULL"
              " AND d.aggregate_type IS NOT DISTINCT FROM l.aggregate_type"
              " AND d.aggregate_id IS NOT DISTINCT FROM l.aggregate_id))");
    MR_AUTO_BUF stuck = {0};
    put_table(&stuck, names, "UPDATE ",
              " AS d SET replay_at = NULL, replay_by = NULL,"
              " updated_at = pg_catalog.clock_timestamp(),"
              " error = 'waits behind an earlier event of its stream; replay or drop that first'"
              " WHERE d.consumer_name = $1::text AND d.replay_at IS NOT NULL AND ");
    put_waits(&stuck, names);
    *out = (mr_replay_sql){.next = mr__buf_take(&next),
                           .event = mr__buf_take(&event),
                           .done = mr__buf_take(&done),
                           .failed = mr__buf_take(&failed),
                           .stuck = mr__buf_take(&stuck)};
    if (out->next != NULL && out->event != NULL && out->done != NULL && out->failed != NULL &&
        out->stuck != NULL)
        return NULL;
    mr__replay_sql_free(out);
    return mr__error_nomem();
}

void mr__replay_sql_free(mr_replay_sql *sql)
{
    free(sql->next);
    free(sql->event);
    free(sql->done);
    free(sql->failed);
    free(sql->stuck);
    *sql = (mr_replay_sql){0};
}

/* ---- One letter ---------------------------------------------------------------------------- */

typedef struct letter {
    char id[24];
    int attempt;
    bool found; /* its event is in the log still */
    mr_event event;
    const mr_event *list[1];
    PGresult *rows;
} letter;

static const char *flag(bool value)
{
    return value ? "true" : "false";
}

/* The next letter and its event; `id` is empty when there is none left. */
static mr_error *pick(const mr_replay *r, mr_tx *tx, letter *l)
{
    const char *which[] = {r->fence->consumer, flag(r->by_key)};
    MR_AUTO_RESULT row = NULL;
    MR_TRY(mr_tx_query(tx, r->sql->next, 2, which, &row));
    if (PQntuples(row) == 0)
        return NULL;
    (void)snprintf(l->id, sizeof(l->id), "%s", PQgetvalue(row, 0, 0));
    l->attempt = (int)strtol(PQgetvalue(row, 0, 2), NULL, 10) + 1;
    const char *position[] = {PQgetvalue(row, 0, 1)};
    MR_TRY(mr__tx_query_params(tx, r->sql->event, 1, NULL, position, NULL, NULL, 1, &l->rows));
    l->found = PQntuples(l->rows) == 1;
    if (l->found)
        (void)mr__rows_parse(l->rows, false, &l->event);
    l->list[0] = &l->event;
    return NULL;
}

static mr_run run_of(const mr_replay *r, const letter *l)
{
    const mr_batch *b = r->fence;
    return (mr_run){.events = l->list,
                    .count = 1,
                    .from = l->event.position - 1,
                    .to = l->event.position,
                    .some = true,
                    .shape = b->shape,
                    .consumer = b->consumer,
                    .attempt = l->attempt,
                    .deadline = mr__clock_now(b->clock) + b->timeout,
                    .clock = b->clock,
                    .cancelled = b->cancelled,
                    .logger = b->logger};
}

static mr_error *write_failed(mr_replay *r, mr_tx *tx, const letter *l, const mr_error *why)
{
    const char *state = mr_error_sqlstate(why);
    const char *values[] = {l->id, flag(r->by_key),
                            why == NULL ? "its event is not in the log any more"
                                        : mr_error_message(why),
                            state[0] == '\0' ? NULL : state};
    return mr_tx_exec(tx, r->sql->failed, 4, values);
}

static mr_error *write_done(mr_replay *r, mr_tx *tx, const letter *l)
{
    const char *values[] = {l->id};
    return mr_tx_exec(tx, r->sql->done, 1, values);
}

/* The handler in the letter's transaction. `*why` is set when it failed and only the letter is to
 * blame; an error returned ends the transaction. */
static mr_error *handle(mr_replay *r, mr_tx *tx, const letter *l, mr_error **why)
{
    mr_run run = run_of(r, l);
    mr__tx_tag(tx, 0);
    mr_error *own = mr__tx_mark(tx);
    if (own == NULL)
        own = r->fence->handler->run(r->fence->handler, tx, &run);
    mr__tx_tag(tx, 0);
    if (own == NULL)
        own = mr__tx_unmark(tx);
    if (own == NULL)
        own = mr__tx_settle(tx);
    mr__tx_tag(tx, -1);
    if (own == NULL)
        return NULL;
    mr_error *server = NULL;
    int failed = -1;
    mr_error *error =
        mr__tx_undo(tx, mr__clock_now(r->fence->clock) + r->fence->timeout, &server, &failed);
    mr_error *cause = server != NULL ? server : own;
    if (error == NULL && mr__fault_of(cause, server == NULL, false) == MR_FAULT_NOBODY)
        error = mr__error_copy(cause);
    if (server != NULL)
        mr_error_free(own);
    if (error != NULL)
        mr_error_free(cause);
    else
        *why = cause;
    return error;
}

/* Notes in the letter's transaction what came of it. */
static mr_error *conclude(mr_replay *r, mr_tx *tx, const letter *l, const mr_error *why)
{
    if (l->found && why == NULL) {
        r->replayed++;
        return write_done(r, tx, l);
    }
    r->failed++;
    return write_failed(r, tx, l, why);
}

static mr_error *in_transaction(mr_replay *r, mr_tx *tx, letter *l)
{
    MR_TRY(mr__batch_advance(r->fence, tx, r->fence->expected));
    MR_TRY(pick(r, tx, l));
    if (l->id[0] == '\0') {
        const char *values[] = {r->fence->consumer, flag(r->by_key)};
        return mr_tx_exec(tx, r->sql->stuck, 2, values);
    }
    MR_AUTO_ERROR why = NULL;
    if (l->found)
        MR_TRY(handle(r, tx, l, &why));
    return conclude(r, tx, l, why);
}

static mr_error *begin(const mr_replay *r, const mr_sessions *sessions, mr_tx **tx)
{
    mr_session *session = NULL;
    MR_TRY(sessions->open(sessions->user, &session));
    return mr__tx_begin(session, mr__clock_now(r->fence->clock) + r->fence->timeout, tx);
}

static mr_error *end(mr_tx *tx, mr_error *error)
{
    if (error == NULL)
        return mr__tx_commit(tx, NULL);
    mr_error *server = mr__tx_rollback(tx, NULL);
    if (server == NULL)
        return error;
    mr_error_free(error);
    return server;
}

static mr_error *write_outcome(mr_replay *r, mr_tx *tx, const letter *l, const mr_error *why)
{
    MR_TRY(mr__batch_advance(r->fence, tx, r->fence->expected));
    return conclude(r, tx, l, why);
}

/* What came of a letter, in a transaction that has nothing else; `why` is taken. */
static mr_error *write_down(mr_replay *r, const mr_sessions *sessions, const letter *l,
                            mr_error *why)
{
    mr_tx *tx = NULL;
    mr_error *error = begin(r, sessions, &tx);
    if (error == NULL)
        error = end(tx, write_outcome(r, tx, l, why));
    mr_error_free(why);
    return error;
}

static mr_error *one(mr_replay *r, const mr_sessions *sessions, letter *l)
{
    mr_tx *tx = NULL;
    size_t replayed = r->replayed, failed = r->failed;
    MR_TRY(begin(r, sessions, &tx));
    mr_error *error = end(tx, in_transaction(r, tx, l));
    if (error == NULL)
        return NULL;
    r->replayed = replayed;
    r->failed = failed;
    bool stopping = atomic_load(r->fence->cancelled);
    if (l->id[0] == '\0' || mr__fault_of(error, false, stopping) == MR_FAULT_NOBODY)
        return error;
    /* It failed only at the commit (a deferred constraint), which took along what was noted. */
    return write_down(r, sessions, l, error);
}

/* ---- Detached ------------------------------------------------------------------------------ */

static mr_error *look(mr_replay *r, mr_tx *tx, letter *l)
{
    MR_TRY(mr__batch_advance(r->fence, tx, r->fence->expected));
    return pick(r, tx, l);
}

/* The handler runs between two transactions: at least once. */
static mr_error *one_detached(mr_replay *r, const mr_sessions *sessions, letter *l)
{
    mr_tx *tx = NULL;
    MR_TRY(begin(r, sessions, &tx));
    MR_TRY(end(tx, look(r, tx, l)));
    if (l->id[0] == '\0') {
        r->detached = false; /* what is left may not run: say so in a transaction as others do */
        return one(r, sessions, l);
    }
    if (sessions->leave != NULL)
        sessions->leave(sessions->user);
    mr_error *why = NULL;
    mr_run run = run_of(r, l);
    size_t good = 0;
    if (l->found)
        why = r->fence->handler->deliver(r->fence->handler, &run, &good);
    /* A stop, or a program that cannot be started, is not the letter's fault: it stays as it is. */
    mr_fault fault = why == NULL ? MR_FAULT_RETRYABLE
                                 : mr__fault_of(why, true, atomic_load(r->fence->cancelled));
    if (fault == MR_FAULT_NOBODY || fault == MR_FAULT_HANDLER)
        return why;
    return write_down(r, sessions, l, why);
}

void mr__replay_run(mr_replay *r, const mr_sessions *sessions)
{
    bool more = true;
    while (more && r->error == NULL) {
        letter l = {.found = false};
        r->error = r->detached ? one_detached(r, sessions, &l) : one(r, sessions, &l);
        more = l.id[0] != '\0' && !atomic_load(r->fence->cancelled) &&
               !(r->fence->recalled != NULL && atomic_load(r->fence->recalled));
        PQclear(l.rows);
    }
}
