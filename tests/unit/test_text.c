/* Durations, sizes, numbers, UTF-8, nearest names, lists, UUIDs. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "base/error.h"
#include "base/list.h"
#include "base/text.h"
#include "base/uuid.h"

#include "random.h"

#include <inttypes.h>
#include <string.h>

static void durations(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t micros;
    } good[] = {{"0", 0},
                {"0s", 0},
                {"000", 0},
                {"1us", 1},
                {"250ms", 250000},
                {"5s", 5000000},
                {"2m", 120000000},
                {"1h", 3600000000},
                {"007s", 7000000},
                {"2562047788h", 9223372036800000000},
                {"999999999999999999us", 999999999999999999}};
    static const char *const bad[] = {"",
                                      "1",
                                      "s",
                                      "-1s",
                                      "+1s",
                                      "1.5s",
                                      " 1s",
                                      "1 s",
                                      "1S",
                                      "1sec",
                                      "1d",
                                      "1s ",
                                      "0x1s",
                                      "1ms2",
                                      "2562047789h",
                                      "9999999999999999999us",
                                      "99999999999999999999s",
                                      "\xD9\xA1s"};
    int64_t got = 0;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        if (!mr__text_duration(good[i].text, &got))
            fail_msg("%s is a duration", good[i].text);
        assert_int_equal(got, good[i].micros);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (mr__text_duration(bad[i], &got))
            fail_msg("'%s' is no duration", bad[i]);
}

/* What is written is read back, and is the shortest exact form. */
static void duration_format(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    static const int64_t units[] = {1, 1000, 1000000, 60000000, 3600000000};
    for (int i = 0; i < 20000; i++) {
        rng r = rng_new(seed + (uint64_t)i);
        int64_t micros = (int64_t)rng_below(&r, 100000) * units[rng_below(&r, 5)];
        char text[32];
        int64_t back = -1;
        mr__text_duration_format(micros, text);
        if (!mr__text_duration(text, &back) || back != micros)
            fail_msg("MILLRACE_SEED=%" PRIu64 " case %d: %" PRId64 " gave %s", seed, i, micros,
                     text);
    }
    char text[32];
    mr__text_duration_format(1500000, text);
    assert_string_equal(text, "1500ms");
    mr__text_duration_format(7200000000, text);
    assert_string_equal(text, "2h");
}

static void sizes_and_numbers(void **state)
{
    (void)state;
    int64_t n = 0;
    assert_true(mr__text_size("64MiB", &n) && n == 64 << 20);
    assert_true(mr__text_size("4096", &n) && n == 4096);
    assert_true(mr__text_size("1GiB", &n) && n == 1 << 30);
    assert_true(mr__text_size("8589934591GiB", &n) && n == INT64_MAX - (1 << 30) + 1);
    static const char *const bad_sizes[] = {"",      "-1",  "1KB",   "1kib", "8589934592GiB",
                                            "1 KiB", "MiB", "1.5MiB"};
    for (size_t i = 0; i < sizeof(bad_sizes) / sizeof(bad_sizes[0]); i++)
        assert_false(mr__text_size(bad_sizes[i], &n));
    assert_true(mr__text_int("-9223372036854775808", &n) && n == INT64_MIN);
    assert_true(mr__text_int("+7", &n) && n == 7);
    static const char *const bad_numbers[] = {
        "", "-", "+", "1 ", " 1", "1.0", "0x10", "9223372036854775808", "--1"};
    for (size_t i = 0; i < sizeof(bad_numbers) / sizeof(bad_numbers[0]); i++)
        assert_false(mr__text_int(bad_numbers[i], &n));
    bool flag = false;
    assert_true(mr__text_bool("yes", &flag) && flag);
    assert_true(mr__text_bool("off", &flag) && !flag);
    assert_false(mr__text_bool("True", &flag) || mr__text_bool("1", &flag) ||
                 mr__text_bool("", &flag));
}

/* ---- UTF-8 ---- */

static size_t encode(uint32_t c, unsigned char out[4])
{
    if (c < 0x80) {
        out[0] = (unsigned char)c;
        return 1;
    }
    size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, c >>= 6)
        out[i] = (unsigned char)(0x80 | (c & 0x3F));
    out[0] = (unsigned char)((0xF00 >> length & 0xFF) | c);
    return length;
}

static bool whole(const unsigned char *bytes, size_t length)
{
    return mr__text_utf8((const char *)bytes, length);
}

