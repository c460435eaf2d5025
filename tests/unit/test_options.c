/* Options and the YAML they come from: every error says where and what to do; nothing crashes it.
 */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "base/buf.h"
#include "runtime/conf.h"

#include "random.h"

#include <inttypes.h>
#include <string.h>

static mr_error *parse_bytes(const char *text, size_t length)
{
    mr_conf *conf = mr_conf_new();
    assert_non_null(conf);
    mr_error *error = mr_conf_parse(conf, text, length, "w.yaml");
    mr_conf_free(conf);
    return error;
}

static void refused(const char *text, const char *where, const char *why)
{
    mr_error *error = parse_bytes(text, strlen(text));
    if (error == NULL)
        fail_msg("accepted: %s", text);
    assert_int_equal(mr_error_code(error), MR_E_CONFIG);
    const char *message = mr_error_message(error);
    if (strncmp(message, where, strlen(where)) != 0 || strstr(message, why) == NULL)
        fail_msg("%s\nsays: %s\nnot: %s … %s", text, message, where, why);
    mr_error_free(error);
}

#define ONE "consumers:\n- name: a\n  sql: SELECT 1\n"

static void where_and_why(void **state)
{
    (void)state;
    static const struct {
        const char *text, *where, *why;
    } cases[] = {
        {"", "w.yaml", "empty"},
        {"# only a comment\n", "w.yaml", "empty"},
        {"just text", "w.yaml:1", "must be a mapping"},
        {"- a\n- b\n", "w.yaml:1", "must be a mapping, not a list"},
        {"worker: [1]\n", "w.yaml:1", "worker must be a mapping"},
        {"worker:\n  batch_size: 5\n  batchsize: 5\n", "w.yaml:3", "did you mean 'batch_size'?"},
        {"\n\nwroker: {}\n", "w.yaml:3", "wroker"},
        {"batch_size: 5\n", "w.yaml:1", "belongs under 'worker:'"},
        {"worker:\n  batch_size: five\n", "w.yaml:2", "'five' is not a whole number"},
        {"worker:\n  batch_size: 0\n", "w.yaml:2", "the lowest is 1"},
        {"worker:\n  batch_size: 100001\n", "w.yaml:2", "the highest is 100000"},
        {"worker:\n  batch_size: 99999999999999999999\n", "w.yaml:2", "batch_size"},
        {"worker:\n  batch_size: [1, 2]\n", "w.yaml:2", "must be a single value, not a list"},
        {"worker:\n  batch_size: {a: 1}\n", "w.yaml:2", "must be a single value, not a mapping"},
        {"worker:\n  batch_size:\n", "w.yaml:2", "batch_size"},
        {"worker:\n  batch_timeout: 5\n", "w.yaml:2", "a duration such as"},
        {"worker:\n  batch_timeout: -5s\n", "w.yaml:2", "a duration such as"},
        {"worker:\n  cache_size: 64MB\n", "w.yaml:2", "a size such as"},
        {"worker:\n  gap_strategy: hope\n", "w.yaml:2", "is not one of settled,harbor"},
        {"worker:\n  once: maybe\n", "w.yaml:2", "true or false"},
        {"worker:\n  executors: 0\n", "w.yaml:2", "the lowest is 1"},
        {"worker:\n  poll_interval: 1us\n", "w.yaml:2", "the lowest is 1ms"},
        {"worker:\n  batch_size: 5\n  batch_size: 6\n", "w.yaml:3", "'batch_size' is given twice"},
        {"schema: a\nschema: b\n", "w.yaml:2", "'schema' is given twice"},
        {"schema: ''\n", "w.yaml:1", "schema"},
        {"? [a]\n: b\n", "w.yaml:1", "a key must be a single value"},
        {"worker: {[a]: 1}\n", "w.yaml:1", "an option's name must be a single value"},
        {"database: \"a\\0b\"\n", "w.yaml:1", "NUL"},
        {"consumers: {}\n", "w.yaml:1", "consumers must be a list"},
        {"consumers:\n- 5\n", "w.yaml:2", "must be a mapping"},
        {"consumers:\n- name: a\n", "w.yaml:2", "no handler"},
        {"consumers:\n- sql: SELECT 1\n", "w.yaml:2", "no name"},
        {"consumers:\n- name: ''\n  sql: SELECT 1\n", "w.yaml:2", "name"},
        {"consumers:\n- name: a\n  sql: x\n  sql_batch: y\n", "w.yaml:2", "more than one handler"},
        {ONE "- name: a\n  sql: SELECT 2\n", "w.yaml:4", "defined twice"},
        {ONE "  agregate_types: [x]\n", "w.yaml:4", "did you mean 'aggregate_types'?"},
        {ONE "  aggregate_types: {x: y}\n", "w.yaml:4", "must be a single value"},
        {ONE "  aggregate_types: [[x]]\n", "w.yaml:4", "must be a single value"},
        {ONE "  on_failure: explode\n", "w.yaml:4",
         "'explode' is not one of pause,fatal,dead_letter"},
        {ONE "  on_failure: worker's\n", "w.yaml:4", "is not one of pause,fatal,dead_letter"},
        {ONE "  dead_letter_order: worker's\n", "w.yaml:4", "is not one of none,key"},
        {ONE "  max_retries: worker's\n", "w.yaml:4", "is not a whole number or 'unlimited'"},
        {ONE "  batch_size: worker's\n", "w.yaml:4", "is not a whole number"},
        {"log:\n  columns: [a]\n", "w.yaml:2", "must be a mapping"},
        {"log:\n  naming: camel\n", "w.yaml:2", "detect,aggregate,stream"},
        {"a: b: c\n", "w.yaml:1", "not valid YAML"},
        {"worker:\n\tbatch_size: 1\n", "w.yaml:2", "not valid YAML"},
        {"worker: {\n", "w.yaml:", "not valid YAML"},
        {"a: *nobody\n", "w.yaml:1", "not valid YAML"},
        {"schema: ok\nworker:\n  log_level: \"\xFF\"\n", "w.yaml:3", "not valid YAML"},
        {"schema: ok\n\n\nworker: \x01\n", "w.yaml:4", "not valid YAML"},
        {ONE "---\nschema: second\n", "w.yaml:4", "second document"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        refused(cases[i].text, cases[i].where, cases[i].why);
}

static void names_of_consumers(void **state)
{
    (void)state;
    for (size_t length = 254; length <= 257; length++) {
        MR_AUTO_BUF text = {0};
        mr__buf_puts(&text, "consumers:\n- sql: SELECT 1\n  name: ");
        for (size_t i = 0; i < length; i++)
            mr__buf_putc(&text, 'n');
        mr_error *error = parse_bytes(text.data, text.length);
        assert_int_equal(error != NULL, length > 255);
        assert_true(error == NULL || strlen(mr_error_message(error)) < 400);
        mr_error_free(error);
    }
}

static void good_files(void **state)
{
    (void)state;
    static const char text[] =
        "database: postgresql:///shop\n"
        "defaults: &d {}\n"
        "worker: { batch_size: 500, batch_timeout: 90s, cache_size: 1GiB, executors: auto }\n"
        "log: { columns: {global_position: id, payload: \"a,b=c\"} }\n"
        "consumers:\n"
        "- {name: a, aggregate_types: [Order, \"x,y\"], sql: SELECT 1}\n"
        "- {name: b, event_types: one, sql_batch: SELECT 1, batch_size: 7}\n";
    refused(text, "w.yaml:2", "unknown key 'defaults'");
    mr_conf *conf = mr_conf_new();
    const char *rest = strstr(text, "worker");
    assert_null(mr_conf_parse(conf, rest, strlen(rest), "w.yaml"));
    assert_string_equal(mr_conf_get(conf, "batch_size"), "500");
    assert_string_equal(mr_conf_get(conf, "log.columns"), "global_position=id,payload=a\\,b\\=c");
    assert_null(mr_conf_get(conf, "nonsense"));
    assert_int_equal(mr_conf_consumer_count(conf), 2);
    assert_string_equal(mr_conf_consumer_name(conf, 1), "b");
    assert_null(mr_conf_consumer_name(conf, 2));
    mr_conf_free(conf);
}

static void aliases(void **state)
{
    (void)state;
    static const char good[] =
        "consumers:\n- &a {name: a, sql: SELECT 1}\n- {name: b, sql: &s SELECT 2}\n"
        "- {name: c, sql: *s}\n";
    assert_null(parse_bytes(good, strlen(good)));
    refused("consumers:\n- &a {name: a, sql: SELECT 1}\n- *a\n", "w.yaml:", "defined twice");
    refused("consumers: &a\n- *a\n", "w.yaml:", "must be a mapping");
    refused("worker: &a {batch_size: *a}\n", "w.yaml:", "must be a single value");
    refused("&a ? *a\n: b\n", "w.yaml:", "");
}

/* Ten levels of ten aliases each: read lazily or refused, never unfolded. */
static void a_bomb_of_aliases(void **state)
{
    (void)state;
    MR_AUTO_BUF text = {0};
    mr__buf_puts(&text, "worker:\n  batch_size: &x0 [1]\n");
    for (int i = 1; i < 10; i++) {
        mr__buf_printf(&text, "  k%d: &x%d [", i, i);
        for (int k = 0; k < 10; k++)
            mr__buf_printf(&text, "%s*x%d", k == 0 ? "" : ",", i - 1);
        mr__buf_puts(&text, "]\n");
    }
    mr_error *error = parse_bytes(text.data, text.length);
    assert_non_null(error);
    mr_error_free(error);
}

static void deep_nesting(void **state)
{
    (void)state;
    static const char *const open[] = {"[", "{a: ", "- ", "? "};
    for (size_t way = 0; way < 4; way++) {
        MR_AUTO_BUF text = {0};
        mr__buf_puts(&text, way < 2 ? "worker: " : "");
        for (int i = 0; i < 2000; i++)
            mr__buf_puts(&text, open[way]);
        mr_error *error = parse_bytes(text.data, text.length);
        assert_non_null(error);
        mr_error_free(error);
    }
}

/* Bytes changed, dropped and doubled in a good file: an error or a configuration, nothing else. */
static void mutilated_files(void **state)
{
    (void)state;
    static const char good[] =
        "database: x\nworker: {batch_size: 5, log_level: info}\nlog: {columns: {payload: p}}\n"
        "consumers:\n- name: &n a\n  sql: |\n    SELECT :data\n  event_types: [x, y]\n";
    static const char strange[] = "\0\t\n {}[]&*!|>'\"%@`#-:?,\xFF\xC3\xA9\x85";
    uint64_t seed = rng_seed();
    for (int i = 0; i < 6000; i++) {
        rng r = rng_new(seed + (uint64_t)i);
        char text[2 * sizeof(good)];
        size_t length = sizeof(good) - 1;
        memcpy(text, good, length);
        for (size_t change = 1 + rng_below(&r, 6); change > 0; change--) {
            size_t at = rng_below(&r, length);
            size_t rest = length - at;
            switch (rng_below(&r, 4)) {
            case 0:
                text[at] = strange[rng_below(&r, sizeof(strange) - 1)];
                break;
            case 1:
                memmove(text + at, text + at + 1, rest - 1);
                length--;
                break;
            case 2:
                length = at > 20 && rng_chance(&r, 20) ? at : length;
                break;
            default:
                if (length + 1 < sizeof(text)) {
                    memmove(text + at + 1, text + at, rest);
                    length++;
                }
            }
        }
        mr_error *error = parse_bytes(text, length);
        if (error != NULL && (mr_error_code(error) != MR_E_CONFIG ||
                              strncmp(mr_error_message(error), "w.yaml", 6) != 0))
            fail_msg("MILLRACE_SEED=%" PRIu64 " case %d: %s", seed, i, mr_error_message(error));
        mr_error_free(error);
    }
}

/* Every option has a meaning, takes its own default, and refuses what is not of its type. */
static void the_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < mr_option_count(); i++) {
        const mr_option *option = mr_option_at(i);
        assert_true(strlen(mr_option_meaning(option)) > 10);
        const char *section = mr_option_section(option), *type = mr_option_type(option);
        if (strcmp(section, "consumer") == 0 || strcmp(section, "queue") == 0)
            continue;
        char name[100];
        (void)snprintf(name, sizeof(name), "%s%s", strcmp(section, "log") == 0 ? "log." : "",
                       mr_option_name(option));
        mr_conf *conf = mr_conf_new();
        assert_string_equal(mr_conf_get(conf, name), mr_option_default(option));
        bool free_form = strcmp(type, "text") == 0 || strcmp(type, "name") == 0 ||
                         strcmp(type, "list") == 0 || strcmp(type, "map") == 0;
        mr_error *error = mr_conf_set(conf, name, free_form ? "\xFF" : "?!");
        if (error == NULL)
            fail_msg("%s took nonsense", name);
        assert_non_null(strstr(mr_error_message(error), mr_option_name(option)));
        mr_error_free(error);
        assert_string_equal(mr_conf_get(conf, name), mr_option_default(option));
        mr_conf_free(conf);
    }
    assert_null(mr_option_at(mr_option_count()));
}

