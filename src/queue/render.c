/* Fills the templates of a queue's statements with its names. Pure. */
#include "queue/statements.h"

#include "cluster/template.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { WORD_MAX = 64 };

/* In a view's queue no expression of the operator's sees the table, so its alias is ours: it can
 * then never be the view's. */
static const char *table_alias(const mr_queue_shape *shape)
{
    return shape->direct ? shape->mapping->table.alias : "mr_t";
}

static const char *view_alias(const mr_queue_shape *shape)
{
    return shape->direct ? shape->mapping->table.alias : shape->mapping->view.alias;
}

/* ---- Pieces: longer words that are templates themselves
 * ------------------------------------------ */

/* Eligible to be claimed, of one relation. `state` once more by itself, so that a partial index on
 * it is seen to fit. */
#define ELIGIBLE(r)                                                                                \
    "({" r ".state} IN ('queued', 'errored') AND (({" r ".state} = 'queued'"                       \
    " AND ({" r ".process_after} IS NULL OR {" r ".process_after} <= {now.process_after}))"        \
    " OR ({" r ".state} = 'errored'"                                                               \
    " AND {" r ".finished_at} + {retry_after} <= {now.finished_at})))"
#define ELIGIBLE_ONCE(r)                                                                           \
    "({" r ".state} = 'queued'"                                                                    \
    " AND ({" r ".process_after} IS NULL OR {" r ".process_after} <= {now.process_after}))"

/* What the outcome `mr_g` makes of its row. */
#define NEXT                                                                                       \
    "CASE mr_g.mr_kind WHEN 'complete' THEN 'completed' WHEN 'cancel' THEN 'canceled'"             \
    " WHEN 'requeue' THEN 'queued' ELSE CASE WHEN {cancel} THEN 'canceled'"                        \
    " WHEN mr_g.mr_kind = 'fail' THEN 'failed' WHEN mr_g.mr_kind = 'error' THEN"                   \
    " CASE WHEN coalesce({t.num_failures}, 0) + 1 >= {max_retries} THEN 'failed'"                  \
    " ELSE 'errored' END ELSE 'queued' END END"

static const struct {
    const char *word, *text;
} pieces[] = {
    {"cancel", "{if:cancel}coalesce({t.cancel}, false){else}false{end}"},
    /* The fence is a number either way: what a claim raised, or when it was made. */
    {"fence", "{if:lease_generation}{t.lease_generation}::int8"
              "{else}(extract(epoch FROM {t.started_at}) * 1000000)::int8{end}"},
    /* Written so that the planner does not know how many run: from its statistics, taken at another
     * moment, it often takes them for none, and compares each of many with each. */
    {"ours", "CASE {t.state} WHEN 'processing' THEN true END AND {fence} = mr_g.mr_fence"
             "{if:lease_generation}{else} AND {t.worker_hostname} = $3::text{end}"},
    /* Running, and its worker silent for too long. */
    {"stalled", "({t.state} = 'processing' AND coalesce({t.last_heartbeat_at}, {t.started_at},"
                " {t.queued_at}) < {now.last_heartbeat_at} - {stalled_max_age})"},
    {"no_logs", "{logs_empty}"},
    {"next", NEXT},
};

static const char *piece(const mr_queue_source *source, const char *word)
{
    bool retries = source->policy->retry_after > 0;
    if (strcmp(word, "eligible.t") == 0)
        return retries ? ELIGIBLE("t") : ELIGIBLE_ONCE("t");
    if (strcmp(word, "eligible.v") == 0)
        return retries ? ELIGIBLE("v") : ELIGIBLE_ONCE("v");
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++)
        if (strcmp(pieces[i].word, word) == 0)
            return pieces[i].text;
    return NULL;
}

/* ---- Words -------------------------------------------------------------------------------------
 */

static void put_relation(mr_buf *out, const mr_qname *name, const char *alias)
{
    mr__qname_quote(out, name);
    mr__buf_puts(out, " AS ");
    mr__ident_quote(out, alias);
}