static void every_code_point(void **state)
{
    (void)state;
    unsigned char bytes[4];
    for (uint32_t c = 1; c < 0x120000; c++) {
        size_t length = encode(c, bytes);
        bool valid = c < 0xD800 || (c > 0xDFFF && c <= 0x10FFFF);
        if (whole(bytes, length) != valid)
            fail_msg("U+%04X", c);
        for (size_t cut = 1; cut < length; cut++)
            assert_false(whole(bytes, cut));
    }
    assert_false(whole((const unsigned char *)"", 1)); /* NUL */
    assert_true(whole(NULL, 0));
}

/* Generated with Python: bytes, and whether bytes.decode('utf-8') takes them. */
static void vectors(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        bool valid;
    } cases[] = {{"\xC0\x80", false},
                 {"\xC1\xBF", false},
                 {"\xC2\x80", true},
                 {"\xE0\x80\x80", false},
                 {"\xE0\x9F\xBF", false},
                 {"\xE0\xA0\x80", true},
                 {"\xED\x9F\xBF", true},
                 {"\xED\xA0\x80", false},
                 {"\xED\xBF\xBF", false},
                 {"\xEE\x80\x80", true},
                 {"\xEF\xBF\xBF", true},
                 {"\xF0\x80\x80\x80", false},
                 {"\xF0\x8F\xBF\xBF", false},
                 {"\xF0\x90\x80\x80", true},
                 {"\xF4\x8F\xBF\xBF", true},
                 {"\xF4\x90\x80\x80", false},
                 {"\xF5\x80\x80\x80", false},
                 {"\xFF", false},
                 {"\x80", false},
                 {"a\xBF", false},
                 {"\xE2\x82", false},
                 {"\xE2\x82\xAC", true},
                 {"\xE2\x28\xA1", false},
                 {"\xF0\x28\x8C\xBC", false},
                 {"\xF0\x90\x28\xBC", false},
                 {"\xF0\x28\x8C\x28", false},
                 {"\xEF\xBB\xBF{}", true},
                 {"z\xC3\xA9z", true},
                 {"\xC3", false},
                 {"\xF8\x88\x80\x80\x80", false},
                 {"\xFC\x84\x80\x80\x80\x80", false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (mr__text_utf8(cases[i].bytes, strlen(cases[i].bytes)) != cases[i].valid)
            fail_msg("vector %zu", i);
}

/* ---- Names ---- */

static void nearest(void **state)
{
    (void)state;
    assert_int_equal(mr__text_distance("", ""), 0);
    assert_int_equal(mr__text_distance("", "abc"), 3);
    assert_int_equal(mr__text_distance("batch_size", "bacth_size"), 1);
    assert_int_equal(mr__text_distance("kitten", "sitting"), 3);
    assert_int_equal(mr__text_distance("abcd", "badc"), 2);
    char longer[200];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    (void)mr__text_distance(longer, longer + 1);
    static const char *const names[] = {"batch_size", "batch_pause", "executors"};
    assert_int_equal(mr__text_nearest("batchsize", names, 3), 0);
    assert_int_equal(mr__text_nearest("batch_paus", names, 3), 1);
    assert_int_equal(mr__text_nearest("zebra", names, 3), -1);
    assert_int_equal(mr__text_nearest(longer, names, 3), -1);
    assert_int_equal(mr__text_nearest("x", names, 0), -1);
}

static void distance_is_a_distance(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    for (int i = 0; i < 5000; i++) {
        rng r = rng_new(seed + (uint64_t)i);
        char word[2][12];
        for (int w = 0; w < 2; w++) {
            size_t length = rng_below(&r, 10);
            for (size_t k = 0; k < length; k++)
                word[w][k] = (char)('a' + rng_below(&r, 3));
            word[w][length] = '\0';
        }
        size_t d = mr__text_distance(word[0], word[1]), n = strlen(word[0]), m = strlen(word[1]);
        bool fits = d == mr__text_distance(word[1], word[0]) && d <= (n > m ? n : m) &&
                    d >= (n > m ? n - m : m - n) && (d == 0) == (strcmp(word[0], word[1]) == 0);
        if (!fits)
            fail_msg("MILLRACE_SEED=%" PRIu64 " case %d: %s %s %zu", seed, i, word[0], word[1], d);
    }
}

/* ---- Lists ---- */

static void make_item(rng *r, char out[12])
{
    static const char alphabet[] = "ab,=\\ \"{}\xC3";
    size_t length = 1 + rng_below(r, 8);
    for (size_t k = 0; k < length; k++)
        out[k] = alphabet[rng_below(r, sizeof(alphabet) - 1)];
    /* Blanks around an item are dropped, as documented. */
    if (out[0] == ' ')
        out[0] = 'x';
    if (out[length - 1] == ' ')
        out[length - 1] = 'x';
    out[length] = '\0';
}

static void lists_come_back(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    for (int i = 0; i < 10000; i++) {
        rng r = rng_new(seed + (uint64_t)i);
        bool pairs = rng_chance(&r, 50);
        size_t count = rng_below(&r, 6);
        char keys[6][12], values[6][12];
        MR_AUTO_BUF list = {0};
        for (size_t k = 0; k < count; k++) {
            make_item(&r, keys[k]);
            make_item(&r, values[k]);
            if (pairs)
                mr__list_add_pair(&list, keys[k], values[k]);
            else
                mr__list_add(&list, keys[k]);
        }
        const char *cursor = mr__buf_text(&list);
        MR_AUTO_BUF key = {0};
        MR_AUTO_BUF value = {0};
        for (size_t k = 0; k < count; k++) {
            bool there = mr__list_next(&cursor, &key, pairs ? &value : NULL);
            if (!there || strcmp(mr__buf_text(&key), keys[k]) != 0 ||
                (pairs && strcmp(mr__buf_text(&value), values[k]) != 0))
                fail_msg("MILLRACE_SEED=%" PRIu64 " case %d: item %zu of '%s'", seed, i, k,
                         mr__buf_text(&list));
        }
        assert_false(mr__list_next(&cursor, &key, pairs ? &value : NULL));
    }
}

static void lists_by_hand(void **state)
{
    (void)state;
    const char *cursor = " Order , Invoice,,a\\,b = c ,\\";
    static const char *const wanted[] = {"Order", "Invoice", "", "a,b = c", "\\"};
    MR_AUTO_BUF item = {0};
    for (size_t i = 0; i < 5; i++) {
        assert_true(mr__list_next(&cursor, &item, NULL));
        assert_string_equal(mr__buf_text(&item), wanted[i]);
    }
    assert_false(mr__list_next(&cursor, &item, NULL));
    cursor = "global_position = id , payload=";
    MR_AUTO_BUF value = {0};
    assert_true(mr__list_next(&cursor, &item, &value));
    assert_string_equal(mr__buf_text(&item), "global_position");
    assert_string_equal(mr__buf_text(&value), "id");
    assert_true(mr__list_next(&cursor, &item, &value));
    assert_string_equal(mr__buf_text(&item), "payload");
    assert_string_equal(mr__buf_text(&value), "");
}

static void errors_are_text(void **state)
{
    (void)state;
    mr_error *error = mr_error_new(MR_E_HANDLER, true, "%s broke", "caf\xE9");
    assert_string_equal(mr_error_message(error), "caf? broke");
    error = mr__error_prefix(error, "%.4s", "caf\xC3\xA9");
    assert_string_equal(mr_error_message(error), "caf?: caf? broke");
    mr_error_free(error);
    error = mr__error(MR_E_HANDLER, "caf\xC3\xA9");
    assert_string_equal(mr_error_message(error), "caf\xC3\xA9");
    mr_error_free(error);
}

/* ---- UUIDs ---- */

static void uuids(void **state)
{
    (void)state;
    char before[MR_UUID_TEXT] = "", seven[MR_UUID_TEXT];
    for (int i = 0; i < 2000; i++) {
        mr__uuid_v7(seven);
        assert_true(mr__uuid_valid(seven));
        assert_true(seven[14] == '7');
        assert_non_null(strchr("89ab", seven[19]));
        assert_true(strcmp(seven, before) != 0);
        assert_true(strncmp(seven, before, 13) >= 0); /* sorts by time */
        memcpy(before, seven, sizeof(before));
    }
    assert_false(mr__uuid_valid(""));
    assert_false(mr__uuid_valid("00000000-0000-0000-0000-00000000000"));
    assert_false(mr__uuid_valid("00000000-0000-0000-0000-0000000000000"));
    assert_false(mr__uuid_valid("00000000000000000000000000000000----"));
    assert_false(mr__uuid_valid("g0000000-0000-0000-0000-000000000000"));
    assert_true(mr__uuid_valid("ABCDEF00-0000-0000-0000-000000000000"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(durations),
        cmocka_unit_test(duration_format),
        cmocka_unit_test(sizes_and_numbers),
        cmocka_unit_test(every_code_point),
        cmocka_unit_test(vectors),
        cmocka_unit_test(nearest),
        cmocka_unit_test(distance_is_a_distance),
        cmocka_unit_test(lists_come_back),
        cmocka_unit_test(lists_by_hand),
        cmocka_unit_test(errors_are_text),
        cmocka_unit_test(uuids),
    };
    return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
