/* Millrace's own table of jobs as a queue. Pure. */
#include "queue/builtin.h"

#include "cluster/template.h"

#include <inttypes.h>
#include <stdlib.h>

enum {
    SPAN = 1000, /* jobs in line that a claim with buckets of its own looks at */
    PATIENCE = 1 /* seconds before a job whose owner does not come is anybody's */
};

/* ---- The mapping --------------------------------------------------------------------------- */

/* What a handler gets, in the order in which claim_jobs() gives it. */
static const struct {
    const char *name, *expression;
} values[] = {
    {"id", "id"},
    {"queue", "queue"},
    {"payload", "payload"},
    {MR_BUILTIN_KEY, "partition_key"},
    {"priority", "priority"},
    {"attempt", "num_failures + num_resets + 1"},
    {"max_attempts", "max_attempts"},
    {"queued_at", "queued_at"},
    {"run_at", "run_at"},
    {"metadata", "metadata"},
    {"idempotency_key", "idempotency_key"},
    {MR_BUILTIN_TIMEOUT, "(extract(epoch FROM timeout) * 1000)::bigint"},
    {MR_BUILTIN_ORDERED, "ordered"},
};
enum { VALUES = sizeof(values) / sizeof(values[0]) };

mr_error *mr__builtin_mapping(const mr_names *names, mr_mapping *mapping)
{
    MR_AUTO_BUF text = {0};
    mr__qname_quote(&text, &names->table[MR_TABLE_JOBS]);
    MR_TRY(mr__mapping_table(mapping, mr__buf_text(&text)));
    mr__buf_clear(&text);
    mr__buf_puts(&text, "queue = ");
    mr__literal_quote(&text, mapping->queue);
    if (text.failed)
        return mr__error_nomem();
    MR_TRY(mr__mapping_condition(mapping, mr__buf_text(&text)));
    MR_TRY(mr__mapping_order(mapping, "priority, turn"));
    MR_TRY(mr__mapping_column(mapping, "process_after", "run_at"));
    for (size_t i = 0; i < VALUES; i++)
        MR_TRY(mr__mapping_value(mapping, values[i].name, values[i].expression));
    return NULL;
}

/* ---- Statements ---------------------------------------------------------------------------- */

static void put_interval(mr_buf *out, int64_t micros)
{
    mr__buf_printf(out, "%" PRId64 " * interval '1 microsecond'", micros);
}

/* schema.function('queue', */
static void put_call(const mr_queue_source *source, const char *function, mr_buf *out)
{
    mr__names_function(source->names, function, out);
    mr__buf_putc(out, '(');
    mr__literal_quote(out, source->shape->mapping->queue);
    mr__buf_puts(out, ", ");
}

/* attempts, base, most, hold, keep) */
static void put_policy(const mr_queue_policy *policy, mr_buf *out)
{
    mr__buf_printf(out, "%d, ", policy->max_retries);
    put_interval(out, policy->retry_base);
    mr__buf_puts(out, ", ");
    put_interval(out, policy->retry_most);
    mr__buf_printf(out, ", %s, %s)", policy->hold ? "true" : "false",
                   policy->keep ? "true" : "false");
}

/* The columns in the form that every claim has. */
static void put_columns(mr_buf *out)
{
    mr__buf_puts(out, "SELECT job, fence, beyond, next_marks, next_floor, id, job_queue AS queue");
    for (size_t i = 2; i < VALUES; i++)
        mr__buf_printf(out, ", %s", values[i].name);
    mr__buf_puts(out, " FROM ");
}

/* $1 count, $2 worker, $3 marks, $4 floor, $5 owned buckets, $6 fences of claims that are over. */
static void put_claim(const mr_queue_source *source, mr_scan scan, bool take, mr_buf *out)
{
    const char *whole = scan == MR_SCAN_ALL ? "true" : "false";
    put_columns(out);
    put_call(source, take ? "take_jobs" : "claim_jobs", out);
    if (take)
        mr__buf_printf(out, "$1::int, $3::bigint[], %s, $5::int[], %d, interval '%d seconds')",
                       whole, SPAN, PATIENCE);
    else
        mr__buf_printf(out,
                       "$1::int, $2::text, $3::bigint[], %s, $4::bigint, $5::int[], %d, "
                       "interval '%d seconds', ",
                       whole, SPAN, PATIENCE);
    if (take)
        mr__buf_puts(out, " WHERE $2::text IS NOT NULL AND coalesce($4::bigint, 0) >= 0"
                          " AND $6::bigint[] IS NULL");
    else if (source->policy->max_running < 0)
        mr__buf_puts(out, "NULL, $6::bigint[])");
    else
        mr__buf_printf(out, "%" PRId64 ", $6::bigint[])", source->policy->max_running);
}

