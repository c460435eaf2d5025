/* A claimed row while it is handled: what the handler sees of it and may ask for, and the order of
 * things from the hooks to the outcome. One thread, but for `stop`. */
#include "queue/job.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* ---- What it is ---------------------------------------------------------------------------- */

const char *mr_job_id(const mr_job *job)
{
    return job->row.id;
}

const char *mr_job_queue(const mr_job *job)
{
    return mr__queue_name(job->store);
}

const char *mr_job_value(const mr_job *job, const char *name)
{
    int index = mr__jobs_value_find(job->row.jobs, name);
    return index < 0 ? NULL : mr__job_value_at(&job->row, (size_t)index);
}

size_t mr_job_value_count(const mr_job *job)
{
    return mr__jobs_values(job->row.jobs);
}

const char *mr_job_value_name(const mr_job *job, size_t index)
{
    return index < mr_job_value_count(job) ? mr__jobs_value_name(job->row.jobs, index) : NULL;
}

/* ---- Whether it should go on --------------------------------------------------------------- */

bool mr__job_late(const mr_job *job)
{
    return job->began != 0 && mr__clock_now(job->clock) >= job->deadline;
}

bool mr_job_cancelled(const mr_job *job)
{
    return atomic_load(&job->stop) != MR_STOP_NONE || mr__job_late(job);
}

void mr__job_lost(mr_job *job)
{
    int none = MR_STOP_NONE;
    (void)atomic_compare_exchange_strong(&job->stop, &none, MR_STOP_LOST);
}

void mr__job_overrun(const mr_job *job, mr_buf *out)
{
    char limit[32];
    mr__text_duration_format(job->max_runtime > 0 ? job->max_runtime : 0, limit);
    mr__buf_printf(out, "exceeded the maximum runtime of %s", limit);
}

static void put_back(mr_job *job, int64_t delay_ms)
{
    /* Ten years: a time that the server cannot hold would be refused, and the outcome with it. */
    static const int64_t most = INT64_C(3653) * 24 * 3600 * 1000;
    job->delay = (delay_ms < 0 ? 0 : delay_ms > most ? most : delay_ms) * 1000;
}

void mr_job_requeue(mr_job *job, int64_t delay_ms)
{
    put_back(job, delay_ms);
    job->requeue = true;
    job->snooze = false;
}

void mr_job_snooze(mr_job *job, int64_t delay_ms)
{
    put_back(job, delay_ms);
    job->snooze = true;
    job->requeue = false;
}

/* ---- Its transaction ----------------------------------------------------------------------- */

mr_error *mr__job_noted(mr_job *job, mr_error *error)
{
    if (mr_error_code(error) == MR_E_CONNECT || mr__pg_nobodys_fault(error))
        job->cut_off = true;
    return error;
}

mr_error *mr__job_session(mr_job *job)
{
    if (job->open == NULL)
        return mr__error(MR_E_STATE, "job %s is not being handled", job->row.id);
    if (job->session != NULL && mr__session_usable(job->session))
        return NULL;
    job->session = NULL;
    return mr__job_noted(job, job->open(job->open_user, &job->session));
}

mr_error *mr_job_tx(mr_job *job, mr_tx **tx)
{
    if (job->shared != NULL) {
        if (!job->used) {
            job->used = true; /* also when the mark fails for what an earlier job queued */
            mr__tx_tag(job->shared, job->place);
            MR_TRY(mr__tx_mark(job->shared));
            MR_TRY(mr__job_limit(job));
        }
        *tx = job->shared;
        return NULL;
    }
    if (job->decided)
        return mr__error(MR_E_STATE, "job %s has its outcome, so no transaction can carry it",
                         job->row.id);
    if (job->tx == NULL) {
        /* One that begins too late would only cost the connection. */
        if (mr__job_late(job))
            return mr_error_new(MR_E_TIMEOUT, true, "max_runtime of the job has passed");
        MR_TRY(mr__job_session(job));
        MR_TRY(mr__job_noted(job, mr__tx_begin(job->session, job->deadline, &job->tx)));
        mr__tx_watch(job->tx, &job->stop); /* a statement that runs is canceled, too */
        mr__tx_tag(job->tx, 0);
    }
    *tx = job->tx;
    return NULL;
}

/* ---- Running it ---------------------------------------------------------------------------- */

mr_error *mr__job_handle(mr_job *job)
{
    mr_error *error = job->hooks.before == NULL ? NULL : job->hooks.before(job, job->hooks.user);
    if (error == NULL)
        error = job->handler->handle(job->handler, job);
    mr__job_watch_end(job);
    return error;
}

void mr__job_begin(mr_job *job)
{
    job->began = mr__clock_now(job->clock);
    job->deadline = job->max_runtime < 0 || job->max_runtime > INT64_MAX - job->began
                        ? INT64_MAX
                        : job->began + job->max_runtime;
}

void mr__job_run(mr_job *job, mr_job_session_fn open, void *user)
{
    job->open = open;
    job->open_user = user;
    mr__job_begin(job);
    bool begun = atomic_load(&job->stop) == MR_STOP_NONE;
    mr_error *error =
        begun ? mr__job_handle(job)
              : mr_error_new(MR_E_CANCELLED, true, "the job was told to stop before it began");
    error = mr__job_decide(job, error);
    if (begun && job->hooks.after != NULL)
        job->hooks.after(job, error, job->hooks.user);
    mr_error_free(error);
    mr__job_notes_drop(job);
    job->open = NULL;
    job->session = NULL;
}

void mr__job_clear(mr_job *job)
{
    free(mr__job_word_take(job));
    mr__job_notes_drop(job);
    free(job->message);
    job->message = NULL;
    job->outcome.message = NULL;
    mr_error_free(job->trouble);
    job->trouble = NULL;
    mr__jobs_unref(job->jobs);
    job->jobs = NULL;
}

/* ---- Handlers ------------------------------------------------------------------------------ */

typedef struct callback {
    mr_job_handler base;
    mr_job_fn function;
    void *user;
} callback;

static mr_error *call(mr_job_handler *handler, mr_job *job)
{
    callback *c = (callback *)handler;
    return c->function(job, c->user);
}

static void free_callback(mr_job_handler *handler)
{
    free(handler);
}

mr_error *mr__job_handler_callback(mr_job_fn function, void *user, mr_job_handler **out)
{
    callback *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return mr__error_nomem();
    *c = (callback){
        .base = {.handle = call, .free = free_callback}, .function = function, .user = user};
    *out = &c->base;
    return NULL;
}

void mr__job_handler_free(mr_job_handler *handler)
{
    if (handler != NULL)
        handler->free(handler);
}
