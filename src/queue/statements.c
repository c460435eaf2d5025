/* The statements of a queue that take, give or look at more than one row. Pure. */
#include "queue/builtin.h"

#include <stdlib.h>
#include <string.h>

mr_queue_policy mr__queue_policy_default(void)
{
    return (mr_queue_policy){.retry_after = 0,
                             .max_retries = 0,
                             .stalled_max_age = 30 * INT64_C(1000000),
                             .max_resets = 3,
                             .reset_failure_message = NULL,
                             .reset_batch = 500,
                             .candidates = 50,
                             .retry_base = 1000000,
                             .retry_most = 3600 * INT64_C(1000000),
                             .max_running = -1,
                             .keep = true};
}

/* Many outcomes, each under its own fence. In the ids' order, as the heartbeat takes its locks, so
 * that the two do not wait for each other crosswise. */
#define GIVEN                                                                                      \
    "WITH mr_given AS MATERIALIZED (SELECT * FROM ROWS FROM (unnest($1::{type.id}[]),"             \
    " unnest($2::int8[]), unnest($4::text[]), unnest($5::text[]), unnest($6::timestamptz[]),"      \
    " unnest($7::int8[])) WITH ORDINALITY"                                                         \
    " AS mr_u(mr_id, mr_fence, mr_kind, mr_message, mr_at, mr_delay, mr_n) ORDER BY mr_id),"

#define CHANGED(given)                                                                             \
    " mr_changed AS (UPDATE {table} SET {=state} = ({next})::{type.state},"                        \
    " {=finished_at} = CASE WHEN {next} = 'queued' THEN NULL ELSE {now.finished_at} END,"          \
    " {=started_at} = CASE WHEN {next} = 'queued' THEN NULL ELSE {t.started_at} END,"              \
    " {=failure_message} = CASE WHEN {next} IN ('errored', 'failed', 'canceled')"                  \
    " THEN mr_g.mr_message{fit.failure_message} ELSE {t.failure_message} END,"                     \
    " {=num_failures} = CASE WHEN {next} IN ('errored', 'failed')"                                 \
    " THEN coalesce({t.num_failures}, 0) + 1 ELSE {t.num_failures} END,"                           \
    " {=queued_at} = CASE WHEN mr_g.mr_kind = 'requeue' THEN {now.queued_at}"                      \
    " ELSE {t.queued_at} END,"                                                                     \
    " {=process_after} = CASE WHEN mr_g.mr_kind IN ('requeue', 'snooze')"                          \
    " THEN (coalesce(mr_g.mr_at, pg_catalog.clock_timestamp()"                                     \
    " + mr_g.mr_delay * interval '1 microsecond'){utc.process_after})"                             \
    " ELSE {t.process_after} END"                                                                  \
    "{if:cancel}, {=cancel} = CASE WHEN mr_g.mr_kind = 'requeue' THEN false"                       \
    " ELSE {t.cancel} END{end}"                                                                    \
    " FROM " given " AS mr_g WHERE {t.id} = mr_g.mr_id AND {t.id} = ANY ($1::{type.id}[])"         \
    " AND {ours} RETURNING mr_g.mr_n, {t.state}::text AS mr_state)"

/* Without lease_generation the fence needs the worker ($3); with it the parameter is still there.
 */
#define WORKER "($3::text IS NOT NULL OR true)"

static const char finish_sql[] =
    GIVEN CHANGED("mr_given") " SELECT mr_n, mr_state FROM mr_changed WHERE " WORKER;

/* The same for rows that nobody has locked; the others that are ours are told, without a state. */
#define OURS_OF_GIVEN                                                                              \
    " FROM {table} JOIN mr_given AS mr_g ON {t.id} = mr_g.mr_id"                                   \
    " WHERE {t.id} = ANY ($1::{type.id}[]) AND {ours}"
static const char finish_free_sql[] = GIVEN
    " mr_seen AS MATERIALIZED (SELECT mr_g.mr_n" OURS_OF_GIVEN "),"
    " mr_free AS MATERIALIZED (SELECT mr_g.*" OURS_OF_GIVEN
    " FOR NO KEY UPDATE OF {t} SKIP LOCKED)," CHANGED(
        "mr_free") " SELECT mr_n, mr_state FROM mr_changed UNION ALL SELECT mr_n, NULL FROM mr_seen"
                   " WHERE mr_n NOT IN (SELECT mr_n FROM mr_free) AND " WORKER;

static const char finish_or_fail_sql[] =
    GIVEN CHANGED("mr_given") " SELECT {require_outcome}({queue}, $1::text[],"
                              " ARRAY(SELECT mr_n::int FROM mr_changed WHERE " WORKER "))";

/* A row that somebody else has locked is not waited for: it is as it was seen, and told as not
 * stamped. One whose fence does not match is not told at all. */
