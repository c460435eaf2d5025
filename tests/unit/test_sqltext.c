/* The text of SQL handlers: named parameters, and the relation `batch` in front. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "handler/sqltext.h"

#include "random.h"

#include <inttypes.h>
#include <string.h>

static void becomes(const char *text, const char *wanted)
{
    mr_sql_text got;
    mr_error *error = mr__sqltext_params(text, &got);
    if (error != NULL)
        fail_msg("%s: %s", text, mr_error_message(error));
    assert_string_equal(got.sql, wanted);
    mr__sqltext_free(&got);
}

static void refused(const char *text, const char *why)
{
    mr_sql_text got;
    mr_error *error = mr__sqltext_params(text, &got);
    if (error == NULL)
        fail_msg("%s became %s", text, got.sql);
    assert_int_equal(mr_error_code(error), MR_E_CONFIG);
    if (strstr(mr_error_message(error), why) == NULL)
        fail_msg("%s: %s", text, mr_error_message(error));
    mr_error_free(error);
}

static void parameters(void **state)
{
    (void)state;
    becomes("SELECT :global_position", "SELECT ($1::int8)");
    becomes(":data->>'x' :data :payload", "($1::jsonb)->>'x' ($1::jsonb) ($2::bytea)");
    becomes("(:aggregate_id,:event_id)", "(($1::text),($2::uuid))");
    becomes(":stream_type :aggregate_type", "($1::text) ($1::text)");
    becomes(":created_at:::event_version",
            "($1::timestamptz)::($2::int4)"); /* nonsense, but no crash */
    becomes(":metadata::text", "($1::jsonb)::text");
    becomes("x:=:global_position", "x:=($1::int8)");
    becomes("", "");
    mr_sql_text all;
    assert_null(mr__sqltext_params(
        ":global_position :aggregate_type :aggregate_id :aggregate_version :event_id "
        ":event_type :event_version :payload :trace_id :correlation_id :causation_id "
        ":metadata :created_at :data",
        &all));
    assert_int_equal(all.count, MR_SQL_PARAM_COUNT);
    mr__sqltext_free(&all);
}

static void left_alone(void **state)
{
    (void)state;
    static const char *const same[] = {"SELECT ':data'",
                                       "SELECT 'it''s :data'",
                                       "SELECT E'\\':data'",
                                       "SELECT e'a\\\\' || ':data'",
                                       "SELECT \":data\" FROM \"a\"\":data\"",
                                       "SELECT 1 -- :data\n, 2",
                                       "SELECT 1 -- :data",
                                       "SELECT /* :data */ 1",
                                       "SELECT /* a /* :data */ :nonsense */ 1",
                                       "SELECT $$:data$$",
                                       "SELECT $a$ $$ :data $b$ $a$",
                                       "SELECT $tag_1$:data$tag_1$",
                                       "SELECT x::jsonb, y :: text",
                                       "SELECT a[1:2], a[:2], a[ : ]",
                                       "SELECT '12:30:00'::time",
                                       "SELECT ':",
                                       "SELECT \":data",
                                       "SELECT /* :data",
                                       "SELECT $$ :data",
                                       "SELECT a$b$:1, a$1",
                                       "SELECT U&'\\0041:data'",
                                       "SELECT B'1' :",
                                       ":",
                                       "::",
                                       "SELECT ?:1"};
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        becomes(same[i], same[i]);
    becomes("SELECT '' || :data", "SELECT '' || ($1::jsonb)");
    becomes("SELECT $$x$$ || :data", "SELECT $$x$$ || ($1::jsonb)");
    becomes("-- c\n:data/* x */:data", "-- c\n($1::jsonb)/* x */($1::jsonb)");
    becomes("SELECT name'x', :data", "SELECT name'x', ($1::jsonb)");
    becomes("SELECT 'a\\', :data",
            "SELECT 'a\\', ($1::jsonb)"); /* plain strings know no backslash */
}

static void unknown_names(void **state)
{
    (void)state;
    refused("SELECT :dat", "did you mean :data?");
    refused("SELECT :agregate_id", ":aggregate_id");
    refused("SELECT :something_else_entirely", "there are :data");
    refused("SELECT :Data", "did you mean :data?");
    refused("SELECT :\xC3\xA9", "unknown parameter");
    refused("SELECT $1, :data", "$1 is no parameter");
    refused("SELECT '$1' || $2", "$2 is no parameter");
    char *got = NULL;
    mr_error *error = mr__sqltext_batch("SELECT $5 FROM batch", "D", &got);
    assert_non_null(strstr(mr_error_message(error), "$5 is no parameter"));
    mr_error_free(error);
    char text[300] = "SELECT :";
    memset(text + 8, 'x', 200);
    text[208] = '\0';
    refused(text, "too long");
}

/* Pieces that may stand in a statement, and what becomes of them; any sequence of them becomes the
 * sequence. */
