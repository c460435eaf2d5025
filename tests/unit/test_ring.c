/* The ring: published hash vectors, who owns what, balance, few moves, and that nothing but the
 * member list decides. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "base/hash.h"
#include "cluster/ring.h"
#include "random.h"

#include <string.h>

enum { MOST = 64, ID = 40, BUCKETS = MR_RING_BUCKETS };

/* ---- Member lists to ask about ------------------------------------------------------------- */

typedef struct members {
    char text[MOST][ID];
    const char *id[MOST];
    size_t count;
} members;

/* UUIDs, pod names, numbered names: labels that differ only at their end are the hard ones. */
static void draw(members *m, rng *r, size_t count)
{
    uint64_t kind = rng_below(r, 3), base = rng_below(r, 100000);
    m->count = count;
    for (size_t i = 0; i < count; i++) {
        if (kind == 0)
            (void)snprintf(m->text[i], ID, "%08x-%04x-7abc-8%03x-%08x%04x",
                           (unsigned)rng_below(r, UINT32_MAX), (unsigned)rng_below(r, 65536),
                           (unsigned)rng_below(r, 4096), (unsigned)rng_below(r, UINT32_MAX),
                           (unsigned)i);
        else if (kind == 1)
            (void)snprintf(m->text[i], ID, "worker-%ju", (uintmax_t)base + i);
        else
            (void)snprintf(m->text[i], ID, "shop-6d4b75cb6d-%05llx%zu",
                           (unsigned long long)rng_below(r, 1048576), i);
        m->id[i] = m->text[i];
    }
}

static mr_ring *build(const mr_ring_options *options, const char *const *ids, size_t count)
{
    mr_ring *ring = NULL;
    mr_error *error = mr__ring_build(options, ids, count, &ring);
    if (error != NULL)
        fail_msg("%s", mr_error_message(error));
    assert_non_null(ring);
    return ring;
}

static mr_ring *usual(const char *const *ids, size_t count)
{
    mr_ring_options options = mr__ring_defaults();
    return build(&options, ids, count);
}

static const char *name_of(const mr_ring *ring, int bucket)
{
    int owner = mr__ring_owner(ring, bucket);
    return owner < 0 ? "" : mr__ring_worker(ring, (size_t)owner);
}

/* Buckets whose owner differs between two rings. */
static int moved(const mr_ring *a, const mr_ring *b)
{
    int count = 0;
    for (int i = 0; i < mr__ring_buckets(a); i++)
        count += strcmp(name_of(a, i), name_of(b, i)) != 0;
    return count;
}

static void loads(const mr_ring *ring, int load[MOST], int *highest)
{
    memset(load, 0, MOST * sizeof(*load));
    *highest = 0;
    for (int i = 0; i < mr__ring_buckets(ring); i++) {
        int owner = mr__ring_owner(ring, i);
        assert_in_range(owner, 0, mr__ring_workers(ring) - 1);
        load[owner]++;
        *highest = load[owner] > *highest ? load[owner] : *highest;
    }
}

static void shuffle(const char **ids, size_t count, rng *r)
{
    for (size_t i = count; i > 1; i--) {
        size_t other = rng_below(r, i);
        const char *kept = ids[i - 1];
        ids[i - 1] = ids[other];
        ids[other] = kept;
    }
}

/* ---- Keys and buckets ---------------------------------------------------------------------- */

static void hash_vectors(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t hash;
    } published[] = {{"", 0x811c9dc5},      {"a", 0xe40c292c},     {"b", 0xe70c2de5},
                     {"c", 0xe60c2c52},     {"fo", 0x6222e842},    {"foo", 0xa9f37ed7},
                     {"foob", 0x3f5076ef},  {"fooba", 0x39aaa18a}, {"f", 0xe30c2799},
                     {"foobar", 0xbf9cf968}};
    for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); i++) {
        size_t length = strlen(published[i].text);
        assert_int_equal(mr__hash_fnv1a(published[i].text, length), published[i].hash);
        for (int buckets = 1; buckets < 5000; buckets += 7)
            assert_int_equal(mr__ring_bucket(published[i].text, length, buckets),
                             published[i].hash % (uint32_t)buckets);
    }
    /* Bytes, not characters, and a NUL is one of them. */
    assert_int_equal(mr__hash_fnv1a("\xc3\xa9", 2), 0x1e9de8c1);
    assert_int_not_equal(mr__ring_bucket("a\0b", 3, BUCKETS), mr__ring_bucket("a", 1, BUCKETS));
    assert_int_equal(mr__ring_bucket("foobar", 6, BUCKETS), 0xbf9cf968 % 1024);
    assert_int_equal(mr__ring_bucket("foobar", 6, 0), 0);
    assert_int_equal(mr__ring_bucket("foobar", 6, -3), 0);
}

