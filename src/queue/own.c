/* The built-in table of jobs from its operator's side: calls of the functions in the database. A
 * filter goes there as one JSON object, so that no value ever becomes part of a statement. */
#include "queue/own.h"

#include "base/text.h"
#include "cluster/schema.h"
#include "cluster/template.h"
#include "pg/conn.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 500, INTERVAL = 40 }; /* as in operate_jobs.sql */

static void free_text(char **text)
{
    free(*text);
}
#define AUTO_TEXT __attribute__((cleanup(free_text))) char *

/* ---- Errors ---------------------------------------------------------------------------------- */

/* What the server does not accept of the caller's values. */
static mr_error *explain(mr_error *error)
{
    const char *state = mr_error_sqlstate(error);
    const char *more = NULL;
    if (strcmp(state, "22007") == 0 || strcmp(state, "22008") == 0 || strcmp(state, "22009") == 0)
        more = "; a time looks like 2026-01-31T12:00:00Z";
    else if (strcmp(state, "MR020") == 0 || strcmp(state, "MR007") == 0)
        more = "";
    if (more == NULL)
        return error;
    mr_error *better = mr__error(MR_E_USAGE, "%s%s", mr_error_message(error), more);
    mr_error_free(error);
    return better;
}

static mr_error *check_text(const char *what, const char *text)
{
    if (text == NULL || mr__text_utf8(text, strlen(text)))
        return NULL;
    return mr__error(MR_E_USAGE, "%s: the text is not valid UTF-8", what);
}

mr_error *mr__own_require(PGconn *conn, const mr_names *names)
{
    mr_schema_input schema = {.names = names, .no_log = true};
    return mr__schema_require(conn, &schema);
}

/* ---- Which jobs ------------------------------------------------------------------------------ */

static mr_error *no_id(const char *text)
{
    return mr__error(MR_E_USAGE, "'%.80s' is no id of a job: those are whole numbers", text);
}

static mr_error *put_ids(json_t *object, const mr_job_filter *filter, size_t from, size_t to)
{
    json_t *ids = json_array();
    for (size_t i = from; i < to; i++) {
        int64_t id = 0;
        if (!mr__text_int(filter->ids[i], &id)) {
            json_decref(ids);
            return no_id(filter->ids[i]);
        }
        (void)json_array_append_new(ids, json_integer(id));
    }
    return json_object_set_new(object, "ids", ids) == 0 ? NULL : mr__error_nomem();
}

static void put_states(json_t *object, unsigned states)
{
    if (states == 0)
        return;
    json_t *list = json_array();
    for (unsigned bit = MR_IN_QUEUED; bit <= MR_IN_CANCELED; bit <<= 1)
        if ((states & bit) != 0)
            (void)json_array_append_new(list, json_string(mr__job_state_name(bit)));
    (void)json_object_set_new(object, "state", list);
}

static void put_text(json_t *object, const char *name, const char *text)
{
    if (text != NULL)
        (void)json_object_set_new(object, name, json_string(text));
}

/* Which part of the filter a call is about: the ids from `from` to `to`; those above an id. */
typedef struct part {
    size_t from, to;
    int64_t above, limit; /* -1 = not restricted */
    bool all;
} part;

static mr_error *fill_filter(json_t *object, const mr_job_filter *filter, const part *p)
{
    if (p->all)
        (void)json_object_set_new(object, "all", json_true());
    if (p->above >= 0)
        (void)json_object_set_new(object, "above", json_integer(p->above));
    if (p->limit >= 0)
        (void)json_object_set_new(object, "limit", json_integer(p->limit));
    if (filter == NULL)
        return NULL;
    put_states(object, filter->states);
    if (filter->open)
        (void)json_object_set_new(object, "archived", json_false());
    put_text(object, "key", filter->key);
    put_text(object, "error", filter->error);
    put_text(object, "before", filter->before);
    put_text(object, "after", filter->after);
    return p->to > p->from ? put_ids(object, filter, p->from, p->to) : NULL;
}

static mr_error *filter_json(const mr_job_filter *filter, const part *p, char **json)
{
    json_t *object = json_object();
    mr_error *error = fill_filter(object, filter, p);
    char *text = error == NULL ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (error == NULL && text == NULL)
        error = mr__error_nomem();
    *json = text;
    return error;
}

