/* The children of one consumer: who is free, who is in use, when the next may be started. */
#include "handler/exec_pool_private.h"

#include "base/clock.h"
#include "base/list.h"
#include "handler/exec_line.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum {
    BACKOFF_FIRST = 100000, /* microseconds */
    BACKOFF_MOST = 10000000,
    LOOK_EVERY = 50000, /* how often a waiting taker asks whether it should stop */
    SETTLE_READS = 16,
    PROGRAM_SHOWN = 100 /* bytes of the command in messages */
};

/* ---- Making and freeing -------------------------------------------------------------------- */

static mr_error *split(const char *command, char ***out)
{
    MR_AUTO_BUF item = {0};
    size_t count = 0;
    for (const char *p = command; mr__list_next(&p, &item, NULL);)
        count++;
    char **argv = calloc(count + 1, sizeof(*argv));
    if (argv == NULL)
        return mr__error_nomem();
    *out = argv;
    size_t i = 0;
    for (const char *p = command; mr__list_next(&p, &item, NULL); i++) {
        argv[i] = strdup(mr__buf_text(&item));
        if (argv[i] == NULL)
            return mr__error_nomem();
    }
    if (argv[0] == NULL || argv[0][0] == '\0')
        return mr__error(MR_E_CONFIG, "exec: no program is named");
    return NULL;
}

static mr_error *copy_vars(const char *const *vars, char ***out)
{
    size_t count = 0;
    while (vars != NULL && vars[count] != NULL)
        count++;
    *out = calloc(count + 1, sizeof(**out));
    for (size_t i = 0; *out != NULL && i < count; i++) {
        (*out)[i] = strdup(vars[i]);
        if ((*out)[i] == NULL)
            return mr__error_nomem();
    }
    return *out == NULL ? mr__error_nomem() : NULL;
}

static char *shown(char *const *argv)
{
    MR_AUTO_BUF text = {0};
    for (size_t i = 0; argv[i] != NULL; i++) {
        mr__buf_puts(&text, i == 0 ? "" : " ");
        mr__buf_puts(&text, argv[i]);
    }
    if (text.length > PROGRAM_SHOWN) {
        size_t cut = PROGRAM_SHOWN;
        while (((unsigned char)text.data[cut] & 0xC0) == 0x80)
            cut--;
        text.length = cut;
        mr__buf_puts(&text, "…");
    }
    return mr__buf_take(&text);
}

static mr_error *fill(mr_pool *pool, const mr_pool_spec *spec)
{
    MR_TRY(split(spec->command, &pool->argv));
    MR_TRY(copy_vars(spec->vars, &pool->vars));
    pool->kind = strdup(spec->kind);
    pool->name = strdup(spec->name);
    pool->program = shown(pool->argv);
    if (pool->kind == NULL || pool->name == NULL || pool->program == NULL)
        return mr__error_nomem();
    pool->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (pool->wake < 0)
        return mr_error_new(MR_E_IO, true, "cannot make an eventfd: %s", strerror(errno));
    return NULL;
}

static void free_list(char **list)
{
    for (size_t i = 0; list != NULL && list[i] != NULL; i++)
        free(list[i]);
    free(list);
}

mr_error *mr__pool_new(const mr_pool_spec *spec, mr_pool **out)
{
    mr_pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL)
        return mr__error_nomem();
    pool->wake = -1;
    pool->logger = spec->logger;
    (void)pthread_mutex_init(&pool->lock, NULL);
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&pool->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    mr_error *error = fill(pool, spec);
    if (error != NULL) {
        mr__pool_free(pool);
        return error;
    }
    *out = pool;
    return NULL;
}

void mr__pool_wake(mr_pool *pool)
{
    uint64_t one = 1;
    /* It can only fail when a wake-up is there already. */
    ssize_t n = write(pool->wake, &one, sizeof(one));
    (void)n;
}

void mr__pool_free(mr_pool *pool)
{
    if (pool == NULL)
        return;
    if (pool->minding) {
        (void)pthread_mutex_lock(&pool->lock);
        pool->ending = true;
        (void)pthread_mutex_unlock(&pool->lock);
        mr__pool_wake(pool);
        (void)pthread_join(pool->minder, NULL);
    }
    if (pool->wake >= 0)
        (void)close(pool->wake);
    mr_error_free(pool->fault);
    free_list(pool->argv);
    free_list(pool->vars);
    free(pool->kind);
    free(pool->name);
    free(pool->program);
    (void)pthread_cond_destroy(&pool->changed);
    (void)pthread_mutex_destroy(&pool->lock);
    free(pool);
}

