/* Enqueues a draft of jobs on the caller's own connection, all or nothing: in the caller's
 * transaction behind a savepoint, so that a failure leaves it as it was, else in one of its own.
 * Many jobs go in pieces, several under way at once: what it costs is bandwidth, not round trips.
 * Runs on the caller's thread. */
#include "queue/enqueue.h"

#include "base/text.h"
#include "cluster/template.h"
#include "pg/array.h"
#include "pg/conn.h"

#include <stdio.h>
#include <string.h>

enum { UNDER_WAY = 4 }; /* pieces that were sent and not answered, at most */

/* One call. */
typedef struct flight {
    PGconn *conn;
    mr_job_draft *draft;
    const char *queue;
    mr_buf enqueue_sql, lock_sql;
    bool own;           /* the transaction is ours */
    bool locked;        /* the keys of all pieces are locked before the first */
    size_t sent, taken; /* jobs */
    int before;         /* statements without rows that are to be answered before the pieces */
    int pieces;         /* under way */
    size_t size[UNDER_WAY];
    int oldest;      /* of `size` */
    bool closed;     /* the end of the transaction was sent */
    mr_error *error; /* the first one */
} flight;

mr_error *mr__queue_name_check(const char *queue)
{
    size_t length = queue == NULL ? 0 : strlen(queue);
    if (length == 0 || length > MR_QUEUE_NAME_MAX || !mr__text_utf8(queue, length))
        return mr__error(MR_E_USAGE, "a queue needs a name of 1 to %d bytes of UTF-8",
                         (int)MR_QUEUE_NAME_MAX);
    return NULL;
}

static mr_error *check_call(PGconn *conn, const char *queue, const mr_job_draft *draft)
{
    if (PQstatus(conn) != CONNECTION_OK)
        return mr__pg_conn_error(conn);
    if (PQpipelineStatus(conn) != PQ_PIPELINE_OFF)
        return mr__error(MR_E_USAGE, "enqueueing on a connection in pipeline mode; leave it first");
    PGTransactionStatusType status = PQtransactionStatus(conn);
    if (status == PQTRANS_INERROR)
        return mr__error(MR_E_USAGE, "enqueueing in a transaction that has failed; roll it back");
    if (status != PQTRANS_IDLE && status != PQTRANS_INTRANS)
        return mr__error(MR_E_USAGE, "enqueueing while the connection runs another statement");
    if (draft->count == 0)
        return mr__error(MR_E_USAGE, "the draft holds no jobs");
    return mr__queue_name_check(queue);
}

/* ---- What went wrong ----------------------------------------------------------------------- */

/* A text that only the server can judge is quoted in its message: the job is the first that has it.
 */
static bool find_culprit(const flight *f, size_t first, size_t count, const char *message,
                         size_t *index)
{
    static const mr_job_text judged[] = {MR_JOB_TEXT_RUN_AT, MR_JOB_TEXT_TIMEOUT};
    for (size_t i = first; i < first + count; i++)
        for (size_t k = 0; k < sizeof(judged) / sizeof(judged[0]); k++) {
            mr_slice text = f->draft->rows[i].text[judged[k]];
            if (text.offset != MR_SLICE_NULL &&
                strstr(message, mr__job_draft_bytes(f->draft, text)) != NULL) {
                *index = i;
                return true;
            }
        }
    return false;
}

/* Says what the server's answer means, and for which jobs. */
static mr_error *explain(const flight *f, mr_error *error, size_t first, size_t count)
{
    const char *state = mr_error_sqlstate(error);
    if (strcmp(state, "42883") == 0 || strcmp(state, "3F000") == 0 || strcmp(state, "42P01") == 0) {
        mr_error *told =
            mr__error_db(MR_E_SCHEMA, state, false,
                         "the job functions are missing (%s); run: millrace schema apply",
                         mr_error_message(error));
        mr_error_free(error);
        return told;
    }
    /* An older snapshot than the key's lock: the index sees what the statement cannot. */
    if (strcmp(state, "23505") == 0) {
        mr_error *told = mr__error_db(MR_E_DB, state, true,
                                      "another transaction has enqueued the same key since this "
                                      "one began (%s); try the transaction again",
                                      mr_error_message(error));
        mr_error_free(error);
        return told;
    }
    bool data = strncmp(state, "22", 2) == 0 || strcmp(state, "54001") == 0;
    size_t index = 0;
    if (!data || f->draft->count == 1)
        return error;
    if (find_culprit(f, first, count, mr_error_message(error), &index) || count == 1)
        return mr__error_prefix(error, "job %zu", count == 1 ? first + 1 : index + 1);
    return mr__error_prefix(error, "one of jobs %zu to %zu", first + 1, first + count);
}

