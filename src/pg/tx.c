/* The pipelined transaction: queues statements, drains their results in order, blames the right
 * one.
 *
 * What must stay true: `entries` mirrors exactly what was sent and not yet answered, in order;
 * after a failure nothing more is queued until the sync that ends it. */
#include "pg/session_private.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Answers outstanding before we take what has arrived, and before we ask the server to send the
 * rest: both bound memory without waiting for a round trip. */
enum { TAKE_EVERY = 64, FLUSH_EVERY = 2048 };

static mr_error *entry_push(mr_tx *tx, mr_entry entry)
{
    if (tx->count == tx->capacity) {
        size_t capacity = tx->capacity == 0 ? 64 : tx->capacity * 2;
        mr_entry *grown = calloc(capacity, sizeof(*grown));
        if (grown == NULL)
            return mr__error_nomem();
        for (size_t i = 0; i < tx->count; i++)
            grown[i] = tx->entries[(tx->first + i) % tx->capacity];
        free(tx->entries);
        tx->entries = grown;
        tx->capacity = capacity;
        tx->first = 0;
    }
    tx->entries[(tx->first + tx->count++) % tx->capacity] = entry;
    return NULL;
}

static void entry_pop(mr_tx *tx)
{
    tx->first = (tx->first + 1) % tx->capacity;
    tx->count--;
}

static void fail(mr_tx *tx, int tag, mr_error *error)
{
    if (tx->failure != NULL) {
        mr_error_free(error);
        return;
    }
    /* Prepared statements that vanished (a pooler, DISCARD) or whose plan no longer fits (ALTER
     * TABLE): the next attempt starts on a fresh connection. */
    const char *state = mr_error_sqlstate(error);
    if (strcmp(state, "26000") == 0 || strcmp(state, "0A000") == 0)
        tx->session->broken = true;
    tx->failure = error;
    tx->failed_tag = tag;
}

static void take_result(mr_tx *tx, mr_entry *entry, PGresult *result)
{
    mr_error *error = NULL;
    if (PQresultStatus(result) != PGRES_PIPELINE_ABORTED)
        error = mr_error_from_result(tx->session->conn, result);
    bool good = error == NULL && PQresultStatus(result) != PGRES_PIPELINE_ABORTED;
    if (entry->kind == MR_ENTRY_PREPARE)
        entry->statement->state = good ? MR_STATEMENT_READY : MR_STATEMENT_NEW;
    if (entry->rows != NULL && good && *entry->rows == NULL) {
        *entry->rows = result;
        result = NULL;
    }
    if (error != NULL) {
        if (mr_error_code(error) == MR_E_CONNECT)
            tx->session->broken = true;
        fail(tx, entry->tag, error);
    }
    entry->answered = true;
    PQclear(result);
}

/* Takes every answer that has arrived. */
static mr_error *drain_arrived(mr_tx *tx)
{
    PGconn *conn = tx->session->conn;
    while (tx->count > 0 && PQisBusy(conn) == 0) {
        mr_entry *entry = &tx->entries[tx->first];
        PGresult *result = PQgetResult(conn);
        if (result == NULL) {
            if (entry->answered)
                entry_pop(tx);
            else if (PQstatus(conn) != CONNECTION_OK)
                return mr__session_lost(tx->session);
            continue;
        }
        bool sync = PQresultStatus(result) == PGRES_PIPELINE_SYNC;
        take_result(tx, entry, result);
        if (PQstatus(conn) != CONNECTION_OK)
            return mr__session_lost(tx->session);
        if (sync)
            entry_pop(tx);
    }
    return NULL;
}

/* Waits until at most `leave` answers are outstanding. */
static mr_error *drain(mr_tx *tx, size_t leave)
{
    MR_TRY(drain_arrived(tx));
    while (tx->count > leave) {
        MR_TRY(mr__session_wait(tx->session));
        MR_TRY(drain_arrived(tx));
    }
    return NULL;
}

/* Keeps the answers outstanding bounded while more is queued. */
static mr_error *relieve(mr_tx *tx)
{
    mr_session *s = tx->session;
    if (s->script != NULL)
        return NULL;
    if (tx->count < FLUSH_EVERY) {
        if (tx->count % TAKE_EVERY != 0)
            return NULL;
        if (PQflush(s->conn) < 0 || PQconsumeInput(s->conn) == 0)
            return mr__session_lost(s);
        return drain_arrived(tx);
    }
    if (PQsendFlushRequest(s->conn) != 1)
        return mr__session_lost(s);
    return drain(tx, FLUSH_EVERY / 2);
}