static void put_lease(const mr_own_queue *own, char out[INTERVAL])
{
    (void)snprintf(out, INTERVAL, "%" PRId64 " microseconds", own->lease);
}

/* ---- List and show --------------------------------------------------------------------------- */

mr_error *mr__own_list(PGconn *conn, const mr_own_queue *own, const mr_job_filter *filter,
                       PGresult **rows)
{
    part whole = {.to = filter == NULL ? 0 : filter->id_count,
                  .above = -1,
                  .limit = filter == NULL || filter->limit == 0 ? -1 : filter->limit};
    AUTO_TEXT json = NULL;
    MR_TRY(filter_json(filter, &whole, &json));
    char lease[INTERVAL];
    put_lease(own, lease);
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT l.id, l.state, l.queued_at, l.started_at, l.finished_at,"
                       " l.process_after, l.num_failures, l.num_resets, l.worker,"
                       " l.last_heartbeat_at, l.failure_message, l.stalled, l.cancel,"
                       " l.queue_name AS queue, l.key, l.priority, l.standing, l.progress,"
                       " l.progress_text, l.archived FROM ");
    mr__names_function(own->names, "list_jobs", &sql);
    mr__buf_puts(&sql, "($1::text, $2::jsonb, $3::interval) AS l");
    const char *values[] = {own->name, json, lease};
    return explain(mr__pg_query(conn, rows, mr__buf_text(&sql), 3, values));
}

mr_error *mr__own_show(PGconn *conn, const mr_own_queue *own, const char *id, PGresult **rows)
{
    int64_t number = 0;
    if (!mr__text_int(id, &number))
        return no_id(id);
    char lease[INTERVAL];
    put_lease(own, lease);
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT s.id, s.queue_name AS queue, s.state, s.place, s.queued_at,"
                       " s.started_at, s.finished_at, s.process_after, s.num_failures,"
                       " s.num_resets, s.worker, s.last_heartbeat_at, s.failure_message,"
                       " s.stalled, s.cancel, s.key, s.bucket, s.priority, s.progress,"
                       " s.progress_text, s.idempotency_key, s.max_attempts, s.timeout,"
                       " s.lease_generation, s.metadata, s.errors, s.execution_logs, s.values"
                       " FROM ");
    mr__names_function(own->names, "show_job", &sql);
    mr__buf_puts(&sql, "($1::text, $2::bigint, $3::interval) AS s");
    const char *values[] = {own->name, id, lease};
    MR_AUTO_RESULT found = NULL;
    MR_TRY(mr__pg_query(conn, &found, mr__buf_text(&sql), 3, values));
    if (PQntuples(found) == 0)
        return mr__error(MR_E_USAGE, "queue %s has no job %s", own->name, id);
    *rows = found;
    found = NULL;
    return NULL;
}

/* ---- Changes --------------------------------------------------------------------------------- */

/* A call of one of the functions that change jobs. */
typedef struct change {
    const mr_own_queue *own;
    const mr_job_order *order;
    mr_buf sql;
    char lease[INTERVAL], delay[INTERVAL];
} change;

static void free_change(change *c)
{
    mr__buf_free(&c->sql);
}
#define AUTO_CHANGE __attribute__((cleanup(free_change))) change

static void write_change(change *c)
{
    static const char *const functions[] = {[MR_JOB_RETRY] = "retry_jobs",
                                            [MR_JOB_CALL_OFF] = "cancel_jobs",
                                            [MR_JOB_REQUEUE] = "requeue_jobs",
                                            [MR_JOB_DROP] = "drop_jobs"};
    const mr_job_order *order = c->order;
    put_lease(c->own, c->lease);
    (void)snprintf(c->delay, sizeof(c->delay), "%" PRId64 " microseconds", order->delay);
    mr__buf_puts(&c->sql, "SELECT o.id, o.was, o.state, o.done, o.note FROM ");
    mr__names_function(c->own->names, functions[order->action], &c->sql);
    mr__buf_puts(&c->sql, "($1::text, $2::jsonb, $3::text, $4::text");
    const char *counters = order->reset_counters ? ", true" : ", false";
    if (order->action == MR_JOB_RETRY)
        mr__buf_puts(&c->sql, counters);
    if (order->action == MR_JOB_REQUEUE) {
        mr__buf_puts(&c->sql, order->at != NULL   ? ", $5::timestamptz"
                              : order->delay == 0 ? ", NULL"
                                                  : ", clock_timestamp() + $5::interval");
        mr__buf_printf(&c->sql, "%s, interval '%s'", counters, c->lease);
    }
    mr__buf_puts(&c->sql, ") AS o ORDER BY o.id");
}

