/* The execution log of a job that runs. An entry is written at once, in a transaction of its own;
 * while the job's transaction is open on the session it is kept, and goes with the outcome or, when
 * that transaction is rolled back, right after it. */
#include "queue/job.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum { LOG_TIME = 10000000 }; /* microseconds for a write, whatever the job's own deadline */

static mr_log_target target_of(const mr_job *job)
{
    return (mr_log_target){.id = job->row.id, .fence = &job->row.fence, .worker = job->worker};
}

/* ---- What an entry may be ------------------------------------------------------------------ */

static unsigned escaped(const char *p)
{
    char digits[5] = "";
    memcpy(digits, p + 2, 4);
    return (unsigned)strtoul(digits, NULL, 16);
}

/* A column of jsonb takes no text that stands for none: a NUL, half of a surrogate pair. */
static bool has_text(const char *json)
{
    for (const char *p = json; (p = strchr(p, '\\')) != NULL;) {
        if (p[1] != 'u') {
            p += 2;
            continue;
        }
        unsigned unit = escaped(p);
        bool high = unit >= 0xD800 && unit <= 0xDBFF;
        if (unit == 0 || (unit >= 0xDC00 && unit <= 0xDFFF))
            return false;
        p += 6;
        if (!high)
            continue;
        if (p[0] != '\\' || p[1] != 'u' || escaped(p) < 0xDC00 || escaped(p) > 0xDFFF)
            return false;
        p += 6;
    }
    return true;
}

static mr_error *check_entry(const char *entry)
{
    MR_AUTO_BUF compact = {0};
    bool valid = entry != NULL && mr__json_compact(&compact, entry, strlen(entry));
    if (compact.failed)
        return mr__error_nomem();
    if (!valid || !has_text(mr__buf_text(&compact)))
        return mr__error(MR_E_USAGE, "an entry of the execution log must be JSON that stands for "
                                     "text: no \\u0000, no half of a surrogate pair");
    return NULL;
}

/* ---- Writing ------------------------------------------------------------------------------- */

static mr_error *put(mr_job *job, mr_tx *tx, int replaces, const char *entry, int *index)
{
    mr_log_target target = target_of(job);
    mr_queue_on on = {.tx = tx};
    if (replaces == 0)
        return mr__queue_log_add(on, job->store, &target, entry, index);
    return mr__queue_log_set(on, job->store, &target, replaces, entry);
}

static mr_error *write_now(mr_job *job, int replaces, const char *entry, int *index)
{
    MR_TRY(mr__job_session(job));
    mr_tx *tx = NULL;
    MR_TRY(
        mr__job_noted(job, mr__tx_begin(job->session, mr__clock_now(job->clock) + LOG_TIME, &tx)));
    mr_error *error = put(job, tx, replaces, entry, index);
    if (error == NULL)
        error = mr__tx_commit(tx, NULL);
    else
        mr_error_free(mr__tx_rollback(tx, NULL));
    if (mr_error_code(error) == MR_E_FENCED && !job->decided)
        mr__job_lost(job);
    return mr__job_noted(job, error);
}

/* ---- Keeping ------------------------------------------------------------------------------- */

static mr_error *keep(mr_job *job, int replaces, const char *entry)
{
    mr_job_note *grown = realloc(job->notes, (job->note_count + 1) * sizeof(*grown));
    if (grown == NULL)
        return mr__error_nomem();
    job->notes = grown;
    char *copy = strdup(entry);
    if (copy == NULL)
        return mr__error_nomem();
    job->notes[job->note_count++] = (mr_job_note){.index = replaces, .entry = copy};
    return NULL;
}

mr_error *mr__job_notes_queue(mr_job *job, mr_tx *tx)
{
    mr_log_target target = target_of(job);
    for (size_t i = 0; i < job->note_count; i++)
        MR_TRY(
            mr__queue_log_with(tx, job->store, &target, job->notes[i].index, job->notes[i].entry));
    return NULL;
}

void mr__job_notes_write(mr_job *job)
{
    mr_error *error = NULL;
    for (size_t i = 0; i < job->note_count && error == NULL; i++)
        error = write_now(job, job->notes[i].index, job->notes[i].entry, NULL);
    if (error != NULL)
        mr__log(job->logger, MR_WARN, "execution log not written",
                "queue=%s" MR_SEP "job=%s" MR_SEP "error=%s", mr_job_queue(job), job->row.id,
                mr_error_message(error));
    mr_error_free(error);
    mr__job_notes_drop(job);
}

void mr__job_notes_drop(mr_job *job)
{
    for (size_t i = 0; i < job->note_count; i++)
        free(job->notes[i].entry);
    free(job->notes);
    job->notes = NULL;
    job->note_count = 0;
}

/* ---- The calls ----------------------------------------------------------------------------- */

static mr_error *check_mode(const mr_job *job)
{
    if (job->shared == NULL)
        return NULL;
    return mr__error(MR_E_STATE, "with mode: transaction job %s keeps no execution log",
                     job->row.id);
}

mr_error *mr_job_log(mr_job *job, const char *entry, int *index)
{
    MR_TRY(check_entry(entry));
    MR_TRY(check_mode(job));
    int place = job->log_length + 1;
    if (job->tx != NULL)
        MR_TRY(keep(job, 0, entry));
    else
        MR_TRY(write_now(job, 0, entry, &place));
    job->log_length = place;
    if (index != NULL)
        *index = place;
    return NULL;
}

mr_error *mr_job_log_update(mr_job *job, int index, const char *entry)
{
    MR_TRY(check_entry(entry));
    MR_TRY(check_mode(job));
    if (index < 1 || (job->tx != NULL && index > job->log_length))
        return mr__error(MR_E_USAGE, "the execution log of job %s of queue %s has no entry %d",
                         job->row.id, mr_job_queue(job), index);
    return job->tx != NULL ? keep(job, index, entry) : write_now(job, index, entry, NULL);
}