static mr_error *sent(mr_tx *tx, int ok, mr_entry entry)
{
    if (ok != 1)
        return mr__session_lost(tx->session);
    return entry_push(tx, entry);
}

/* Without a server a statement is answered at once. */
static mr_error *run_script(mr_tx *tx, const char *sql, int count, const char *const *values,
                            const int *lengths, const int *formats, mr_entry entry)
{
    const mr_script *script = tx->session->script;
    mr_error *error =
        script->statement(script->user, sql, count, values, lengths, formats, entry.rows);
    if (error == NULL)
        return NULL;
    if (mr_error_code(error) == MR_E_CONNECT)
        tx->session->broken = true;
    fail(tx, entry.tag, error);
    return NULL;
}

/* Sends one statement, prepared when that is allowed. */
static mr_error *send_statement(mr_tx *tx, const char *sql, int count, const Oid *types,
                                const char *const *values, const int *lengths, const int *formats,
                                int result_format, mr_entry entry)
{
    mr_session *s = tx->session;
    if (s->script != NULL)
        return run_script(tx, sql, count, values, lengths, formats, entry);
    mr_statement *statement =
        s->params.prepare ? mr__session_statement(s, sql, count, types) : NULL;
    if (statement == NULL)
        return sent(
            tx,
            PQsendQueryParams(s->conn, sql, count, types, values, lengths, formats, result_format),
            entry);
    if (statement->state == MR_STATEMENT_NEW) {
        statement->state = MR_STATEMENT_SENT;
        mr_entry prepare = {.tag = tx->tag, .kind = MR_ENTRY_PREPARE, .statement = statement};
        MR_TRY(sent(tx,
                    PQsendPrepare(s->conn, statement->name, sql, types == NULL ? 0 : count, types),
                    prepare));
    }
    return sent(tx,
                PQsendQueryPrepared(s->conn, statement->name, count, values, lengths, formats,
                                    result_format),
                entry);
}

static mr_error *send_step(mr_tx *tx, mr_step step, int tag)
{
    static const char *const texts[] = {
        [MR_STEP_BEGIN] = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
        [MR_STEP_MARK] = "SAVEPOINT millrace_mark",
        [MR_STEP_UNMARK] = "RELEASE SAVEPOINT millrace_mark",
        [MR_STEP_UNDO] = "ROLLBACK TO SAVEPOINT millrace_mark",
        [MR_STEP_COMMIT] = "COMMIT",
        [MR_STEP_ROLLBACK] = "ROLLBACK",
    };
    const mr_script *script = tx->session->script;
    if (script == NULL)
        return send_statement(tx, texts[step], 0, NULL, NULL, NULL, NULL, 0,
                              (mr_entry){.tag = tag, .kind = MR_ENTRY_EXEC});
    script->step(script->user, step);
    return NULL;
}

/* The server only says "canceling statement"; this says who did it and why. */
static mr_error *cancelled_error(const mr_tx *tx)
{
    if (tx->stopped)
        return mr__error_db(MR_E_CANCELLED, NULL, true, "the batch was cancelled by a forced stop");
    return mr__error_db(MR_E_TIMEOUT, NULL, false,
                        "the batch ran longer than batch_timeout and was cancelled");
}

/* What a caller hears when something already went wrong: the same first failure each time. */
static mr_error *standing_failure(mr_tx *tx)
{
    if (tx->failure != NULL)
        return mr__error_copy(tx->failure);
    if (!mr_tx_cancelled(tx))
        return NULL;
    tx->stopped = mr__tx_unwanted(tx);
    tx->timed_out = !tx->stopped;
    return cancelled_error(tx);
}

/* After something was sent, with `error` when it could not be. */
static mr_error *queued(mr_tx *tx, mr_error *error)
{
    if (error == NULL)
        error = relieve(tx);
    if (error != NULL) {
        fail(tx, tx->tag, error);
        return mr__error_copy(tx->failure);
    }
    return standing_failure(tx);
}

