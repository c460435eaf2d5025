/* Queues of a configuration: what is refused says where and what to do; what is accepted arrives in
 * the mapping and the policy as it was written. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "runtime/conf_queue.h"

#include <string.h>

static void refused(const char *text, const char *where, const char *why)
{
    mr_conf *conf = mr_conf_new();
    assert_non_null(conf);
    mr_error *error = mr_conf_parse(conf, text, strlen(text), "w.yaml");
    mr_conf_free(conf);
    if (error == NULL)
        fail_msg("accepted: %s", text);
    assert_int_equal(mr_error_code(error), MR_E_CONFIG);
    const char *message = mr_error_message(error);
    if (strncmp(message, where, strlen(where)) != 0 || strstr(message, why) == NULL)
        fail_msg("%s\nsays: %s\nnot: %s … %s", text, message, where, why);
    mr_error_free(error);
}

#define ONE "queues:\n- name: a\n  table: t\n  sql: SELECT 1\n"
#define BUILTIN "queues:\n- name: a\n  sql: SELECT 1\n"

static void where_and_why(void **state)
{
    (void)state;
    static const struct {
        const char *text, *where, *why;
    } cases[] = {
        {"queues: {}\n", "w.yaml:1", "queues must be a list, not a mapping"},
        {"queues:\n- 5\n", "w.yaml:2", "must be a mapping"},
        {"queue: []\n", "w.yaml:1", "consumers and queues"},
        {"queues:\n- table: t\n  sql: SELECT 1\n", "w.yaml:2", "no name"},
        {"queues:\n- name: ''\n  table: t\n", "w.yaml:2", "name"},
        {"queues:\n- name: a\n  sql: SELECT 1\n  view: v\n", "w.yaml:2", "name it with table:"},
        {"queues:\n- name: a\n  sql: SELECT 1\n  order: id\n", "w.yaml:2", "order is key or none"},
        {"queues:\n- name: a\n  sql: SELECT 1\n  mode: transaction\n  max_running: 3\n", "w.yaml:2",
         "max_running needs mode: lease"},
        {"queues:\n- name: a\n  sql: SELECT 1\n  claim_lease: 5s\n", "w.yaml:2",
         "would be taken away"},
        {ONE "  mode: transaction\n", "w.yaml:2", "built-in table"},
        {ONE "  max_running: 3\n", "w.yaml:2", "built-in table"},
        {ONE "  dead_letter_order: none\n", "w.yaml:2", "dead_letter_order is for the built-in"},
        {ONE "  archive: false\n", "w.yaml:2", "leave table: out to use it"},
        {ONE "  affinity: none\n", "w.yaml:2", "affinity is for the built-in table"},
        {ONE "  batch_size: 100\n", "w.yaml:2", "batch_size is for the built-in table"},
        {ONE "  retry_base_delay: 1s\n", "w.yaml:2", "of your own has retry_after"},
        {ONE "  retry_max_delay: 5s\n", "w.yaml:2", "of your own has retry_after"},
        {ONE "  claim_lease: 90s\n", "w.yaml:2", "of your own has stalled_max_age"},
        {BUILTIN "  retry_after: 0s\n", "w.yaml:2", "retry_base_delay and retry_max_delay"},
        {BUILTIN "  stalled_max_age: 30s\n", "w.yaml:2", "the built-in one has claim_lease"},
        {"queues:\n- name: a\n  table: t\n", "w.yaml:2", "no handler; give it sql, exec or plugin"},
        {ONE "  exec: [cat]\n", "w.yaml:2", "more than one handler; keep one"},
        {ONE "  plugin: ./x.so\n", "w.yaml:2", "more than one handler; keep one"},
        {ONE "- name: a\n  table: u\n  sql: SELECT 1\n", "w.yaml:5", "defined twice"},
        {ONE "  num_handler: 2\n", "w.yaml:5", "did you mean 'num_handlers'?"},
        {ONE "  max_attempts: 3\n", "w.yaml:5",
         "a field of a job, the queue's option is 'max_retries'"},
        {ONE "  timeout: 5s\n", "w.yaml:5", "the queue's option is 'max_runtime'"},
        {ONE "  concurrency: 4\n", "w.yaml:5", "the option is 'num_handlers'"},
        {ONE "  num_handlers: 0\n", "w.yaml:5", "the lowest is 1"},
        {ONE "  max_retries: -1\n", "w.yaml:5", "the lowest is 0"},
        {ONE "  max_retries: often\n", "w.yaml:5", "not a whole number"},
        {ONE "  retry_after: 5\n", "w.yaml:5", "a duration such as"},
        {ONE "  max_runtime: 0s\n", "w.yaml:5", "the lowest is 1ms"},
        {ONE "  max_total_jobs: 0\n", "w.yaml:5", "the lowest is 1"},
        {ONE "  stalled_max_age: 5s\n", "w.yaml:2", "a few times heartbeat_interval"},
        {ONE "  heartbeat_interval: 1m\n", "w.yaml:2", "would be reset"},
        {ONE "  columns: [id]\n", "w.yaml:5", "columns must be a mapping, not a list"},
        {ONE "  columns: {queuedat: x}\n", "w.yaml:2", "did you mean 'queued_at'?"},
        {ONE "  columns: {id: ''}\n", "w.yaml:2", "1 to 63 bytes"},
        {ONE "  columns:\n    id: a\n    id: b\n", "w.yaml:7", "'id' is given twice"},
        {ONE "  values:\n    x: a\n    x: b\n", "w.yaml:7", "'x' is given twice"},
        {ONE "  values: {'': a}\n", "w.yaml:2", "a value needs a name"},
        {ONE "  values: {a: [b]}\n", "w.yaml:5", "must be a single value"},
        {ONE "  table: u\n", "w.yaml:5", "'table' is given twice"},
        {"queues:\n- name: a\n  table: t u v w\n  sql: SELECT 1\n", "w.yaml:2", "too many words"},
        {"queues:\n- name: a\n  table: a.b.c\n  sql: SELECT 1\n", "w.yaml:2", "queue 'a': table"},
        {ONE "  view: t u v\n", "w.yaml:2", "view"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        refused(cases[i].text, cases[i].where, cases[i].why);
}

static const mr_queue *only_queue(mr_conf *conf, const char *text)
{
    assert_null(mr_conf_parse(conf, text, strlen(text), "w.yaml"));
    assert_int_equal(mr_conf_queue_count(conf), 1);
    return conf->queues[0];
}

static void mapping_as_written(void **state)
{
    (void)state;
    mr_conf *conf = mr_conf_new();
    const mr_queue *queue =
        only_queue(conf, "queues:\n"
                         "- name: Rechnungen\n"
                         "  table: '\"Büro\".\"Invoice Jobs\" AS j'\n"
                         "  view: open_invoices v\n"
                         "  columns: {queued_at: 'created at', id: \"a,b=c\\\\d\"}\n"
                         "  values:\n"
                         "    total: coalesce(v.amount, 0) + v.tax\n"
                         "    is_big: v.amount = 10, \n"
                         "    customer:\n"
                         "  order: v.priority DESC\n"
                         "  condition: v.tenant = 'x'\n"
                         "  exec: [python3, 'a, b.py']\n");
    mr_mapping mapping;
    mr_names names;
    assert_null(mr__names_init(&names, "millrace"));
    assert_null(mr__queue_mapping_of(queue, &names, &mapping));
    assert_string_equal(mapping.queue, "Rechnungen");
    assert_string_equal(mapping.table.name.schema, "Büro");
    assert_string_equal(mapping.table.name.name, "Invoice Jobs");
    assert_string_equal(mapping.table.alias, "j");
    assert_string_equal(mapping.view.name.name, "open_invoices");
    assert_string_equal(mapping.view.alias, "v");
    assert_string_equal(mr__mapping_actual(&mapping, MR_JOB_QUEUED_AT), "created at");
    assert_string_equal(mr__mapping_actual(&mapping, MR_JOB_ID), "a,b=c\\d");
    assert_string_equal(mr__mapping_actual(&mapping, MR_JOB_STATE), "state");
    assert_int_equal(mapping.value_count, 3);
    assert_string_equal(mapping.values[0].expression, "coalesce(v.amount, 0) + v.tax");
    assert_string_equal(mapping.values[1].expression, "v.amount = 10,");
    assert_string_equal(mapping.values[2].name, "customer");
    assert_string_equal(mapping.values[2].expression, "\"customer\"");
    assert_string_equal(mapping.order, "v.priority DESC");
    assert_string_equal(mapping.condition, "v.tenant = 'x'");
    mr__mapping_free(&mapping);
    mr_conf_free(conf);
}

static void policy_as_written(void **state)
{
    (void)state;
    mr_conf *conf = mr_conf_new();
    const mr_queue *plain = only_queue(conf, ONE);
    mr_queue_policy standard = mr__queue_policy_of(plain);
    assert_int_equal(standard.retry_after, 10000000);
    assert_int_equal(standard.max_retries, 5);
    assert_int_equal(standard.stalled_max_age, 30000000);
    assert_int_equal(standard.max_resets, 3);
    assert_null(standard.reset_failure_message);
    assert_true(standard.reset_batch > 0 && standard.candidates > 0);
    mr_conf_free(conf);
    conf = mr_conf_new();
    const mr_queue *own = only_queue(conf, ONE "  retry_after: 0ms\n"
                                               "  max_retries: 0\n"
                                               "  stalled_max_age: 2m\n"
                                               "  max_resets: 0\n"
                                               "  reset_failure_message: gave up\n");
    mr_queue_policy policy = mr__queue_policy_of(own);
    assert_int_equal(policy.retry_after, 0);
    assert_int_equal(policy.max_retries, 0);
    assert_int_equal(policy.stalled_max_age, 120000000);
    assert_int_equal(policy.max_resets, 0);
    assert_string_equal(policy.reset_failure_message, "gave up");
    mr_conf_free(conf);
}

static void kinds_take_their_own(void **state)
{
    (void)state;
    static const char *const texts[] = {
        BUILTIN "  claim_lease: 2m\n  retry_base_delay: 2s\n  retry_max_delay: 1m\n"
                "  dead_letter_order: key\n  archive: false\n  affinity: none\n"
                "  batch_size: 5\n  reset_interval: 1s\n",
        ONE "  retry_after: 2s\n  stalled_max_age: 1m\n  reset_interval: 1s\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        mr_conf *conf = mr_conf_new();
        (void)only_queue(conf, texts[i]);
        assert_int_equal(mr_conf_queue_builtin(conf, 0), i == 0);
        mr_conf_free(conf);
    }
}

static int freed;

static void count_free(void *user)
{
    (void)user;
    freed++;
}

static mr_error *never(mr_job *job, void *user)
{
    (void)job;
    (void)user;
    return NULL;
}

static void after(mr_job *job, const mr_error *error, void *user)
{
    (void)job;
    (void)error;
    (void)user;
}

static mr_error *ask(mr_dequeue *dequeue, void *user)
{
    (void)dequeue;
    (void)user;
    return NULL;
}

static void callbacks_in_c(void **state)
{
    (void)state;
    int mark = 0;
    freed = 0;
    mr_conf *conf = mr_conf_new();
    mr_queue *queue = mr_queue_new("c");
    assert_null(mr_queue_set(queue, "table", "t"));
    mr_queue_on_job(queue, never, &mark, count_free);
    mr_queue_on_job(queue, never, &freed, count_free); /* the last one counts */
    assert_int_equal(freed, 1);
    mr_queue_on_handle(queue, never, after, &mark);
    mr_queue_on_dequeue(queue, ask, &mark);
    assert_null(mr_conf_take_queue(conf, queue));
    assert_ptr_equal(queue->user, &freed);
    assert_ptr_equal(queue->handle_user, &mark);
    assert_ptr_equal(queue->dequeue_user, &mark);
    assert_string_equal(mr_conf_queue_name(conf, 0), "c");
    assert_null(mr_conf_queue_name(conf, 1));
    /* A handler in C beside one in the options. */
    queue = mr_queue_new("d");
    assert_null(mr_queue_set(queue, "table", "t"));
    assert_null(mr_queue_set(queue, "sql", "SELECT 1"));
    mr_queue_on_job(queue, never, NULL, count_free);
    mr_error *error = mr_conf_take_queue(conf, queue);
    assert_int_equal(mr_error_code(error), MR_E_CONFIG);
    mr_error_free(error);
    assert_int_equal(freed, 2);
    /* A name is checked when the queue is taken. */
    error = mr_conf_take_queue(conf, mr_queue_new("\xff"));
    assert_non_null(strstr(mr_error_message(error), "a name of 1 to 255 bytes"));
    mr_error_free(error);
    mr_queue_free(NULL);
    mr_conf_free(conf);
    assert_int_equal(freed, 3);
}

