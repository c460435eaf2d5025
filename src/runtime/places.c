/* Consumers as they run in a worker: made from their specs, one place a slot, added and removed
 * while it runs. */
#include "runtime/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Making -------------------------------------------------------------------------------- */

static void fill_policy(mr_place *p)
{
    const mr_conf *conf = p->worker->conf;
    const mr_consumer *c = p->spec;
    p->policy = (mr_policy){
        .on_failure =
            (mr_on_failure)mr__conf_number(conf, c, MR_OPT_C_ON_FAILURE, MR_OPT_ON_FAILURE),
        .max_retries = mr__conf_number(conf, c, MR_OPT_C_MAX_RETRIES, MR_OPT_MAX_RETRIES),
        .retry_base = mr__conf_number(conf, c, MR_OPT_C_RETRY_BASE, MR_OPT_RETRY_BASE),
        .retry_most = mr__conf_number(conf, c, MR_OPT_C_RETRY_MOST, MR_OPT_RETRY_MOST),
        .max_failures = mr__conf_number(conf, c, MR_OPT_C_MAX_FAILURES, MR_OPT_MAX_FAILURES),
        .fatal_base = mr__bag_number(&conf->bag, MR_OPT_POLL_INTERVAL),
        .fatal_most = mr__bag_number(&conf->bag, MR_OPT_MAX_POLL_INTERVAL)};
    if (p->policy.retry_most < p->policy.retry_base)
        p->policy.retry_most = p->policy.retry_base;
    if (p->policy.fatal_most < p->policy.fatal_base)
        p->policy.fatal_most = p->policy.fatal_base;
    p->by_key = p->policy.on_failure == MR_ON_DEAD_LETTER &&
                mr__conf_number(conf, c, MR_OPT_C_LETTER_ORDER, MR_OPT_LETTER_ORDER) == 1;
}

static mr_error *name_place(mr_place *p)
{
    MR_AUTO_BUF name = {0};
    mr__buf_puts(&name, mr__bag_text(&p->spec->bag, MR_OPT_C_NAME));
    if (p->slots > 1)
        mr__buf_printf(&name, "#%d/%d", p->slot, p->slots);
    p->name = mr__buf_take(&name);
    return p->name == NULL ? mr__error_nomem() : NULL;
}

static mr_error *fill(mr_place *p)
{
    const mr_conf *conf = p->worker->conf;
    const mr_consumer *c = p->spec;
    MR_TRY(name_place(p));
    fill_policy(p);
    p->batch_size = mr__conf_number(conf, c, MR_OPT_C_BATCH_SIZE, MR_OPT_BATCH_SIZE);
    p->batch_pause = mr__conf_number(conf, c, MR_OPT_C_BATCH_PAUSE, MR_OPT_BATCH_PAUSE);
    p->batch_timeout = mr__conf_number(conf, c, MR_OPT_C_BATCH_TIMEOUT, MR_OPT_BATCH_TIMEOUT);
    p->detached = mr__bag_number(&c->bag, MR_OPT_C_DETACHED) != 0;
    p->by_lock = mr__bag_number(&c->bag, MR_OPT_C_OWNERSHIP) == 1;
    p->checkpoint_every = mr__bag_number(&c->bag, MR_OPT_C_CHECKPOINT_EVERY);
    p->checkpoint_age = mr__bag_number(&c->bag, MR_OPT_C_CHECKPOINT_AGE);
    return mr__filter_init(&p->filter, mr__bag_text(&c->bag, MR_OPT_C_AGGREGATE_TYPES),
                           mr__bag_text(&c->bag, MR_OPT_C_EVENT_TYPES));
}

static mr_error *make_place(mr_worker *w, const mr_consumer *spec, int slot, int slots,
                            mr_place **out)
{
    mr_place *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return mr__error_nomem();
    p->worker = w;
    p->spec = spec;
    p->slot = slot;
    p->slots = slots;
    mr_error *error = fill(p);
    if (error != NULL) {
        mr__place_free(p);
        return error;
    }
    *out = p;
    return NULL;
}

static void free_places(mr_place **places, size_t count)
{
    for (size_t i = 0; i < count; i++)
        mr__place_free(places[i]);
    free(places);
}

mr_error *mr__places_new(mr_worker *w, const mr_consumer *spec, mr_place ***out, size_t *count)
{
    int slots = (int)mr__bag_number(&spec->bag, MR_OPT_C_PARTITIONS);
    mr_place **places = calloc((size_t)slots, sizeof(*places));
    if (places == NULL)
        return mr__error_nomem();
    for (int i = 0; i < slots; i++) {
        mr_error *error = make_place(w, spec, i, slots, &places[i]);
        if (error != NULL) {
            free_places(places, (size_t)i);
            return error;
        }
    }
    *out = places;
    *count = (size_t)slots;
    return NULL;
}

