/* The contiguous frontier against its definition, and the reference's safe harbor. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "log/frontier.h"

#include "random.h"

#include <inttypes.h>

enum { CASES = 60000, SPAN = 40 };

/* The definition, position by position: P is decided when it is at or below the horizon, or among
 * the rows. What the rows do not show is decided only below the horizon, and only as far as the
 * read can vouch for: with `more` that is its last row. */
static mr_frontier define(int64_t from, int64_t horizon, const int64_t *positions, size_t count,
                          bool more)
{
    mr_frontier f = {.to = from};
    int64_t last = count > 0 ? positions[count - 1] : from;
    int64_t vouched = more ? last : INT64_MAX;
    for (int64_t p = from + 1; p <= vouched && p <= from + 3 * SPAN; p++) {
        bool shown = false;
        for (size_t i = 0; i < count; i++)
            shown = shown || positions[i] == p;
        if (!shown && p > horizon)
            break;
        f.to = p;
    }
    for (size_t i = 0; i < count; i++)
        f.rows += positions[i] <= f.to;
    f.blocked = f.rows < count;
    f.gap = f.blocked ? f.to + 1 : 0;
    return f;
}

static size_t draw_rows(rng *r, int64_t from, int64_t *positions)
{
    size_t count = 0;
    unsigned density = (unsigned)rng_below(r, 101);
    for (int64_t p = from + 1; p <= from + SPAN; p++)
        if (rng_chance(r, density))
            positions[count++] = p;
    return count;
}

static void frontier_is_its_definition(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    for (int i = 0; i < CASES; i++) {
        rng r = rng_new(seed + (uint64_t)i);
        int64_t from = rng_chance(&r, 20) ? 4000000000 : (int64_t)rng_below(&r, 100);
        int64_t horizon = from - 10 + (int64_t)rng_below(&r, SPAN + 20);
        int64_t positions[SPAN];
        size_t count = draw_rows(&r, from, positions);
        bool more = rng_chance(&r, 50);
        if (more && count > 0 && rng_chance(&r, 70))
            count = 1 + rng_below(&r, count); /* the limit cut it */
        if (count == 0)
            more = false; /* a limit is at least one row */
        mr_frontier got = mr__frontier(from, horizon, positions, count, more);
        mr_frontier want = define(from, horizon, positions, count, more);
        if (got.to != want.to || got.rows != want.rows || got.blocked != want.blocked ||
            (got.blocked && got.gap != want.gap))
            fail_msg("MILLRACE_SEED=%" PRIu64 " case %d: from %" PRId64 " horizon %" PRId64
                     " rows %zu more %d: to %" PRId64 " not %" PRId64
                     ", rows %zu not %zu, gap %" PRId64 " not %" PRId64,
                     seed, i, from, horizon, count, more, got.to, want.to, got.rows, want.rows,
                     got.gap, want.gap);
    }
}

static void edges(void **state)
{
    (void)state;
    mr_frontier f = mr__frontier(0, 0, NULL, 0, false);
    assert_true(f.to == 0 && f.rows == 0 && !f.blocked);
    f = mr__frontier(0, 17, NULL, 0, false);
    assert_int_equal(f.to, 17);
    int64_t last[] = {INT64_MAX - 1, INT64_MAX};
    f = mr__frontier(INT64_MAX - 2, 0, last, 2, false);
    assert_true(f.to == INT64_MAX && f.rows == 2 && !f.blocked);
    f = mr__frontier(0, 0, last, 2, false);
    assert_true(f.to == 0 && f.rows == 0 && f.blocked && f.gap == 1);
}

static void harbor_of_the_reference(void **state)
{
    (void)state;
    static const struct {
        int64_t gap;
        int64_t rows[5];
        size_t count, lag;
        int64_t target;
    } cases[] = {
        {1, {2, 3, 4, 5, 6}, 5, 1, 5},     /* last row minus lag */
        {1, {2, 3}, 2, 8, 2},              /* lag capped to the window */
        {1, {2, 4, 5, 6}, 4, 1, 2},        /* stops before the second gap */
        {100, {102, 103, 104}, 3, 1, 103}, /* both missing, run starts at 102 */
        {1, {2, 3, 4, 5, 6}, 5, 0, 6},     /* no lag */
        {1, {2}, 1, 100, 2},               /* a sparse window advances by one event */
        {1, {0}, 0, 3, 0},                 /* nothing visible, nowhere to go */
        {7, {1000}, 1, 0, 1000},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(mr__harbor(cases[i].gap, cases[i].rows, cases[i].count, cases[i].lag),
                         cases[i].target);
}

/* Whatever is visible, the harbor lies behind the gap, on a row, not beyond a second gap, and
 * behind the head by the lag where there are so many rows. */
static void harbor_never_crosses_a_second_gap(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    for (int i = 0; i < CASES / 4; i++) {
        rng r = rng_new(seed + (uint64_t)i);
        int64_t gap = 1 + (int64_t)rng_below(&r, 50);
        int64_t rows[SPAN];
        size_t count = draw_rows(&r, gap + (int64_t)rng_below(&r, 3), rows);
        size_t lag = rng_below(&r, 12);
        int64_t target = mr__harbor(gap, rows, count, lag);
        if (count == 0) {
            assert_int_equal(target, 0);
            continue;
        }
        size_t run = 1, at = count;
        while (run < count && rows[run] == rows[run - 1] + 1)
            run++;
        for (size_t k = 0; k < count; k++)
            at = rows[k] == target ? k : at;
        bool lags = at + lag < count || at == 0;
        if (target <= gap || at >= run || !lags)
            fail_msg("MILLRACE_SEED=%" PRIu64 " case %d: gap %" PRId64 " lag %zu gives %" PRId64,
                     seed, i, gap, lag, target);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frontier_is_its_definition),
        cmocka_unit_test(edges),
        cmocka_unit_test(harbor_of_the_reference),
        cmocka_unit_test(harbor_never_crosses_a_second_gap),
    };
    return cmocka_run_group_tests_name("frontier", tests, NULL, NULL);
}
