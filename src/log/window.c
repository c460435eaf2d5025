/* A window: an immutable, decided stretch of the log; and the bounded cache of them. */
#include "log/window.h"

#include <stdlib.h>

static void add_hole(mr_window *w, int64_t first, int64_t last, int64_t seen, int64_t visible)
{
    if (first > last)
        return;
    if (w->holes != NULL)
        w->holes[w->hole_count] =
            (mr_hole){.first = first, .last = last, .seen = seen, .visible = visible};
    w->hole_count++;
}

/* Called twice: to count, then to fill. */
static void walk_holes(mr_window *w, int64_t seen, int64_t visible)
{
    w->hole_count = 0;
    int64_t at = w->from;
    for (size_t i = 0; i < w->count; i++) {
        add_hole(w, at + 1, w->events[i].position - 1, seen, visible);
        at = w->events[i].position;
    }
    add_hole(w, at + 1, w->to, seen, visible);
}

mr_error *mr__window_new(PGresult *result, bool light, int64_t from, int64_t to, size_t rows,
                         int64_t seen, int64_t visible, mr_window **out)
{
    mr_window *w = calloc(1, sizeof(*w));
    if (w == NULL) {
        PQclear(result);
        return mr__error_nomem();
    }
    atomic_init(&w->references, 1);
    w->result = result;
    w->from = from;
    w->to = to;
    w->count = rows;
    w->events = calloc((size_t)PQntuples(result) + 1, sizeof(*w->events));
    if (w->events == NULL) {
        mr__window_unref(w);
        return mr__error_nomem();
    }
    w->bytes = sizeof(*w) + mr__rows_parse(result, light, w->events);
    walk_holes(w, seen, visible);
    if (w->hole_count > 0) {
        w->holes = calloc(w->hole_count, sizeof(*w->holes));
        if (w->holes == NULL) {
            mr__window_unref(w);
            return mr__error_nomem();
        }
        walk_holes(w, seen, visible);
    }
    *out = w;
    return NULL;
}

mr_window *mr__window_ref(mr_window *window)
{
    atomic_fetch_add_explicit(&window->references, 1, memory_order_relaxed);
    return window;
}

void mr__window_unref(mr_window *window)
{
    if (window == NULL ||
        atomic_fetch_sub_explicit(&window->references, 1, memory_order_acq_rel) != 1)
        return;
    PQclear(window->result);
    free(window->events);
    free(window->holes);
    free(window);
}

size_t mr__window_seek(const mr_window *window, int64_t position)
{
    size_t low = 0, high = window->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (window->events[middle].position > position)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* ---- The cache ----------------------------------------------------------------------------- */

static void drop(mr_cache *cache, mr_window *window, mr_window *before)
{
    if (before == NULL)
        cache->first = window->next;
    else
        before->next = window->next;
    if (cache->last == window)
        cache->last = before;
    if (window->side)
        cache->side_bytes -= window->bytes;
    else
        cache->tail_bytes -= window->bytes;
    mr__window_unref(window);
}

static bool drop_oldest(mr_cache *cache, bool side)
{
    mr_window *before = NULL;
    for (mr_window *w = cache->first; w != NULL; before = w, w = w->next) {
        if (w->side == side) {
            drop(cache, w, before);
            return true;
        }
    }
    return false;
}

void mr__cache_clear(mr_cache *cache)
{
    while (cache->first != NULL)
        drop(cache, cache->first, NULL);
}

void mr__cache_add(mr_cache *cache, mr_window *window, bool side)
{
    window->side = side;
    while (side && cache->side_bytes > 0 && cache->side_bytes + window->bytes > cache->limit / 2)
        if (!drop_oldest(cache, true))
            break;
    window->next = NULL;
    if (cache->last == NULL)
        cache->first = window;
    else
        cache->last->next = window;
    cache->last = window;
    if (side)
        cache->side_bytes += window->bytes;
    else
        cache->tail_bytes += window->bytes;
}

mr_window *mr__cache_find(const mr_cache *cache, int64_t position)
{
    for (mr_window *w = cache->first; w != NULL; w = w->next)
        if (w->from <= position && position < w->to)
            return w;
    return NULL;
}

bool mr__cache_tail_full(const mr_cache *cache)
{
    return cache->tail_bytes >= cache->limit / 2;
}

void mr__cache_release(mr_cache *cache, int64_t position)
{
    mr_window *before = NULL, *next;
    for (mr_window *w = cache->first; w != NULL; w = next) {
        next = w->next;
        if (w->to <= position)
            drop(cache, w, before);
        else
            before = w;
    }
}

void mr__cache_evict_tail(mr_cache *cache)
{
    (void)drop_oldest(cache, false);
}
