/* One JSON line of `millrace append`, checked and decoded. */
#include "append_line.h"

#include "base64.h"

#include <errno.h>
#include <math.h>
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

static mr_error *check_keys(const json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        bool known = false;
        for (size_t i = 0; i < KEYS && !known; i++)
            known = strcmp(keys[i], key) == 0;
        if (!known)
            return cli_unknown("key", key, keys, KEYS, "millrace append --help");
    }
    return NULL;
}

/* A key that must be a string when it is there; null counts as absent. */
static mr_error *take_text(const json_t *object, const char *key, const char **text)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL || json_is_null(value))
        return NULL;
    if (!json_is_string(value))
        return mr_error_new(MR_E_PARSE, false, "'%s' must be a string", key);
    *text = json_string_value(value);
    return NULL;
}

static mr_error *take_name(const json_t *object, const char *key, const char *alias,
                           const char *standard, const char **text)
{
    const char *other = NULL;
    CLI_TRY(take_text(object, key, text));
    if (alias != NULL)
        CLI_TRY(take_text(object, alias, &other));
    if (*text != NULL && other != NULL)
        return mr_error_new(MR_E_PARSE, false, "'%s' and '%s' are the same; give one", key, alias);
    if (*text == NULL)
        *text = other != NULL ? other : standard;
    if (*text == NULL || (*text)[0] == '\0')
        return mr_error_new(MR_E_PARSE, false, "'%s' is missing or empty", key);
    return NULL;
}

/* Numbers are read as reals so that any length is accepted inside `data`. */
static bool whole(const json_t *value, int64_t *number)
{
    if (!json_is_real(value))
        return false;
    double real = json_real_value(value);
    if (real != floor(real) || fabs(real) > 9007199254740992.0)
        return false;
    *number = (int64_t)real;
    return true;
}

static mr_error *take_numbers(append_line *line)
{
    int64_t number = 0;
    const json_t *version = json_object_get(line->object, "event_version");
    if (version != NULL && !json_is_null(version)) {
        if (!whole(version, &number) || number < 0 || number > INT32_MAX)
            return mr_error_new(MR_E_PARSE, false, "'event_version' must be a whole number");
        line->event_version = cli_format("%lld", (long long)number);
    }
    const json_t *expected = json_object_get(line->object, "expected_version");
    line->expected = APPEND_EXPECT_UNSET;
    if (expected == NULL || json_is_null(expected))
        return NULL;
    if (whole(expected, &number) && number >= 1)
        line->expected = number;
    else if (!json_is_string(expected) ||
             !append_expected(json_string_value(expected), &line->expected))
        return mr_error_new(MR_E_PARSE, false,
                            "'expected_version' must be \"any\", \"none\" or a number from 1");
    return NULL;
}

/* ---- The value of a key as it was written -------------------------------------------------- */

static const char *skip_space(const char *p)
{
    return p + strspn(p, " \t\r\n");
}

/* Past a string that starts at its opening quote. The text is known to be valid JSON. */
static const char *skip_string(const char *p)
{
    for (p++; *p != '"'; p++)
        if (*p == '\\')
            p++;
    return p + 1;
}

static const char *skip_value(const char *p)
{
    if (*p != '{' && *p != '[')
        return *p == '"' ? skip_string(p) : p + strcspn(p, ",]} \t\r\n");
    int depth = 0;
    do {
        if (*p == '"') {
            p = skip_string(p);
            continue;
        }
        depth += *p == '{' || *p == '[';
        depth -= *p == '}' || *p == ']';
        p++;
    } while (depth > 0);
    return p;
}

/* Numbers keep every digit this way, and key order stays; decoding and encoding again would lose
 * both. NULL when the key is written with escapes. */
static char *written_value(const char *text, const char *key)
{
    size_t length = strlen(key);
    const char *p = skip_space(skip_space(text) + 1);
    while (*p == '"') {
        const char *name = p + 1;
        p = skip_string(p);
        bool found = (size_t)(p - 1 - name) == length && strncmp(name, key, length) == 0;
        p = skip_space(skip_space(p) + 1); /* the colon */
        const char *end = skip_value(p);
        if (found)
            return cli_format("%.*s", (int)(end - p), p);
        p = skip_space(end);
        if (*p == ',')
            p = skip_space(p + 1);
    }
    return NULL;
}

static mr_error *take_payload(append_line *line, const char *text)
{
    const char *literal = NULL, *base64 = NULL;
    const json_t *data = json_object_get(line->object, "data");
    CLI_TRY(take_text(line->object, "payload", &literal));
    CLI_TRY(take_text(line->object, "payload_base64", &base64));
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
        line->payload = written_value(text, "data");
        if (line->payload == NULL)
            line->payload = json_dumps(data, JSON_COMPACT | JSON_ENCODE_ANY);
    } else {
        line->payload = cli_strdup(literal);
    }
    if (line->payload == NULL)
        return mr_error_new(MR_E_NOMEM, false, "out of memory");
    line->length = strlen(line->payload);
    return NULL;
}

static mr_error *take_metadata(append_line *line, const char *text)
{
    const json_t *metadata = json_object_get(line->object, "metadata");
    if (metadata == NULL || json_is_null(metadata))
        return NULL;
    if (!json_is_object(metadata))
        return mr_error_new(MR_E_PARSE, false, "'metadata' must be an object");
    line->metadata = written_value(text, "metadata");
    if (line->metadata == NULL)
        line->metadata = json_dumps(metadata, JSON_COMPACT);
    return line->metadata == NULL ? mr_error_new(MR_E_NOMEM, false, "out of memory") : NULL;
}

mr_error *append_line_parse(const char *text, size_t length, const char *default_type,
                            const char *default_id, append_line *line)
{
    *line = (append_line){0};
    json_error_t where;
    line->object =
        json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &where);
    if (line->object == NULL && json_error_code(&where) == json_error_invalid_utf8)
        return mr_error_new(MR_E_PARSE, false, "not valid UTF-8 at byte %d: %s", where.position,
                            where.text);
    if (line->object == NULL)
        return mr_error_new(MR_E_PARSE, false, "not valid JSON at byte %d: %s", where.position,
                            where.text);
    if (!json_is_object(line->object))
        return mr_error_new(MR_E_PARSE, false, "not a JSON object");
    const json_t *object = line->object;
    CLI_TRY(check_keys(object));
    CLI_TRY(
        take_name(object, "aggregate_type", "stream_type", default_type, &line->aggregate_type));
    CLI_TRY(take_name(object, "aggregate_id", "stream_id", default_id, &line->aggregate_id));
    CLI_TRY(take_name(object, "event_type", NULL, NULL, &line->event_type));
    CLI_TRY(take_text(object, "event_id", &line->event_id));
    CLI_TRY(take_text(object, "trace_id", &line->trace_id));
    CLI_TRY(take_text(object, "correlation_id", &line->correlation_id));
    CLI_TRY(take_text(object, "causation_id", &line->causation_id));
    CLI_TRY(take_numbers(line));
    CLI_TRY(take_metadata(line, text));
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
