/* One line of JSON from the input: decoded, its keys checked, its values as text. */
#include "json_line.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

mr_error *json_line_load(const char *text, size_t length, json_t **value)
{
    json_error_t where;
    *value = json_loadb(text, length,
                        JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL | JSON_DECODE_ANY, &where);
    if (*value == NULL && json_error_code(&where) == json_error_invalid_utf8)
        return mr_error_new(MR_E_PARSE, false, "not valid UTF-8 at byte %d: %s", where.position,
                            where.text);
    if (*value == NULL)
        return mr_error_new(MR_E_PARSE, false, "not valid JSON at byte %d: %s", where.position,
                            where.text);
    return NULL;
}

mr_error *json_line_object(const char *text, size_t length, const char *const *keys, size_t count,
                           const char *see, json_t **object)
{
    CLI_TRY(json_line_load(text, length, object));
    if (!json_is_object(*object))
        return mr_error_new(MR_E_PARSE, false, "not a JSON object");
    const char *key;
    json_t *value;
    json_object_foreach(*object, key, value)
    {
        bool known = false;
        for (size_t i = 0; i < count && !known; i++)
            known = strcmp(keys[i], key) == 0;
        if (!known)
            return cli_unknown("key", key, keys, count, see);
    }
    return NULL;
}

mr_error *json_line_text(const json_t *object, const char *key, const char **text)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL || json_is_null(value))
        return NULL;
    if (!json_is_string(value))
        return mr_error_new(MR_E_PARSE, false, "'%s' must be a string", key);
    *text = json_string_value(value);
    return NULL;
}

/* Numbers are read as reals so that any length is accepted inside of payloads. */
bool json_line_whole(const json_t *value, int64_t *number)
{
    if (!json_is_real(value))
        return false;
    double real = json_real_value(value);
    if (real != floor(real) || fabs(real) > 9007199254740992.0)
        return false;
    *number = (int64_t)real;
    return true;
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

char *json_line_value(const json_t *object, const char *text, const char *key)
{
    char *written = written_value(text, key);
    if (written == NULL)
        written = json_dumps(json_object_get(object, key), JSON_COMPACT | JSON_ENCODE_ANY);
    return written != NULL ? written : cli_strdup("null");
}

mr_error *json_line_metadata(const json_t *object, const char *text, char **metadata)
{
    const json_t *value = json_object_get(object, "metadata");
    if (value == NULL || json_is_null(value))
        return NULL;
    if (!json_is_object(value))
        return mr_error_new(MR_E_PARSE, false, "'metadata' must be an object");
    *metadata = json_line_value(object, text, "metadata");
    return NULL;
}
