/* Windows: which positions are holes, where to begin in them; the cache and what it lets go. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "log/window.h"

#include "random.h"

#include <endian.h>
#include <inttypes.h>
#include <string.h>

/* A light result as the server would give it: position, aggregate type, id, event type. */
static PGresult *rows_of(const int64_t *positions, size_t count)
{
    PGresult *result = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    PGresAttDesc columns[4] = {
        {.name = "p", .format = 1}, {.name = "t"}, {.name = "i"}, {.name = "e"}};
    assert_int_equal(PQsetResultAttrs(result, 4, columns), 1);
    for (size_t i = 0; i < count; i++) {
        uint64_t raw = htobe64((uint64_t)positions[i]);
        assert_int_equal(PQsetvalue(result, (int)i, 0, (char *)&raw, 8), 1);
        for (int k = 1; k < 4; k++)
            assert_int_equal(PQsetvalue(result, (int)i, k, "x", 1), 1);
    }
    return result;
}

static mr_window *window_of(int64_t from, int64_t to, const int64_t *positions, size_t count,
                            size_t rows)
{
    mr_window *window = NULL;
    assert_null(mr__window_new(rows_of(positions, count), true, from, to, rows, 77, 88, &window));
    return window;
}

static void holes_and_events_make_up_the_window(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    for (int i = 0; i < 5000; i++) {
        rng r = rng_new(seed + (uint64_t)i);
        int64_t from = (int64_t)rng_below(&r, 5) * 1000000000, positions[40];
        size_t count = 0, rows = 0;
        unsigned density = (unsigned)rng_below(&r, 101);
        for (int64_t p = from + 1; p <= from + 40; p++)
            if (rng_chance(&r, density))
                positions[count++] = p;
        int64_t to = from + (int64_t)rng_below(&r, 41);
        while (rows < count && positions[rows] <= to)
            rows++;
        mr_window *w = window_of(from, to, positions, count, rows);
        bool seen[41] = {false};
        for (size_t k = 0; k < w->count; k++)
            seen[w->events[k].position - from] = true;
        for (size_t k = 0; k < w->hole_count; k++) {
            assert_true(w->holes[k].seen == 77 && w->holes[k].visible == 88);
            for (int64_t p = w->holes[k].first; p <= w->holes[k].last; p++) {
                if (p <= from || p > to || seen[p - from])
                    fail_msg("MILLRACE_SEED=%" PRIu64 " case %d: hole at %" PRId64, seed, i, p);
                seen[p - from] = true;
            }
            /* Neighbours are one hole. */
            assert_true(k == 0 || w->holes[k - 1].last + 1 < w->holes[k].first);
        }
        for (int64_t p = from + 1; p <= to; p++)
            if (!seen[p - from])
                fail_msg("MILLRACE_SEED=%" PRIu64 " case %d: %" PRId64 " is neither", seed, i, p);
        for (int64_t p = from - 1; p <= to + 1; p++) {
            size_t at = mr__window_seek(w, p);
            assert_true(at == w->count || w->events[at].position > p);
            assert_true(at == 0 || w->events[at - 1].position <= p);
        }
        mr__window_unref(w);
    }
}

static void references(void **state)
{
    (void)state;
    int64_t positions[] = {1};
    mr_window *w = window_of(0, 1, positions, 1, 1);
    mr_cache cache = {.limit = 1 << 20};
    mr__cache_add(&cache, mr__window_ref(w), false);
    mr__cache_clear(&cache);
    assert_int_equal(w->events[0].position, 1); /* a batch still holds it */
    mr__window_unref(w);
    mr__window_unref(NULL);
}

static mr_window *stretch(int64_t from, int64_t to)
{
    int64_t positions[100];
    size_t count = 0;
    for (int64_t p = from + 1; p <= to; p++)
        positions[count++] = p;
    return window_of(from, to, positions, count, count);
}

static void finding(void **state)
{
    (void)state;
    mr_cache cache = {.limit = 1 << 20};
    mr__cache_add(&cache, stretch(0, 10), false);
    mr__cache_add(&cache, stretch(10, 20), false);
    mr__cache_add(&cache, stretch(40, 50), true);
    assert_int_equal(mr__cache_find(&cache, 0)->from, 0);
    assert_int_equal(mr__cache_find(&cache, 9)->from, 0);
    assert_int_equal(mr__cache_find(&cache, 10)->from, 10);
    assert_null(mr__cache_find(&cache, 20));
    assert_null(mr__cache_find(&cache, 39));
    assert_int_equal(mr__cache_find(&cache, 49)->from, 40);
    assert_null(mr__cache_find(&cache, 50));
    mr__cache_release(&cache, 10);
    assert_null(mr__cache_find(&cache, 0));
    assert_non_null(mr__cache_find(&cache, 10));
    mr__cache_release(&cache, 1000);
    assert_true(cache.first == NULL && cache.last == NULL && cache.tail_bytes == 0 &&
                cache.side_bytes == 0);
}

/* Whatever is added, released and evicted: the books stay right and side windows stay within their
 * share. */
static void the_books_stay_right(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    for (int i = 0; i < 300; i++) {
        rng r = rng_new(seed + (uint64_t)i);
        mr_cache cache = {.limit = 64 << 10};
        int64_t tail = 0;
        for (int step = 0; step < 200; step++) {
            unsigned what = (unsigned)rng_below(&r, 10);
            int64_t length = 1 + (int64_t)rng_below(&r, 90);
            if (what < 4) {
                if (mr__cache_tail_full(&cache))
                    mr__cache_evict_tail(&cache);
                mr__cache_add(&cache, stretch(tail, tail + length), false);
                tail += length;
            } else if (what < 8) {
                int64_t from = (int64_t)rng_below(&r, (uint64_t)tail + 1);
                mr_window *side = stretch(from, from + length);
                size_t bytes = side->bytes;
                mr__cache_add(&cache, side, true);
                assert_true(cache.side_bytes <= cache.limit / 2 || cache.side_bytes == bytes);
            } else {
                mr__cache_release(&cache, (int64_t)rng_below(&r, (uint64_t)tail + 1));
            }
            size_t tail_bytes = 0, side_bytes = 0;
            const mr_window *last = NULL;
            for (const mr_window *w = cache.first; w != NULL; last = w, w = w->next)
                *(w->side ? &side_bytes : &tail_bytes) += w->bytes;
            if (tail_bytes != cache.tail_bytes || side_bytes != cache.side_bytes ||
                last != cache.last)
                fail_msg("MILLRACE_SEED=%" PRIu64 " case %d step %d", seed, i, step);
        }
        mr__cache_clear(&cache);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(holes_and_events_make_up_the_window),
                                       cmocka_unit_test(references), cmocka_unit_test(finding),
                                       cmocka_unit_test(the_books_stay_right)};
    return cmocka_run_group_tests_name("window", tests, NULL, NULL);
}