static void setting(void **state)
{
    (void)state;
    mr_conf *conf = mr_conf_new();
    mr_error *error = mr_conf_set(conf, "batchsize", "1");
    assert_non_null(strstr(mr_error_message(error), "did you mean 'batch_size'?"));
    mr_error_free(error);
    error = mr_conf_set(conf, "log.tabel", "1");
    assert_non_null(strstr(mr_error_message(error), "did you mean 'table'?"));
    mr_error_free(error);
    error = mr_conf_set(conf, "", "1");
    assert_non_null(error);
    mr_error_free(error);
    error = mr_conf_load(conf, "/nonexistent/x.yaml");
    assert_non_null(strstr(mr_error_message(error), "/nonexistent/x.yaml"));
    mr_error_free(error);
    error = mr_conf_load(conf, "/");
    assert_non_null(error);
    mr_error_free(error);
    mr_conf_free(conf);
    mr_conf_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_and_why),     cmocka_unit_test(names_of_consumers),
        cmocka_unit_test(good_files),        cmocka_unit_test(aliases),
        cmocka_unit_test(a_bomb_of_aliases), cmocka_unit_test(deep_nesting),
        cmocka_unit_test(mutilated_files),   cmocka_unit_test(the_table),
        cmocka_unit_test(setting),
    };
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
