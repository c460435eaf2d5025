/* From what a handler returned to the job's outcome.
 *
 * What must stay true: effects of the job's transaction are committed together with the outcome or
 * not at all; a job that was lost gets no outcome; what is nobody's fault costs the job nothing. */
#include "queue/job.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum {
    MESSAGE_MOST = 8192, /* bytes of a failure's text that are kept */
    TAG_OUTCOME = 1,     /* of the statements that are ours; the handler's have 0 */
};

static mr_job_stop stop_of(const mr_job *job)
{
    return (mr_job_stop)atomic_load(&job->stop);
}

/* What goes wrong from here on is the outcome's text. Without memory it has none. */
static void set_message(mr_job *job, const char *text)
{
    if (text[0] == '\0')
        text = "the handler gave no reason";
    free(job->message);
    job->message = strndup(text, mr__text_cut(text, MESSAGE_MOST));
    if (job->message != NULL)
        mr__text_mend(job->message);
    job->outcome.message = job->message;
}

static void conclude(mr_job *job, mr_outcome_kind kind, const char *text)
{
    job->outcome.kind = kind;
    set_message(job, text);
}

/* ---- The transaction ----------------------------------------------------------------------- */

/* How the transaction ended. */
typedef struct ending {
    mr_error *error; /* NULL = committed */
    bool own;        /* the handler's own, no statement failed */
    bool fenced;     /* the outcome came too late */
} ending;

/* Rolls back. A statement that failed on the server is the cause of the handler's error. */
static ending give_up(mr_job *job, mr_error *error)
{
    ending e = {.error = error, .own = true};
    /* Told by the worker's stop through the session: that is no error of the handler's. */
    if (mr_error_code(error) == MR_E_CANCELLED && mr_tx_cancelled(job->tx))
        e.own = false;
    int tag = -1;
    mr_error *server = mr__job_noted(job, mr__tx_rollback(job->tx, &tag));
    job->tx = NULL;
    if (server == NULL)
        return e;
    mr_error_free(error);
    return (ending){.error = server,
                    .fenced = mr_error_code(server) == MR_E_FENCED && tag == TAG_OUTCOME};
}

static ending commit(mr_job *job)
{
    mr__tx_tag(job->tx, TAG_OUTCOME);
    atomic_store(&job->committing, true);
    mr_error *error = mr__job_notes_queue(job, job->tx);
    if (error == NULL)
        error = mr__queue_finish_with(job->tx, job->store, job->worker, &job->outcome, 1);
    if (error != NULL)
        return give_up(job, error);
    int tag = -1;
    error = mr__job_noted(job, mr__tx_commit(job->tx, &tag));
    job->tx = NULL;
    job->written = error == NULL;
    return (ending){.error = error,
                    .fenced = mr_error_code(error) == MR_E_FENCED && tag == TAG_OUTCOME};
}

/* Somebody does not want the effects any more. */
static mr_error *unwanted(const mr_job *job)
{
    switch (stop_of(job)) {
    case MR_STOP_CANCEL:
        return mr_error_new(MR_E_CANCELLED, true, "the job was canceled while it ran");
    case MR_STOP_LOST:
        return mr_error_new(MR_E_FENCED, true, "the job belongs to another worker now");
    case MR_STOP_NONE:
    case MR_STOP_RUNTIME:
    case MR_STOP_WORKER:
        break;
    }
    return NULL;
}

/* The session only knows that it was told to stop; the job knows why. */
static mr_error *why_stopped(const mr_job *job, mr_error *error)
{
    mr_code code = mr_error_code(error);
    if (code != MR_E_CANCELLED && code != MR_E_TIMEOUT)
        return error;
    mr_error *why = unwanted(job);
    if (why == NULL && code == MR_E_TIMEOUT) {
        MR_AUTO_BUF text = {0};
        mr__job_overrun(job, &text);
        why = mr_error_new(MR_E_TIMEOUT, true, "%s", mr__buf_text(&text));
    }
    if (why == NULL)
        return error;
    mr_error_free(error);
    return why;
}

