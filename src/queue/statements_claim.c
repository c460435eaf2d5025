/* The claim, in two forms. Pure.
 *
 * Without a view one scan finds, locks and hands on the rows. With one, candidates come from the
 * view and the rows are locked in the table, by id: a lock through a view need not lock anything.
 * Both look at the row once more when it is locked, as it is by then; the view's form also wants
 * the very version of the row that the view showed, because the handler's values come from there.
 * The lock is NO KEY UPDATE, which is what the update needs: a child row inserted by an open
 * transaction does not keep a job from being claimed. */
#include "queue/statements.h"

#include <stdlib.h>
#include <string.h>

enum { OWN_PARAMS = 2 }; /* count, worker; then the keys */

int mr__queue_claim_params(const mr_queue_shape *shape)
{
    return OWN_PARAMS + shape->order.count;
}

static const char claim_set[] =
    "{=state} = 'processing', {=started_at} = {now.started_at},"
    " {=last_heartbeat_at} = {now.last_heartbeat_at},"
    " {=worker_hostname} = $2::text{fit.worker_hostname}, {=finished_at} = NULL,"
    " {=failure_message} = NULL, {=execution_logs} = {no_logs}"
    "{if:lease_generation}, {=lease_generation} = coalesce({t.lease_generation}, 0) + 1{end}";

/* "v"."k1", "v"."k2" */
static void put_keys(const mr_queue_shape *shape, mr_buf *out)
{
    const mr_relation *seen = shape->direct ? &shape->mapping->table : &shape->mapping->view;
    for (int i = 0; i < shape->order.count; i++) {
        mr__buf_puts(out, i == 0 ? "" : ", ");
        mr__ident_quote(out, seen->alias);
        mr__buf_putc(out, '.');
        mr__ident_quote(out, shape->order.column[i]);
    }
}

/* (keys) >= ($3::type, $4::type): in the order's direction, the mark itself included, because
 * others may have the same key. */
static void put_from_mark(const mr_queue_shape *shape, mr_buf *out)
{
    mr__buf_putc(out, '(');
    put_keys(shape, out);
    mr__buf_puts(out, shape->order.descending ? ") <= (" : ") >= (");
    for (int i = 0; i < shape->order.count; i++)
        mr__buf_printf(out, "%s$%d::%s", i == 0 ? "" : ", ", OWN_PARAMS + 1 + i,
                       shape->order_type[i]);
    mr__buf_putc(out, ')');
}

/* What decides which rows are wanted, after `WHERE`. */
static mr_error *put_wanted(const mr_queue_source *source, mr_scan scan,
                            const mr_condition *conditions, size_t count, mr_buf *out)
{
    const mr_queue_shape *shape = source->shape;
    MR_TRY(mr__queue_expand(source, "{eligible.v}{condition.v}", out));
    int shift = mr__queue_claim_params(shape);
    for (size_t i = 0; i < count; i++) {
        mr__buf_puts(out, " AND (\n");
        MR_TRY(mr__condition_shift(&conditions[i], shift, out));
        mr__buf_puts(out, "\n)");
        shift += conditions[i].count;
    }
    if (scan == MR_SCAN_MARK) {
        mr__buf_puts(out, " AND ");
        put_from_mark(shape, out);
    }
    return NULL;
}

static void put_beyond(const mr_queue_shape *shape, mr_buf *out)
{
    if (shape->order.count == 0) {
        mr__buf_puts(out, "true");
        return;
    }
    mr__buf_puts(out, "coalesce(");
    put_from_mark(shape, out);
    mr__buf_puts(out, ", true)");
}

size_t mr__queue_shape_values(const mr_queue_shape *shape)
{
    size_t given = shape->mapping->value_count;
    return given > 0 ? given : shape->view_column_count;
}

const char *mr__queue_shape_value(const mr_queue_shape *shape, size_t index)
{
    return shape->mapping->value_count > 0 ? shape->mapping->values[index].name
                                           : shape->view_columns[index];
}

static void put_value(const mr_queue_shape *shape, size_t index, mr_buf *out)
{
    if (shape->mapping->value_count > 0)
        mr__buf_printf(out, "(\n%s\n)", shape->mapping->values[index].expression);
    else
        mr__ident_quote(out, shape->view_columns[index]);
}

