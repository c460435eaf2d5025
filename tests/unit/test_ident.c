/* Names: how they are split, quoted and cut. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "pg/ident.h"

#include <string.h>

static void check(const char *text, const char *schema, const char *name)
{
    mr_qname parsed;
    mr_error *error = mr__qname_parse(text, "option", &parsed);
    if (error != NULL)
        fail_msg("%s: %s", text, mr_error_message(error));
    assert_string_equal(parsed.schema, schema);
    assert_string_equal(parsed.name, name);
}

static void refuse(const char *text, const char *why)
{
    mr_qname parsed;
    mr_error *error = mr__qname_parse(text, "option", &parsed);
    assert_non_null(error);
    assert_int_equal(mr_error_code(error), MR_E_CONFIG);
    if (strstr(mr_error_message(error), why) == NULL)
        fail_msg("%s: %s", text, mr_error_message(error));
    mr_error_free(error);
}

static void parsing(void **state)
{
    (void)state;
    check("events", "", "events");
    check("App.Events", "App", "Events");
    check("\"a.b\".\"c\"\"d\"", "a.b", "c\"d");
    check("a b.c d", "a b", "c d");
    check("\"\"\"\"", "", "\"");
    check("sch\xC3\xA9ma.t", "sch\xC3\xA9ma", "t");
    refuse("", "empty");
    refuse(".a", "empty");
    refuse("a.", "empty");
    refuse("\"\"", "empty");
    refuse("a.b.c", "more than two");
    refuse("\"a", "never closed");
    refuse("\"a\"b", "after the closing quote");
    refuse("\xFF", "UTF-8");
    refuse("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "63 bytes");
    check("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "",
          "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
}

static void quoting(void **state)
{
    (void)state;
    MR_AUTO_BUF buf = {0};
    mr__qname_quote(&buf, &(mr_qname){"A b", "c\"d"});
    assert_string_equal(mr__buf_text(&buf), "\"A b\".\"c\"\"d\"");
    mr__buf_clear(&buf);
    mr__qname_quote(&buf, &(mr_qname){"", "select"});
    assert_string_equal(mr__buf_text(&buf), "\"select\"");
    mr__buf_clear(&buf);
    mr__literal_quote(&buf, "it's");
    assert_string_equal(mr__buf_text(&buf), "'it''s'");
    mr__buf_clear(&buf);
    mr__literal_quote(&buf, "a\\b'");
    assert_string_equal(mr__buf_text(&buf), " E'a\\\\b'''");
}

static void derived_names(void **state)
{
    (void)state;
    char out[MR_IDENT_MAX + 1], other[MR_IDENT_MAX + 1];
    mr__ident_derive(out, "idx_", "events", "_correlation");
    assert_string_equal(out, "idx_events_correlation");
    char table[MR_IDENT_MAX + 1];
    memset(table, 'x', MR_IDENT_MAX);
    table[MR_IDENT_MAX] = '\0';
    mr__ident_derive(out, "idx_", table, "_consumer");
    assert_int_equal(strlen(out), MR_IDENT_MAX);
    mr__ident_derive(other, "idx_", table, "_worker");
    assert_string_not_equal(out, other);
    mr__ident_derive(other, "idx_", table, "_consumer");
    assert_string_equal(out, other);
    /* A cut never splits a character. */
    for (size_t i = 0; i + 1 < MR_IDENT_MAX; i += 2)
        memcpy(table + i, "\xC3\xA9", 2);
    table[MR_IDENT_MAX - 1] = '\0';
    mr__ident_derive(out, "idx_", table, "_consumer");
    assert_true(strlen(out) <= MR_IDENT_MAX);
    const char *mark = strrchr(out, '_');
    assert_non_null(mark);
    assert_int_equal((unsigned char)mark[-1], 0xA9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parsing),
        cmocka_unit_test(quoting),
        cmocka_unit_test(derived_names),
    };
    return cmocka_run_group_tests_name("ident", tests, NULL, NULL);
}