static const char heartbeat_sql[] =
    "WITH mr_given AS MATERIALIZED (SELECT * FROM ROWS FROM (unnest($1::{type.id}[]),"
    " unnest($2::int8[])) WITH ORDINALITY AS mr_u(mr_id, mr_fence, mr_n)),"
    " mr_seen AS MATERIALIZED (SELECT mr_g.mr_n, {cancel} AS mr_cancel FROM {table}"
    " JOIN mr_given AS mr_g ON {t.id} = mr_g.mr_id"
    " WHERE {t.id} = ANY ($1::{type.id}[]) AND {ours}),"
    " mr_locked AS MATERIALIZED (SELECT mr_g.mr_n, {t.id} AS mr_id FROM {table}"
    " JOIN mr_given AS mr_g ON {t.id} = mr_g.mr_id"
    " WHERE {t.id} = ANY ($1::{type.id}[]) AND {ours}"
    " ORDER BY {t.id} FOR NO KEY UPDATE OF {t} SKIP LOCKED),"
    " mr_stamped AS (UPDATE {table} SET {=last_heartbeat_at} = {now.last_heartbeat_at}"
    " WHERE {t.id} = ANY (ARRAY(SELECT mr_id FROM mr_locked)))"
    " SELECT mr_s.mr_n, mr_s.mr_cancel, mr_s.mr_n IN (SELECT mr_n FROM mr_locked) FROM mr_seen"
    " AS mr_s WHERE " WORKER;

/* Jobs whose worker is silent: queued again, or failed when that happened too often, or canceled
 * when that was asked for. */
#define SILENT "coalesce({t.last_heartbeat_at}, {t.started_at}, {t.queued_at})"
#define AFTERLIFE                                                                                  \
    "CASE WHEN {cancel} THEN 'canceled' WHEN coalesce({t.num_resets}, 0) < {max_resets}"           \
    " THEN 'queued' ELSE 'failed' END"
static const char reset_sql[] =
    "WITH mr_stalled AS MATERIALIZED (SELECT {t.id} AS mr_id,"
    " (extract(epoch FROM {now.last_heartbeat_at} - " SILENT ") * 1000000)::int8 AS mr_age"
    " FROM {table} WHERE {t.state} = 'processing'"
    " AND " SILENT " < {now.last_heartbeat_at} - {stalled_max_age}{belongs.t}"
    " ORDER BY " SILENT ", {t.id} LIMIT {reset_batch} FOR NO KEY UPDATE OF {t} SKIP LOCKED),"
    " mr_reset AS (UPDATE {table} SET {=state} = (" AFTERLIFE ")::{type.state},"
    " {=queued_at} = CASE " AFTERLIFE " WHEN 'queued' THEN {now.queued_at} ELSE {t.queued_at} END,"
    " {=started_at} = CASE " AFTERLIFE " WHEN 'queued' THEN NULL ELSE {t.started_at} END,"
    " {=num_resets} = CASE " AFTERLIFE " WHEN 'queued' THEN coalesce({t.num_resets}, 0) + 1"
    " ELSE {t.num_resets} END,"
    " {=finished_at} = CASE " AFTERLIFE " WHEN 'queued' THEN NULL ELSE {now.finished_at} END,"
    " {=failure_message} = CASE " AFTERLIFE " WHEN 'failed'"
    " THEN {reset_message}::text{fit.failure_message} ELSE {t.failure_message} END"
    " WHERE {t.id} = ANY (ARRAY(SELECT mr_id FROM mr_stalled))"
    " RETURNING {t.id} AS mr_id, {t.state}::text AS mr_state)"
    " SELECT mr_r.mr_id::text, mr_r.mr_state, mr_s.mr_age FROM mr_reset AS mr_r"
    " JOIN mr_stalled AS mr_s ON mr_s.mr_id = mr_r.mr_id ORDER BY mr_s.mr_age DESC, mr_r.mr_id";

/* ---- Execution log
 * ------------------------------------------------------------------------------- */

/* The row that an entry is for: any, or only while it is ours. */
#define LOGGED                                                                                     \
    "{t.id} = $1::text::{type.id} AND ($2::int8 IS NULL OR ({t.state} = 'processing'"              \
    " AND {fence} = $2::int8{if:lease_generation}{else}"                                           \
    " AND {t.worker_hostname} = $3::text{end})) AND " WORKER

static const char log_add_sql[] =
    "UPDATE {table} SET {=execution_logs} = pg_catalog.array_cat(coalesce({t.execution_logs},"
    " ARRAY[]::{type.execution_logs}), ARRAY[$4::text]::{type.execution_logs})"
    " WHERE " LOGGED " RETURNING pg_catalog.cardinality({t.execution_logs})";

