/* Which consumers are this worker's: takes what the fleet assigns, lets go of what it takes away,
 * adds and removes consumers while it runs. Loop thread only. */
#include "runtime/worker.h"

#include "base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void on_place_closed(uv_handle_t *handle)
{
    mr__place_free(handle->data);
}

/* A number for the consumer's own lock, among those of other fleets in the same database. */
static int64_t lock_key(const mr_place *p)
{
    MR_AUTO_BUF identity = {0};
    mr__buf_printf(&identity, "lock of %s in %s", p->name, p->worker->fleet.channel);
    return (int64_t)mr__hash_fnv1a64(mr__buf_text(&identity), identity.length);
}

static void on_unlocked(void *user, PGresult **results, mr_error *error)
{
    (void)user;
    (void)results;
    mr_error_free(error); /* with the connection the lock went, too */
}

/* A consumer that is removed leaves its lock to others; the session lives on. */
static void give_back_lock(const mr_place *p)
{
    mr_worker *w = p->worker;
    char key[24];
    (void)snprintf(key, sizeof(key), "%" PRId64, lock_key(p));
    mr_flight_statement unlock = {
        .sql = "SELECT pg_catalog.pg_advisory_unlock($1::int8)", .count = 1, .values = {key}};
    if (mr__aconn_up(w->control))
        mr__aconn_send(w->control, &unlock, 1, on_unlocked, w);
}

/* Out of the list; its memory goes with its timer. */
static void forget_place(mr_place *p)
{
    mr_worker *w = p->worker;
    if (p->by_lock)
        give_back_lock(p);
    (void)pthread_mutex_lock(&w->changes_lock);
    size_t i = 0;
    while (w->places[i] != p)
        i++;
    w->place_count--;
    memmove(&w->places[i], &w->places[i + 1], (w->place_count - i) * sizeof(*w->places));
    (void)pthread_mutex_unlock(&w->changes_lock);
    uv_close((uv_handle_t *)&p->timer, on_place_closed);
}

void mr__place_let_go(mr_place *p)
{
    if (p->state == MR_PLACE_RUNNING) {
        atomic_store(&p->recalled, true);
        return; /* its batch finishes or is fenced off, then this is called again */
    }
    mr__place_drop_draft(p);
    (void)uv_timer_stop(&p->timer);
    mr__place_set_state(p, MR_PLACE_AWAY, "not ours");
    /* What a detached consumer did and did not save is done again by whoever has it now. */
    mr__batch_free(p->save);
    p->save = NULL;
    p->reached = p->saved;
    p->unsaved = 0;
    p->trial = (mr_trial){0};
    mr_error_free(p->sentence.error);
    p->sentence = (mr_sentence){0};
    p->troubles = 0;
    if (p->removed)
        forget_place(p);
}

static bool listed(const json_t *owned, const char *name)
{
    size_t i;
    json_t *item;
    json_array_foreach(owned, i, item)
    {
        const char *text = json_string_value(item);
        if (text != NULL && strcmp(text, name) == 0)
            return true;
    }
    return false;
}

void mr__locks_wanted(const mr_worker *w, mr_buf *names, mr_buf *keys)
{
    char **wanted = calloc(w->place_count + 1, sizeof(*wanted));
    size_t count = 0;
    for (size_t i = 0; wanted != NULL && i < w->place_count; i++) {
        const mr_place *p = w->places[i];
        if (!p->by_lock || p->owned || p->removed || p->state != MR_PLACE_AWAY)
            continue;
        mr__buf_printf(keys, "%s%" PRId64, count == 0 ? "{" : ",", lock_key(p));
        wanted[count++] = p->name;
    }
    char *array = mr__filter_array(wanted, count);
    mr__buf_puts(names, array == NULL || count == 0 ? "{}" : array);
    mr__buf_puts(keys, count == 0 ? "{}" : "}");
    free(array);
    free((void *)wanted);
}

void mr__dispatch_unlock(mr_worker *w)
{
    for (size_t i = w->place_count; i-- > 0;) {
        mr_place *p = w->places[i];
        if (!p->by_lock || !p->owned)
            continue;
        p->owned = false;
        mr__log(&w->logger, MR_INFO, "ownership lost", "consumer=%s" MR_SEP "why=%s", p->name,
                "the lock went with the connection");
        mr__place_let_go(p);
    }
}

void mr__dispatch_own(mr_worker *w, const json_t *owned, const json_t *got)
{
    bool gained = false, lost = false;
    for (size_t i = w->place_count; i-- > 0;) {
        mr_place *p = w->places[i];
        bool ours = p->by_lock ? p->owned || listed(got, p->name) : listed(owned, p->name);
        ours = ours && !p->removed;
        if (ours == p->owned)
            continue;
        p->owned = ours;
        mr__log(&w->logger, MR_INFO, ours ? "consumer taken" : "ownership lost", "consumer=%s",
                p->name);
        if (!ours) {
            lost = true;
            mr__place_let_go(p);
        } else if (p->state == MR_PLACE_AWAY) {
            gained = true;
            mr__place_set_state(p, MR_PLACE_LOADING, "assigned");
        }
    }
    bool once = w->once_target >= 0;
    /* While the reader is down its coming up loads everything. */
    if ((gained || once) && mr__aconn_up(w->control))
        mr__loading_some(w);
    if (lost && w->life == MR_LIFE_RUNNING)
        mr__dispatch_settle(w);
}

void mr__dispatch_add(mr_worker *w, mr_place *place)
{
    mr_place **grown = NULL;
    if (w->life == MR_LIFE_RUNNING) {
        (void)pthread_mutex_lock(&w->changes_lock);
        grown = realloc(w->places, (w->place_count + 1) * sizeof(*grown));
        if (grown != NULL) {
            w->places = grown;
            w->places[w->place_count++] = place;
        }
        (void)pthread_mutex_unlock(&w->changes_lock);
    }
    if (grown == NULL) {
        mr__place_free(place);
        return;
    }
    (void)uv_timer_init(&w->loop, &place->timer);
    place->timer.data = place;
    mr__log(&w->logger, MR_INFO, "consumer added", "consumer=%s", place->name);
    mr__control_roster(w);
}

void mr__dispatch_remove(mr_worker *w, const char *name)
{
    bool any = false;
    for (size_t i = w->place_count; i-- > 0;) {
        mr_place *p = w->places[i];
        if (p->removed || strcmp(mr__place_base(p), name) != 0)
            continue;
        any = true;
        (void)pthread_mutex_lock(&w->changes_lock); /* other threads list consumers */
        p->removed = true;
        (void)pthread_mutex_unlock(&w->changes_lock);
        p->owned = false;
        mr__place_let_go(p);
    }
    if (!any)
        return;
    mr__log(&w->logger, MR_INFO, "consumer removed", "consumer=%s", name);
    mr__control_roster(w);
}