/* ---- Answers ------------------------------------------------------------------------------- */

static mr_error *take_rows(mr_job_draft *draft, size_t first, size_t count, const PGresult *rows)
{
    bool fits = PQnfields(rows) == 3 && (size_t)PQntuples(rows) == count;
    for (size_t i = 0; fits && i < count; i++) {
        fits = mr__binary_int4(rows, (int)i, 0) == (int32_t)i + 1;
        draft->rows[first + i].id = mr__binary_int8(rows, (int)i, 1);
        draft->rows[first + i].created = PQgetvalue(rows, (int)i, 2)[0] != 0;
    }
    return fits ? NULL
                : mr__error(MR_E_INTERNAL, "the server gave %d ids for %zu jobs", PQntuples(rows),
                            count);
}

static void keep_error(flight *f, mr_error *error)
{
    if (f->error == NULL)
        f->error = error;
    else
        mr_error_free(error);
}

/* The answer to the statement that was sent first of those under way. */
static void take_answer(flight *f)
{
    bool rows = f->before == 0;
    size_t count = rows ? f->size[f->oldest] : 0;
    bool answered = false;
    PGresult *result;
    while ((result = PQgetResult(f->conn)) != NULL) {
        ExecStatusType status = PQresultStatus(result);
        answered = true;
        if (status == PGRES_TUPLES_OK && rows)
            keep_error(f, take_rows(f->draft, f->taken, count, result));
        else if (status != PGRES_PIPELINE_ABORTED && f->error == NULL)
            keep_error(f, explain(f, mr_error_from_result(f->conn, result), f->taken, count));
        PQclear(result);
    }
    if (!answered)
        keep_error(f, mr__pg_conn_error(f->conn));
    f->taken += count;
    if (!rows) {
        f->before--;
    } else {
        f->oldest = (f->oldest + 1) % UNDER_WAY;
        f->pieces--;
    }
}

/* Up to the sync; the end of the transaction is answered here too. */
static void drain(flight *f)
{
    for (int quiet = 0; quiet < 2;) { /* two NULLs in a row: nothing more will come */
        PGresult *result = PQgetResult(f->conn);
        if (result == NULL) {
            quiet++;
            continue;
        }
        quiet = 0;
        ExecStatusType status = PQresultStatus(result);
        if (status != PGRES_PIPELINE_ABORTED && f->error == NULL)
            keep_error(f, mr_error_from_result(f->conn, result));
        PQclear(result);
        if (status == PGRES_PIPELINE_SYNC)
            return;
    }
    keep_error(f, mr__pg_conn_error(f->conn));
}

/* ---- Sending ------------------------------------------------------------------------------- */

static void send_plain(flight *f, const char *sql)
{
    if (f->error == NULL && PQsendQueryParams(f->conn, sql, 0, NULL, NULL, NULL, NULL, 0) != 1)
        f->error = mr__pg_conn_error(f->conn);
}

/* All keys at once and sorted, before the first piece: two producers whose pieces hold each other's
 * keys would wait for each other otherwise. */
static void send_locks(flight *f)
{
    mr_enqueue_params p;
    if (f->error != NULL)
        return;
    f->error = mr__enqueue_encode_keys(f->draft, f->queue, &p);
    if (f->error != NULL)
        return;
    if (PQsendQueryParams(f->conn, mr__buf_text(&f->lock_sql), 2, p.types, p.values, p.lengths,
                          p.formats, 1) != 1)
        f->error = mr__pg_conn_error(f->conn);
    else
        f->before++;
    mr__enqueue_params_free(&p);
}

static void send_piece(flight *f)
{
    mr_enqueue_params p;
    size_t count = mr__enqueue_chunk(f->draft, f->sent);
    f->error = mr__enqueue_encode(f->draft, f->queue, f->sent, count, &p);
    if (f->error != NULL)
        return;
    if (PQsendQueryParams(f->conn, mr__buf_text(&f->enqueue_sql), MR_ENQUEUE_PARAMS, p.types,
                          p.values, p.lengths, p.formats, 1) == 1) {
        f->size[(f->oldest + f->pieces) % UNDER_WAY] = count;
        f->pieces++;
        f->sent += count;
        /* So that it is worked on, and answered, while the next one is made. */
        if (PQsendFlushRequest(f->conn) != 1 || PQflush(f->conn) < 0)
            f->error = mr__pg_conn_error(f->conn);
    } else {
        f->error = mr__pg_conn_error(f->conn);
    }
    mr__enqueue_params_free(&p);
}

static bool has_keys(const mr_job_draft *draft)
{
    for (size_t i = 0; i < draft->count; i++)
        if (draft->rows[i].text[MR_JOB_TEXT_KEY].offset != MR_SLICE_NULL)
            return true;
    return false;
}

