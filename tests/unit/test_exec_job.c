/* The lines of the exec protocol for jobs: a job out, its answers in; hostile values. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "base/json.h"
#include "base/text.h"
#include "handler/exec_line.h"

#include "random.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- A job's line -------------------------------------------------------------------------- */

/* The line as another reader understands it; it must be one line, and compact. */
static json_t *line_of(const char *id, const mr_exec_value *values, size_t count, mr_buf *line)
{
    mr__exec_line_job(line, "receipts", id, values, count);
    assert_false(line->failed);
    assert_ptr_equal(memchr(line->data, '\n', line->length), line->data + line->length - 1);
    mr_buf again = {0};
    assert_true(mr__json_compact(&again, line->data, line->length));
    assert_int_equal(again.length, line->length - 1);
    mr__buf_free(&again);
    json_t *object = json_loadb(line->data, line->length, JSON_DECODE_INT_AS_REAL, NULL);
    assert_non_null(object);
    return object;
}

static void a_jobs_line(void **state)
{
    (void)state;
    const mr_exec_value values[] = {
        {.name = "id", .text = "17"},
        {.name = "note", .text = NULL},
        {.name = "data", .text = "{ \"n\" : 12345678901234567890 }", .json = true},
        {.name = "text", .text = "{ \"n\" : 1 }"},
        {.name = "broken", .text = "{", .json = true}};
    mr_buf line = {0};
    mr__exec_line_job(&line, "receipts", "17", values, 5);
    assert_string_equal(line.data,
                        "{\"type\":\"job\",\"queue\":\"receipts\",\"id\":\"17\",\"job\":{"
                        "\"id\":\"17\",\"note\":null,\"data\":{\"n\":12345678901234567890},"
                        "\"text\":\"{ \\\"n\\\" : 1 }\",\"broken\":\"{\"}}\n");
    mr__buf_clear(&line);
    mr__exec_line_job(&line, "q", "", NULL, 0);
    assert_string_equal(line.data, "{\"type\":\"job\",\"queue\":\"q\",\"id\":\"\",\"job\":{}}\n");
    mr__buf_clear(&line);
    mr__exec_line_cancel(&line, "q", "a\"\n", "lost");
    assert_string_equal(
        line.data,
        "{\"type\":\"cancel\",\"queue\":\"q\",\"id\":\"a\\\"\\n\",\"reason\":\"lost\"}\n");
    mr__buf_free(&line);
}

/* Any value arrives: text byte for byte when it is UTF-8, NULL as null. */
static void any_value_survives(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    for (int i = 0; i < 5000; i++) {
        rng r = rng_new(seed + (uint64_t)i);
        char text[3][40];
        mr_exec_value values[3];
        for (int k = 0; k < 3; k++) {
            static const char *const pieces[] = {"{\"a\":1}", "[",  "null", "\xC3\xA9", "\xC3",
                                                 "\n",        "\\", "\"",   "\x01",     "x"};
            text[k][0] = '\0';
            for (size_t n = rng_below(&r, 5); n > 0; n--) {
                const char *piece = pieces[rng_below(&r, 10)];
                memcpy(text[k] + strlen(text[k]), piece, strlen(piece) + 1);
            }
            values[k] = (mr_exec_value){.name = k == 0   ? "a"
                                                : k == 1 ? "b \"'\n"
                                                         : "c",
                                        .text = rng_chance(&r, 20) ? NULL : text[k],
                                        .json = rng_chance(&r, 50)};
        }
        mr_buf line = {0};
        json_t *object = line_of(text[0], values, 3, &line);
        json_t *job = json_object_get(object, "job");
        assert_int_equal(json_object_size(job), 3);
        for (int k = 0; k < 3; k++) {
            json_t *got = json_object_get(job, values[k].name);
            MR_AUTO_BUF valid = {0};
            bool embedded = values[k].text != NULL && values[k].json &&
                            mr__json_compact(&valid, values[k].text, strlen(values[k].text));
            if (values[k].text == NULL)
                assert_true(json_is_null(got));
            else if (embedded)
                assert_non_null(strstr(line.data, mr__buf_text(&valid)));
            else if (mr__text_utf8(values[k].text, strlen(values[k].text)))
                assert_string_equal(json_string_value(got), values[k].text);
            else
                assert_true(json_is_string(got));
        }
        json_decref(object);
        mr__buf_free(&line);
    }
}

/* ---- Answers ------------------------------------------------------------------------------- */

static mr_exec_answer answer_of(const char *line)
{
    mr_exec_answer answer;
    mr_error *error = mr__exec_line_job_answer(line, strlen(line), &answer);
    if (error != NULL)
        fail_msg("%s: %s", line, mr_error_message(error));
    return answer;
}

static void no_answer(const char *line, const char *why)
{
    mr_exec_answer answer;
    mr_error *error = mr__exec_line_job_answer(line, strlen(line), &answer);
    if (error == NULL)
        fail_msg("accepted: %s", line);
    assert_int_equal(mr_error_code(error), MR_E_PARSE);
    if (strstr(mr_error_message(error), why) == NULL)
        fail_msg("%s: %s", line, mr_error_message(error));
    assert_true(answer.text == NULL && answer.sql == NULL && answer.entry == NULL &&
                answer.id == NULL);
    mr_error_free(error);
}

