/* Any bytes as a child's line, and any bytes as an event's payload and fields: an answer or an
 * error, and always one valid line. */
#include "base/json.h"
#include "handler/exec_line.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void answer(const char *line, size_t length)
{
    mr_exec_answer out;
    mr_error *error = mr__exec_line_answer(line, length, &out);
    json_t *object = json_loadb(line, length, JSON_DECODE_INT_AS_REAL, NULL);
    if (error == NULL && out.kind != MR_EXEC_OK && out.text == NULL)
        __builtin_trap();
    for (size_t i = 0; error == NULL && i < out.sql_count; i++)
        if (out.sql[i].text == NULL || out.sql[i].count > MR_EXEC_PARAMS)
            __builtin_trap();
    if (error != NULL && (mr_error_message(error)[0] == '\0' || out.sql != NULL))
        __builtin_trap();
    /* What another reader takes for a plain yes must be one. */
    if (error != NULL && object != NULL && json_object_size(object) == 1 &&
        json_is_true(json_object_get(object, "ok")) && memchr(line, 0, length) == NULL)
        __builtin_trap();
    mr_error_free(error);
    json_decref(object);
    mr__exec_answer_free(&out);
    mr_buf quote = {0};
    mr__exec_line_quote(&quote, line, length);
    if (quote.length > 6 * MR_EXEC_QUOTE + 64)
        __builtin_trap();
    mr__buf_free(&quote);
}

static void event(const char *text, const char *payload, size_t length)
{
    mr_event e = {.position = 1,
                  .created_at = (int64_t)length * 1000003,
                  .aggregate_type = text,
                  .aggregate_id = text,
                  .event_id = text,
                  .event_type = text,
                  .trace_id = text,
                  .metadata = text,
                  .payload = payload,
                  .payload_length = length};
    mr_buf line = {0};
    mr__exec_line_event(&line, text, 1, &e);
    mr_buf again = {0};
    size_t open = 0; /* a payload of the greatest depth is too deep inside of a line */
    for (size_t i = 0; i < length; i++)
        open += payload[i] == '[' || payload[i] == '{';
    for (size_t i = 0; text[i] != '\0'; i++)
        open += text[i] == '[' || text[i] == '{';
    if (open < MR_JSON_DEPTH &&
        (line.failed || memchr(line.data, '\n', line.length) != line.data + line.length - 1 ||
         !mr__json_compact(&again, line.data, line.length) || again.length != line.length - 1))
        __builtin_trap();
    mr__buf_free(&again);
    mr__buf_free(&line);
}

/* A job's line of such values is one valid line too. */
static void job(const char *text)
{
    const mr_exec_value values[] = {
        {.name = text, .text = text, .json = true}, {.name = "b", .text = text}, {.name = "c"}};
    mr_buf line = {0}, again = {0};
    mr__exec_line_job(&line, text, text, values, 3);
    size_t open = 0;
    for (size_t i = 0; text[i] != '\0'; i++)
        open += text[i] == '[' || text[i] == '{';
    if (open + 2 < MR_JSON_DEPTH &&
        (line.failed || memchr(line.data, '\n', line.length) != line.data + line.length - 1 ||
         !mr__json_compact(&again, line.data, line.length) || again.length != line.length - 1))
        __builtin_trap();
    mr__buf_free(&again);
    mr__buf_free(&line);
}

static void job_answer(const char *line, size_t length)
{
    mr_exec_answer out;
    mr_error *error = mr__exec_line_job_answer(line, length, &out);
    bool worded = out.kind == MR_EXEC_ERROR || out.kind == MR_EXEC_LOG;
    if (error == NULL && ((worded && out.text == NULL) || out.delay < 0))
        __builtin_trap();
    if (error != NULL && (out.sql != NULL || out.entry != NULL || out.id != NULL))
        __builtin_trap();
    mr_error_free(error);
    mr__exec_answer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    answer(text, size);
    job_answer(text, size);
    job(text);
    size_t first = strlen(text);
    event(text, first < size ? text + first + 1 : text, first < size ? size - first - 1 : size);
    free(text);
    return 0;
}