static mr_error *queue(mr_tx *tx, const char *sql, int count, const Oid *types,
                       const char *const *values, const int *lengths, const int *formats,
                       int result_format, mr_entry entry)
{
    MR_TRY(standing_failure(tx));
    return queued(
        tx, send_statement(tx, sql, count, types, values, lengths, formats, result_format, entry));
}

static mr_error *queue_step(mr_tx *tx, mr_step step, int tag)
{
    MR_TRY(standing_failure(tx));
    return queued(tx, send_step(tx, step, tag));
}

mr_error *mr__tx_begin(mr_session *s, int64_t deadline, mr_tx **out)
{
    mr_tx *tx = &s->tx;
    mr_entry *entries = tx->entries;
    size_t capacity = tx->capacity;
    *tx = (mr_tx){.session = s,
                  .deadline = deadline,
                  .entries = entries,
                  .capacity = capacity,
                  .tag = -1,
                  .failed_tag = -1};
    mr_error *error = queue_step(tx, MR_STEP_BEGIN, -1);
    if (error != NULL) {
        mr_error_free(tx->failure);
        tx->failure = NULL;
        s->broken = true;
        return error;
    }
    *out = tx;
    return NULL;
}

void mr__tx_tag(mr_tx *tx, int tag)
{
    tx->tag = tag < 0 ? tag : tx->first_tag + tag;
}

void mr__tx_tag_from(mr_tx *tx, int first)
{
    tx->first_tag = first;
}

int mr__tx_current(const mr_tx *tx)
{
    return tx->tag;
}

void mr__tx_watch(mr_tx *tx, const atomic_int *stop)
{
    tx->watched = stop;
}

bool mr__tx_unwanted(const mr_tx *tx)
{
    return atomic_load(tx->session->params.cancelled) ||
           (tx->watched != NULL && atomic_load(tx->watched) != 0);
}

bool mr_tx_cancelled(const mr_tx *tx)
{
    return tx->cancel_sent_at != 0 || mr__tx_unwanted(tx) ||
           mr__clock_now(tx->session->params.clock) >= tx->deadline;
}

/* Length of a comment, which in SQL may hold others; an open one runs to the end. */
static size_t block_comment(const char *p)
{
    size_t i = 2;
    for (int depth = 1; p[i] != '\0' && depth > 0;) {
        int change = strncmp(p + i, "/*", 2) == 0 ? 1 : strncmp(p + i, "*/", 2) == 0 ? -1 : 0;
        depth += change;
        i += change == 0 ? 1 : 2;
    }
    return i;
}

static const char *skip_blank(const char *sql)
{
    for (;;) {
        while (isspace((unsigned char)*sql) || *sql == ';')
            sql++;
        if (strncmp(sql, "--", 2) == 0)
            sql += strcspn(sql, "\n");
        else if (strncmp(sql, "/*", 2) == 0)
            sql += block_comment(sql);
        else
            return sql;
    }
}

/* The one of `count` words that stands here, NULL when another does. */
static const char *word_of(const char *sql, const char *const *words, size_t count)
{
    size_t length = 0;
    while (isalpha((unsigned char)sql[length]))
        length++;
    for (size_t i = 0; i < count; i++)
        if (strlen(words[i]) == length && strncasecmp(sql, words[i], length) == 0)
            return words[i];
    return NULL;
}

const char *mr__tx_control_word(const char *sql)
{
    static const char *const words[] = {"begin",    "start", "commit", "end",
                                        "rollback", "abort", "prepare"};
    sql = skip_blank(sql);
    const char *word = word_of(sql, words, sizeof(words) / sizeof(words[0]));
    if (word == NULL || strcmp(word, "prepare") != 0)
        return word;
    static const char *const both[] = {"transaction"};
    return word_of(skip_blank(sql + strlen(word)), both, 1) == NULL ? NULL : "prepare transaction";
}

/* Whether a statement changes what outlives its transaction and belongs to the session: whoever
 * uses that next would run with another's search_path, say. */
static bool leaves_traces(const char *sql)
{
    static const char *const words[] = {"set",     "reset",      "listen", "unlisten", "discard",
                                        "prepare", "deallocate", "load",   "declare"};
    static const char *const local[] = {"local", "constraints", "transaction"};
    sql = skip_blank(sql);
    const char *word = word_of(sql, words, sizeof(words) / sizeof(words[0]));
    if (word == NULL)
        return false;
    if (strcmp(word, "set") == 0)
        return word_of(skip_blank(sql + strlen(word)), local, 3) == NULL;
    return strcmp(word, "declare") != 0 || strcasestr(sql, "hold") != NULL;
}