const char *mr__pool_program(const mr_pool *pool)
{
    return pool->program;
}

mr_error *mr__pool_check(const mr_pool *pool)
{
    char *path = NULL;
    mr_error *error = mr__child_find(pool->argv[0], &path);
    free(path);
    if (error == NULL || pool->argv[1] != NULL || strpbrk(pool->argv[0], " \t") == NULL)
        return error;
    mr_error *told = mr_error_new(mr_error_code(error), true,
                                  "%s; program and arguments are a list: [python3, handler.py]",
                                  mr_error_message(error));
    mr_error_free(error);
    return told;
}

void mr__pool_log(mr_pool *pool, const mr_child *child, mr_level level, const char *line)
{
    mr__log(pool->logger, level, "handler says", "%s=%s" MR_SEP "pid=%d" MR_SEP "line=%s",
            pool->kind, pool->name, (int)mr__child_pid(child), line);
}

/* ---- Failures and praise; under the lock --------------------------------------------------- */

static void note_failure(mr_pool *pool)
{
    int64_t wait = BACKOFF_FIRST;
    for (int i = 0; i < pool->failures && wait < BACKOFF_MOST; i++)
        wait *= 2;
    pool->failures++;
    pool->not_before =
        mr__clock_now(&mr__clock_system) + (wait < BACKOFF_MOST ? wait : BACKOFF_MOST);
}

void mr__pool_praise(mr_pool *pool)
{
    (void)pthread_mutex_lock(&pool->lock);
    pool->praised = true;
    pool->failures = 0;
    pool->not_before = 0;
    (void)pthread_mutex_unlock(&pool->lock);
}

bool mr__pool_praised(mr_pool *pool)
{
    (void)pthread_mutex_lock(&pool->lock);
    bool praised = pool->praised;
    (void)pthread_mutex_unlock(&pool->lock);
    return praised;
}

/* ---- Children nobody uses; under the lock -------------------------------------------------- */

static void unasked(mr_pool *pool, const mr_kid *kid, const char *line, size_t length)
{
    MR_AUTO_BUF quote = {0};
    mr__exec_line_quote(&quote, line, length);
    mr_error_free(pool->fault);
    pool->fault = mr_error_new(
        MR_E_IO, true, "%s (pid %d) answered out of order: a line that nothing had asked for: %s",
        pool->program, (int)mr__child_pid(kid->child), mr__buf_text(&quote));
}

/* Log lines are welcome at any time, answers are not. */
static bool in_order(mr_pool *pool, mr_kid *kid)
{
    const char *line;
    size_t length;
    while (mr__child_line(kid->child, &line, &length)) {
        mr_exec_answer answer;
        mr_error *error = mr__exec_line_answer(line, length, &answer);
        bool fine = error == NULL && answer.kind == MR_EXEC_LOG;
        if (fine)
            mr__pool_log(pool, kid->child, answer.level, answer.text);
        else
            unasked(pool, kid, line, length);
        mr_error_free(error);
        mr__exec_answer_free(&answer);
        if (!fine)
            return false;
    }
    return true;
}

/* Something to read, the end included. */
static bool readable(const mr_kid *kid)
{
    struct pollfd fd = {.fd = mr__child_stdout(kid->child), .events = POLLIN};
    return poll(&fd, 1, 0) > 0;
}

void mr__pool_settle(mr_pool *pool, mr_kid *kid)
{
    size_t written;
    mr_child_state state = MR_CHILD_OPEN;
    /* Bounded: a child may write faster than we read. */
    for (int i = 0; i < SETTLE_READS && state == MR_CHILD_OPEN && readable(kid); i++)
        state = mr__child_pump(kid->child, NULL, 0, 0, &written);
    if (!in_order(pool, kid)) {
        note_failure(pool);
        (void)mr__child_kill(kid->child);
        kid->state = MR_KID_GONE;
        return;
    }
    if (state == MR_CHILD_OPEN && !mr__child_await(kid->child, 0))
        return;
    if (state == MR_CHILD_TOO_LONG)
        note_failure(pool);
    (void)mr__child_await(kid->child, 20);
    MR_AUTO_BUF fate = {0};
    mr__child_fate(kid->child, &fate);
    mr__log(pool->logger, MR_WARN, "handler ended between batches",
            "%s=%s" MR_SEP "pid=%d" MR_SEP "fate=%s", pool->kind, pool->name,
            (int)mr__child_pid(kid->child), mr__buf_text(&fate));
    (void)mr__child_kill(kid->child);
    kid->state = MR_KID_GONE;
}