void mr__place_free(mr_place *p)
{
    if (p == NULL)
        return;
    mr__filter_free(&p->filter);
    mr__handler_free(p->handler);
    mr__batch_free(p->draft);
    mr__batch_free(p->save);
    mr__streams_clear(&p->blocked);
    mr_error_free(p->sentence.error);
    mr_error_free(p->last_error);
    mr_consumer *spec = (mr_consumer *)(uintptr_t)p->spec;
    if (p->owns_spec && atomic_fetch_sub(&spec->holders, 1) == 1)
        mr_consumer_free(spec);
    free(p->skips);
    free(p->name);
    free(p);
}

const char *mr__place_base(const mr_place *p)
{
    return mr__bag_text(&p->spec->bag, MR_OPT_C_NAME);
}

static bool chosen(const mr_place *p, mr_which which)
{
    switch (which) {
    case MR_WHICH_ASSIGNED:
        return !p->by_lock;
    case MR_WHICH_LOCKED:
        return p->by_lock;
    case MR_WHICH_BY_KEY:
        return p->by_key;
    case MR_WHICH_ALL:
    default:
        return true;
    }
}

char *mr__worker_names(const mr_worker *w, mr_which which)
{
    char **names = calloc(w->place_count + 1, sizeof(*names));
    if (names == NULL)
        return NULL;
    size_t count = 0;
    for (size_t i = 0; i < w->place_count; i++)
        if (!w->places[i]->removed && chosen(w->places[i], which))
            names[count++] = w->places[i]->name;
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
        found = !w->places[i]->removed && strcmp(mr__place_base(w->places[i]), name) == 0;
    for (mr_change *c = w->changes; c != NULL && !found; c = c->next)
        found = c->add != NULL && strcmp(mr__place_base(c->add), name) == 0;
    (void)pthread_mutex_unlock(&w->changes_lock);
    return found;
}

static mr_error *admit(mr_worker *w, mr_place **places, size_t count)
{
    MR_AUTO_CONN conn = NULL;
    MR_TRY(mr_connect(mr__bag_text(&w->conf->bag, MR_OPT_DATABASE), "millrace", &conn));
    MR_TRY(mr__worker_prepare_places(w, conn, places, count, false));
    if (places[0]->handler->wants_rows && w->light)
        return mr__error(MR_E_STATE,
                         "this worker reads no payloads because it began with sql_batch "
                         "consumers only; restart it with the new consumer");
    return mr__enrol_places(w, conn, places, count);
}

/* Before the start there is no loop to tell: the conf and the list of places grow, that is all. */
static mr_error *add_early(mr_worker *w, mr_consumer *consumer)
{
    MR_TRY(mr_conf_take_consumer(w->conf, consumer));
    mr_place **places = NULL;
    size_t count = 0;
    MR_TRY(mr__places_new(w, consumer, &places, &count));
    mr_place **grown = realloc(w->places, (w->place_count + count) * sizeof(*grown));
    if (grown == NULL) {
        free_places(places, count);
        return mr__error_nomem();
    }
    w->places = grown;
    memcpy(w->places + w->place_count, places, count * sizeof(*places));
    w->place_count += count;
    free(places);
    return NULL;
}

/* The places come to the loop one by one, and the last that goes takes the spec with it: from here
 * on it is theirs, also when this fails. */
static mr_error *post_all(mr_worker *w, mr_consumer *spec, mr_place **places, size_t *count)
{
    atomic_store(&spec->holders, (int)*count);
    for (size_t i = 0; i < *count; i++)
        places[i]->owns_spec = true;
    while (*count > 0) {
        MR_TRY(post(w, places[*count - 1], NULL));
        (*count)--;
    }
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
    if (error == NULL && w->reader == NULL)
        error =
            mr__error(MR_E_STATE, "this worker began with queues only and reads no log; restart "
                                  "it with the new consumer");
    const char *name = mr__bag_text(&consumer->bag, MR_OPT_C_NAME);
    if (error == NULL && has_name(w, name))
        error = mr__error(MR_E_CONFIG, "consumer '%s' runs in this worker already", name);
    mr_place **places = NULL;
    size_t count = 0;
    if (error == NULL)
        error = mr__places_new(w, consumer, &places, &count);
    if (error == NULL)
        error = admit(w, places, count);
    if (error == NULL) {
        error = post_all(w, consumer, places, &count);
        free_places(places, count);
        return error;
    }
    free_places(places, count);
    mr_consumer_free(consumer);
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
        if (w->places[i]->removed || w->places[i]->slot > 0)
            continue;
        if (count < room)
            names[count] = strdup(mr__place_base(w->places[i]));
        count++;
    }
    (void)pthread_mutex_unlock(&w->changes_lock);
    return count;
}
