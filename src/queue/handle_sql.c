/* Jobs handled by a statement, whose named parameters are the job's values. It runs in the job's
 * transaction: with the outcome in one round trip. */
#include "base/text.h"
#include "handler/handler.h"
#include "handler/sqltext.h"
#include "queue/job.h"

#include <stdlib.h>
#include <string.h>

/* Types whose text the server does not read back; they are what their text is. */
enum { OID_TEXT = 25, OID_UNKNOWN = 705, OID_RECORD = 2249, OID_RECORDS = 2287 };

typedef struct sql_handler {
    mr_job_handler base;
    const mr_queue_store *store;
    mr_sql_text text;
} sql_handler;

/* ---- Names --------------------------------------------------------------------------------- */

static mr_error *unknown(const mr_queue_store *store, const char *name)
{
    size_t count = mr__queue_value_count(store);
    const char **names = calloc(count + 1, sizeof(*names));
    if (names == NULL)
        return mr__error_nomem();
    MR_AUTO_BUF list = {0};
    for (size_t i = 0; i < count; i++) {
        names[i] = mr__queue_value_name(store, i);
        mr__buf_printf(&list, "%s:%s", i == 0 ? "" : ", ", names[i]);
    }
    int nearest = mr__text_nearest(name, names, count);
    mr_error *error =
        nearest >= 0 ? mr__error(MR_E_CONFIG, "unknown parameter :%s; did you mean :%s?", name,
                                 names[nearest])
                     : mr__error(MR_E_CONFIG, "unknown parameter :%s; a job of queue %s has %s",
                                 name, mr__queue_name(store), mr__buf_text(&list));
    free((void *)names);
    return error;
}

static mr_error *find(const void *user, const char *name, int *param, const char **type)
{
    const mr_queue_store *store = user;
    *type = NULL; /* it goes with each value, as the claim found it */
    for (size_t i = 0; i < mr__queue_value_count(store); i++) {
        if (strcmp(mr__queue_value_name(store, i), name) != 0)
            continue;
        *param = (int)i;
        return NULL;
    }
    return unknown(store, name);
}

static Oid readable(Oid type)
{
    return type == OID_UNKNOWN || type == OID_RECORD || type == OID_RECORDS ? OID_TEXT : type;
}

/* ---- Running ------------------------------------------------------------------------------- */

static mr_error *run_statement(const sql_handler *h, mr_job *job, Oid *types, const char **values)
{
    for (int i = 0; i < h->text.count; i++) {
        size_t index = (size_t)h->text.params[i];
        types[i] = readable(mr__jobs_value_type(job->row.jobs, index));
        values[i] = mr__job_value_at(&job->row, index);
    }
    mr_tx *tx = NULL;
    MR_TRY(mr_job_tx(job, &tx));
    return mr_tx_exec_params(tx, h->text.sql, h->text.count, types, values, NULL, NULL);
}

static mr_error *handle(mr_job_handler *handler, mr_job *job)
{
    const sql_handler *h = (const sql_handler *)handler;
    size_t count = (size_t)h->text.count + 1;
    Oid *types = calloc(count, sizeof(*types));
    const char **values = calloc(count, sizeof(*values));
    mr_error *error =
        types == NULL || values == NULL ? mr__error_nomem() : run_statement(h, job, types, values);
    free(types);
    free((void *)values);
    return error;
}

/* ---- Checking ------------------------------------------------------------------------------ */

/* The values' types, as a claim would give them. */
static mr_error *ask_types(const sql_handler *h, PGconn *conn, Oid *types)
{
    const char *claim = mr__queue_text(h->store, MR_QUEUE_CLAIM_ALL);
    MR_AUTO_RESULT parsed = PQprepare(conn, "", claim, 0, NULL);
    MR_TRY(mr_error_from_result(conn, parsed));
    MR_AUTO_RESULT described = PQdescribePrepared(conn, "");
    MR_TRY(mr_error_from_result(conn, described));
    int first = PQnfields(described) - (int)mr__queue_value_count(h->store);
    for (int i = 0; i < h->text.count; i++)
        types[i] = readable(PQftype(described, first + h->text.params[i]));
    return NULL;
}

/* In one transaction: a pooler may ask another server for the description than it gave the
 * statement to. */
static mr_error *describe(const sql_handler *h, PGconn *conn, Oid *types)
{
    bool own = PQtransactionStatus(conn) == PQTRANS_IDLE;
    if (own)
        MR_TRY(mr__pg_query(conn, NULL, "BEGIN", 0, NULL));
    mr_error *error = ask_types(h, conn, types);
    mr_error *ended = own ? mr__pg_query(conn, NULL, "ROLLBACK", 0, NULL) : NULL;
    if (error == NULL)
        return ended;
    mr_error_free(ended);
    return error;
}

static mr_error *check(mr_job_handler *handler, PGconn *conn)
{
    const sql_handler *h = (const sql_handler *)handler;
    Oid *types = calloc((size_t)h->text.count + 1, sizeof(*types));
    if (types == NULL)
        return mr__error_nomem();
    mr_error *error = describe(h, conn, types);
    if (error == NULL)
        error = mr__handler_parse_typed(conn, "sql", h->text.sql, h->text.count, types);
    free(types);
    return error;
}

static void free_handler(mr_job_handler *handler)
{
    mr__sqltext_free(&((sql_handler *)handler)->text);
    free(handler);
}

mr_error *mr__job_handler_sql(const char *text, const mr_queue_store *store, mr_job_handler **out)
{
    sql_handler *h = calloc(1, sizeof(*h));
    if (h == NULL)
        return mr__error_nomem();
    h->base = (mr_job_handler){.handle = handle, .check = check, .free = free_handler};
    h->store = store;
    mr_error *error = mr__sqltext_named(text, find, store, &h->text);
    if (error != NULL) {
        free(h);
        return mr__error_prefix(error, "sql");
    }
    *out = &h->base;
    return NULL;
}
