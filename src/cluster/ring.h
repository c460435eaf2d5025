/* Which worker is at home with which bucket: a consistent-hash ring with a load cap. Pure, and the
 * same on every process that knows the same members.
 *
 * It gives affinity only. Two processes that disagree for a moment do no harm: row locks, lease
 * generations and the guard of a key keep work correct. */
#ifndef MR_CLUSTER_RING_H
#define MR_CLUSTER_RING_H

#include "base/error.h"

typedef enum mr_ring_hash {
    MR_RING_STRONG, /* 64-bit points that spread evenly, buckets at even distances */
    MR_RING_FNV1A,  /* plain FNV-1a 32 of "worker#3" and "bucket:17", to compare with */
} mr_ring_hash;

enum {
    MR_RING_BUCKETS = 1024,
    MR_RING_VNODES = 150,
    MR_RING_CAP = 1050,
    MR_RING_MAX_BUCKETS = 65536,
    MR_RING_MAX_VNODES = 2000,
    MR_RING_MAX_CAP = 1000000,
    MR_RING_MAX_WORKERS = 10000,
    MR_RING_MAX_POINTS = 4000000,
};

typedef struct mr_ring_options {
    int buckets;
    int vnodes; /* points a worker */
    int cap;    /* most buckets a worker has, in thousandths of the mean; 0 = no cap */
    mr_ring_hash hash;
} mr_ring_options;

mr_ring_options mr__ring_defaults(void);

/* Places the buckets. The order of `workers` and duplicates in it make no difference; without
 * workers every bucket is nobody's. The ids are copied. */
mr_error *mr__ring_build(const mr_ring_options *options, const char *const *workers, size_t count,
                         mr_ring **out) MR_MUST_CHECK;
/* The same in place, with the ring's own options; a failure leaves it as it was. */
mr_error *mr__ring_place(mr_ring *ring, const char *const *workers, size_t count) MR_MUST_CHECK;
void mr__ring_free(mr_ring *ring);
mr_ring_options *mr__ring_options(mr_ring *ring); /* a change counts from the next placing on */

int mr__ring_buckets(const mr_ring *ring);
/* Members, each once, sorted by bytes. */
size_t mr__ring_workers(const mr_ring *ring);
const char *mr__ring_worker(const mr_ring *ring, size_t index);
/* Index of the worker that has the bucket; -1 when nobody has or there is no such bucket. */
int mr__ring_owner(const mr_ring *ring, int bucket);
/* The worker's buckets, ascending, into `out` (room for all buckets). Returns how many: 0 for a
 * worker that the ring does not know. */
size_t mr__ring_buckets_of(const mr_ring *ring, const char *worker, int *out);

/* The bucket of a key: FNV-1a 32 of its bytes (UTF-8), modulo. Stored with every job, so it never
 * changes; the SQL function key_bucket() gives the same. The low bits of FNV-1a are good enough for
 * that: only its high bits, hence its order, are not. */
int mr__ring_bucket(const char *key, size_t length, int buckets);

#endif
