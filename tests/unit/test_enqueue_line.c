/* Lines of `millrace enqueue`: what is written comes out as it was, whatever surrounds it. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "../../cli/enqueue_line.h"
#include "random.h"

#include <stdlib.h>
#include <string.h>

/* The program's own; here there is nothing to say. */
void cli_say(const char *format, ...)
{
    (void)format;
}

static enqueue_line parse(const char *text)
{
    enqueue_line line;
    mr_error *error = enqueue_line_parse(text, strlen(text), false, &line);
    if (error != NULL)
        fail_msg("%s: %s", text, mr_error_message(error));
    return line;
}

static void refuse(const char *text, bool bare, const char *hint)
{
    enqueue_line line;
    mr_error *error = enqueue_line_parse(text, strlen(text), bare, &line);
    if (error == NULL || strstr(mr_error_message(error), hint) == NULL)
        fail_msg("%s: '%s' instead of '%s'", text, mr_error_message(error), hint);
    mr_error_free(error);
    enqueue_line_free(&line);
}

static void as_written(void **state)
{
    (void)state;
    enqueue_line line =
        parse("{ \"key\" : \"a\\nb\", \"payload\" : {\"x\" : 1.10, \"}\" : \"\\\"]\"} ,"
              "\"priority\": 3e0, \"metadata\":{\"n\":12345678901234567890} }\r\n");
    assert_string_equal(line.payload, "{\"x\" : 1.10, \"}\" : \"\\\"]\"}");
    assert_string_equal(line.field[0], "a\nb");
    assert_string_equal(line.field[1], "3");
    assert_string_equal(line.field[6], "{\"n\":12345678901234567890}");
    assert_null(line.field[2]);
    enqueue_line_free(&line);
    line = parse("{\"p\\u0061yload\": [1]}"); /* a name with escapes is the same name */
    assert_string_equal(line.payload, "[1.0]");
    enqueue_line_free(&line);
    line = parse("{\"payload\": null, \"timeout\": null, \"priority\": null, \"metadata\": null}");
    assert_null(line.payload);
    for (int i = 0; i < ENQUEUE_FIELDS; i++)
        assert_null(line.field[i]);
    enqueue_line_free(&line);
}

static void refused(void **state)
{
    (void)state;
    refuse("{\"payload\": 1} 2", false, "not valid JSON");
    refuse("7", false, "not a JSON object");
    refuse("", false, "not valid JSON");
    refuse("{\"prioritty\": 1}", false, "did you mean priority?");
    refuse("{\"priority\": 1e300}", false, "whole number");
    refuse("{\"priority\": true}", false, "whole number");
    refuse("{\"run_at\": 5}", false, "'run_at' must be a string");
    enqueue_line line;
    mr_error *error = enqueue_line_parse("{}\0{}", 5, true, &line);
    assert_non_null(strstr(mr_error_message(error), "NUL byte at byte 3"));
    mr_error_free(error);
    enqueue_line_free(&line);
}

/* A random value, blanks between its tokens. */
static void put_value(char *out, size_t size, int depth, rng *r)
{
    static const char *const plain[] = {"0",     "-1.50e+3",  "true", "null", "\"a\\\\\"",
                                        "\"{\"", "\"\\\"]\"", "[ ]",  "{ }",  "\"\\u00e9,:\""};
    size_t at = strlen(out);
    uint64_t kind = rng_below(r, 4);
    if (depth == 0 || kind < 2 || at + 200 > size) {
        (void)snprintf(out + at, size - at, "%s",
                       plain[rng_below(r, sizeof(plain) / sizeof(plain[0]))]);
        return;
    }
    (void)snprintf(out + at, size - at, kind == 2 ? "[ " : "{\"payload\" : ");
    put_value(out, size, depth - 1, r);
    at = strlen(out);
    (void)snprintf(out + at, size - at, kind == 2 ? " , " : " ,\"key\":");
    put_value(out, size, depth - 1, r);
    at = strlen(out);
    (void)snprintf(out + at, size - at, kind == 2 ? "]" : " }");
}

/* Whatever the payload is and wherever it stands in the line, it comes out byte by byte. */
static void any_payload(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    rng r = rng_new(seed);
    for (int i = 0; i < 20000; i++) {
        char value[4096] = "", text[5000];
        put_value(value, sizeof(value), 5, &r);
        if (strcmp(value, "null") == 0)
            continue;
        (void)snprintf(text, sizeof(text),
                       i % 2 == 0 ? " {\"payload\":%s , \"key\":\"k\"}"
                                  : "{\"key\":\"k\",\"payload\" : %s}",
                       value);
        enqueue_line line = parse(text);
        if (strcmp(line.payload, value) != 0)
            fail_msg("MILLRACE_SEED=%llu: %s gave %s", (unsigned long long)seed, text,
                     line.payload);
        assert_string_equal(line.field[0], "k");
        enqueue_line_free(&line);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_written),
        cmocka_unit_test(refused),
        cmocka_unit_test(any_payload),
    };
    return cmocka_run_group_tests_name("enqueue_line", tests, NULL, NULL);
}
