/* The one table of options: names, types, defaults, meanings; validation and typed access. */
#include "runtime/options.h"

#include "base/buf.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const mr_option table[MR_OPT_COUNT] = {
#define OPTION_ROW(symbol, section, name, type, standard, reference, choices, low, high, meaning)  \
    {section, name, MR_TYPE_##type, standard, reference, choices, low, high, meaning},
    MR_OPTIONS(OPTION_ROW)
#undef OPTION_ROW
};

static const char *const type_names[] = {"text", "name",   "integer", "boolean", "duration",
                                         "size", "choice", "list",    "map"};

const char *mr__option_type_name(mr_type type)
{
    return type_names[type];
}

int mr__option_find(const char *section, const char *name)
{
    for (int i = 0; i < MR_OPT_COUNT; i++)
        if (strcmp(table[i].section, section) == 0 && strcmp(table[i].name, name) == 0)
            return i;
    return -1;
}

/* What people write that is spelled like no option: names of other programs and of a job's fields.
 */
static const struct {
    const char *section, *name, *meant;
    bool field; /* of a job, where it is right */
} near_misses[] = {{"queue", "max_attempts", "max_retries", true},
                   {"queue", "timeout", "max_runtime", true},
                   {"queue", "concurrency", "num_handlers", false}};

/* NULL for a name that is none of them. */
static mr_error *near_miss(const char *section, const char *name)
{
    for (size_t i = 0; i < sizeof(near_misses) / sizeof(near_misses[0]); i++)
        if (strcmp(near_misses[i].section, section) == 0 && strcmp(near_misses[i].name, name) == 0)
            return mr__error(MR_E_CONFIG, "unknown option '%s' in %s; %s '%s'", name, section,
                             near_misses[i].field
                                 ? "that is a field of a job, the queue's option is"
                                 : "the option is",
                             near_misses[i].meant);
    return NULL;
}

mr_error *mr__option_unknown(const char *section, const char *name)
{
    mr_error *told = near_miss(section, name);
    if (told != NULL)
        return told;
    const char *names[MR_OPT_COUNT];
    size_t count = 0;
    for (int i = 0; i < MR_OPT_COUNT; i++)
        if (strcmp(table[i].section, section) == 0)
            names[count++] = table[i].name;
    int nearest = mr__text_nearest(name, names, count);
    const char *where = section[0] == '\0' ? "" : " in ";
    if (nearest >= 0)
        return mr__error(MR_E_CONFIG, "unknown option '%.80s'%s%s; did you mean '%s'?", name, where,
                         section, names[nearest]);
    return mr__error(MR_E_CONFIG, "unknown option '%.80s'%s%s; 'millrace options' lists them all",
                     name, where, section);
}

/* Index of `word` in a comma-separated list, or -1. */
static int64_t choice_index(const char *choices, const char *word)
{
    size_t length = strlen(word);
    int64_t index = 0;
    for (const char *p = choices; *p != '\0'; index++) {
        size_t n = strcspn(p, ",");
        if (n == length && strncmp(p, word, n) == 0)
            return index;
        p += n;
        if (*p == ',')
            p++;
    }
    return -1;
}

static const char *expected_form(const mr_option *o)
{
    switch (o->type) {
    case MR_TYPE_INT:
        return "a whole number";
    case MR_TYPE_DURATION:
        return "a duration such as 250ms, 5s, 2m or 1h";
    case MR_TYPE_SIZE:
        return "a size such as 64KiB, 64MiB or 1GiB";
    case MR_TYPE_BOOL:
        return "true or false";
    case MR_TYPE_NAME:
        return "a name of 1 to 255 bytes of UTF-8";
    case MR_TYPE_TEXT:
    case MR_TYPE_CHOICE:
    case MR_TYPE_LIST:
    case MR_TYPE_MAP:
    default:
        return "text";
    }
}

static mr_error *bad_value(const mr_option *o, const char *value)
{
    if (o->type == MR_TYPE_CHOICE)
        return mr__error(MR_E_CONFIG, "%s: '%.80s' is not one of %s", o->name, value, o->choices);
    return mr__error(MR_E_CONFIG, "%s: '%.80s' is not %s%s%s%s", o->name, value, expected_form(o),
                     o->choices[0] != '\0' ? " or '" : "", o->choices,
                     o->choices[0] != '\0' ? "'" : "");
}

