/* Which dead letters a call means: fields with values, handed to the database as one JSON object,
 * so that no value ever becomes part of a statement. */
#include "observe/letters.h"

#include "base/text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The names are those of find_letters' keys. */
typedef enum field_kind { TEXT, NUMBER, STATE } field_kind;
static const struct {
    const char *name;
    field_kind kind;
} fields[] = {
    {"consumer", TEXT},       {"position", NUMBER},   {"from", NUMBER},     {"to", NUMBER},
    {"aggregate_type", TEXT}, {"aggregate_id", TEXT}, {"event_type", TEXT}, {"state", STATE},
    {"error", TEXT},          {"before", TEXT},       {"after", TEXT},
};
enum { FIELDS = sizeof(fields) / sizeof(fields[0]) };

struct mr_letters {
    char *value[FIELDS]; /* NULL does not restrict */
};

mr_letters *mr_letters_new(void)
{
    return calloc(1, sizeof(mr_letters));
}

void mr_letters_free(mr_letters *letters)
{
    if (letters == NULL)
        return;
    for (size_t i = 0; i < FIELDS; i++)
        free(letters->value[i]);
    free(letters);
}

static mr_error *find_field(const char *name, size_t *index)
{
    const char *names[FIELDS];
    for (size_t i = 0; i < FIELDS; i++) {
        names[i] = fields[i].name;
        if (strcmp(name, names[i]) == 0) {
            *index = i;
            return NULL;
        }
    }
    int nearest = mr__text_nearest(name, names, FIELDS);
    return mr__error(MR_E_USAGE, "dead letters have no field '%s'%s%s%s", name,
                     nearest < 0 ? "" : "; did you mean ", nearest < 0 ? "" : names[nearest],
                     nearest < 0 ? "" : "?");
}

static mr_error *check_value(const char *field, field_kind kind, const char *value)
{
    int64_t number = 0;
    /* An empty value would restrict nothing, or nothing would match: either is a slip. */
    if (value[0] == '\0')
        return mr__error(MR_E_USAGE, "%s: the value is empty", field);
    if (kind == NUMBER && (!mr__text_int(value, &number) || number < 0))
        return mr__error(MR_E_USAGE, "%s: '%s' is not a position", field, value);
    if (kind == STATE && strcmp(value, "poison") != 0 && strcmp(value, "parked") != 0)
        return mr__error(MR_E_USAGE, "%s: '%s' is not poison or parked", field, value);
    return mr__operate_check_text(field, value);
}

mr_error *mr_letters_filter(mr_letters *letters, const char *field, const char *value)
{
    size_t index = 0;
    MR_TRY(find_field(field, &index));
    char *copy = NULL;
    if (value != NULL) {
        MR_TRY(check_value(field, fields[index].kind, value));
        copy = strdup(value);
        if (copy == NULL)
            return mr__error_nomem();
    }
    free(letters->value[index]);
    letters->value[index] = copy;
    return NULL;
}

bool mr__letters_empty(const mr_letters *letters)
{
    for (size_t i = 0; letters != NULL && i < FIELDS; i++)
        if (letters->value[i] != NULL)
            return false;
    return true;
}

mr_error *mr__letters_json(const mr_letters *letters, char **json)
{
    json_t *object = json_object();
    bool failed = object == NULL;
    for (size_t i = 0; letters != NULL && i < FIELDS; i++)
        if (letters->value[i] != NULL)
            failed |=
                json_object_set_new(object, fields[i].name, json_string(letters->value[i])) != 0;
    char *text = failed ? NULL : json_dumps(object, JSON_COMPACT);
    json_decref(object);
    if (text == NULL)
        return mr__error_nomem();
    *json = text;
    return NULL;
}
