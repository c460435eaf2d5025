/* A set of streams: those whose events wait behind a dead letter. Open addressing. */
#include "consumer/streams.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

static bool same(const char *key, const char *type, const char *id)
{
    return strcmp(key, type) == 0 && strcmp(key + strlen(key) + 1, id) == 0;
}

/* Where the stream is, or where it would go. There is a free place. */
static size_t find(char *const *keys, size_t capacity, const char *type, const char *id)
{
    size_t place = mr__hash_stream(type, id) % capacity;
    while (keys[place] != NULL && !same(keys[place], type, id))
        place = (place + 1) % capacity;
    return place;
}

bool mr__streams_has(const mr_streams *set, const char *type, const char *id)
{
    return set->capacity > 0 && set->keys[find(set->keys, set->capacity, type, id)] != NULL;
}

static mr_error *grow(mr_streams *set)
{
    size_t capacity = set->capacity == 0 ? 64 : set->capacity * 2;
    char **keys = calloc(capacity, sizeof(*keys));
    if (keys == NULL)
        return mr__error_nomem();
    for (size_t i = 0; i < set->capacity; i++) {
        char *key = set->keys[i];
        if (key != NULL)
            keys[find(keys, capacity, key, key + strlen(key) + 1)] = key;
    }
    free((void *)set->keys);
    set->keys = keys;
    set->capacity = capacity;
    return NULL;
}

static char *make_key(const char *type, const char *id)
{
    size_t split = strlen(type) + 1, rest = strlen(id) + 1;
    char *key = malloc(split + rest);
    if (key == NULL)
        return NULL;
    memcpy(key, type, split);
    memcpy(key + split, id, rest);
    return key;
}

mr_error *mr__streams_add(mr_streams *set, const char *type, const char *id)
{
    if (mr__streams_has(set, type, id))
        return NULL;
    if (set->count * 2 >= set->capacity)
        MR_TRY(grow(set));
    char *key = make_key(type, id);
    if (key == NULL)
        return mr__error_nomem();
    set->keys[find(set->keys, set->capacity, type, id)] = key;
    set->count++;
    return NULL;
}

void mr__streams_clear(mr_streams *set)
{
    for (size_t i = 0; i < set->capacity; i++)
        free(set->keys[i]);
    free((void *)set->keys);
    *set = (mr_streams){0};
}