void mr__queue_put_values(const mr_queue_shape *shape, mr_buf *out)
{
    for (size_t i = 0; i < mr__queue_shape_values(shape); i++) {
        mr__buf_puts(out, i == 0 ? "" : ", ");
        put_value(shape, i, out);
        mr__buf_puts(out, " AS ");
        mr__ident_quote(out, mr__queue_shape_value(shape, i));
    }
}

/* ---- Without a view
 * ------------------------------------------------------------------------------ */

static const char direct_head[] =
    "WITH mr_picked AS MATERIALIZED (SELECT {t.id} AS mr_id FROM {table} WHERE ";
/* The ids go into an array: then no plan joins the table as a whole, whatever it is thought to
 * hold. */
static const char direct_pick[] =
    " ORDER BY {order} LIMIT $1::int FOR NO KEY UPDATE OF {t} SKIP LOCKED),"
    " mr_ranked AS MATERIALIZED ("
    "SELECT mr_id, pg_catalog.row_number() OVER () AS mr_rank FROM mr_picked),"
    " mr_claimed AS (UPDATE {table} SET ";
static const char direct_return[] = " WHERE {t.id} = ANY (ARRAY(SELECT mr_id FROM mr_picked))"
                                    " RETURNING {t.id} AS mr_id, {fence} AS mr_fence, ";
static const char direct_tail[] =
    " FROM mr_claimed AS mr_c JOIN mr_ranked AS mr_r ON mr_r.mr_id = mr_c.mr_id"
    " ORDER BY mr_r.mr_rank";

static void direct_returning(const mr_queue_shape *shape, mr_buf *out)
{
    put_beyond(shape, out);
    mr__buf_puts(out, " AS mr_beyond");
    for (int i = 0; i < shape->order.count; i++) {
        mr__buf_puts(out, ", ");
        mr__ident_quote(out, shape->mapping->table.alias);
        mr__buf_putc(out, '.');
        mr__ident_quote(out, shape->order.column[i]);
        mr__buf_printf(out, " AS mr_k%d", i);
    }
    for (size_t i = 0; i < mr__queue_shape_values(shape); i++) {
        mr__buf_puts(out, ", ");
        put_value(shape, i, out);
        mr__buf_printf(out, " AS mr_v%zu", i);
    }
}

static void direct_columns(const mr_queue_shape *shape, mr_buf *out)
{
    mr__buf_puts(out, ") SELECT mr_c.mr_id::text, mr_c.mr_fence, mr_c.mr_beyond");
    for (int i = 0; i < shape->order.count; i++)
        mr__buf_printf(out, ", mr_c.mr_k%d::text", i);
    for (size_t i = 0; i < mr__queue_shape_values(shape); i++) {
        mr__buf_printf(out, ", mr_c.mr_v%zu AS ", i);
        mr__ident_quote(out, mr__queue_shape_value(shape, i));
    }
}

static mr_error *render_direct(const mr_queue_source *source, mr_scan scan,
                               const mr_condition *conditions, size_t count, mr_buf *out)
{
    MR_TRY(mr__queue_expand(source, direct_head, out));
    MR_TRY(put_wanted(source, scan, conditions, count, out));
    MR_TRY(mr__queue_expand(source, direct_pick, out));
    MR_TRY(mr__queue_expand(source, claim_set, out));
    MR_TRY(mr__queue_expand(source, direct_return, out));
    direct_returning(source->shape, out);
    direct_columns(source->shape, out);
    mr__buf_puts(out, direct_tail);
    return NULL;
}

/* ---- Through a view
 * -------------------------------------------------------------------------------- */

static const char view_head[] =
    "WITH mr_candidates AS MATERIALIZED ("
    "SELECT mr_rows.*, pg_catalog.row_number() OVER () AS mr_rank FROM ("
    "SELECT {v}.* FROM {view} WHERE ";