static mr_error *refuse_control(mr_tx *tx, const char *sql)
{
    const char *word = mr__tx_control_word(sql);
    if (word == NULL)
        return NULL;
    fail(tx, tx->tag,
         mr__error(MR_E_HANDLER,
                   "the handler sent '%s'; the batch's transaction belongs to the worker", word));
    return mr__error_copy(tx->failure);
}

mr_error *mr_tx_exec_params(mr_tx *tx, const char *sql, int count, const Oid *types,
                            const char *const *values, const int *lengths, const int *formats)
{
    MR_TRY(refuse_control(tx, sql));
    tx->traces = tx->traces || leaves_traces(sql);
    return queue(tx, sql, count, types, values, lengths, formats, 0,
                 (mr_entry){.tag = tx->tag, .kind = MR_ENTRY_EXEC});
}

mr_error *mr_tx_exec(mr_tx *tx, const char *sql, int count, const char *const *values)
{
    return mr_tx_exec_params(tx, sql, count, NULL, values, NULL, NULL);
}

static mr_error *wait_for_rows(mr_tx *tx)
{
    mr_error *error = NULL;
    if (tx->session->script == NULL && PQsendFlushRequest(tx->session->conn) != 1)
        error = mr__session_lost(tx->session);
    tx->session->round_trips++;
    if (error == NULL)
        error = drain(tx, 0);
    if (error != NULL)
        fail(tx, tx->tag, error);
    return standing_failure(tx);
}

/* A query that was given up may still be answered: its rows have nowhere to go then. */
static void disown_rows(mr_tx *tx)
{
    for (size_t i = 0; i < tx->count; i++)
        tx->entries[(tx->first + i) % tx->capacity].rows = NULL;
}

mr_error *mr__tx_query_params(mr_tx *tx, const char *sql, int count, const Oid *types,
                              const char *const *values, const int *lengths, const int *formats,
                              int result_format, PGresult **rows)
{
    MR_TRY(refuse_control(tx, sql));
    tx->traces = tx->traces || leaves_traces(sql);
    PGresult *result = NULL;
    mr_error *error = queue(tx, sql, count, types, values, lengths, formats, result_format,
                            (mr_entry){.tag = tx->tag, .kind = MR_ENTRY_QUERY, .rows = &result});
    if (error == NULL)
        error = wait_for_rows(tx);
    disown_rows(tx);
    if (error != NULL || result == NULL) {
        PQclear(result);
        return error != NULL ? error : mr__error(MR_E_INTERNAL, "a query gave no result");
    }
    *rows = result;
    return NULL;
}

mr_error *mr_tx_query(mr_tx *tx, const char *sql, int count, const char *const *values,
                      PGresult **rows)
{
    return mr__tx_query_params(tx, sql, count, NULL, values, NULL, NULL, 0, rows);
}

static mr_error *sync_and_drain(mr_tx *tx)
{
    if (tx->session->script != NULL)
        return NULL;
    MR_TRY(
        sent(tx, PQpipelineSync(tx->session->conn), (mr_entry){.tag = -1, .kind = MR_ENTRY_SYNC}));
    tx->session->round_trips++;
    return drain(tx, 0);
}

/* After a sync: back to no transaction at all, or hang up. */
static void end_block(mr_tx *tx)
{
    mr_session *s = tx->session;
    if (s->script != NULL) {
        mr_error_free(send_step(tx, MR_STEP_ROLLBACK, -1));
        return;
    }
    if (s->broken || PQtransactionStatus(s->conn) == PQTRANS_IDLE)
        return;
    /* The rollback is not cancelled, whatever happened to the batch; it gets a grace period of its
     * own, after which the connection is given up. */
    tx->cancel_sent_at = mr__clock_now(s->params.clock);
    mr_error *kept = tx->failure;
    tx->failure = NULL;
    mr_error *error = sent(tx, PQsendQueryParams(s->conn, "ROLLBACK", 0, NULL, NULL, NULL, NULL, 0),
                           (mr_entry){.tag = -1, .kind = MR_ENTRY_EXEC});
    if (error == NULL)
        error = sync_and_drain(tx);
    if (error != NULL || PQtransactionStatus(s->conn) != PQTRANS_IDLE)
        s->broken = true;
    mr_error_free(error);
    mr_error_free(tx->failure);
    tx->failure = kept;
}

