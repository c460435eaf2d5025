/* One JSON line of `millrace append`, checked and decoded. */
#include "append_line.h"

#include "base64.h"
#include "json_line.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const keys[] = {
    "aggregate_type", "aggregate_id", "stream_type",    "stream_id",    "event_type",
    "data",           "payload",      "payload_base64", "event_id",     "event_version",
    "trace_id",       "metadata",     "correlation_id", "causation_id", "expected_version"};
enum { KEYS = sizeof(keys) / sizeof(keys[0]) };

bool append_expected(const char *text, int64_t *expected)
{
    if (strcmp(text, "any") == 0 || strcmp(text, "none") == 0) {
        *expected = text[0] == 'a' ? MR_EXPECT_ANY : MR_EXPECT_NONE;
        return true;
    }
    char *end = NULL;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || number < 1)
        return false;
    *expected = number;
    return true;
}

static mr_error *take_name(const json_t *object, const char *key, const char *alias,
                           const char *standard, const char **text)
{
    const char *other = NULL;
    CLI_TRY(json_line_text(object, key, text));
    if (alias != NULL)
        CLI_TRY(json_line_text(object, alias, &other));
    if (*text != NULL && other != NULL)
        return mr_error_new(MR_E_PARSE, false, "'%s' and '%s' are the same; give one", key, alias);
    if (*text == NULL)
        *text = other != NULL ? other : standard;
    if (*text == NULL || (*text)[0] == '\0')
        return mr_error_new(MR_E_PARSE, false, "'%s' is missing or empty", key);
    return NULL;
}

static mr_error *take_numbers(append_line *line)
{
    int64_t number = 0;
    const json_t *version = json_object_get(line->object, "event_version");
    if (version != NULL && !json_is_null(version)) {
        if (!json_line_whole(version, &number) || number < 0 || number > INT32_MAX)
            return mr_error_new(MR_E_PARSE, false, "'event_version' must be a whole number");
        line->event_version = cli_format("%lld", (long long)number);
    }
    const json_t *expected = json_object_get(line->object, "expected_version");
    line->expected = APPEND_EXPECT_UNSET;
    if (expected == NULL || json_is_null(expected))
        return NULL;
    if (json_line_whole(expected, &number) && number >= 1)
        line->expected = number;
    else if (!json_is_string(expected) ||
             !append_expected(json_string_value(expected), &line->expected))
        return mr_error_new(MR_E_PARSE, false,
                            "'expected_version' must be \"any\", \"none\" or a number from 1");
    return NULL;
}

static mr_error *take_payload(append_line *line, const char *text)
{
    const char *literal = NULL, *base64 = NULL;
    const json_t *data = json_object_get(line->object, "data");
    CLI_TRY(json_line_text(line->object, "payload", &literal));
    CLI_TRY(json_line_text(line->object, "payload_base64", &base64));
    if ((data != NULL) + (literal != NULL) + (base64 != NULL) != 1)
        return mr_error_new(MR_E_PARSE, false,
                            "one of 'data', 'payload' and 'payload_base64' is needed");
    if (base64 != NULL) {
        line->payload = base64_decode(base64, &line->length);
        return line->payload != NULL
                   ? NULL
                   : mr_error_new(MR_E_PARSE, false, "'payload_base64' is not valid base64");
    }
    if (data != NULL) {
        line->payload = json_line_value(line->object, text, "data");
    } else {
        line->payload = cli_strdup(literal);
    }
    line->length = strlen(line->payload);
    return NULL;
}

mr_error *append_line_parse(const char *text, size_t length, const char *default_type,
                            const char *default_id, append_line *line)
{
    *line = (append_line){0};
    CLI_TRY(json_line_object(text, length, keys, KEYS, "millrace append --help", &line->object));
    const json_t *object = line->object;
    CLI_TRY(
        take_name(object, "aggregate_type", "stream_type", default_type, &line->aggregate_type));
    CLI_TRY(take_name(object, "aggregate_id", "stream_id", default_id, &line->aggregate_id));
    CLI_TRY(take_name(object, "event_type", NULL, NULL, &line->event_type));
    CLI_TRY(json_line_text(object, "event_id", &line->event_id));
    CLI_TRY(json_line_text(object, "trace_id", &line->trace_id));
    CLI_TRY(json_line_text(object, "correlation_id", &line->correlation_id));
    CLI_TRY(json_line_text(object, "causation_id", &line->causation_id));
    CLI_TRY(take_numbers(line));
    CLI_TRY(json_line_metadata(object, text, &line->metadata));
    return take_payload(line, text);
}

void append_line_free(append_line *line)
{
    free(line->payload);
    free(line->event_version);
    free(line->metadata);
    json_decref(line->object);
    *line = (append_line){0};
}