static void found_by_name(void **state)
{
    (void)state;
    mr_conf *conf = mr_conf_new();
    const mr_queue *found = NULL;
    mr_error *error = mr__conf_queue_find(conf, "a", &found);
    assert_non_null(strstr(mr_error_message(error), "nor any other"));
    mr_error_free(error);
    (void)only_queue(conf, "queues:\n- name: invoices\n  table: t\n  sql: SELECT 1\n");
    assert_null(mr__conf_queue_find(conf, "invoices", &found));
    assert_ptr_equal(found, conf->queues[0]);
    assert_false(mr_conf_queue_builtin(conf, 0));
    assert_false(mr_conf_queue_builtin(conf, 1));
    error = mr__conf_queue_find(conf, "invoice", &found);
    assert_int_equal(mr_error_code(error), MR_E_USAGE);
    assert_non_null(strstr(mr_error_message(error), "did you mean 'invoices'?"));
    mr_error_free(error);
    error = mr__conf_queue_find(conf, "zzzzzzzz", &found);
    assert_non_null(strstr(mr_error_message(error), "it has 'invoices'"));
    mr_error_free(error);
    error = mr__conf_queue_find(NULL, "a", &found);
    assert_int_equal(mr_error_code(error), MR_E_USAGE);
    mr_error_free(error);
    mr_conf_free(conf);
}

static void every_option(void **state)
{
    (void)state;
    size_t seen = 0;
    mr_queue *queue = mr_queue_new("q");
    for (size_t i = 0; i < mr_option_count(); i++) {
        const mr_option *option = mr_option_at(i);
        if (strcmp(mr_option_section(option), "queue") != 0)
            continue;
        const char *type = mr_option_type(option);
        bool free_form = strcmp(type, "text") == 0 || strcmp(type, "name") == 0 ||
                         strcmp(type, "list") == 0 || strcmp(type, "map") == 0;
        mr_error *error = mr_queue_set(queue, mr_option_name(option), free_form ? "\xFF" : "?!");
        if (error == NULL)
            fail_msg("%s took nonsense", mr_option_name(option));
        assert_non_null(strstr(mr_error_message(error), mr_option_name(option)));
        mr_error_free(error);
        seen++;
    }
    assert_true(seen > 20);
    mr_queue_free(queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_and_why),        cmocka_unit_test(mapping_as_written),
        cmocka_unit_test(policy_as_written),    cmocka_unit_test(callbacks_in_c),
        cmocka_unit_test(found_by_name),        cmocka_unit_test(every_option),
        cmocka_unit_test(kinds_take_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
