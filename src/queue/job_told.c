/* What a handler says of its job while it runs, and is told: progress, and the callback for giving
 * up.
 *
 * Progress is handed over, not written: the newest is kept in the job until the loop takes it,
 * about once a second, so a handler never waits for the database and of many only the last is
 * written. The callback runs on a thread of the job's own, which exists from its registration until
 * the handler has returned. */
#include "queue/job.h"

#include "base/text.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TEXT_MOST = 2000, LOOK_EVERY = 50 }; /* bytes; ms between looks at whether it should stop */

/* ---- Progress ------------------------------------------------------------------------------- */

mr_error *mr_job_progress(mr_job *job, int percent, const char *text)
{
    if (percent < 0 || percent > 100)
        return mr__error(MR_E_USAGE, "progress is 0 to 100, not %d", percent);
    if (text != NULL && !mr__text_utf8(text, strlen(text)))
        return mr__error(MR_E_USAGE, "the text of a job's progress is not valid UTF-8");
    size_t length = text == NULL ? 0 : mr__text_cut(text, TEXT_MOST);
    mr_job_word *word = malloc(sizeof(*word) + length + 1);
    if (word == NULL)
        return mr__error_nomem();
    word->percent = percent;
    word->has_text = text != NULL;
    if (length > 0)
        memcpy(word->text, text, length);
    word->text[length] = '\0';
    free(atomic_exchange(&job->word, word));
    return NULL;
}

mr_job_word *mr__job_word_take(mr_job *job)
{
    return atomic_exchange(&job->word, NULL);
}

/* ---- Giving up ------------------------------------------------------------------------------ */

/* Who waits for the job to be told to give up. */
struct mr_job_watch {
    mr_job *job;
    mr_job_cancel_fn callback;
    void *user;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool over; /* the handler has returned */
};

/* Until the next look, or the end; true when it is over. Under the lock. */
static bool nap(mr_job_watch *watch)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)LOOK_EVERY * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while (!watch->over &&
           pthread_cond_timedwait(&watch->changed, &watch->lock, &until) != ETIMEDOUT)
        ;
    return watch->over;
}

static void *keep_watch(void *argument)
{
    mr_job_watch *watch = argument;
    (void)pthread_mutex_lock(&watch->lock);
    bool over = watch->over;
    while (!over && !mr_job_cancelled(watch->job))
        over = nap(watch);
    (void)pthread_mutex_unlock(&watch->lock);
    if (!over)
        watch->callback(watch->job, watch->user);
    return NULL;
}

static void free_watch(mr_job_watch *watch)
{
    (void)pthread_cond_destroy(&watch->changed);
    (void)pthread_mutex_destroy(&watch->lock);
    free(watch);
}

static mr_job_watch *new_watch(mr_job *job, mr_job_cancel_fn callback, void *user)
{
    mr_job_watch *watch = calloc(1, sizeof(*watch));
    if (watch == NULL)
        return NULL;
    *watch = (mr_job_watch){.job = job, .callback = callback, .user = user};
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&watch->lock, NULL);
    (void)pthread_cond_init(&watch->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    return watch;
}

mr_error *mr_job_on_cancel(mr_job *job, mr_job_cancel_fn callback, void *user)
{
    if (job->open == NULL || job->decided)
        return mr__error(MR_E_STATE, "job %s is not being handled", job->row.id);
    mr__job_watch_end(job);
    if (callback == NULL)
        return NULL;
    mr_job_watch *watch = new_watch(job, callback, user);
    if (watch == NULL)
        return mr__error_nomem();
    int failed = pthread_create(&watch->thread, NULL, keep_watch, watch);
    if (failed != 0) {
        free_watch(watch);
        return mr__error(MR_E_IO, "no thread can be started: %s", strerror(failed));
    }
    job->watch = watch;
    return NULL;
}

void mr__job_watch_end(mr_job *job)
{
    mr_job_watch *watch = job->watch;
    if (watch == NULL)
        return;
    job->watch = NULL;
    (void)pthread_mutex_lock(&watch->lock);
    watch->over = true;
    (void)pthread_cond_signal(&watch->changed);
    (void)pthread_mutex_unlock(&watch->lock);
    (void)pthread_join(watch->thread, NULL);
    free_watch(watch);
}
