/* Consumers as they run in a worker: made from their specs, added and removed while it runs. */
#include "runtime/worker.h"

#include <stdlib.h>
#include <string.h>

static mr_error *fill(mr_place *p)
{
    const mr_conf *conf = p->worker->conf;
    const mr_consumer *c = p->spec;
    p->name = mr__bag_text(&c->bag, MR_OPT_C_NAME);
    p->batch_size = mr__conf_number(conf, c, MR_OPT_C_BATCH_SIZE, MR_OPT_BATCH_SIZE);
    p->batch_pause = mr__conf_number(conf, c, MR_OPT_C_BATCH_PAUSE, MR_OPT_BATCH_PAUSE);
    p->batch_timeout = mr__conf_number(conf, c, MR_OPT_C_BATCH_TIMEOUT, MR_OPT_BATCH_TIMEOUT);
    p->max_failures = mr__conf_number(conf, c, MR_OPT_C_MAX_FAILURES, MR_OPT_MAX_FAILURES);
    p->fatal = mr__conf_number(conf, c, MR_OPT_C_ON_FAILURE, MR_OPT_ON_FAILURE) == 1;
    return mr__filter_init(&p->filter, mr__bag_text(&c->bag, MR_OPT_C_AGGREGATE_TYPES),
                           mr__bag_text(&c->bag, MR_OPT_C_EVENT_TYPES));
}

mr_error *mr__place_new(mr_worker *w, const mr_consumer *spec, mr_place **out)
{
    mr_place *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return mr__error_nomem();
    p->worker = w;
    p->spec = spec;
    mr_error *error = fill(p);
    if (error != NULL) {
        mr__place_free(p);
        return error;
    }
    *out = p;
    return NULL;
}

void mr__place_free(mr_place *p)
{
    if (p == NULL)
        return;
    mr__filter_free(&p->filter);
    mr__handler_free(p->handler);
    mr__batch_free(p->draft);
    mr_error_free(p->last_error);
    if (p->owns_spec)
        mr_consumer_free((mr_consumer *)(uintptr_t)p->spec);
    free(p);
}

char *mr__worker_names(const mr_worker *w)
{
    char **names = calloc(w->place_count + 1, sizeof(*names));
    if (names == NULL)
        return NULL;
    size_t count = 0;
    for (size_t i = 0; i < w->place_count; i++)
        if (!w->places[i]->removed)
            names[count++] = (char *)(uintptr_t)w->places[i]->name;
    char *array = mr__filter_array(names, count);
    free(names);
    return array;
}

/* ---- While it runs ------------------------------------------------------------------------- */

static mr_error *post(mr_worker *w, mr_place *add, const char *remove)
{
    mr_change *change = calloc(1, sizeof(*change));
    if (change == NULL)
        return mr__error_nomem();
    change->add = add;
    if (remove != NULL) {
        change->remove = strdup(remove);
        if (change->remove == NULL) {
            free(change);
            return mr__error_nomem();
        }
    }
    (void)pthread_mutex_lock(&w->changes_lock);
    mr_change **end = &w->changes;
    while (*end != NULL)
        end = &(*end)->next;
    *end = change;
    (void)pthread_mutex_unlock(&w->changes_lock);
    mr__worker_signal(w);
    return NULL;
}

void mr__place_apply_changes(mr_worker *w)
{
    (void)pthread_mutex_lock(&w->changes_lock);
    mr_change *change = w->changes;
    w->changes = NULL;
    (void)pthread_mutex_unlock(&w->changes_lock);
    while (change != NULL) {
        mr_change *next = change->next;
        if (change->add != NULL)
            mr__dispatch_add(w, change->add);
        if (change->remove != NULL)
            mr__dispatch_remove(w, change->remove);
        free(change->remove);
        free(change);
        change = next;
    }
}

static bool has_name(mr_worker *w, const char *name)
{
    (void)pthread_mutex_lock(&w->changes_lock);
    bool found = false;
    for (size_t i = 0; i < w->place_count && !found; i++)
        found = !w->places[i]->removed && strcmp(w->places[i]->name, name) == 0;
    for (mr_change *c = w->changes; c != NULL && !found; c = c->next)
        found = c->add != NULL && strcmp(c->add->name, name) == 0;
    (void)pthread_mutex_unlock(&w->changes_lock);
    return found;
}

static mr_error *admit(mr_worker *w, mr_place *place)
{
    MR_AUTO_CONN conn = NULL;
    MR_TRY(mr_connect(mr__bag_text(&w->conf->bag, MR_OPT_DATABASE), "millrace", &conn));
    MR_TRY(mr__worker_prepare_place(w, conn, place));
    if (place->handler->wants_rows && w->light)
        return mr__error(MR_E_STATE,
                         "this worker reads no payloads because it began with sql_batch "
                         "consumers only; restart it with the new consumer");
    return mr__worker_enrol_place(w, conn, place);
}

/* Before the start there is no loop to tell: the conf and the list of places grow, that is all. */
static mr_error *add_early(mr_worker *w, mr_consumer *consumer)
{
    MR_TRY(mr_conf_take_consumer(w->conf, consumer));
    mr_place **grown = realloc(w->places, (w->place_count + 1) * sizeof(*grown));
    if (grown == NULL)
        return mr__error_nomem();
    w->places = grown;
    MR_TRY(mr__place_new(w, consumer, &w->places[w->place_count]));
    w->place_count++;
    return NULL;
}

mr_error *mr_worker_add_consumer(mr_worker *w, mr_consumer *consumer)
{
    (void)pthread_mutex_lock(&w->start_lock);
    bool early = !w->loop_made;
    mr_error *refused = early ? add_early(w, consumer) : NULL;
    (void)pthread_mutex_unlock(&w->start_lock);
    if (early)
        return refused;
    mr_error *error = mr__consumer_validate(consumer);
    const char *name = mr__bag_text(&consumer->bag, MR_OPT_C_NAME);
    if (error == NULL && has_name(w, name))
        error = mr__error(MR_E_CONFIG, "consumer '%s' runs in this worker already", name);
    mr_place *place = NULL;
    if (error == NULL)
        error = mr__place_new(w, consumer, &place);
    if (error == NULL)
        error = admit(w, place);
    if (error == NULL) {
        place->owns_spec = true;
        error = post(w, place, NULL);
    }
    if (error != NULL) {
        mr__place_free(place);
        mr_consumer_free(consumer);
    }
    return error;
}

mr_error *mr_worker_remove_consumer(mr_worker *w, const char *name)
{
    (void)pthread_mutex_lock(&w->start_lock);
    bool early = !w->loop_made;
    (void)pthread_mutex_unlock(&w->start_lock);
    if (early)
        return mr__error(MR_E_STATE, "the worker does not run yet");
    if (!has_name(w, name))
        return mr__error(MR_E_USAGE, "no consumer '%s' runs in this worker", name);
    return post(w, NULL, name);
}

size_t mr_worker_consumers(mr_worker *w, char **names, size_t room)
{
    (void)pthread_mutex_lock(&w->changes_lock);
    size_t count = 0;
    for (size_t i = 0; i < w->place_count; i++) {
        if (w->places[i]->removed)
            continue;
        if (count < room)
            names[count] = strdup(w->places[i]->name);
        count++;
    }
    (void)pthread_mutex_unlock(&w->changes_lock);
    return count;
}