static const char log_set_sql[] =
    "WITH mr_set AS (UPDATE {table} SET {=execution_logs}[$5::int] ="
    " (ARRAY[$4::text]::{type.execution_logs})[1]"
    " WHERE " LOGGED " AND $5::int BETWEEN 1 AND coalesce("
    "pg_catalog.cardinality({t.execution_logs}), 0) RETURNING 1)"
    " SELECT (SELECT count(*) FROM mr_set),"
    " (SELECT coalesce(pg_catalog.cardinality({t.execution_logs}), 0) FROM {table} WHERE " LOGGED
    ")";

/* ---- Counts
 * --------------------------------------------------------------------------------------- */

static const char count_sql[] =
    "SELECT {v.state}::text, count(*) FROM {view}"
    " WHERE {v.state} = ANY ($1::{type.state}[]){condition.v} GROUP BY 1 ORDER BY 1";

static const char exists_sql[] = "SELECT EXISTS (SELECT FROM {view}"
                                 " WHERE {v.state} = ANY ($1::{type.state}[]){condition.v})";

/* Three looks, so that the usual one (nothing was deferred) is the least value of one column, which
 * an index can give. */
static const char wait_sql[] =
    "SELECT greatest(0, max(mr_w.mr_age)) FROM ("
    "SELECT (extract(epoch FROM {now.queued_at} - min({v.queued_at})) * 1000000)::int8 AS mr_age"
    " FROM {view} WHERE {v.state} = 'queued' AND {v.process_after} IS NULL{condition.v}"
    " UNION ALL SELECT (extract(epoch FROM {now.queued_at}"
    " - min(greatest({v.queued_at}, {v.process_after}))) * 1000000)::int8"
    " FROM {view} WHERE {v.state} = 'queued' AND {v.process_after} <= {now.process_after}"
    "{condition.v}";
static const char wait_errored_sql[] =
    " UNION ALL SELECT (extract(epoch FROM {now.finished_at}"
    " - (min({v.finished_at}) + {retry_after})) * 1000000)::int8 FROM {view}"
    " WHERE {v.state} = 'errored'"
    " AND {v.finished_at} + {retry_after} <= {now.finished_at}{condition.v}";

static const char *const templates[MR_QUEUE_STATEMENT_COUNT] = {
    [MR_QUEUE_FINISH] = finish_sql,
    [MR_QUEUE_FINISH_FREE] = finish_free_sql,
    [MR_QUEUE_FINISH_OR_FAIL] = finish_or_fail_sql,
    [MR_QUEUE_HEARTBEAT] = heartbeat_sql,
    [MR_QUEUE_RESET] = reset_sql,
    [MR_QUEUE_LOG_ADD] = log_add_sql,
    [MR_QUEUE_LOG_SET] = log_set_sql,
    [MR_QUEUE_COUNT] = count_sql,
    [MR_QUEUE_EXISTS] = exists_sql,
    [MR_QUEUE_WAIT] = wait_sql,
};

static mr_error *render(const mr_queue_source *source, int statement, mr_buf *out)
{
    if (statement == MR_QUEUE_CLAIM_ALL)
        return mr__queue_render_claim(source, MR_SCAN_ALL, NULL, 0, out);
    if (statement == MR_QUEUE_CLAIM_MARK)
        return source->shape->order.count == 0
                   ? NULL
                   : mr__queue_render_claim(source, MR_SCAN_MARK, NULL, 0, out);
    if (templates[statement] != NULL)
        MR_TRY(mr__queue_expand(source, templates[statement], out));
    if (statement != MR_QUEUE_WAIT)
        return NULL;
    if (source->policy->retry_after > 0)
        MR_TRY(mr__queue_expand(source, wait_errored_sql, out));
    mr__buf_puts(out, ") AS mr_w");
    return NULL;
}

mr_error *mr__queue_sql_render(const mr_queue_source *source, mr_queue_sql *out)
{
    *out = (mr_queue_sql){0};
    for (int i = 0; i < MR_QUEUE_STATEMENT_COUNT; i++) {
        MR_AUTO_BUF sql = {0};
        mr_error *error = render(source, i, &sql);
        if (error == NULL) {
            out->text[i] = mr__buf_take(&sql);
            if (out->text[i] == NULL)
                error = mr__error_nomem();
        }
        if (error != NULL) {
            mr__queue_sql_free(out);
            return error;
        }
    }
    mr_error *error = source->policy->builtin ? mr__builtin_render(source, out) : NULL;
    if (error != NULL)
        mr__queue_sql_free(out);
    return error;
}

void mr__queue_sql_free(mr_queue_sql *sql)
{
    for (int i = 0; i < MR_QUEUE_STATEMENT_COUNT; i++)
        free(sql->text[i]);
    *sql = (mr_queue_sql){0};
}
