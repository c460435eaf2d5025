/* A queue over a connection: opening it, and claims. */
#include "queue/store.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BUILTIN_KEYS = 2 }; /* what its claims go on from: marks and floor of sql/functions */

/* ---- Opening --------------------------------------------------------------------------------- */

static mr_queue_source source_of(const mr_queue_store *store)
{
    return (mr_queue_source){&store->shape, &store->policy, &store->names};
}

static mr_error *check_policy(const char *queue, const mr_queue_policy *policy)
{
    if (policy->retry_after < 0 || policy->max_retries < 0 || policy->max_resets < 0)
        return mr__error(MR_E_CONFIG,
                         "queue %s: retry_after, max_retries and max_resets cannot be negative",
                         queue);
    if (policy->stalled_max_age <= 0)
        return mr__error(MR_E_CONFIG, "queue %s: stalled_max_age must be more than 0", queue);
    if (policy->reset_batch <= 0 || policy->candidates <= 0)
        return mr__error(MR_E_CONFIG, "queue %s: batches must be more than 0", queue);
    return NULL;
}

static mr_error *open_store(PGconn *conn, mr_queue_store *store, const mr_mapping *mapping)
{
    MR_TRY(check_policy(mapping->queue, &store->policy));
    if (store->policy.reset_failure_message != NULL) {
        store->reset_message = strdup(store->policy.reset_failure_message);
        if (store->reset_message == NULL)
            return mr__error_nomem();
        store->policy.reset_failure_message = store->reset_message;
    }
    if (mapping->table.name.name[0] == '\0')
        return mr__error(MR_E_CONFIG, "queue %s: name its table with `table:`", mapping->queue);
    mr_error *error = mr__queue_shape_read(conn, mapping, &store->shape);
    if (error != NULL && store->policy.builtin && mr_error_code(error) == MR_E_CONFIG) {
        mr_error_free(error);
        error = mr__error(MR_E_SCHEMA,
                          "queue %s: Millrace's table of jobs is not as it should be; "
                          "run: millrace schema apply",
                          mapping->queue);
    }
    MR_TRY(error);
    mr_queue_source source = source_of(store);
    MR_TRY(mr__queue_sql_render(&source, &store->sql));
    if (store->policy.builtin) {
        store->shape.order.count = BUILTIN_KEYS;
        store->shape.notes[0] = '\0'; /* its indexes are our own business */
    }
    return NULL;
}

static void free_store(mr_queue_store *store)
{
    mr__queue_sql_free(&store->sql);
    mr__queue_shape_free(&store->shape);
    free(store->reset_message);
    free(store);
}

mr_error *mr__queue_open(PGconn *conn, mr_mapping *mapping, const mr_queue_policy *policy,
                         const mr_names *names, mr_queue_store **out)
{
    mr_queue_store *store = calloc(1, sizeof(*store));
    if (store == NULL)
        return mr__error_nomem();
    store->policy = *policy;
    store->names = *names;
    mr_error *error = open_store(conn, store, mapping);
    if (error != NULL) {
        free_store(store);
        return error;
    }
    store->mapping = *mapping;
    store->shape.mapping = &store->mapping;
    *mapping = (mr_mapping){0};
    *out = store;
    return NULL;
}

void mr__queue_close(mr_queue_store *store)
{
    if (store == NULL)
        return;
    mr__mapping_free(&store->mapping);
    free_store(store);
}

const char *mr__queue_name(const mr_queue_store *store)
{
    return store->mapping.queue;
}

const mr_queue_shape *mr__queue_shape(const mr_queue_store *store)
{
    return &store->shape;
}

size_t mr__queue_value_count(const mr_queue_store *store)
{
    return mr__queue_shape_values(&store->shape);
}

const char *mr__queue_value_name(const mr_queue_store *store, size_t index)
{
    return mr__queue_shape_value(&store->shape, index);
}

const char *mr__queue_text(const mr_queue_store *store, mr_queue_statement statement)
{
    return store->sql.text[statement];
}

void mr__queue_mark_init(const mr_queue_store *store, int64_t interval, mr_mark *mark)
{
    mr__mark_init(mark, store->shape.order.count, interval);
}

/* ---- Claim ----------------------------------------------------------------------------------- */

struct mr_jobs {
    PGresult *rows;
    atomic_int references;
    int first_value; /* column of the first value */
};

static mr_error *put_values(mr_queue_call *call, int count, const char *const *values)
{
    if (call->count + count > MR_QUEUE_PARAMS)
        return mr__error(MR_E_USAGE,
                         "the conditions of a claim bring more values than its %d parameters",
                         MR_QUEUE_PARAMS);
    for (int i = 0; i < count; i++)
        call->values[call->count++] = values[i];
    return NULL;
}

static mr_error *own_claim(const mr_queue_store *store, const mr_claim *claim, mr_scan scan,
                           mr_queue_call *call)
{
    mr_queue_source source = source_of(store);
    MR_TRY(mr__queue_sql_claim(&source, scan, claim->conditions, claim->condition_count,
                               &call->own_sql));
    call->sql = call->own_sql;
    for (size_t i = 0; i < claim->condition_count; i++)
        MR_TRY(put_values(call, claim->conditions[i].count, claim->conditions[i].values));
    return NULL;
}