static ending end_transaction(mr_job *job, mr_error *error)
{
    if (error == NULL)
        error = unwanted(job);
    ending e = error == NULL ? commit(job) : give_up(job, error);
    if (!e.own)
        e.error = why_stopped(job, e.error);
    return e;
}

/* ---- The outcome --------------------------------------------------------------------------- */

static bool nobodys(const mr_job *job, const ending *e)
{
    mr_code code = mr_error_code(e->error);
    if (job->blameless || mr__pg_nobodys_fault(e->error))
        return true;
    if (code == MR_E_CONNECT)
        return !e->own || job->cut_off;
    return code == MR_E_CANCELLED && !e->own;
}

static bool permanent(const mr_error *error)
{
    const char *sqlstate = mr_error_sqlstate(error);
    if (mr_error_code(error) == MR_E_TIMEOUT)
        return false;
    if (sqlstate[0] != '\0')
        return mr__pg_sqlstate_permanent(sqlstate);
    return !mr_error_retryable(error);
}

static void release(mr_job *job, const mr_error *trouble)
{
    job->outcome.kind = MR_OUTCOME_RELEASE;
    mr_error_free(job->trouble);
    job->trouble = trouble == NULL ? NULL : mr__error_copy(trouble);
}

static void overrun(mr_job *job, const mr_error *error)
{
    MR_AUTO_BUF text = {0};
    mr__job_overrun(job, &text);
    mr_code code = mr_error_code(error);
    /* That it was told to stop says nothing beyond this. */
    if (code != MR_E_CANCELLED && code != MR_E_TIMEOUT)
        mr__buf_printf(&text, "; the handler said: %s", mr_error_message(error));
    conclude(job, MR_OUTCOME_ERROR, mr__buf_text(&text));
}

static void blame(mr_job *job, const ending *e)
{
    const char *text = mr_error_message(e->error);
    mr_job_stop stop = stop_of(job);
    bool fatal = mr_error_code(e->error) == MR_E_FATAL;
    if (fatal)
        release(job, e->error); /* and the worker hears of it, whatever becomes of the job */
    if (stop == MR_STOP_CANCEL)
        conclude(job, MR_OUTCOME_CANCEL, text);
    else if (fatal)
        return;
    else if (stop == MR_STOP_RUNTIME || mr__job_late(job))
        overrun(job, e->error);
    else if (stop == MR_STOP_WORKER)
        release(job, NULL);
    else if (nobodys(job, e))
        release(job, e->error);
    else
        conclude(job, permanent(e->error) ? MR_OUTCOME_FAIL : MR_OUTCOME_ERROR, text);
}

static void reset_outcome(mr_job *job)
{
    mr_outcome_kind kind = job->requeue  ? MR_OUTCOME_REQUEUE
                           : job->snooze ? MR_OUTCOME_SNOOZE
                                         : MR_OUTCOME_COMPLETE;
    job->outcome =
        (mr_outcome){.id = job->row.id, .fence = job->row.fence, .kind = kind, .delay = job->delay};
}

void mr__job_judge(mr_job *job, mr_error *error, bool own)
{
    reset_outcome(job);
    if (error == NULL)
        error = unwanted(job);
    ending e = {.error = error, .own = own};
    if (error != NULL)
        blame(job, &e);
    mr_error_free(error);
}

mr_error *mr__job_decide(mr_job *job, mr_error *error)
{
    reset_outcome(job);
    ending e = {.error = error, .own = true};
    if (job->tx != NULL)
        e = end_transaction(job, error);
    job->decided = true;
    if (job->written) {
        mr__job_notes_drop(job);
        return NULL;
    }
    if (e.fenced || stop_of(job) == MR_STOP_LOST) {
        job->outcome.id = NULL;
        mr__job_notes_drop(job);
        if (e.error == NULL)
            e.error = mr_error_new(MR_E_FENCED, true, "the job belongs to another worker now");
        return e.error;
    }
    if (e.error != NULL)
        blame(job, &e);
    mr__job_notes_write(job);
    return e.error;
}
