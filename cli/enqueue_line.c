/* One JSON line of `millrace enqueue`, checked and decoded. */
#include "enqueue_line.h"

#include "json_line.h"

#include <stdlib.h>
#include <string.h>

enum { KEY, PRIORITY, RUN_AT, IDEMPOTENCY_KEY, MAX_ATTEMPTS, TIMEOUT, METADATA };
const char *const enqueue_field_names[ENQUEUE_FIELDS] = {
    [KEY] = "key",
    [PRIORITY] = "priority",
    [RUN_AT] = "run_at",
    [IDEMPOTENCY_KEY] = "idempotency_key",
    [MAX_ATTEMPTS] = "max_attempts",
    [TIMEOUT] = "timeout",
    [METADATA] = "metadata",
};

static mr_error *take_number(const json_t *object, const char *key, char **text)
{
    int64_t number = 0;
    const json_t *value = json_object_get(object, key);
    if (value == NULL || json_is_null(value))
        return NULL;
    if (!json_line_whole(value, &number))
        return mr_error_new(MR_E_PARSE, false, "'%s' must be a whole number", key);
    *text = cli_format("%lld", (long long)number);
    return NULL;
}

static mr_error *take_field(const json_t *object, const char *text, int field, char **out)
{
    const char *found = NULL, *name = enqueue_field_names[field];
    if (field == PRIORITY || field == MAX_ATTEMPTS)
        return take_number(object, name, out);
    if (field == METADATA)
        return json_line_metadata(object, text, out);
    CLI_TRY(json_line_text(object, name, &found));
    if (found != NULL)
        *out = cli_strdup(found);
    return NULL;
}

static mr_error *take_object(const json_t *object, const char *text, enqueue_line *line)
{
    const json_t *payload = json_object_get(object, "payload");
    if (payload != NULL && !json_is_null(payload))
        line->payload = json_line_value(object, text, "payload");
    for (int i = 0; i < ENQUEUE_FIELDS; i++)
        CLI_TRY(take_field(object, text, i, &line->field[i]));
    return NULL;
}

mr_error *enqueue_line_parse(const char *text, size_t length, bool bare, enqueue_line *line)
{
    *line = (enqueue_line){0};
    if (bare) {
        /* The text ends where a NUL stands: the rest would be lost in silence. */
        if (strlen(text) != length)
            return mr_error_new(MR_E_PARSE, false, "not valid JSON: a NUL byte at byte %zu",
                                strlen(text) + 1);
        line->payload = cli_strdup(text);
        return NULL;
    }
    const char *keys[ENQUEUE_FIELDS + 1] = {"payload"};
    memcpy((void *)(keys + 1), (const void *)enqueue_field_names, sizeof(enqueue_field_names));
    json_t *object = NULL;
    mr_error *error = json_line_object(text, length, keys, ENQUEUE_FIELDS + 1,
                                       "millrace enqueue --help", &object);
    if (error == NULL)
        error = take_object(object, text, line);
    json_decref(object);
    return error;
}

void enqueue_line_free(enqueue_line *line)
{
    free(line->payload);
    for (int i = 0; i < ENQUEUE_FIELDS; i++)
        free(line->field[i]);
    *line = (enqueue_line){0};
}