mr_error *mr__queue_claim_call(const mr_queue_store *store, const mr_claim *claim,
                               const mr_mark *mark, mr_scan scan, mr_queue_call *out)
{
    if (claim->count <= 0)
        return mr__error(MR_E_USAGE, "a claim must ask for one job at least");
    mr__buf_printf(&out->text[0], "%d", claim->count);
    out->values[0] = mr__buf_text(&out->text[0]);
    out->values[1] = claim->worker;
    out->count = 2;
    if (claim->condition_count > 0 && store->policy.builtin)
        return mr__error(MR_E_USAGE, "claims of the built-in table take no further conditions");
    const char *const none[MR_ORDER_KEYS] = {0};
    MR_TRY(put_values(out, store->shape.order.count,
                      mark == NULL ? none : (const char *const *)mark->key));
    if (store->policy.builtin)
        MR_TRY(put_values(out, 2, (const char *const[]){claim->buckets, claim->spent}));
    if (claim->condition_count > 0)
        return own_claim(store, claim, scan, out);
    if (claim->take)
        out->sql = store->sql.text[scan == MR_SCAN_MARK ? MR_QUEUE_TAKE_MARK : MR_QUEUE_TAKE_ALL];
    else
        out->sql = store->sql.text[scan == MR_SCAN_MARK ? MR_QUEUE_CLAIM_MARK : MR_QUEUE_CLAIM_ALL];
    return NULL;
}

/* Key and place of the last row, as the mark wants to know them. */
static void tell_last(const mr_queue_store *store, const PGresult *rows, mr_mark_news *news)
{
    news->got = PQntuples(rows);
    int last = news->got - 1;
    if (last < 0)
        return;
    /* The built-in table says it once, in one of the first rows. */
    if (store->policy.builtin)
        for (last = 0; last < news->got - 1 && PQgetisnull(rows, last, MR_CLAIM_KEYS) != 0;)
            last++;
    news->beyond = PQgetvalue(rows, last, MR_CLAIM_BEYOND)[0] == 't';
    for (int i = 0; i < store->shape.order.count; i++)
        news->last[i] = PQgetisnull(rows, last, MR_CLAIM_KEYS + i) != 0
                            ? NULL
                            : PQgetvalue(rows, last, MR_CLAIM_KEYS + i);
}

mr_error *mr__queue_claim_take(const mr_queue_store *store, PGresult *rows, mr_mark *mark,
                               mr_mark_news news, mr_jobs **out)
{
    MR_AUTO_RESULT mine = rows;
    mr_jobs *jobs = calloc(1, sizeof(*jobs));
    if (jobs == NULL)
        return mr__error_nomem();
    if (mark != NULL) {
        tell_last(store, rows, &news);
        /* The jobs are claimed already, so a mark that could not be kept is no reason to lose them:
         * the next claim looks at everything. */
        mr_error_free(mr__mark_claimed(mark, &news));
    }
    jobs->rows = mine;
    mine = NULL;
    jobs->first_value = MR_CLAIM_KEYS + store->shape.order.count;
    atomic_init(&jobs->references, 1);
    *out = jobs;
    return NULL;
}

mr_error *mr__queue_claim(mr_queue_on on, const mr_queue_store *store, const mr_claim *claim,
                          mr_mark *mark, const mr_clock *clock, mr_jobs **out)
{
    int64_t start = mr__clock_now(clock);
    mr_scan scan = mark == NULL ? MR_SCAN_ALL : mr__mark_plan(mark, start);
    MR_AUTO_CALL call = {0};
    MR_TRY(mr__queue_claim_call(store, claim, mark, scan, &call));
    PGresult *rows = NULL;
    MR_TRY(mr__queue_run(on, &call, &rows));
    int64_t now = mr__clock_now(clock);
    mr_mark_news news = {.scan = scan, .wanted = claim->count, .now = now, .took = now - start};
    return mr__queue_claim_take(store, rows, mark, news, out);
}

mr_jobs *mr__jobs_ref(mr_jobs *jobs)
{
    atomic_fetch_add(&jobs->references, 1);
    return jobs;
}

void mr__jobs_unref(mr_jobs *jobs)
{
    if (jobs == NULL || atomic_fetch_sub(&jobs->references, 1) != 1)
        return;
    PQclear(jobs->rows);
    free(jobs);
}

size_t mr__jobs_count(const mr_jobs *jobs)
{
    return (size_t)PQntuples(jobs->rows);
}

mr_job_row mr__jobs_at(const mr_jobs *jobs, size_t index)
{
    int row = (int)index;
    mr_job_row job = {.jobs = jobs, .row = row, .id = PQgetvalue(jobs->rows, row, MR_CLAIM_ID)};
    (void)mr__text_int(PQgetvalue(jobs->rows, row, MR_CLAIM_FENCE), &job.fence);
    return job;
}

size_t mr__jobs_values(const mr_jobs *jobs)
{
    return (size_t)(PQnfields(jobs->rows) - jobs->first_value);
}

const char *mr__jobs_value_name(const mr_jobs *jobs, size_t index)
{
    return PQfname(jobs->rows, jobs->first_value + (int)index);
}

const char *mr__job_value_at(const mr_job_row *job, size_t index)
{
    int column = job->jobs->first_value + (int)index;
    return PQgetisnull(job->jobs->rows, job->row, column) != 0
               ? NULL
               : PQgetvalue(job->jobs->rows, job->row, column);
}

Oid mr__jobs_value_type(const mr_jobs *jobs, size_t index)
{
    return PQftype(jobs->rows, jobs->first_value + (int)index);
}

int mr__jobs_value_find(const mr_jobs *jobs, const char *name)
{
    for (size_t i = 0; i < mr__jobs_values(jobs); i++)
        if (strcmp(mr__jobs_value_name(jobs, i), name) == 0)
            return (int)i;
    return -1;
}
