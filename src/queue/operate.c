/* A queue from its operator's side: list, show, retry, call off, requeue. */
#include "queue/operate.h"

#include "base/text.h"

#include <inttypes.h>
#include <string.h>

enum { DEFAULT_LIMIT = 50 };
#define DAY_MS (INT64_C(24) * 60 * 60 * 1000)

mr_queue_source mr__queue_source(const mr_queue_store *store)
{
    return (mr_queue_source){&store->shape, &store->policy, &store->names};
}

/* ---- Which jobs ------------------------------------------------------------------------------ */

/* A statement that is being written, with the values that it has so far. */
typedef struct writing {
    mr_queue_source source;
    mr_queue_call call;
    mr_buf sql;
} writing;

static void free_writing(writing *w)
{
    mr__queue_call_free(&w->call);
    mr__buf_free(&w->sql);
}
#define AUTO_WRITING __attribute__((cleanup(free_writing))) writing

static mr_error *put(writing *w, const char *template)
{
    return mr__queue_expand(&w->source, template, &w->sql);
}

/* Adds a value; the text that follows it in `template` is what surrounds its number. */
static mr_error *put_value(writing *w, const char *before, const char *value, const char *after)
{
    w->call.values[w->call.count++] = value;
    MR_TRY(put(w, before));
    mr__buf_printf(&w->sql, "$%d", w->call.count);
    return put(w, after);
}

static mr_error *put_ids(writing *w, const mr_job_filter *filter)
{
    if (filter == NULL || filter->id_count == 0)
        return NULL;
    int at = w->call.count;
    for (size_t i = 0; i < filter->id_count; i++)
        mr__array_add(&w->call.text[at], i == 0, filter->ids[i]);
    MR_TRY(mr__queue_call_arrays(&w->call, at, at));
    return put_value(w, " AND {t.id} = ANY (", w->call.values[at], "::{type.id}[])");
}

static mr_error *put_states(writing *w, unsigned states)
{
    if (states == 0)
        return NULL;
    int at = w->call.count;
    bool first = true;
    for (unsigned bit = MR_IN_QUEUED; bit <= MR_IN_CANCELED; bit <<= 1) {
        if ((states & bit) == 0)
            continue;
        mr__array_add(&w->call.text[at], first, mr__job_state_name(bit));
        first = false;
    }
    MR_TRY(mr__queue_call_arrays(&w->call, at, at));
    return put_value(w, " AND {t.state} = ANY (", w->call.values[at], "::{type.state}[])");
}

/* When it ended or, when it has not, when it was queued. Only what was asked for is written, so
 * that the planner sees conditions that an index can serve. */
#define LAST "coalesce({t.finished_at}{utc.finished_at}, {t.queued_at}{utc.queued_at})"

static mr_error *put_filter(writing *w, const mr_job_filter *filter, unsigned states)
{
    /* In ids' order, which is that of the parameters: the ids come first, always. */
    MR_TRY(put_ids(w, filter));
    MR_TRY(put_states(w, filter == NULL || filter->states == 0 ? states : filter->states));
    if (filter == NULL)
        return NULL;
    if (filter->error != NULL)
        MR_TRY(put_value(w, " AND pg_catalog.strpos(lower({t.failure_message}), lower(",
                         filter->error, "::text)) > 0"));
    if (filter->before != NULL)
        MR_TRY(put_value(w, " AND " LAST " < ", filter->before, "::timestamptz"));
    if (filter->after != NULL)
        MR_TRY(put_value(w, " AND " LAST " > ", filter->after, "::timestamptz"));
    return NULL;
}

/* What the server does not accept of the caller's values is an id or a time. */
static mr_error *explain(const writing *w, mr_error *error)
{
    const char *state = mr_error_sqlstate(error);
    bool id = strcmp(state, "22P02") == 0 || strcmp(state, "22003") == 0;
    bool when =
        strcmp(state, "22007") == 0 || strcmp(state, "22008") == 0 || strcmp(state, "22009") == 0;
    if (!id && !when)
        return error;
    mr_error *better = id ? mr__error(MR_E_USAGE, "%s; that is no id of queue %s",
                                      mr_error_message(error), w->source.shape->mapping->queue)
                          : mr__error(MR_E_USAGE, "%s; a time looks like 2026-01-31T12:00:00Z",
                                      mr_error_message(error));
    mr_error_free(error);
    return better;
}

static mr_error *run(PGconn *conn, writing *w, PGresult **rows)
{
    if (w->sql.failed)
        return mr__error_nomem();
    w->call.sql = mr__buf_text(&w->sql);
    return explain(w, mr__queue_run((mr_queue_on){.conn = conn}, &w->call, rows));
}