/* $1 ids, $2 fences, $3 worker, $4 kinds, $5 messages, $6 times, $7 delays. */
static void put_finish(const mr_queue_source *source, const char *ids, bool free_only, mr_buf *out)
{
    put_call(source, "finish_jobs", out);
    mr__buf_printf(out,
                   "%s, $2::bigint[], $4::text[], $5::text[], $6::timestamptz[], $7::bigint[], "
                   "%s, ",
                   ids, free_only ? "true" : "false");
    put_policy(source->policy, out);
    mr__buf_puts(out, " WHERE $3::text IS NOT NULL");
}

static void put_finish_or_fail(const mr_queue_source *source, mr_buf *out)
{
    mr__buf_puts(out, "SELECT ");
    put_call(source, "require_outcome", out);
    mr__buf_puts(out, "$1::text[], ARRAY(SELECT CASE n WHEN 0 THEN 1 ELSE n END FROM ");
    put_finish(source, "$1::text[]::bigint[]", false, out);
    mr__buf_puts(out, "))");
}

static void put_finish_taken(const mr_queue_source *source, mr_buf *out)
{
    mr__buf_puts(out, "SELECT ");
    put_call(source, "finish_taken", out);
    mr__buf_puts(out, "$3::text, $1::bigint[], $4::text[], $5::text[], $6::timestamptz[], "
                      "$7::bigint[], ");
    put_policy(source->policy, out);
    mr__buf_puts(out, " WHERE $2::bigint[] IS NOT NULL");
}

/* $1 mark, $2 absent workers; of the worker's own claims: $3 whose, $4 known, $5 below, $6 spent.
 */
static void put_reset(const mr_queue_source *source, mr_buf *out)
{
    const mr_queue_policy *policy = source->policy;
    mr__buf_puts(out, "SELECT id, state, age, key, lowest, missing, ceiling FROM ");
    put_call(source, "reset_jobs", out);
    put_interval(out, policy->stalled_max_age);
    mr__buf_printf(out, ", %d, ", policy->max_resets);
    mr__queue_put_reset_message(policy, out);
    mr__buf_printf(out,
                   ", %d, coalesce($1::bigint, 0), coalesce($2::text[], '{}'), $3::text, "
                   "$4::bigint[], $5::bigint, $6::bigint[], ",
                   policy->reset_batch);
    put_policy(policy, out);
}

static void put_heartbeat(const mr_queue_source *source, mr_buf *out)
{
    mr__buf_puts(out, "SELECT n, cancel, stamped FROM ");
    mr__names_function(source->names, "beat_jobs", out);
    mr__buf_puts(out, "($1::bigint[], $2::bigint[], ");
    put_interval(out, source->policy->stalled_max_age / 3);
    mr__buf_puts(out, ") WHERE $3::text IS NOT NULL");
}

static void put(const mr_queue_source *source, int statement, mr_buf *out)
{
    switch (statement) {
    case MR_QUEUE_CLAIM_ALL:
    case MR_QUEUE_CLAIM_MARK:
        put_claim(source, statement == MR_QUEUE_CLAIM_ALL ? MR_SCAN_ALL : MR_SCAN_MARK, false, out);
        break;
    case MR_QUEUE_TAKE_ALL:
    case MR_QUEUE_TAKE_MARK:
        put_claim(source, statement == MR_QUEUE_TAKE_ALL ? MR_SCAN_ALL : MR_SCAN_MARK, true, out);
        break;
    case MR_QUEUE_FINISH:
    case MR_QUEUE_FINISH_FREE:
        mr__buf_puts(out, "SELECT n, state FROM ");
        put_finish(source, "$1::bigint[]", statement == MR_QUEUE_FINISH_FREE, out);
        break;
    case MR_QUEUE_FINISH_OR_FAIL:
        put_finish_or_fail(source, out);
        break;
    case MR_QUEUE_FINISH_TAKEN:
        put_finish_taken(source, out);
        break;
    case MR_QUEUE_HEARTBEAT:
        put_heartbeat(source, out);
        break;
    case MR_QUEUE_RESET:
        put_reset(source, out);
        break;
    case MR_QUEUE_PROMOTE:
        mr__buf_puts(out, "SELECT ");
        put_call(source, "promote_keys", out);
        mr__buf_puts(out, "$1::text[])");
        break;
    default: /* as for any table */
        break;
    }
}

mr_error *mr__builtin_render(const mr_queue_source *source, mr_queue_sql *sql)
{
    for (int i = 0; i < MR_QUEUE_STATEMENT_COUNT; i++) {
        MR_AUTO_BUF text = {0};
        put(source, i, &text);
        if (text.failed)
            return mr__error_nomem();
        if (text.length == 0)
            continue;
        free(sql->text[i]);
        sql->text[i] = mr__buf_take(&text);
        if (sql->text[i] == NULL)
            return mr__error_nomem();
    }
    return NULL;
}