static void put_interval(mr_buf *out, int64_t micros)
{
    mr__buf_printf(out, "(%" PRId64 " * interval '1 microsecond')", micros);
}

/* The table's rows that the view shows and the condition wants. */
static void put_shown(const mr_queue_shape *shape, const char *condition, mr_buf *out)
{
    const char *id = mr__mapping_actual(shape->mapping, MR_JOB_ID);
    mr__buf_puts(out, " AND EXISTS (SELECT FROM ");
    put_relation(out, &shape->view, view_alias(shape));
    mr__buf_puts(out, " WHERE ");
    mr__ident_quote(out, view_alias(shape));
    mr__buf_putc(out, '.');
    mr__ident_quote(out, id);
    mr__buf_puts(out, " = ");
    mr__ident_quote(out, table_alias(shape));
    mr__buf_putc(out, '.');
    mr__ident_quote(out, id);
    if (condition[0] != '\0')
        mr__buf_printf(out, " AND (\n%s\n)", condition);
    mr__buf_putc(out, ')');
}

/* The operator's text gets lines of its own, so that a comment in it ends with it. */
static void put_condition(const mr_queue_shape *shape, bool of_table, mr_buf *out)
{
    const char *condition = shape->mapping->condition;
    if (condition[0] == '\0')
        return;
    if (of_table && !shape->direct)
        put_shown(shape, condition, out);
    else
        mr__buf_printf(out, " AND (\n%s\n)", condition);
}

/* As the condition of the table, but a row that the view does not show is not the queue's even
 * without one: whoever names a job by its id must not reach another queue's. */
static void put_belongs(const mr_queue_shape *shape, mr_buf *out)
{
    if (shape->direct)
        put_condition(shape, true, out);
    else
        put_shown(shape, shape->mapping->condition, out);
}

static void put_order(const mr_queue_shape *shape, mr_buf *out)
{
    if (shape->mapping->order[0] != '\0') {
        mr__buf_printf(out, "\n%s\n", shape->mapping->order);
        return;
    }
    mr__ident_quote(out, view_alias(shape));
    mr__buf_putc(out, '.');
    mr__ident_quote(out, mr__mapping_actual(shape->mapping, MR_JOB_ID));
}

void mr__queue_put_reset_message(const mr_queue_policy *policy, mr_buf *out)
{
    MR_AUTO_BUF text = {0};
    if (policy->reset_failure_message != NULL)
        mr__buf_puts(&text, policy->reset_failure_message);
    else
        mr__buf_printf(
            &text,
            "its worker died or stopped answering %d times while this job ran; it is not "
            "tried again",
            policy->max_resets + 1);
    mr__literal_quote(out, mr__buf_text(&text));
}

static bool put_plain(const mr_queue_source *source, const char *word, mr_buf *out)
{
    const mr_queue_shape *shape = source->shape;
    const mr_queue_policy *policy = source->policy;
    if (strcmp(word, "table") == 0)
        put_relation(out, &shape->table, table_alias(shape));
    else if (strcmp(word, "view") == 0)
        put_relation(out, &shape->view, view_alias(shape));
    else if (strcmp(word, "t") == 0)
        mr__ident_quote(out, table_alias(shape));
    else if (strcmp(word, "v") == 0)
        mr__ident_quote(out, view_alias(shape));
    else if (strcmp(word, "condition.t") == 0 || strcmp(word, "condition.v") == 0)
        put_condition(shape, word[10] == 't', out);
    else if (strcmp(word, "belongs.t") == 0)
        put_belongs(shape, out);
    else if (strcmp(word, "order") == 0)
        put_order(shape, out);
    else if (strcmp(word, "queue") == 0)
        mr__literal_quote(out, shape->mapping->queue);
    else if (strcmp(word, "require_outcome") == 0)
        mr__names_function(source->names, word, out);
    else if (strcmp(word, "retry_after") == 0)
        put_interval(out, policy->retry_after);
    else if (strcmp(word, "stalled_max_age") == 0)
        put_interval(out, policy->stalled_max_age);
    else if (strcmp(word, "max_retries") == 0)
        mr__buf_printf(out, "%d", policy->max_retries);
    else if (strcmp(word, "max_resets") == 0)
        mr__buf_printf(out, "%d", policy->max_resets);
    else if (strcmp(word, "reset_batch") == 0)
        mr__buf_printf(out, "%d", policy->reset_batch);
    else if (strcmp(word, "candidates") == 0)
        mr__buf_printf(out, "%d", policy->candidates);
    else if (strcmp(word, "reset_message") == 0)
        mr__queue_put_reset_message(policy, out);
    else if (strcmp(word, "logs_empty") == 0)
        mr__buf_printf(out, shape->logs_filled ? "ARRAY[]::%s" : "NULL",
                       shape->type[MR_JOB_EXECUTION_LOGS]);
    else
        return false;
    return true;
}