static const char view_lock[] =
    " ORDER BY {order} LIMIT greatest(2 * $1::int, {candidates})) AS mr_rows),"
    /* A view may show a row twice; the job is one all the same. */
    " mr_ids AS MATERIALIZED ("
    "SELECT {=id} AS mr_id, min(mr_rank) AS mr_rank FROM mr_candidates GROUP BY 1),"
    " mr_seen AS MATERIALIZED (SELECT {t.id} AS mr_id, {t}.xmin AS mr_version FROM {table}"
    " WHERE {t.id} = ANY (ARRAY(SELECT mr_id FROM mr_ids))),"
    " mr_locked AS MATERIALIZED (SELECT {t.id} AS mr_id, mr_i.mr_rank FROM {table}"
    " JOIN mr_ids AS mr_i ON mr_i.mr_id = {t.id}"
    " JOIN mr_seen AS mr_s ON mr_s.mr_id = {t.id} AND mr_s.mr_version = {t}.xmin"
    " WHERE {t.id} = ANY (ARRAY(SELECT mr_id FROM mr_ids)) AND {eligible.t}"
    " ORDER BY mr_i.mr_rank LIMIT $1::int FOR NO KEY UPDATE OF {t} SKIP LOCKED),"
    " mr_claimed AS (UPDATE {table} SET ";
static const char view_return[] = " FROM mr_locked AS mr_l WHERE {t.id} = mr_l.mr_id"
                                  " AND {t.id} = ANY (ARRAY(SELECT mr_id FROM mr_locked))"
                                  " RETURNING {t.id} AS mr_id, {fence} AS mr_fence, mr_l.mr_rank";

/* The view's row as it is after the claim: what the claim changed is the table's new value, where
 * the view calls it by the table's name. The rest is as the view shows it. */
static void view_row(const mr_queue_shape *shape, mr_buf *out)
{
    mr__buf_puts(out, " FROM (SELECT mr_n.mr_id, mr_n.mr_fence, mr_c.mr_rank");
    for (size_t i = 0; i < shape->view_column_count; i++) {
        const char *name = shape->view_columns[i];
        mr__buf_puts(out, mr__queue_shape_changed(shape, name) ? ", mr_n." : ", mr_c.");
        mr__ident_quote(out, name);
    }
    mr__buf_puts(out, " FROM mr_claimed AS mr_n"
                      " JOIN mr_candidates AS mr_c ON mr_c.mr_rank = mr_n.mr_rank) AS ");
    mr__ident_quote(out, shape->mapping->view.alias);
}

static void view_columns(const mr_queue_shape *shape, mr_buf *out)
{
    for (int k = 0; k < MR_JOB_COLUMN_COUNT; k++) {
        const char *name = mr__mapping_actual(shape->mapping, (mr_job_column)k);
        if (!mr__queue_shape_changed(shape, name))
            continue;
        mr__buf_puts(out, ", \"mr_t\".");
        mr__ident_quote(out, name);
    }
    mr__buf_puts(out, ") SELECT mr_id::text, mr_fence, ");
    put_beyond(shape, out);
    for (int i = 0; i < shape->order.count; i++) {
        mr__buf_puts(out, ", ");
        mr__ident_quote(out, shape->mapping->view.alias);
        mr__buf_putc(out, '.');
        mr__ident_quote(out, shape->order.column[i]);
        mr__buf_puts(out, "::text");
    }
    mr__buf_puts(out, ", ");
    mr__queue_put_values(shape, out);
}

static mr_error *render_view(const mr_queue_source *source, mr_scan scan,
                             const mr_condition *conditions, size_t count, mr_buf *out)
{
    MR_TRY(mr__queue_expand(source, view_head, out));
    MR_TRY(put_wanted(source, scan, conditions, count, out));
    MR_TRY(mr__queue_expand(source, view_lock, out));
    MR_TRY(mr__queue_expand(source, claim_set, out));
    MR_TRY(mr__queue_expand(source, view_return, out));
    view_columns(source->shape, out);
    view_row(source->shape, out);
    mr__buf_puts(out, " ORDER BY mr_rank");
    return NULL;
}

mr_error *mr__queue_render_claim(const mr_queue_source *source, mr_scan scan,
                                 const mr_condition *conditions, size_t count, mr_buf *out)
{
    return source->shape->direct ? render_direct(source, scan, conditions, count, out)
                                 : render_view(source, scan, conditions, count, out);
}

mr_error *mr__queue_sql_claim(const mr_queue_source *source, mr_scan scan,
                              const mr_condition *conditions, size_t count, char **out)
{
    MR_AUTO_BUF sql = {0};
    MR_TRY(mr__queue_render_claim(source, scan, conditions, count, &sql));
    *out = mr__buf_take(&sql);
    return *out == NULL ? mr__error_nomem() : NULL;
}
