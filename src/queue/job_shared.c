/* Jobs of one transaction, run one after the other (mode: transaction).
 *
 * What must stay true: at the end the transaction holds the statements of exactly those jobs whose
 * outcome says that they went well. Statements are only queued, so the server may find out about a
 * job's mistake when later ones have queued theirs; those were skipped, and are run again. */
#include "queue/job.h"

#include <stdio.h>
#include <stdlib.h>

enum { BLAMELESS_WAIT = 1000000 }; /* microseconds before such a job is taken again */

/* Its statements may have to wait for the server long after the handler has queued them, with those
 * of other jobs: the server itself watches the time of each. Undone with the job. */
mr_error *mr__job_limit(mr_job *job)
{
    if (job->max_runtime < 0)
        return NULL;
    char limit[24];
    (void)snprintf(limit, sizeof(limit), "%lld", (long long)((job->max_runtime + 999) / 1000));
    const char *values[] = {limit};
    return mr_tx_exec(job->shared, "SELECT pg_catalog.set_config('statement_timeout', $1, true)", 1,
                      values);
}

static mr_error *end_mark(mr_job *job, mr_tx *tx)
{
    if (job->max_runtime >= 0)
        MR_TRY(mr_tx_exec(tx, "SET LOCAL statement_timeout TO DEFAULT", 0, NULL));
    if (job->checked)
        MR_TRY(mr__tx_check(tx));
    return mr__tx_unmark(tx);
}

static mr_error *run_one(mr_job *job, mr_tx *tx, int place, mr_job_session_fn open, void *user)
{
    job->shared = tx;
    job->place = place;
    job->used = false;
    job->ran = true;
    job->open = open;
    job->open_user = user;
    job->requeue = job->snooze = job->blameless = false;
    mr__job_begin(job);
    mr_error *error = mr__job_handle(job);
    if (error == NULL && job->used)
        error = end_mark(job, tx);
    job->open = NULL;
    return error;
}

/* A deadlock, say: it costs the job no attempt. It steps back for a moment, so that the others are
 * not held up by it however often that happens. */
static void step_back(mr_job *job)
{
    if (job->outcome.kind != MR_OUTCOME_RELEASE || job->trouble == NULL)
        return;
    job->outcome.kind = MR_OUTCOME_SNOOZE;
    job->outcome.delay = BLAMELESS_WAIT;
}

/* The first job's that failed on the server is known now, and undone: it is judged by that error,
 * and those after it that wrote must run again. Returns false when none failed. */
static bool take_failure(mr_job *jobs, size_t count, int tag, mr_error *failure)
{
    if (failure == NULL)
        return false;
    size_t culprit = tag < 0 || (size_t)tag >= count ? 0 : (size_t)tag;
    mr__job_judge(&jobs[culprit], failure, false);
    step_back(&jobs[culprit]);
    for (size_t i = culprit + 1; i < count; i++)
        if (jobs[i].used)
            jobs[i].ran = jobs[i].used = false;
    return true;
}

/* Undoes what the server reached last. `*found`: a statement had failed. */
static mr_error *undo(mr_tx *tx, mr_job *jobs, size_t count, bool *found)
{
    mr_error *failure = NULL;
    int tag = -1;
    MR_TRY(mr__tx_undo(tx, INT64_MAX, &failure, &tag));
    /* With the connection the transaction is gone. */
    if (mr_error_code(failure) == MR_E_CONNECT)
        return failure;
    *found = take_failure(jobs, count, tag, failure);
    return NULL;
}

static mr_error *run_all(mr_tx *tx, mr_job *jobs, size_t count, mr_job_session_fn open, void *user)
{
    for (size_t i = 0; i < count; i++) {
        mr_job *job = &jobs[i];
        if (job->ran)
            continue;
        mr_error *error = run_one(job, tx, (int)i, open, user);
        if (error == NULL || !job->used) {
            mr__job_judge(job, error, true);
            if (job->trouble != NULL)
                return mr__error_copy(job->trouble);
            continue;
        }
        bool found = false;
        mr_error *broken = undo(tx, jobs, count, &found);
        if (broken != NULL) {
            mr_error_free(error);
            return broken;
        }
        if (found) {
            mr_error_free(error); /* only what the server's error made of it */
            i = (size_t)-1;       /* from the first that has to run again */
        } else {
            mr__job_judge(job, error, true);
            if (job->trouble != NULL)
                return mr__error_copy(job->trouble);
        }
    }
    return NULL;
}

mr_error *mr__jobs_run_shared(mr_tx *tx, mr_job *jobs, size_t count, mr_job_session_fn open,
                              void *user)
{
    for (;;) {
        MR_TRY(run_all(tx, jobs, count, open, user));
        bool any = false;
        for (size_t i = 0; i < count; i++)
            any = any || jobs[i].used;
        if (!any)
            return NULL; /* nothing was queued: nothing can have failed */
        mr_error *error = mr__tx_settle(tx);
        if (error == NULL)
            return NULL;
        mr_error_free(error); /* undo() gives it, with its place */
        bool found = false;
        MR_TRY(undo(tx, jobs, count, &found));
        if (!found)
            return mr__error(MR_E_INTERNAL, "a statement failed, and no job's");
    }
}