static mr_error *run_change(PGconn *conn, change *c, const part *p, PGresult **rows)
{
    const mr_job_order *order = c->order;
    AUTO_TEXT json = NULL;
    MR_TRY(filter_json(order->filter, p, &json));
    const char *values[] = {c->own->name, json, order->actor, order->reason,
                            order->at != NULL ? order->at : c->delay};
    bool due = order->action == MR_JOB_REQUEUE && (order->at != NULL || order->delay != 0);
    return explain(mr__pg_query(conn, rows, mr__buf_text(&c->sql), due ? 5 : 4, values));
}

/* Adds the rows of `more` to a copy of `*rows`, which it becomes. */
static mr_error *append_rows(PGresult **rows, const PGresult *more)
{
    PGresult *whole = PQcopyResult(*rows, PG_COPYRES_ATTRS | PG_COPYRES_TUPLES);
    if (whole == NULL)
        return mr__error_nomem();
    int at = PQntuples(whole);
    for (int row = 0; row < PQntuples(more); row++, at++)
        for (int i = 0; i < PQnfields(more); i++) {
            bool null = PQgetisnull(more, row, i);
            if (!PQsetvalue(whole, at, i, null ? NULL : PQgetvalue(more, row, i),
                            null ? -1 : PQgetlength(more, row, i))) {
                PQclear(whole);
                return mr__error_nomem();
            }
        }
    PQclear(*rows);
    *rows = whole;
    return NULL;
}

/* Where the next call goes on; false when there is none. */
static bool next_part(const mr_job_order *order, part *p, const PGresult *told)
{
    size_t named = order->filter == NULL ? 0 : order->filter->id_count;
    int count = PQntuples(told);
    if (named > 0) {
        p->from = p->to;
        p->to = named - p->from > BATCH ? p->from + BATCH : named;
        return p->from < named;
    }
    if (p->limit >= 0)
        p->limit -= count;
    if (count < BATCH || p->limit == 0)
        return false;
    p->above = strtoll(PQgetvalue(told, count - 1, 0), NULL, 10);
    return true;
}

static mr_error *run_all(PGconn *conn, change *c, part *p, PGresult **rows)
{
    for (bool more = true; more;) {
        MR_AUTO_RESULT told = NULL;
        MR_TRY(run_change(conn, c, p, &told));
        more = next_part(c->order, p, told);
        if (*rows != NULL) {
            MR_TRY(append_rows(rows, told));
            continue;
        }
        *rows = told;
        told = NULL;
    }
    return NULL;
}

mr_error *mr__own_operate(PGconn *conn, const mr_own_queue *own, const mr_job_order *order,
                          PGresult **rows)
{
    const mr_job_filter *filter = order->filter;
    MR_TRY(mr__job_order_check(own->name, order));
    MR_TRY(check_text("actor", order->actor));
    size_t named = filter == NULL ? 0 : filter->id_count;
    part p = {.to = named > BATCH ? BATCH : named,
              .above = -1,
              .limit = filter == NULL || filter->limit == 0 ? -1 : filter->limit,
              .all = order->all};
    AUTO_CHANGE c = {.own = own, .order = order};
    write_change(&c);
    MR_AUTO_RESULT told = NULL;
    MR_TRY(run_all(conn, &c, &p, &told));
    *rows = told;
    told = NULL;
    return NULL;
}