static void answers(void **state)
{
    (void)state;
    mr_exec_answer a = answer_of("{\"ok\":true,\"id\":\"17\",\"sql\":[{\"text\":\"SELECT 1\"}]}");
    assert_int_equal(a.kind, MR_EXEC_OK);
    assert_string_equal(a.id, "17");
    assert_int_equal(a.sql_count, 1);
    mr__exec_answer_free(&a);
    a = answer_of("{\"ok\":true,\"id\":12345678901234567890}"); /* as the program may have it */
    assert_string_equal(a.id, "12345678901234567890");
    mr__exec_answer_free(&a);
    a = answer_of("{\"snooze\":\"10s\"}");
    assert_int_equal(a.kind, MR_EXEC_SNOOZE);
    assert_int_equal(a.delay, 10000000);
    mr__exec_answer_free(&a);
    a = answer_of("{\"ok\":true,\"requeue\":\"250ms\",\"sql\":[{\"text\":\"SELECT 1\"}]}");
    assert_int_equal(a.kind, MR_EXEC_REQUEUE);
    assert_int_equal(a.delay, 250000);
    assert_int_equal(a.sql_count, 1);
    mr__exec_answer_free(&a);
    a = answer_of("{\"requeue\":0}");
    assert_int_equal(a.delay, 0);
    mr__exec_answer_free(&a);
    a = answer_of("{\"error\":\"no\",\"retry\":false,\"id\":\"1\"}");
    assert_int_equal(a.kind, MR_EXEC_ERROR);
    assert_false(a.retry);
    mr__exec_answer_free(&a);
    a = answer_of("{\"log\":\"half\",\"level\":\"warn\",\"entry\":{\"done\": 50}}");
    assert_int_equal(a.kind, MR_EXEC_LOG);
    assert_int_equal(a.level, MR_WARN);
    assert_string_equal(a.entry, "{\"done\":50}");
    mr__exec_answer_free(&a);
    a = answer_of("{\"progress\":40.9,\"text\":\"half\"}");
    assert_int_equal(a.kind, MR_EXEC_PROGRESS);
    assert_int_equal(a.percent, 40);
    assert_string_equal(a.text, "half");
    mr__exec_answer_free(&a);
    a = answer_of("{\"progress\":100}");
    assert_int_equal(a.percent, 100);
    assert_null(a.text);
    a = answer_of("{\"log\":\"half\"}");
    assert_null(a.entry);
    mr__exec_answer_free(&a);
}

static void what_is_no_answer(void **state)
{
    (void)state;
    no_answer("{\"snooze\":\"10\"}", "no duration");
    no_answer("{\"snooze\":10}", "no duration");
    no_answer("{\"snooze\":\"-1s\"}", "no duration");
    no_answer("{\"requeue\":{}}", "no duration");
    no_answer("{\"requeue\":\"\\u0000\"}", "\\u0000");
    no_answer("{\"snooze\":\"1s\",\"requeue\":\"1s\"}", "more than one");
    no_answer("{\"snooze\":\"1s\",\"error\":\"x\"}", "more than one");
    no_answer("{\"snooze\":\"1s\",\"log\":\"x\"}", "line of its own");
    no_answer("{\"log\":\"x\",\"entry\":[1]}", "not an object");
    no_answer("{\"progress\":101}", "0 to 100");
    no_answer("{\"progress\":-1}", "0 to 100");
    no_answer("{\"progress\":\"40\"}", "0 to 100");
    no_answer("{\"progress\":{}}", "0 to 100");
    no_answer("{\"progress\":40,\"ok\":true}", "line of its own");
    no_answer("{\"progress\":40,\"text\":7}", "not a string");
    no_answer("{\"snooze\":\"1s\",\"sql\":[{}]}", "no \"text\"");
    no_answer("{\"ok\":true,\"id\":\"\\ud800\"}", "\"id\"");
    no_answer("{\"ok\":false}", "neither");
    no_answer("{}", "neither");
    /* Of an event these mean nothing. */
    mr_exec_answer answer;
    mr_error *error = mr__exec_line_answer("{\"snooze\":\"1s\"}", 15, &answer);
    assert_int_equal(mr_error_code(error), MR_E_PARSE);
    mr_error_free(error);
}

/* ---- Texts that are kept ------------------------------------------------------------------- */

static void cut_between_characters(void **state)
{
    (void)state;
    assert_int_equal(mr__text_cut("", 5), 0);
    assert_int_equal(mr__text_cut("abc", 3), 3);
    assert_int_equal(mr__text_cut("abcd", 3), 3);
    assert_int_equal(mr__text_cut("ab\xC3\xA9", 3), 2);
    assert_int_equal(mr__text_cut("ab\xC3\xA9", 4), 4);
    assert_int_equal(mr__text_cut("\x80\x80\x80", 2), 0);
}

static void mended(void **state)
{
    (void)state;
    char text[] = "a\xC3\xA9 \xC3 \xF0\x9F\x98\x80\xF0\x9F\xFF";
    mr__text_mend(text);
    assert_string_equal(text, "a\xC3\xA9 ? \xF0\x9F\x98\x80???");
    uint64_t seed = rng_seed();
    rng r = rng_new(seed);
    for (int i = 0; i < 20000; i++) {
        char bytes[16], before[16];
        size_t length = rng_below(&r, sizeof(bytes));
        for (size_t k = 0; k < length; k++)
            bytes[k] = (char)(1 + rng_below(&r, 255));
        bytes[length] = '\0';
        memcpy(before, bytes, sizeof(before));
        bool good = mr__text_utf8(bytes, length);
        mr__text_mend(bytes);
        assert_true(mr__text_utf8(bytes, strlen(bytes)));
        assert_int_equal(strlen(bytes), length);
        if (good)
            assert_string_equal(bytes, before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_jobs_line),
        cmocka_unit_test(any_value_survives),
        cmocka_unit_test(answers),
        cmocka_unit_test(what_is_no_answer),
        cmocka_unit_test(cut_between_characters),
        cmocka_unit_test(mended),
    };
    return cmocka_run_group_tests_name("exec_job", tests, NULL, NULL);
}