static void finaliser_vectors(void **state)
{
    (void)state;
    /* SplitMix64 from seed 0: its first outputs are the finaliser of the multiples of its step. */
    assert_true(mr__hash_mix64(0x9e3779b97f4a7c15ULL) == 0xe220a8397b1dcdafULL);
    assert_true(mr__hash_mix64(2 * 0x9e3779b97f4a7c15ULL) == 0x6e789e6aa1b965f4ULL);
}

/* A million keys as people have them fill the buckets evenly. */
static void keys_fill_buckets(void **state)
{
    (void)state;
    enum { KEYS = 1000000 };
    static int count[BUCKETS];
    memset(count, 0, sizeof(count));
    for (int i = 0; i < KEYS; i++) {
        char key[32];
        int length = snprintf(key, sizeof(key), "order:%d", i);
        count[mr__ring_bucket(key, (size_t)length, BUCKETS)]++;
    }
    for (int i = 0; i < BUCKETS; i++)
        assert_in_range(count[i], KEYS / BUCKETS * 8 / 10, KEYS / BUCKETS * 12 / 10);
}

/* ---- Owners -------------------------------------------------------------------------------- */

static void nobody(void **state)
{
    (void)state;
    mr_ring *ring = usual(NULL, 0);
    assert_int_equal(mr__ring_workers(ring), 0);
    assert_null(mr__ring_worker(ring, 0));
    int out[BUCKETS];
    for (int i = 0; i < BUCKETS; i++)
        assert_int_equal(mr__ring_owner(ring, i), -1);
    assert_int_equal(mr__ring_buckets_of(ring, "a", out), 0);
    mr__ring_free(ring);
    mr__ring_free(NULL);
}

static void one_has_all(void **state)
{
    (void)state;
    const char *const ids[] = {"only", "only"};
    mr_ring *ring = usual(ids, 2);
    int out[BUCKETS];
    assert_int_equal(mr__ring_workers(ring), 1);
    assert_int_equal(mr__ring_buckets_of(ring, "only", out), BUCKETS);
    assert_int_equal(mr__ring_owner(ring, -1), -1);
    assert_int_equal(mr__ring_owner(ring, BUCKETS), -1);
    mr__ring_free(ring);
}

/* What every process of a fleet must agree on for ever: a change here moves every key once. */
static void known_owners(void **state)
{
    (void)state;
    const char *const ids[] = {"a", "b", "c", "d"};
    mr_ring_options options = mr__ring_defaults();
    options.buckets = 32;
    char text[2][33] = {{0}};
    for (int hash = 0; hash < 2; hash++) {
        options.hash = (mr_ring_hash)hash;
        mr_ring *ring = build(&options, ids, 4);
        for (int i = 0; i < 32; i++)
            text[hash][i] = name_of(ring, i)[0];
        mr__ring_free(ring);
    }
    assert_string_equal(text[MR_RING_STRONG], "daddbbaccdcdadbadabcaccbcbbccbda");
    assert_string_equal(text[MR_RING_FNV1A], "cccbbbbbccababddbcddaaaaaddaaddd");
}

static void buckets_of_everybody(void **state)
{
    (void)state;
    rng r = rng_new(11);
    members m;
    draw(&m, &r, 17);
    mr_ring *ring = usual(m.id, m.count);
    int seen[BUCKETS] = {0}, out[BUCKETS];
    size_t all = 0;
    for (size_t i = 0; i < m.count; i++) {
        size_t count = mr__ring_buckets_of(ring, m.id[i], out);
        for (size_t k = 0; k < count; k++) {
            assert_true(k == 0 || out[k] > out[k - 1]);
            assert_string_equal(name_of(ring, out[k]), m.id[i]);
            seen[out[k]]++;
        }
        all += count;
    }
    assert_int_equal(all, BUCKETS);
    for (int i = 0; i < BUCKETS; i++)
        assert_int_equal(seen[i], 1);
    assert_int_equal(mr__ring_buckets_of(ring, "somebody else", out), 0);
    mr__ring_free(ring);
}