static mr_error *check_filter(const mr_queue_store *store, const mr_job_filter *filter)
{
    if (filter == NULL || filter->key == NULL)
        return NULL;
    return mr__error(MR_E_USAGE, "queue %s lies on a table of its own, whose jobs have no keys",
                     store->mapping.queue);
}

/* ---- List and show --------------------------------------------------------------------------- */

#define SHOWN                                                                                      \
    "SELECT {t.id} AS id, {t.state}::text AS state, {t.queued_at}{utc.queued_at} AS queued_at,"    \
    " {t.started_at}{utc.started_at} AS started_at,"                                               \
    " {t.finished_at}{utc.finished_at} AS finished_at,"                                            \
    " {t.process_after}{utc.process_after} AS process_after,"                                      \
    " {t.num_failures} AS num_failures, {t.num_resets} AS num_resets,"                             \
    " {t.worker_hostname} AS worker,"                                                              \
    " {t.last_heartbeat_at}{utc.last_heartbeat_at} AS last_heartbeat_at,"                          \
    " {t.failure_message} AS failure_message, {stalled} AS stalled,"                               \
    " {if:cancel}{t.cancel}{else}NULL::boolean{end} AS cancel"

mr_error *mr__jobs_list(PGconn *conn, const mr_queue_store *store, const mr_job_filter *filter,
                        PGresult **rows)
{
    MR_TRY(check_filter(store, filter));
    AUTO_WRITING w = {.source = mr__queue_source(store)};
    MR_TRY(put(&w, SHOWN " FROM {table} WHERE true"));
    MR_TRY(put_filter(&w, filter, 0));
    MR_TRY(put(&w, "{belongs.t} ORDER BY {t.id} DESC"));
    mr__buf_printf(&w.sql, " LIMIT %" PRId64,
                   filter != NULL && filter->limit > 0 ? filter->limit : DEFAULT_LIMIT);
    return run(conn, &w, rows);
}

mr_error *mr__jobs_show(PGconn *conn, const mr_queue_store *store, const char *id, PGresult **rows)
{
    if (id[0] == '\0' || !mr__text_utf8(id, strlen(id)))
        return mr__error(MR_E_USAGE, "a job's id is a text in UTF-8, not empty");
    AUTO_WRITING w = {.source = mr__queue_source(store)};
    w.call.values[w.call.count++] = id;
    MR_TRY(put(&w, SHOWN ", {if:lease_generation}{t.lease_generation}::int8{else}NULL::int8{end}"
                         " AS lease_generation,"
                         " coalesce(pg_catalog.to_json({t.execution_logs}), '[]'::json)"
                         " AS execution_logs,"
                         " (SELECT pg_catalog.to_json(mr_v) FROM (SELECT "));
    mr__queue_put_values(&store->shape, &w.sql);
    MR_TRY(put(&w, " FROM {view} WHERE {v.id} = $1::text::{type.id}{condition.v} LIMIT 1) AS mr_v)"
                   " AS values FROM {table} WHERE {t.id} = $1::text::{type.id}{belongs.t}"));
    MR_AUTO_RESULT found = NULL;
    MR_TRY(run(conn, &w, &found));
    if (PQntuples(found) == 0)
        return mr__error(MR_E_USAGE, "queue %s has no job %s", store->mapping.queue, id);
    *rows = found;
    found = NULL;
    return NULL;
}

/* ---- What an order makes of a job ------------------------------------------------------------ */

/* Why not, as text; NULL = it is done. */
#define OTHER " ELSE 'its state is none that a queue knows' END"
static const char retry_why[] =
    "CASE WHEN {t.state}::text IN ('failed', 'errored', 'canceled') THEN NULL"
    " WHEN {t.state}::text = 'queued' THEN 'it is queued already'"
    " WHEN {t.state}::text = 'processing'"
    " THEN 'it is running; wait for its end, or cancel it first'"
    " WHEN {t.state}::text = 'completed' THEN 'it is completed; requeue runs it once more'" OTHER;
static const char requeue_why[] =
    "CASE WHEN {t.state}::text IN ('queued', 'errored', 'failed', 'canceled', 'completed')"
    " OR {stalled} THEN NULL WHEN {t.state}::text = 'processing'"
    " THEN 'it is running; wait for its end, or cancel it first'" OTHER;
static const char call_off_why[] =
    "CASE WHEN {t.state}::text IN ('queued', 'errored') THEN NULL"
    " WHEN {t.state}::text IN ('completed', 'failed', 'canceled')"
    " THEN 'it has ended: ' || {t.state}::text WHEN {t.state}::text = 'processing' THEN ";