/* ---- Taking and giving back ---------------------------------------------------------------- */

static mr_error *start_minder(mr_pool *pool)
{
    if (pool->minding)
        return NULL;
    /* The program's signal handlers have no business on this thread. */
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int problem = pthread_create(&pool->minder, NULL, mr__pool_mind, pool);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (problem != 0)
        return mr_error_new(MR_E_IO, true, "cannot start a thread: %s", strerror(problem));
    pool->minding = true;
    return NULL;
}

static mr_kid *find_free(mr_pool *pool)
{
    for (mr_kid *kid = pool->kids; kid != NULL; kid = kid->next) {
        if (kid->state != MR_KID_FREE)
            continue;
        mr__pool_settle(pool, kid);
        if (kid->state == MR_KID_FREE)
            return kid;
        mr__pool_wake(pool);
        if (pool->fault != NULL)
            return NULL;
    }
    return NULL;
}

static mr_error *order_new(mr_pool *pool, mr_kid **out)
{
    MR_TRY(start_minder(pool));
    mr_order order = {.next = pool->orders};
    /* cppcheck-suppress autoVariables ; it is waited for right below */
    pool->orders = &order;
    mr__pool_wake(pool);
    while (!order.done)
        (void)pthread_cond_wait(&pool->changed, &pool->lock);
    if (order.error != NULL)
        note_failure(pool);
    *out = order.kid;
    return order.error;
}

static void wait_a_little(mr_pool *pool, int64_t micros)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t nanos = until.tv_nsec + micros % 1000000 * 1000;
    until.tv_sec += (time_t)(micros / 1000000 + nanos / 1000000000);
    until.tv_nsec = (long)(nanos % 1000000000);
    (void)pthread_cond_timedwait(&pool->changed, &pool->lock, &until);
}

/* Under the lock, which it gives up while it waits. */
static mr_error *take(mr_pool *pool, int64_t most_wait, bool (*stop)(void *), void *user,
                      mr_kid **out)
{
    int64_t began = mr__clock_now(&mr__clock_system);
    for (;;) {
        if (pool->fault == NULL)
            *out = find_free(pool);
        if (pool->fault != NULL) {
            mr_error *fault = pool->fault;
            pool->fault = NULL;
            return fault;
        }
        if (*out != NULL)
            return NULL;
        int64_t now = mr__clock_now(&mr__clock_system);
        int64_t until = began + most_wait;
        if (pool->not_before < until)
            until = pool->not_before;
        if (until <= now)
            return order_new(pool, out);
        if (stop != NULL && stop(user))
            return mr_error_new(MR_E_CANCELLED, true,
                                "the work was told to stop while %s was being restarted",
                                pool->program);
        wait_a_little(pool, until - now < LOOK_EVERY ? until - now : LOOK_EVERY);
    }
}

mr_error *mr__pool_take(mr_pool *pool, int64_t most_wait, bool (*stop)(void *), void *user,
                        mr_child **out)
{
    mr_kid *kid = NULL;
    (void)pthread_mutex_lock(&pool->lock);
    mr_error *error = take(pool, most_wait, stop, user, &kid);
    if (error == NULL) {
        kid->state = MR_KID_USED;
        *out = kid->child;
    }
    (void)pthread_mutex_unlock(&pool->lock);
    return error;
}

static void change(mr_pool *pool, const mr_child *child, mr_kid_state state, bool failed)
{
    (void)pthread_mutex_lock(&pool->lock);
    for (mr_kid *kid = pool->kids; kid != NULL; kid = kid->next)
        if (kid->child == child)
            kid->state = state;
    if (failed)
        note_failure(pool);
    (void)pthread_cond_broadcast(&pool->changed);
    (void)pthread_mutex_unlock(&pool->lock);
    mr__pool_wake(pool);
}

void mr__pool_give(mr_pool *pool, mr_child *child)
{
    change(pool, child, MR_KID_FREE, false);
}

void mr__pool_kill(mr_pool *pool, mr_child *child)
{
    (void)mr__child_kill(child);
    (void)mr__child_listen(child); /* its last words */
    change(pool, child, MR_KID_USED, true);
}

void mr__pool_bury(mr_pool *pool, mr_child *child)
{
    change(pool, child, MR_KID_GONE, false);
}