static void only_members_decide(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        rng r = rng_new(seed);
        members m;
        draw(&m, &r, 1 + rng_below(&r, MOST - 1));
        mr_ring_options options = mr__ring_defaults();
        options.hash = seed % 4 == 0 ? MR_RING_FNV1A : MR_RING_STRONG;
        options.vnodes = seed % 5 == 0 ? 1 : MR_RING_VNODES;
        mr_ring *ring = build(&options, m.id, m.count);
        const char *again[2 * MOST];
        size_t count = m.count;
        memcpy(again, m.id, m.count * sizeof(*again));
        for (size_t i = 0; i < m.count; i++)
            if (rng_chance(&r, 40))
                again[count++] = m.id[i];
        shuffle(again, count, &r);
        mr_ring *other = build(&options, again, count);
        assert_int_equal(mr__ring_workers(ring), m.count);
        assert_int_equal(mr__ring_workers(other), m.count);
        if (moved(ring, other) != 0)
            fail_msg("seed %d: another order gives other owners", (int)seed);
        mr__ring_free(ring);
        mr__ring_free(other);
    }
}

/* Points at one place: who comes first is decided by the id, not by the sort. */
static void equal_points(void **state)
{
    (void)state;
    /* FNV-1a 32 of both with "#0" is the same. */
    const char *const one[] = {"worker-203020", "worker-48148"};
    const char *const two[] = {"worker-48148", "worker-203020"};
    assert_int_equal(mr__hash_fnv1a("worker-203020#0", strlen("worker-203020#0")),
                     mr__hash_fnv1a("worker-48148#0", strlen("worker-48148#0")));
    mr_ring_options options = {.buckets = 64, .vnodes = 1, .hash = MR_RING_FNV1A};
    mr_ring *ring = build(&options, one, 2), *other = build(&options, two, 2);
    int out[64];
    assert_int_equal(moved(ring, other), 0);
    assert_int_equal(mr__ring_buckets_of(ring, "worker-203020", out), 64);
    mr__ring_free(ring);
    mr__ring_free(other);
}

/* ---- Balance and moves --------------------------------------------------------------------- */

static void balance(void **state)
{
    (void)state;
    static const int sizes[] = {3, 10, 50};
    for (int s = 0; s < 3; s++) {
        for (uint64_t seed = 1; seed <= 60; seed++) {
            rng r = rng_new(seed);
            members m;
            int load[MOST], highest = 0;
            draw(&m, &r, (size_t)sizes[s]);
            mr_ring *ring = usual(m.id, m.count);
            loads(ring, load, &highest);
            if (highest * sizes[s] > BUCKETS * 1.08)
                fail_msg("%d workers, seed %d: somebody has %d", sizes[s], (int)seed, highest);
            for (int i = 0; i < sizes[s]; i++)
                if (load[i] * sizes[s] < BUCKETS * 0.25)
                    fail_msg("%d workers, seed %d: somebody has only %d", sizes[s], (int)seed,
                             load[i]);
            mr__ring_free(ring);
        }
    }
}

/* Any cap, any number of buckets: nobody above it, nobody forgotten. */
static void cap_holds(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        rng r = rng_new(seed);
        members m;
        int load[MOST], highest = 0;
        draw(&m, &r, 1 + rng_below(&r, MOST - 1));
        mr_ring_options options = {.buckets = 1 + (int)rng_below(&r, 3000),
                                   .vnodes = 1 + (int)rng_below(&r, 40),
                                   .cap = 1000 + (int)rng_below(&r, 500),
                                   .hash = (mr_ring_hash)rng_below(&r, 2)};
        mr_ring *ring = build(&options, m.id, m.count);
        loads(ring, load, &highest);
        double most = (double)options.cap / 1000 * options.buckets / (double)m.count;
        if (highest >= most + 1)
            fail_msg("seed %d: %d buckets, the cap is %.3f", (int)seed, highest, most);
        mr__ring_free(ring);
    }
}

/* Without a cap, whoever stays keeps what it has: the newcomer takes, the leaver gives. */
static void survivors_keep_without_cap(void **state)
{
    (void)state;
    mr_ring_options options = mr__ring_defaults();
    options.cap = 0;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        rng r = rng_new(seed);
        members m;
        draw(&m, &r, 2 + rng_below(&r, MOST - 2));
        mr_ring *all = build(&options, m.id, m.count);
        mr_ring *less = build(&options, m.id, m.count - 1);
        const char *last = m.id[m.count - 1];
        for (int i = 0; i < BUCKETS; i++)
            if (strcmp(name_of(all, i), last) != 0)
                assert_string_equal(name_of(all, i), name_of(less, i));
        mr__ring_free(all);
        mr__ring_free(less);
    }
}

