/* The minder: the one thread of a pool that starts its children, hears what they say on stderr,
 * notices those that die while nobody uses them, and ends them all. Only it frees a child, so that
 * what it polls is there. */
#include "handler/exec_pool_private.h"

#include "base/clock.h"

#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    END_POLITE = 2000000, /* microseconds from the closed stdin to SIGTERM */
    END_FIRM = 3000000,   /* and to SIGKILL */
    END_NAP = 5,          /* ms between looks meanwhile */
    STUCK_LOOK = 1000     /* ms between looks at a killed child that does not die */
};

static void say(void *user, const mr_child *child, const char *line)
{
    mr__pool_log(user, child, MR_INFO, line);
}

/* ---- Starting ------------------------------------------------------------------------------ */

static mr_error *start(mr_pool *pool, mr_kid **out)
{
    mr_kid *kid = calloc(1, sizeof(*kid));
    if (kid == NULL)
        return mr__error_nomem();
    mr_child_spec spec = {
        .argv = pool->argv, .vars = (const char *const *)pool->vars, .say = say, .user = pool};
    mr_error *error = mr__child_start(&spec, &kid->child);
    if (error != NULL) {
        free(kid);
        return error;
    }
    mr__log(pool->logger, MR_INFO, "handler started", "%s=%s" MR_SEP "pid=%d" MR_SEP "program=%s",
            pool->kind, pool->name, (int)mr__child_pid(kid->child), pool->program);
    *out = kid;
    return NULL;
}

/* Under the lock, but for the start itself. */
static void fill_orders(mr_pool *pool)
{
    while (pool->orders != NULL) {
        mr_order *order = pool->orders;
        pool->orders = order->next;
        (void)pthread_mutex_unlock(&pool->lock);
        mr_kid *kid = NULL;
        mr_error *error = start(pool, &kid);
        (void)pthread_mutex_lock(&pool->lock);
        if (kid != NULL) {
            kid->state = MR_KID_USED;
            kid->next = pool->kids;
            pool->kids = kid;
        }
        order->kid = kid;
        order->error = error;
        order->done = true;
        (void)pthread_cond_broadcast(&pool->changed);
    }
}

/* ---- Minding ------------------------------------------------------------------------------- */

/* Those that are dead go; true when one refuses to die. Under the lock. */
static bool bury(mr_pool *pool)
{
    bool stuck = false;
    for (mr_kid **link = &pool->kids; *link != NULL;) {
        mr_kid *kid = *link;
        if (kid->state != MR_KID_GONE) {
            link = &kid->next;
            continue;
        }
        if (!mr__child_await(kid->child, 0)) {
            stuck = true;
            link = &kid->next;
            continue;
        }
        *link = kid->next;
        (void)mr__child_listen(kid->child);
        mr__child_free(kid->child);
        free(kid);
    }
    return stuck;
}

/* What is polled: the wake-up, and two descriptors a child. */
typedef struct watch {
    struct pollfd *fds;
    mr_kid **kids;
    size_t count, room;
} watch;

static bool make_room(watch *w, size_t room)
{
    if (room <= w->room)
        return true;
    struct pollfd *fds = realloc(w->fds, (2 * room + 1) * sizeof(*fds));
    if (fds != NULL)
        w->fds = fds;
    mr_kid **kids = realloc((void *)w->kids, room * sizeof(*kids));
    if (kids != NULL)
        w->kids = kids;
    if (fds == NULL || kids == NULL)
        return false;
    w->room = room;
    return true;
}

/* Under the lock. Without memory the children left out wait for the next look. */
static void gather(mr_pool *pool, watch *w)
{
    w->count = 0;
    for (mr_kid *kid = pool->kids; kid != NULL; kid = kid->next) {
        if (kid->state == MR_KID_GONE || !make_room(w, w->count + 8))
            continue;
        int out = kid->state == MR_KID_FREE ? mr__child_stdout(kid->child) : -1;
        w->kids[w->count] = kid;
        w->fds[2 * w->count] =
            (struct pollfd){.fd = mr__child_stderr(kid->child), .events = POLLIN};
        w->fds[2 * w->count + 1] = (struct pollfd){.fd = out, .events = POLLIN};
        w->count++;
    }
}

static void clear_wake(mr_pool *pool)
{
    uint64_t count;
    ssize_t n = read(pool->wake, &count, sizeof(count));
    (void)n; /* nothing there is fine too */
}

static void attend(mr_pool *pool, const watch *w)
{
    for (size_t i = 0; i < w->count; i++) {
        mr_kid *kid = w->kids[i];
        if (w->fds[2 * i].revents != 0)
            (void)mr__child_listen(kid->child);
        if (w->fds[2 * i + 1].revents == 0)
            continue;
        (void)pthread_mutex_lock(&pool->lock);
        if (kid->state == MR_KID_FREE) /* nobody took it meanwhile */
            mr__pool_settle(pool, kid);
        (void)pthread_mutex_unlock(&pool->lock);
    }
}

/* One round; false when the pool ends. */
static bool round_of(mr_pool *pool, watch *w)
{
    (void)pthread_mutex_lock(&pool->lock);
    fill_orders(pool);
    bool stuck = bury(pool);
    bool ending = pool->ending;
    gather(pool, w);
    (void)pthread_mutex_unlock(&pool->lock);
    if (ending || !make_room(w, 1))
        return !ending;
    w->fds[2 * w->count] = (struct pollfd){.fd = pool->wake, .events = POLLIN};
    if (poll(w->fds, 2 * w->count + 1, stuck ? STUCK_LOOK : -1) <= 0)
        return true;
    if (w->fds[2 * w->count].revents != 0)
        clear_wake(pool);
    attend(pool, w);
    return true;
}

/* ---- The end ------------------------------------------------------------------------------- */

/* Takes what a child still has to say, so that no full pipe holds it up. True while it runs. */
static bool let_finish(mr_kid *kid)
{
    size_t written;
    const char *line;
    size_t length;
    mr_child_state state = mr__child_pump(kid->child, NULL, 0, 0, &written);
    while (mr__child_line(kid->child, &line, &length))
        ;
    (void)mr__child_listen(kid->child);
    if (state == MR_CHILD_TOO_LONG)
        (void)mr__child_kill(kid->child);
    return !mr__child_await(kid->child, 0);
}

static void end_all(mr_pool *pool)
{
    int64_t began = mr__clock_now(&mr__clock_system), waited = 0;
    for (mr_kid *kid = pool->kids; kid != NULL; kid = kid->next)
        mr__child_close(kid->child);
    for (bool told = false; waited < END_FIRM;) {
        bool some = false;
        for (mr_kid *kid = pool->kids; kid != NULL; kid = kid->next)
            some = let_finish(kid) || some;
        if (!some)
            break;
        (void)poll(NULL, 0, END_NAP);
        waited = mr__clock_now(&mr__clock_system) - began;
        if (told || waited < END_POLITE)
            continue;
        told = true;
        for (mr_kid *kid = pool->kids; kid != NULL; kid = kid->next)
            mr__child_signal(kid->child, SIGTERM);
    }
    while (pool->kids != NULL) {
        mr_kid *kid = pool->kids;
        pool->kids = kid->next;
        (void)mr__child_kill(kid->child);
        (void)mr__child_listen(kid->child);
        mr__child_free(kid->child);
        free(kid);
    }
}

void *mr__pool_mind(void *argument)
{
    mr_pool *pool = argument;
    watch w = {0};
    while (round_of(pool, &w))
        ;
    free(w.fds);
    free((void *)w.kids);
    end_all(pool); /* no taker is left */
    return NULL;
}