static mr_error *finish(mr_tx *tx, int *failed_tag)
{
    mr_error *error = sync_and_drain(tx);
    if (error != NULL)
        fail(tx, -1, error);
    mr__session_cancel_end(tx->session);
    end_block(tx);
    if (failed_tag != NULL)
        *failed_tag = tx->failed_tag;
    error = tx->failure;
    tx->failure = NULL;
    tx->count = 0;
    tx->session->spent = tx->session->spent || tx->traces;
    if (error == NULL || mr_error_code(error) == MR_E_CONNECT || (!tx->timed_out && !tx->stopped))
        return error;
    mr_error_free(error);
    return cancelled_error(tx);
}

/* ---- Marks: a piece of the transaction that can be undone ----------------------------------- */

mr_error *mr__tx_mark(mr_tx *tx)
{
    return queue_step(tx, MR_STEP_MARK, -1);
}

mr_error *mr__tx_unmark(mr_tx *tx)
{
    /* A constraint that was put off to here, or the release itself, is the marked piece's affair.
     */
    return queue_step(tx, MR_STEP_UNMARK, tx->tag);
}

mr_error *mr__tx_check(mr_tx *tx)
{
    /* The roll-back puts back what was deferred, and that it is. */
    static const char *const texts[] = {
        "SAVEPOINT millrace_check",
        "SET CONSTRAINTS ALL IMMEDIATE",
        "ROLLBACK TO SAVEPOINT millrace_check",
        "RELEASE SAVEPOINT millrace_check",
    };
    if (tx->session->script != NULL)
        return NULL;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        MR_TRY(queue(tx, texts[i], 0, NULL, NULL, NULL, NULL, 0,
                     (mr_entry){.tag = tx->tag, .kind = MR_ENTRY_EXEC}));
    return NULL;
}

/* Waits for everything that was queued; what went wrong is taken out of the transaction. */
static mr_error *settle_failure(mr_tx *tx, mr_error **failure, int *failed_tag)
{
    mr_error *error = sync_and_drain(tx);
    mr__session_cancel_end(tx->session);
    *failure = tx->failure;
    *failed_tag = tx->failed_tag;
    tx->failure = NULL;
    tx->failed_tag = -1;
    if (error == NULL && tx->session->broken)
        error = mr__error_db(MR_E_CONNECT, NULL, true, "the connection cannot be used any further");
    if (error == NULL && tx->stopped)
        error = cancelled_error(tx);
    if (error == NULL && tx->timed_out && *failure != NULL) {
        mr_error_free(*failure);
        *failure = cancelled_error(tx);
    }
    return error;
}

mr_error *mr__tx_settle(mr_tx *tx)
{
    mr_error *error = sync_and_drain(tx);
    if (error != NULL)
        fail(tx, -1, error);
    return standing_failure(tx);
}

mr_error *mr__tx_undo(mr_tx *tx, int64_t deadline, mr_error **failure, int *failed_tag)
{
    mr_error *error = settle_failure(tx, failure, failed_tag);
    tx->cancel_sent_at = 0;
    tx->timed_out = false;
    tx->deadline = deadline;
    tx->tag = -1;
    if (error == NULL)
        error = queue_step(tx, MR_STEP_UNDO, -1);
    return error;
}

mr_error *mr__tx_commit(mr_tx *tx, int *failed_tag)
{
    tx->tag = -1;
    /* The deadline counts until the COMMIT is sent. After that only the server's answer does: the
     * batch may be committed. */
    mr_error *error = standing_failure(tx);
    if (error == NULL)
        error = send_step(tx, MR_STEP_COMMIT, -1);
    /* Without a COMMIT on its way the batch must not look committed. */
    if (error != NULL)
        fail(tx, -1, error);
    return finish(tx, failed_tag);
}

mr_error *mr__tx_rollback(mr_tx *tx, int *failed_tag)
{
    return finish(tx, failed_tag);
}