/* Mean over many sets within 1.6 times the ideal, and no single change far above it. */
static void few_moves(void **state)
{
    (void)state;
    static const int sizes[] = {3, 10, 50};
    enum { SETS = 60 };
    for (int s = 0; s < 3; s++) {
        int n = sizes[s];
        double more_ideal = (double)BUCKETS / (n + 1), less_ideal = (double)BUCKETS / n;
        double more = 0, less = 0;
        for (uint64_t seed = 1; seed <= SETS; seed++) {
            rng r = rng_new(seed);
            members m;
            draw(&m, &r, (size_t)n + 1);
            mr_ring *ring = usual(m.id, (size_t)n);
            mr_ring *joined = usual(m.id, (size_t)n + 1), *left = usual(m.id, (size_t)n - 1);
            double a = moved(ring, joined) / more_ideal, b = moved(ring, left) / less_ideal;
            if (a > 2.75 || b > 2.75)
                fail_msg("%d workers, seed %d: moves %.2f and %.2f", n, (int)seed, a, b);
            more += a / SETS;
            less += b / SETS;
            mr__ring_free(ring);
            mr__ring_free(joined);
            mr__ring_free(left);
        }
        print_message("%d workers: %.2f and %.2f times the ideal\n", n, more, less);
        if (more > 1.6 || less > 1.6)
            fail_msg("%d workers: one more moves %.2f, one less %.2f times the ideal", n, more,
                     less);
    }
}

/* The finaliser is what makes virtual nodes work: without it somebody has far more. */
static void plain_is_worse(void **state)
{
    (void)state;
    double mean[2] = {0, 0};
    enum { SETS = 30, N = 50 };
    for (uint64_t seed = 1; seed <= SETS; seed++) {
        rng r = rng_new(seed);
        members m;
        draw(&m, &r, N);
        for (int hash = 0; hash < 2; hash++) {
            int load[MOST], highest = 0;
            mr_ring_options options = mr__ring_defaults();
            options.cap = 0;
            options.hash = (mr_ring_hash)hash;
            mr_ring *ring = build(&options, m.id, m.count);
            loads(ring, load, &highest);
            mean[hash] += (double)highest * N / BUCKETS / SETS;
            mr__ring_free(ring);
        }
    }
    print_message("without a cap, %d workers: max/mean %.2f, plain FNV-1a %.2f\n", N, mean[0],
                  mean[1]);
    assert_true(mean[MR_RING_STRONG] < 1.7);
    assert_true(mean[MR_RING_FNV1A] > 2.5);
}

/* ---- What it refuses, and the public calls ------------------------------------------------- */

static void refused(mr_error *error, const char *text)
{
    assert_int_equal(mr_error_code(error), MR_E_USAGE);
    if (strstr(mr_error_message(error), text) == NULL)
        fail_msg("'%s' lacks '%s'", mr_error_message(error), text);
    mr_error_free(error);
}