mr_error *mr__own_pause(PGconn *conn, const mr_own_queue *own, bool resume, const char *actor,
                        const char *reason, PGresult **rows)
{
    MR_TRY(check_text("actor", actor));
    MR_TRY(check_text("reason", reason));
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT a.id, a.queue, a.action, a.actor, a.reason, a.detail, a.created_at"
                       " FROM ");
    mr__names_function(own->names, resume ? "resume_queue" : "pause_queue", &sql);
    mr__buf_puts(&sql, "($1::text, $2::text, $3::text) AS a");
    const char *values[] = {own->name, actor, reason};
    return explain(mr__pg_query(conn, rows, mr__buf_text(&sql), 3, values));
}

/* ---- Which queues ---------------------------------------------------------------------------- */

mr_error *mr__own_known(PGconn *conn, const mr_names *names, const char *name, bool *known,
                        char **near)
{
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT k.name FROM ");
    mr__names_function(names, "known_queues", &sql);
    mr__buf_puts(&sql, "() AS k(name)");
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, mr__buf_text(&sql), 0, NULL));
    size_t count = (size_t)PQntuples(rows);
    const char **list = calloc(count + 1, sizeof(*list));
    if (list == NULL)
        return mr__error_nomem();
    *known = false;
    for (size_t i = 0; i < count; i++) {
        list[i] = PQgetvalue(rows, (int)i, 0);
        *known = *known || strcmp(list[i], name) == 0;
    }
    /* One whose jobs are all over is no slip either. */
    if (!*known) {
        mr__buf_clear(&sql);
        mr__buf_puts(&sql, "SELECT a.id FROM ");
        mr__names_function(names, "find_archived", &sql);
        mr__buf_puts(&sql, "($1::text, '{}', 1) AS a");
        MR_AUTO_RESULT past = NULL;
        mr_error *error = mr__pg_query(conn, &past, mr__buf_text(&sql), 1, &name);
        if (error != NULL) {
            free(list);
            return error;
        }
        *known = PQntuples(past) > 0;
    }
    int found = *known ? -1 : mr__text_nearest(name, list, count);
    *near = found < 0 ? NULL : strdup(list[found]);
    free(list);
    return NULL;
}

/* ---- Counts ---------------------------------------------------------------------------------- */

mr_error *mr__own_count(PGconn *conn, const mr_own_queue *own, unsigned states, bool any,
                        int64_t *count)
{
    MR_AUTO_BUF set = {0};
    for (unsigned bit = MR_IN_QUEUED; bit <= MR_IN_CANCELED; bit <<= 1)
        if ((states & bit) != 0)
            mr__array_add(&set, set.length == 0, mr__job_state_name(bit));
    if (set.length == 0)
        return mr__error(MR_E_USAGE, "say which states are meant");
    mr__buf_putc(&set, '}');
    MR_AUTO_BUF sql = {0};
    mr__buf_printf(&sql, "SELECT count(*) FROM (SELECT FROM ");
    mr__qname_quote(&sql, &own->names->table[MR_TABLE_JOBS]);
    mr__buf_puts(&sql, " AS j WHERE j.queue = $1::text AND j.state = ANY ($2::text[])"
                       " UNION ALL SELECT FROM ");
    mr__qname_quote(&sql, &own->names->table[MR_TABLE_JOBS_ARCHIVE]);
    mr__buf_printf(&sql, " AS a WHERE a.queue = $1::text AND a.state = ANY ($2::text[])%s%s) AS n",
                   (states & (MR_IN_COMPLETED | MR_IN_FAILED | MR_IN_CANCELED)) != 0
                       ? ""
                       : " AND false", /* no other state is ever there */
                   any ? " LIMIT 1" : "");
    const char *values[] = {own->name, mr__buf_text(&set)};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, mr__buf_text(&sql), 2, values));
    *count = strtoll(PQgetvalue(rows, 0, 0), NULL, 10);
    return NULL;
}

mr_error *mr__own_wait(PGconn *conn, const mr_own_queue *own, int64_t *wait)
{
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT (f.oldest_wait_seconds * 1000000)::int8 FROM ");
    mr__names_function(own->names, "queue_figures", &sql);
    mr__buf_puts(&sql, "($1::text, 1) AS f");
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, mr__buf_text(&sql), 1, &own->name));
    *wait = strtoll(PQgetvalue(rows, 0, 0), NULL, 10);
    return NULL;
}