static const char back_set[] = "{=state} = 'queued', {=queued_at} = {now.queued_at},"
                               " {=started_at} = NULL, {=finished_at} = NULL"
                               "{if:cancel}, {=cancel} = false{end}";
static const char counters_set[] = ", {=num_failures} = 0, {=num_resets} = 0";
static const char call_off_set[] =
    "{=state} = CASE WHEN {t.state} = 'processing' THEN {t.state}"
    " ELSE 'canceled'::{type.state} END,"
    " {=finished_at} = CASE WHEN {t.state} = 'processing' THEN {t.finished_at}"
    " ELSE {now.finished_at} END"
    "{if:cancel}, {=cancel} = coalesce({t.cancel}, false) OR {t.state} = 'processing'{end},"
    " {=failure_message} = CASE WHEN {t.state} = 'processing' THEN {t.failure_message}"
    " ELSE coalesce(";

static mr_error *put_why(writing *w, mr_job_action action)
{
    const mr_queue_shape *shape = w->source.shape;
    if (action != MR_JOB_CALL_OFF)
        return put(w, action == MR_JOB_RETRY ? retry_why : requeue_why);
    MR_TRY(put(w, call_off_why));
    if (shape->has[MR_JOB_CANCEL]) {
        MR_TRY(put(w, "CASE WHEN coalesce({t.cancel}, false)"
                      " THEN 'its worker was asked already' END"));
    } else {
        MR_AUTO_BUF table = {0};
        mr__qname_quote(&table, &shape->table);
        MR_AUTO_BUF text = {0};
        mr__buf_printf(&text,
                       "it is running, and the table has no column by which its worker could hear "
                       "of it: ALTER TABLE %s ADD COLUMN %s %s; then restart the workers",
                       mr__buf_text(&table), mr__job_column_name(MR_JOB_CANCEL),
                       mr__job_column_ddl(MR_JOB_CANCEL));
        mr__literal_quote(&w->sql, mr__buf_text(&text));
    }
    return put(w, OTHER);
}

static mr_error *put_set(writing *w, const mr_job_order *order)
{
    if (order->action == MR_JOB_CALL_OFF)
        return put_value(w, call_off_set, order->reason,
                         "::text{fit.failure_message}, {t.failure_message}) END");
    MR_TRY(put(w, back_set));
    if (order->reset_counters)
        MR_TRY(put(w, counters_set));
    if (order->at != NULL)
        return put_value(w, ", {=process_after} = (", order->at,
                         "::timestamptz{utc.process_after})");
    if (order->delay == 0)
        return put(w, ", {=process_after} = CASE WHEN {t.process_after} > {now.process_after}"
                      " THEN {now.process_after} ELSE {t.process_after} END");
    MR_TRY(put(w, ", {=process_after} = ((pg_catalog.clock_timestamp() + "));
    mr__buf_printf(&w->sql, "%" PRId64, order->delay);
    return put(w, " * interval '1 microsecond'){utc.process_after})");
}

/* ---- Changing -------------------------------------------------------------------------------- */

/* Where nothing else is said, the states that the action is for. */
static unsigned usual_states(const mr_job_order *order)
{
    if (order->filter != NULL && order->filter->id_count > 0)
        return 0;
    switch (order->action) {
    case MR_JOB_RETRY:
        return MR_IN_ERRORED | MR_IN_FAILED | MR_IN_CANCELED;
    case MR_JOB_CALL_OFF:
        return MR_IN_QUEUED | MR_IN_ERRORED | MR_IN_PROCESSING;
    case MR_JOB_REQUEUE:
    case MR_JOB_DROP: /* not of this kind of table */
    default:
        return MR_IN_QUEUED | MR_IN_ERRORED | MR_IN_FAILED | MR_IN_CANCELED;
    }
}

mr_error *mr__job_order_check(const char *queue, const mr_job_order *order)
{
    static const char *const verbs[] = {"retry", "cancel", "requeue", "drop"};
    if (!order->all && mr__job_filter_empty(order->filter))
        return mr__error(MR_E_USAGE,
                         "say which jobs of queue %s to %s, or that all of them are meant", queue,
                         verbs[order->action]);
    if (order->delay < 0 || order->delay > 3650 * DAY_MS * 1000)
        return mr__error(MR_E_USAGE, "the delay must be 0 to 10 years");
    if (order->reason != NULL && !mr__text_utf8(order->reason, strlen(order->reason)))
        return mr__error(MR_E_USAGE, "the reason is not valid UTF-8");
    return NULL;
}

/* The rows that were meant as they were seen; the same, locked, as they are now, each with what
 * speaks against it; the change; then all of them told. A row that changed between the look and
 * the lock is left alone: the operator decided about what was seen. */