static void bad_options(void **state)
{
    (void)state;
    static const struct {
        mr_ring_options options;
        const char *text;
    } bad[] = {{{.buckets = 0, .vnodes = 1}, "buckets: 0"},
               {{.buckets = MR_RING_MAX_BUCKETS + 1, .vnodes = 1}, "buckets: 65537"},
               {{.buckets = 1, .vnodes = 0}, "vnodes: 0"},
               {{.buckets = 1, .vnodes = MR_RING_MAX_VNODES + 1}, "vnodes: 2001"},
               {{.buckets = 1, .vnodes = 1, .cap = 999}, "cap: 999"},
               {{.buckets = 1, .vnodes = 1, .cap = MR_RING_MAX_CAP + 1}, "cap: 1000001"}};
    mr_ring *ring = NULL;
    const char *const ids[] = {"a"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        refused(mr__ring_build(&bad[i].options, ids, 1, &ring), bad[i].text);
    mr_ring_options options = mr__ring_defaults();
    refused(mr__ring_build(&options, ids, MR_RING_MAX_WORKERS + 1, &ring), "at most 10000");
    options.vnodes = MR_RING_MAX_VNODES;
    refused(mr__ring_build(&options, ids, MR_RING_MAX_WORKERS, &ring), "more than 4000000");
    assert_null(ring);
}

static void public_options(void **state)
{
    (void)state;
    mr_ring *ring = mr_ring_new();
    assert_non_null(ring);
    static const char *const bad[][2] = {
        {"buckets", "0"},  {"buckets", "x"},        {"buckets", "65537"},
        {"vnodes", "-1"},  {"vnodes", "999999999"}, {"vnodes", "99999999999999999999"},
        {"cap", "0.99"},   {"cap", "1.0505"},       {"cap", ""},
        {"cap", "1."},     {"cap", ".5"},           {"cap", "1.0.0"},
        {"cap", "1e3"},    {"cap", "1000.001"},     {"cap", "99999999999999999999999"},
        {"hash", "crc32"}, {"colour", "red"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        refused(mr_ring_set(ring, bad[i][0], bad[i][1]), bad[i][0]);
    static const struct {
        const char *text;
        int cap;
    } caps[] = {{"1", 1000},     {"1.0", 1000},   {"1.05", 1050},
                {"1.250", 1250}, {"12.5", 12500}, {"1000", MR_RING_MAX_CAP},
                {"none", 0}};
    for (size_t i = 0; i < sizeof(caps) / sizeof(caps[0]); i++) {
        assert_null(mr_ring_set(ring, "cap", caps[i].text));
        assert_int_equal(mr__ring_options(ring)->cap, caps[i].cap);
    }
    assert_null(mr_ring_set(ring, "hash", "fnv1a"));
    assert_int_equal(mr__ring_options(ring)->hash, MR_RING_FNV1A);
    assert_null(mr_ring_set(ring, "hash", "strong"));
    assert_int_equal(mr__ring_options(ring)->hash, MR_RING_STRONG);
    assert_null(mr_ring_set(ring, "vnodes", "7"));
    assert_int_equal(mr__ring_options(ring)->vnodes, 7);
    mr_ring_free(ring);
}

static void public_owners(void **state)
{
    (void)state;
    mr_ring *ring = mr_ring_new();
    assert_non_null(ring);
    assert_null(mr_ring_owner(ring, "foobar"));
    assert_int_equal(mr_ring_bucket_count(ring), BUCKETS);
    const char *const ids[] = {"c", "a", "b", "a"};
    assert_null(mr_ring_place(ring, ids, 4));
    assert_int_equal(mr_ring_worker_count(ring), 3);
    assert_string_equal(mr_ring_worker(ring, 0), "a");
    assert_string_equal(mr_ring_worker(ring, 2), "c");
    assert_null(mr_ring_worker(ring, 3));
    assert_int_equal(mr_key_bucket("foobar", BUCKETS), 0xbf9cf968 % BUCKETS);
    assert_ptr_equal(mr_ring_owner(ring, "foobar"),
                     mr_ring_bucket_owner(ring, 0xbf9cf968 % BUCKETS));
    assert_null(mr_ring_bucket_owner(ring, BUCKETS));
    /* What is set counts from the next placing on; what fails changes nothing. */
    assert_null(mr_ring_set(ring, "buckets", "16"));
    assert_int_equal(mr_ring_bucket_count(ring), BUCKETS);
    refused(mr_ring_place(ring, ids, MR_RING_MAX_WORKERS + 1), "at most");
    assert_int_equal(mr_ring_worker_count(ring), 3);
    assert_null(mr_ring_place(ring, ids, 1));
    assert_int_equal(mr_ring_bucket_count(ring), 16);
    assert_string_equal(mr_ring_owner(ring, "foobar"), "c");
    mr_ring_free(ring);
    mr_ring_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hash_vectors),
        cmocka_unit_test(finaliser_vectors),
        cmocka_unit_test(keys_fill_buckets),
        cmocka_unit_test(nobody),
        cmocka_unit_test(one_has_all),
        cmocka_unit_test(known_owners),
        cmocka_unit_test(buckets_of_everybody),
        cmocka_unit_test(only_members_decide),
        cmocka_unit_test(equal_points),
        cmocka_unit_test(balance),
        cmocka_unit_test(cap_holds),
        cmocka_unit_test(survivors_keep_without_cap),
        cmocka_unit_test(few_moves),
        cmocka_unit_test(plain_is_worse),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(public_options),
        cmocka_unit_test(public_owners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
