/* Public calls on a ring: options as texts, owners by key. */
#include "cluster/ring.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

mr_ring *mr_ring_new(void)
{
    mr_ring_options options = mr__ring_defaults();
    mr_ring *ring = NULL;
    mr_error *error = mr__ring_build(&options, NULL, 0, &ring);
    mr_error_free(error); /* the defaults are valid: only memory can be short */
    return ring;
}

void mr_ring_free(mr_ring *ring)
{
    mr__ring_free(ring);
}

static mr_error *set_number(const char *name, const char *value, int high, int *out)
{
    int64_t number = 0;
    if (!mr__text_int(value, &number) || number < 1 || number > high)
        return mr__error(MR_E_USAGE, "%s: '%.80s' is not a whole number from 1 to %d", name, value,
                         high);
    *out = (int)number;
    return NULL;
}

/* "1.05" in thousandths, exactly: processes must not differ by a rounding. */
static bool parse_cap(const char *text, int *cap)
{
    int64_t value = 0;
    int decimals = -1;
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '.' && decimals < 0 && p != text) {
            decimals = 0;
            continue;
        }
        if (*p < '0' || *p > '9' || decimals == 3 || value > MR_RING_MAX_CAP)
            return false;
        value = value * 10 + (*p - '0');
        decimals += decimals >= 0;
    }
    if (text[0] == '\0' || decimals == 0)
        return false;
    for (int i = decimals < 0 ? 0 : decimals; i < 3; i++)
        value *= 10;
    *cap = (int)(value > MR_RING_MAX_CAP ? MR_RING_MAX_CAP + 1 : value);
    return value >= 1000 && value <= MR_RING_MAX_CAP;
}

static mr_error *set_cap(const char *value, int *out)
{
    int cap = 0;
    if (strcmp(value, "none") != 0 && !parse_cap(value, &cap))
        return mr__error(MR_E_USAGE,
                         "cap: '%.80s' is neither 'none' nor a number from 1 to %d with at most "
                         "three decimals, as in 1.05",
                         value, MR_RING_MAX_CAP / 1000);
    *out = cap;
    return NULL;
}

static mr_error *set_hash(const char *value, mr_ring_hash *out)
{
    static const char *const names[] = {[MR_RING_STRONG] = "strong", [MR_RING_FNV1A] = "fnv1a"};
    for (int i = 0; i < 2; i++) {
        if (strcmp(value, names[i]) == 0) {
            *out = (mr_ring_hash)i;
            return NULL;
        }
    }
    return mr__error(MR_E_USAGE, "hash: '%.80s' is neither strong nor fnv1a", value);
}

mr_error *mr_ring_set(mr_ring *ring, const char *name, const char *value)
{
    mr_ring_options *options = mr__ring_options(ring);
    if (strcmp(name, "buckets") == 0)
        return set_number(name, value, MR_RING_MAX_BUCKETS, &options->buckets);
    if (strcmp(name, "vnodes") == 0)
        return set_number(name, value, MR_RING_MAX_VNODES, &options->vnodes);
    if (strcmp(name, "cap") == 0)
        return set_cap(value, &options->cap);
    if (strcmp(name, "hash") == 0)
        return set_hash(value, &options->hash);
    return mr__error(MR_E_USAGE, "a ring has no option '%.80s': buckets, vnodes, cap, hash", name);
}

mr_error *mr_ring_place(mr_ring *ring, const char *const *workers, size_t count)
{
    return mr__ring_place(ring, workers, count);
}

size_t mr_ring_worker_count(const mr_ring *ring)
{
    return mr__ring_workers(ring);
}

const char *mr_ring_worker(const mr_ring *ring, size_t index)
{
    return mr__ring_worker(ring, index);
}

int mr_ring_bucket_count(const mr_ring *ring)
{
    return mr__ring_buckets(ring);
}

const char *mr_ring_bucket_owner(const mr_ring *ring, int bucket)
{
    int owner = mr__ring_owner(ring, bucket);
    return owner < 0 ? NULL : mr__ring_worker(ring, (size_t)owner);
}

const char *mr_ring_owner(const mr_ring *ring, const char *key)
{
    return mr_ring_bucket_owner(ring, mr_key_bucket(key, mr__ring_buckets(ring)));
}

int mr_key_bucket(const char *key, int buckets)
{
    return mr__ring_bucket(key, strlen(key), buckets);
}
