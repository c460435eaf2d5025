/* The templates: placeholders, blocks, odd names, and that every embedded file renders. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "cluster/schema.h"
#include "cluster/schema_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mr_names names;
static mr_log_spec spec;
static mr_log_shape shape;

static int setup(void **state)
{
    (void)state;
    assert_null(mr__names_init(&names, "mill"));
    mr__log_spec_init(&spec);
    mr__log_shape_assume(&spec, "public", &shape);
    return 0;
}

static void check(const char *text, const char *wanted)
{
    const mr_embed file = {"test.sql", text, strlen(text)};
    const mr_template_input input = {&names, &shape};
    MR_AUTO_BUF out = {0};
    mr_error *error = mr__template_render(&file, &input, &out);
    if (error != NULL)
        fail_msg("%s: %s", text, mr_error_message(error));
    assert_string_equal(mr__buf_text(&out), wanted);
}

static void refuse_with(const char *text, const mr_log_shape *with, const char *why)
{
    const mr_embed file = {"test.sql", text, strlen(text)};
    const mr_template_input input = {&names, with};
    MR_AUTO_BUF out = {0};
    mr_error *error = mr__template_render(&file, &input, &out);
    assert_non_null(error);
    if (strstr(mr_error_message(error), why) == NULL)
        fail_msg("%s: %s", text, mr_error_message(error));
    mr_error_free(error);
}

static void placeholders(void **state)
{
    (void)state;
    check("plain { text }", "plain { text }");
    check("{{schema}}.x {{schema_literal}}", "\"mill\".x 'mill'");
    check("{{worker_nodes}}", "\"mill\".\"worker_nodes\"");
    check("{{events}} {{heads}}", "\"public\".\"events\" \"public\".\"aggregate_heads\"");
    check("{{col:global_position}}", "\"global_position\"");
    check("{{type:payload}} {{type_literal:payload}}", "pg_catalog.bytea 'pg_catalog.bytea'");
    check("{{head:version}} {{headtype:id}}", "\"aggregate_version\" pg_catalog.text");
    check("{{idx:events:correlation}}", "\"idx_events_correlation\"");
    check("{{fn:publish}}", "\"mill\".\"publish\"");
    check("{{log_name}} {{fleet}}", "'\"public\".\"events\"' ''");
}

static void blocks(void **state)
{
    (void)state;
    check("a{{if:trace_id}}b{{end}}c", "abc");
    check("a{{unless:trace_id}}b{{end}}c", "ac");
    check("a\n{{if:trace_id}}\nb\n{{end}}\nc\n", "a\nb\nc\n");
    check("{{unless:payload_bytea}}x{{if:trace_id}}y{{end}}z{{col:payload}}{{end}}.", ".");
    shape.column[MR_COL_TRACE_ID][0] = '\0';
    check("a{{if:trace_id}}b{{end}}c", "ac");
}

static void mistakes(void **state)
{
    (void)state;
    refuse_with("{{nothing}}", &shape, "unknown placeholder {{nothing}}");
    refuse_with("{{col:nothing}}", &shape, "nothing");
    refuse_with("{{idx:nothing:x}}", &shape, "nothing");
    refuse_with("{{if:nothing}}{{end}}", &shape, "nothing");
    refuse_with("{{schema", &shape, "never closed");
    refuse_with("{{if:trace_id}}", &shape, "never closed");
    refuse_with("{{end}}", &shape, "without a block");
    refuse_with("{{events}}", NULL, "events");
    refuse_with("{{col:payload}}", NULL, "payload");
}

static void odd_names(void **state)
{
    (void)state;
    assert_null(mr__names_set(&names, MR_TABLE_CHECKPOINTS, "In fra.\"Ch\"\"eck'points\""));
    check("{{consumer_checkpoints}}", "\"In fra\".\"Ch\"\"eck'points\"");
    check("{{idx:consumer_checkpoints:x}}", "\"idx_Ch\"\"eck'points_x\"");
    /* Tables of its own give a fleet functions of its own. */
    char fleet[MR_FLEET_MAX], wanted[80];
    mr__names_fleet(&names, fleet);
    assert_int_equal(strlen(fleet), 8);
    (void)snprintf(wanted, sizeof(wanted), "\"mill\".\"publish_%s\"", fleet);
    check("{{fn:publish}}", wanted);
    assert_null(mr__names_set(&names, MR_TABLE_CONTROLS, "a$mr$b"));
    refuse_with("x", &shape, "$mr$");
}

static void where_migrations_are_kept_is_no_fleet(void **state)
{
    (void)state;
    char fleet[MR_FLEET_MAX];
    assert_null(mr__names_set(&names, MR_TABLE_MIGRATIONS, "ops.migrations"));
    mr__names_fleet(&names, fleet);
    assert_string_equal(fleet, "");
}

static void whole_script(void **state)
{
    (void)state;
    const mr_schema_input input = {.names = &names, .log = &spec};
    char *script = NULL;
    assert_null(mr__schema_script(&input, &script));
    assert_null(strstr(script, "{{"));
    assert_non_null(strstr(script, "CREATE SCHEMA IF NOT EXISTS \"mill\";"));
    assert_null(strstr(script, "IF NOT EXISTS \"public\";"));
    free(script);
    int before = 0;
    for (const mr_embed *file = mr__sql_migrations; file->name != NULL; file++) {
        assert_int_equal(mr__schema_file_version(file), before + 1);
        before++;
    }
    assert_int_equal(mr__schema_latest(), before);
}

static void prefixes_once_each(void **state)
{
    (void)state;
    const char *out[MR_SCHEMAS_MAX];
    const mr_template_input input = {&names, &shape};
    assert_int_equal(mr__schema_prefixes(&input, out), 1);
    assert_null(mr__names_set(&names, MR_TABLE_LEADER, "infra.leader"));
    assert_null(mr__names_set(&names, MR_TABLE_CONTROLS, "infra.controls"));
    assert_null(mr__names_set(&names, MR_TABLE_GAP_SKIPS, "public.skips"));
    assert_int_equal(mr__schema_prefixes(&input, out), 2);
    assert_string_equal(out[1], "infra");
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(placeholders),
        TEST(blocks),
        TEST(mistakes),
        TEST(odd_names),
        TEST(where_migrations_are_kept_is_no_fleet),
        TEST(whole_script),
        TEST(prefixes_once_each),
    };
    return cmocka_run_group_tests_name("template", tests, NULL, NULL);
}