static void any_mixture(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *becomes;
    } pieces[] = {{"SELECT ", NULL},
                  {"':data'", NULL},
                  {"\":data\" ", NULL},
                  {"-- :data\n", NULL},
                  {"/* :x /* :y */ */", NULL},
                  {"$$ :z $$", NULL},
                  {"$q$ ' $q$", NULL},
                  {"::text", NULL},
                  {" + ", NULL},
                  {"E'\\':x'", NULL},
                  {", ", NULL},
                  {":data ", "($1::jsonb) "},
                  {" :data", " ($1::jsonb)"},
                  {" [1:2] ", NULL},
                  {"\n", NULL}};
    uint64_t seed = rng_seed();
    for (int i = 0; i < 20000; i++) {
        rng r = rng_new(seed + (uint64_t)i);
        MR_AUTO_BUF text = {0};
        MR_AUTO_BUF wanted = {0};
        size_t count = rng_below(&r, 12);
        for (size_t k = 0; k < count; k++) {
            size_t piece = rng_below(&r, sizeof(pieces) / sizeof(pieces[0]));
            mr__buf_putc(&text, ' '); /* so that neighbours do not become one token */
            mr__buf_putc(&wanted, ' ');
            mr__buf_puts(&text, pieces[piece].text);
            mr__buf_puts(&wanted, pieces[piece].becomes != NULL ? pieces[piece].becomes
                                                                : pieces[piece].text);
        }
        mr_sql_text got;
        mr_error *error = mr__sqltext_params(mr__buf_text(&text), &got);
        if (error != NULL || strcmp(got.sql, mr__buf_text(&wanted)) != 0)
            fail_msg("MILLRACE_SEED=%" PRIu64 " case %d: %s", seed, i, mr__buf_text(&text));
        mr__sqltext_free(&got);
    }
}

static void any_bytes(void **state)
{
    (void)state;
    static const char alphabet[] = ":'\"$-/*\\Ee \ndata_1\xC3;";
    uint64_t seed = rng_seed();
    for (int i = 0; i < 50000; i++) {
        rng r = rng_new(seed + (uint64_t)i);
        char text[24];
        size_t length = rng_below(&r, sizeof(text));
        for (size_t k = 0; k < length; k++)
            text[k] = alphabet[rng_below(&r, sizeof(alphabet) - 1)];
        text[length] = '\0';
        mr_sql_text got;
        mr_error *error = mr__sqltext_params(text, &got);
        if (error == NULL)
            mr__sqltext_free(&got);
        mr_error_free(error);
        char *batch = NULL;
        mr_error_free(mr__sqltext_batch(text, "D", &batch));
        mr_free(batch);
    }
}

static void relation(const char *text, const char *wanted)
{
    char *got = NULL;
    assert_null(mr__sqltext_batch(text, "D", &got));
    assert_string_equal(got, wanted);
    mr_free(got);
}

static void batches(void **state)
{
    (void)state;
    relation("SELECT 1", "WITH batch AS NOT MATERIALIZED (D) SELECT 1");
    relation("WITH x AS (SELECT 1) SELECT 2",
             "WITH batch AS NOT MATERIALIZED (D), x AS (SELECT 1) SELECT 2");
    relation("-- hm\n /* a /* b */ */ with\n recursive x AS (SELECT 1) SELECT 2",
             "WITH RECURSIVE batch AS NOT MATERIALIZED (D), x AS (SELECT 1) SELECT 2");
    relation("WITH/**/x AS (SELECT 1) SELECT 2",
             "WITH batch AS NOT MATERIALIZED (D), x AS (SELECT 1) SELECT 2");
    relation("WITH recursive_x AS (SELECT 1) SELECT 2",
             "WITH batch AS NOT MATERIALIZED (D), recursive_x AS (SELECT 1) SELECT 2");
    relation("WITHIN", "WITH batch AS NOT MATERIALIZED (D) WITHIN");
    relation("", "WITH batch AS NOT MATERIALIZED (D) ");
}

static void control_in_scripts(void **state)
{
    (void)state;
    static const char *const refused[] = {
        "COMMIT",
        "CREATE TABLE x (a int); COMMIT",
        "SELECT ';'; -- ;\n rollback; SELECT 1",
        "SELECT 1;; /* ; */ Begin",
        ("CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; END; "
         "COMMIT"),
        "SELECT atomic FROM t; COMMIT",
        "SELECT $x$;$x$; PREPARE TRANSACTION 'x'",
    };
    static const char *const fine[] = {
        "",
        " ; ",
        "CREATE TABLE begin (commit int); SELECT 'a; COMMIT'",
        "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM 1; END; $$",
        "CREATE FUNCTION f() RETURNS int BEGIN /* x */ ATOMIC SELECT 1; END; SELECT 2",
        "CREATE RULE r AS ON INSERT TO t DO (SELECT 1; END; SELECT 2)",
        "DO $$ BEGIN NULL; END $$; /* COMMIT; */ SELECT E'\\'; COMMIT'",
    };
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        if (mr__sqltext_control(refused[i]) == NULL)
            fail_msg("not seen: %s", refused[i]);
    for (size_t i = 0; i < sizeof(fine) / sizeof(fine[0]); i++)
        if (mr__sqltext_control(fine[i]) != NULL)
            fail_msg("%s: in %s", mr__sqltext_control(fine[i]), fine[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_in_scripts),
        cmocka_unit_test(parameters),
        cmocka_unit_test(left_alone),
        cmocka_unit_test(unknown_names),
        cmocka_unit_test(any_mixture),
        cmocka_unit_test(any_bytes),
        cmocka_unit_test(batches),
    };
    return cmocka_run_group_tests_name("sqltext", tests, NULL, NULL);
}