static mr_error *check_range(const mr_option *o, const char *value, int64_t number)
{
    bool low = number < o->lowest, high = o->highest != 0 && number > o->highest;
    if (!low && !high)
        return NULL;
    int64_t bound = low ? o->lowest : o->highest;
    char text[32];
    if (o->type == MR_TYPE_DURATION)
        mr__text_duration_format(bound, text);
    else
        (void)snprintf(text, sizeof(text), "%" PRId64, bound);
    return mr__error(MR_E_CONFIG, "%s: %.80s is out of range; the %s is %s", o->name, value,
                     low ? "lowest" : "highest", text);
}

static mr_error *parse(const mr_option *o, const char *value, int64_t *number)
{
    *number = 0;
    int64_t word = o->type == MR_TYPE_CHOICE ? -1 : choice_index(o->choices, value);
    if (word >= 0) {
        *number = -1 - word;
        return NULL;
    }
    bool flag = false, ok = true;
    switch (o->type) {
    case MR_TYPE_INT:
        ok = mr__text_int(value, number);
        break;
    case MR_TYPE_DURATION:
        ok = mr__text_duration(value, number);
        break;
    case MR_TYPE_SIZE:
        ok = mr__text_size(value, number);
        break;
    case MR_TYPE_BOOL:
        ok = mr__text_bool(value, &flag);
        *number = flag;
        break;
    case MR_TYPE_CHOICE:
        *number = choice_index(o->choices, value);
        return *number < 0 ? bad_value(o, value) : NULL;
    case MR_TYPE_NAME:
        ok = value[0] != '\0' && strlen(value) <= 255 && mr__text_utf8(value, strlen(value));
        return ok ? NULL : bad_value(o, value);
    case MR_TYPE_TEXT:
    case MR_TYPE_LIST:
    case MR_TYPE_MAP:
    default:
        ok = mr__text_utf8(value, strlen(value));
        return ok ? NULL : mr__error(MR_E_CONFIG, "%s: the value is not valid UTF-8", o->name);
    }
    if (!ok)
        return bad_value(o, value);
    return o->type == MR_TYPE_BOOL ? NULL : check_range(o, value, *number);
}

mr_error *mr__bag_set(mr_bag *bag, mr_opt option, const char *value)
{
    int64_t number;
    MR_TRY(parse(&table[option], value, &number));
    char *copy = strdup(value);
    if (copy == NULL)
        return mr__error_nomem();
    free(bag->text[option]);
    bag->text[option] = copy;
    bag->number[option] = number;
    bag->given[option] = true;
    return NULL;
}

/* Not a value that anybody writes: without one the worker's own counts, see mr__conf_number(). */
static bool inherited(const mr_option *o)
{
    return strcmp(o->standard, MR_INHERITED) == 0;
}

mr_error *mr__bag_init(mr_bag *bag)
{
    *bag = (mr_bag){0};
    for (int i = 0; i < MR_OPT_COUNT; i++) {
        /* An empty default of a NAME means "must be given", which is checked where it matters. */
        mr_error *error = NULL;
        if (table[i].standard[0] == '\0' || inherited(&table[i])) {
            bag->text[i] = strdup(table[i].standard);
            error = bag->text[i] == NULL ? mr__error_nomem() : NULL;
        } else {
            error = mr__bag_set(bag, (mr_opt)i, table[i].standard);
            bag->given[i] = false;
        }
        if (error != NULL) {
            mr__bag_free(bag);
            return error;
        }
    }
    return NULL;
}

void mr__bag_free(mr_bag *bag)
{
    for (int i = 0; i < MR_OPT_COUNT; i++)
        free(bag->text[i]);
    *bag = (mr_bag){0};
}

size_t mr_option_count(void)
{
    return MR_OPT_COUNT;
}

const mr_option *mr_option_at(size_t index)
{
    return index < MR_OPT_COUNT ? &table[index] : NULL;
}

const char *mr_option_name(const mr_option *option)
{
    return option->name;
}

const char *mr_option_section(const mr_option *option)
{
    return option->section;
}

const char *mr_option_type(const mr_option *option)
{
    return option->type == MR_TYPE_CHOICE ? option->choices : type_names[option->type];
}

const char *mr_option_default(const mr_option *option)
{
    return option->standard;
}

const char *mr_option_reference(const mr_option *option)
{
    return option->reference;
}

const char *mr_option_meaning(const mr_option *option)
{
    return option->meaning;
}
