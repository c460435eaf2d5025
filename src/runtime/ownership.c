/* Which consumers are this worker's: takes what the fleet assigns, lets go of what it takes away,
 * adds and removes consumers while it runs. Loop thread only. */
#include "runtime/worker.h"

#include <stdlib.h>
#include <string.h>

static void on_place_closed(uv_handle_t *handle)
{
    mr__place_free(handle->data);
}

/* Out of the list; its memory goes with its timer. */
static void forget_place(mr_place *p)
{
    mr_worker *w = p->worker;
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
    if (p->state == MR_PLACE_RUNNING)
        return; /* its batch finishes or is fenced off, then this is called again */
    mr__place_drop_draft(p);
    (void)uv_timer_stop(&p->timer);
    mr__place_set_state(p, MR_PLACE_AWAY, "not ours");
    p->failures = 0;
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

void mr__dispatch_own(mr_worker *w, const json_t *owned)
{
    bool gained = false, lost = false;
    for (size_t i = w->place_count; i-- > 0;) {
        mr_place *p = w->places[i];
        bool ours = !p->removed && listed(owned, p->name);
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
        mr__dispatch_reload(w);
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
    w->fleet.registered = w->fleet.registered > 1 ? 1 : w->fleet.registered;
    mr__log(&w->logger, MR_INFO, "consumer added", "consumer=%s", place->name);
    mr__control_look(w);
}

void mr__dispatch_remove(mr_worker *w, const char *name)
{
    for (size_t i = 0; i < w->place_count; i++) {
        mr_place *p = w->places[i];
        if (p->removed || strcmp(p->name, name) != 0)
            continue;
        mr__log(&w->logger, MR_INFO, "consumer removed", "consumer=%s", name);
        (void)pthread_mutex_lock(&w->changes_lock); /* other threads list consumers */
        p->removed = true;
        (void)pthread_mutex_unlock(&w->changes_lock);
        p->owned = false;
        mr__place_let_go(p);
        w->fleet.registered = w->fleet.registered > 1 ? 1 : w->fleet.registered;
        mr__control_look(w);
        return;
    }
}
