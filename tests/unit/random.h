/* Seeded pseudo-random numbers for property tests: a failure names its seed, and MILLRACE_SEED
 * repeats it. */
#ifndef TESTS_UNIT_RANDOM_H
#define TESTS_UNIT_RANDOM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct rng {
    uint64_t state;
} rng;

/* The seed of a run: MILLRACE_SEED, or the clock. */
static inline uint64_t rng_seed(void)
{
    const char *given = getenv("MILLRACE_SEED");
    if (given != NULL)
        return strtoull(given, NULL, 10);
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000003U + (uint64_t)now.tv_nsec;
}

static inline rng rng_new(uint64_t seed)
{
    return (rng){.state = seed * 2654435761U + 88172645463325252U};
}

/* xorshift64*: from 0 up to but excluding `below`. */
static inline uint64_t rng_below(rng *r, uint64_t below)
{
    r->state ^= r->state >> 12;
    r->state ^= r->state << 25;
    r->state ^= r->state >> 27;
    return (r->state * 2685821657736338717U >> 16) % below;
}

static inline int rng_chance(rng *r, unsigned percent)
{
    return rng_below(r, 100) < percent;
}

#endif