static mr_error *write_order(writing *w, const mr_job_order *order)
{
    const mr_job_filter *filter = order->filter;
    bool named = filter != NULL && filter->id_count > 0;
    MR_TRY(put(w, "WITH mr_seen AS MATERIALIZED (SELECT {t.id} AS mr_id,"
                  " {t.state}::text AS mr_state FROM {table} WHERE true"));
    MR_TRY(put_filter(w, filter, usual_states(order)));
    MR_TRY(put(w, "{belongs.t} ORDER BY {t.id}"));
    if (filter != NULL && filter->limit > 0)
        mr__buf_printf(&w->sql, " LIMIT %" PRId64, filter->limit);
    MR_TRY(put(w, "), mr_locked AS MATERIALIZED (SELECT {t.id} AS mr_id,"
                  " {t.state}::text AS mr_state, "));
    MR_TRY(put_why(w, order->action));
    MR_TRY(put(w, " AS mr_why FROM {table} WHERE {t.id} = ANY (ARRAY(SELECT mr_id FROM mr_seen))"
                  " FOR NO KEY UPDATE OF {t} SKIP LOCKED),"
                  " mr_judged AS MATERIALIZED (SELECT mr_l.mr_id, mr_l.mr_state,"
                  " CASE WHEN mr_l.mr_state <> mr_s.mr_state"
                  " THEN 'it changed just now, from ' || mr_s.mr_state ELSE mr_l.mr_why END"
                  " AS mr_why FROM mr_locked AS mr_l JOIN mr_seen AS mr_s ON mr_s.mr_id = "
                  "mr_l.mr_id),"
                  " mr_done AS (UPDATE {table} SET "));
    MR_TRY(put_set(w, order));
    MR_TRY(put(w, " FROM mr_judged AS mr_j WHERE {t.id} = mr_j.mr_id AND {t.id} = ANY"
                  " (ARRAY(SELECT mr_id FROM mr_judged WHERE mr_why IS NULL))"
                  " AND {t.state}::text = mr_j.mr_state"
                  " RETURNING {t.id} AS mr_id, {t.state}::text AS mr_state)"
                  " SELECT "));
    MR_TRY(put(w, named ? "mr_n.mr_id" : "mr_s.mr_id"));
    MR_TRY(put(w, " AS id, mr_s.mr_state AS was,"
                  " coalesce(mr_d.mr_state, mr_j.mr_state, mr_s.mr_state) AS state,"
                  " mr_d.mr_id IS NOT NULL AS done,"
                  " CASE WHEN mr_s.mr_id IS NULL THEN "));
    MR_TRY(put(w, filter != NULL && (filter->states != 0 || filter->error != NULL ||
                                     filter->before != NULL || filter->after != NULL)
                      ? "'the queue has no such job, or the filter leaves it out'"
                      : "'the queue has no such job'"));
    MR_TRY(put(w, " WHEN mr_j.mr_id IS NULL THEN 'another session has its row locked, or removed "
                  "it just now; try again'"
                  " WHEN mr_j.mr_why IS NOT NULL THEN mr_j.mr_why"
                  " WHEN mr_d.mr_id IS NULL"
                  " THEN 'the table did not take the change; has it a trigger?'"
                  " WHEN mr_d.mr_state = 'processing'"
                  " THEN 'its worker is told with its next heartbeat' END AS note FROM "));
    if (named)
        MR_TRY(put(w, "(SELECT mr_id, min(mr_at) AS mr_at FROM unnest($1::{type.id}[])"
                      " WITH ORDINALITY AS mr_u(mr_id, mr_at) GROUP BY mr_id) AS mr_n"
                      " LEFT JOIN mr_seen AS mr_s ON mr_s.mr_id = mr_n.mr_id"));
    else
        MR_TRY(put(w, "mr_seen AS mr_s"));
    MR_TRY(put(w, " LEFT JOIN mr_judged AS mr_j ON mr_j.mr_id = mr_s.mr_id"
                  " LEFT JOIN mr_done AS mr_d ON mr_d.mr_id = mr_s.mr_id ORDER BY "));
    return put(w, named ? "mr_n.mr_at" : "mr_s.mr_id");
}

mr_error *mr__jobs_operate(PGconn *conn, const mr_queue_store *store, const mr_job_order *order,
                           PGresult **rows)
{
    MR_TRY(mr__job_order_check(store->mapping.queue, order));
    MR_TRY(check_filter(store, order->filter));
    AUTO_WRITING w = {.source = mr__queue_source(store)};
    MR_TRY(write_order(&w, order));
    return run(conn, &w, rows);
}