/* The type of one entry of execution_logs, which is json[] or jsonb[]. */
static void put_fit(const mr_queue_shape *shape, mr_job_column column, mr_buf *out)
{
    if (shape->limit[column] > 0)
        mr__buf_printf(out, "::pg_catalog.varchar(%d)", shape->limit[column]);
}

/* Words of the form kind.column. */
static bool put_column(const mr_queue_source *source, const char *word, mr_buf *out)
{
    const mr_queue_shape *shape = source->shape;
    const char *dot = word[0] == '=' ? word : strchr(word, '.');
    int found = dot == NULL ? -1 : mr__job_column_find(dot + 1);
    if (found < 0)
        return false;
    mr_job_column column = (mr_job_column)found;
    const char *utc = shape->utc[column] ? " AT TIME ZONE 'UTC'" : "";
    size_t length = (size_t)(dot - word);
    if (length == 1) {
        mr__ident_quote(out, word[0] == 't' ? table_alias(shape) : view_alias(shape));
        mr__buf_putc(out, '.');
    } else if (length == 4 && strncmp(word, "type", 4) == 0) {
        mr__buf_puts(out, shape->type[column]);
        return true;
    } else if (length == 3) {
        if (strncmp(word, "now", 3) == 0)
            mr__buf_printf(out, "(pg_catalog.clock_timestamp()%s)", utc);
        else if (strncmp(word, "utc", 3) == 0)
            mr__buf_puts(out, utc);
        else
            put_fit(shape, column, out);
        return true;
    }
    mr__ident_quote(out, mr__mapping_actual(shape->mapping, column));
    return true;
}

/* ---- The template ------------------------------------------------------------------------------
 */

static mr_error *put_word(const mr_queue_source *source, const char *word, mr_buf *out)
{
    const char *text = piece(source, word);
    if (text != NULL)
        return mr__queue_expand(source, text, out);
    if (put_plain(source, word, out) || put_column(source, word, out))
        return NULL;
    return mr__error(MR_E_INTERNAL, "a queue's statement has the unknown word {%s}", word);
}

mr_error *mr__queue_expand(const mr_queue_source *source, const char *template, mr_buf *out)
{
    bool shown = true;
    for (const char *p = template; *p != '\0';) {
        size_t length = strcspn(p, "{");
        if (shown)
            mr__buf_add(out, p, length);
        p += length;
        if (*p == '\0')
            break;
        char word[WORD_MAX];
        length = strcspn(++p, "}");
        (void)snprintf(word, sizeof(word), "%.*s", (int)length, p);
        p += length + (p[length] == '}' ? 1 : 0);
        if (strncmp(word, "if:", 3) == 0) {
            int column = mr__job_column_find(word + 3);
            shown = column >= 0 && source->shape->has[column];
        } else if (strcmp(word, "else") == 0) {
            shown = !shown;
        } else if (strcmp(word, "end") == 0) {
            shown = true;
        } else if (shown) {
            MR_TRY(put_word(source, word, out));
        }
    }
    return NULL;
}