/* libpq reads what the server sends while it waits to write, so neither side can block the other
 * however much there is. */
static void fly(flight *f)
{
    send_plain(f, f->own ? "BEGIN" : "SAVEPOINT mr_enqueue");
    f->before = f->error == NULL;
    if (f->locked)
        send_locks(f);
    while (f->error == NULL && f->sent < f->draft->count) {
        while (f->pieces == UNDER_WAY)
            take_answer(f);
        if (f->error == NULL)
            send_piece(f);
    }
    send_plain(f, f->own ? "COMMIT" : "RELEASE SAVEPOINT mr_enqueue");
    f->closed = f->error == NULL;
    if (PQpipelineSync(f->conn) != 1) {
        keep_error(f, mr__pg_conn_error(f->conn));
        return;
    }
    while (f->before > 0 || f->pieces > 0)
        take_answer(f);
    drain(f);
}

/* ---- The call ------------------------------------------------------------------------------ */

static mr_error *in_pieces(flight *f)
{
    if (PQenterPipelineMode(f->conn) != 1)
        return mr__error(MR_E_USAGE, "enqueueing while the connection has results to be read");
    fly(f);
    bool left = PQexitPipelineMode(f->conn) == 1;
    if (!left)
        keep_error(f, mr__pg_conn_error(f->conn));
    if (f->error == NULL)
        return NULL;
    if (left && PQtransactionStatus(f->conn) != PQTRANS_IDLE)
        mr_error_free(mr__pg_script(
            f->conn, f->own ? "ROLLBACK"
                            : "ROLLBACK TO SAVEPOINT mr_enqueue; RELEASE SAVEPOINT mr_enqueue"));
    return f->error;
}

/* Without a transaction one statement is its own. */
static mr_error *alone(flight *f)
{
    mr_enqueue_params p;
    size_t count = f->draft->count;
    MR_TRY(mr__enqueue_encode(f->draft, f->queue, 0, count, &p));
    f->closed = true;
    MR_AUTO_RESULT rows = PQexecParams(f->conn, mr__buf_text(&f->enqueue_sql), MR_ENQUEUE_PARAMS,
                                       p.types, p.values, p.lengths, p.formats, 1);
    mr__enqueue_params_free(&p);
    mr_error *error = mr_error_from_result(f->conn, rows);
    return error != NULL ? explain(f, error, 0, count) : take_rows(f->draft, 0, count, rows);
}

static mr_error *render(flight *f, const mr_names *names)
{
    mr__buf_puts(&f->enqueue_sql, "SELECT n, id, created FROM ");
    mr__names_function(names, "enqueue_rows", &f->enqueue_sql);
    mr__buf_puts(&f->enqueue_sql, "($1, $2, $3, $4, $5::text[]::timestamptz[], $6, $7,"
                                  " $8::text[]::interval[], $9");
    mr__buf_puts(&f->enqueue_sql, f->locked ? ", true)" : ")");
    mr__buf_puts(&f->lock_sql, "SELECT ");
    mr__names_function(names, "lock_keys", &f->lock_sql);
    mr__buf_puts(&f->lock_sql, "($1, ARRAY(SELECT DISTINCT k FROM unnest($2::text[]) AS k))"
                               " WHERE coalesce((SELECT c.ordered FROM ");
    mr__qname_quote(&f->lock_sql, &names->table[MR_TABLE_QUEUE_CONTROLS]);
    mr__buf_puts(&f->lock_sql, " AS c WHERE c.queue = $1), true)");
    return f->enqueue_sql.failed || f->lock_sql.failed ? mr__error_nomem() : NULL;
}

mr_error *mr__enqueue(PGconn *conn, const mr_names *names, const char *queue, mr_job_draft *draft)
{
    MR_TRY(check_call(conn, queue, draft));
    for (size_t i = 0; i < draft->count; i++) {
        draft->rows[i].id = 0;
        draft->rows[i].created = false;
    }
    flight f = {.conn = conn,
                .draft = draft,
                .queue = queue,
                .own = PQtransactionStatus(conn) == PQTRANS_IDLE};
    bool one = mr__enqueue_chunk(draft, 0) == draft->count;
    f.locked = !one && has_keys(draft);
    mr_error *error = render(&f, names);
    if (error == NULL)
        error = one && f.own ? alone(&f) : in_pieces(&f);
    mr__buf_free(&f.enqueue_sql);
    mr__buf_free(&f.lock_sql);
    if (error == NULL)
        return NULL;
    for (size_t i = 0; i < draft->count; i++)
        draft->rows[i].id = 0;
    if (f.own && f.closed && mr_error_code(error) == MR_E_CONNECT)
        return mr__error_prefix(error, "whether the jobs were enqueued is not known");
    return error;
}
