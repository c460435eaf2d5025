/* How a queue lies on a table. Pure. */
#include "queue/mapping.h"

#include "base/text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *name;
    mr_family family;
    bool required, cleared;
    const char *ddl;
} columns[MR_JOB_COLUMN_COUNT] = {
#define COLUMN_ROW(symbol, name, family, required, cleared, ddl)                                   \
    {name, family, required, cleared, ddl},
    MR_JOB_COLUMNS(COLUMN_ROW)
#undef COLUMN_ROW
};

const char *mr__job_column_name(mr_job_column column)
{
    return columns[column].name;
}

mr_family mr__job_column_family(mr_job_column column)
{
    return columns[column].family;
}

bool mr__job_column_required(mr_job_column column)
{
    return columns[column].required;
}

bool mr__job_column_cleared(mr_job_column column)
{
    return columns[column].cleared;
}

const char *mr__job_column_ddl(mr_job_column column)
{
    return columns[column].ddl;
}

int mr__job_column_find(const char *name)
{
    for (int i = 0; i < MR_JOB_COLUMN_COUNT; i++)
        if (strcmp(columns[i].name, name) == 0)
            return i;
    return -1;
}

/* ---- Relations ----------------------------------------------------------------------------- */

/* Length of `text` up to the blank before its last word, outside double quotes; 0 when it is one
 * word. */
static size_t last_blank(const char *text, size_t length)
{
    bool quoted = false;
    size_t found = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '"')
            quoted = !quoted;
        else if (!quoted && isspace((unsigned char)text[i]) && i + 1 < length &&
                 !isspace((unsigned char)text[i + 1]))
            found = i;
    }
    return found;
}

static size_t trimmed(const char *text, size_t length)
{
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        length--;
    return length;
}

/* An alias is one plain name: it is written into expressions as the operator wrote it there. */
static mr_error *parse_alias(const char *text, const char *what, char out[MR_IDENT_MAX + 1])
{
    mr_qname alias;
    MR_TRY(mr__qname_parse(text, what, &alias));
    if (alias.schema[0] != '\0')
        return mr__error(MR_E_CONFIG, "%s: the alias '%s' must be one name", what, text);
    (void)snprintf(out, MR_IDENT_MAX + 1, "%s", alias.name);
    return NULL;
}

mr_error *mr__relation_parse(const char *text, const char *what, mr_relation *out)
{
    text += strspn(text, " \t\r\n");
    size_t length = trimmed(text, strlen(text));
    size_t blank = last_blank(text, length);
    MR_AUTO_BUF alias = {0};
    MR_AUTO_BUF name = {0};
    if (blank > 0) {
        size_t from = blank + 1;
        mr__buf_add(&alias, text + from, length - from);
        length = trimmed(text, blank);
        size_t as = last_blank(text, length);
        if (as > 0 && length - as == 3 && strncasecmp(text + as + 1, "as", 2) == 0)
            length = trimmed(text, as);
    }
    if (last_blank(text, length) > 0)
        return mr__error(MR_E_CONFIG,
                         "%s: '%s' has too many words; write `table` or `table alias`, and a name "
                         "with a blank in double quotes",
                         what, text);
    mr__buf_add(&name, text, length);
    if (name.failed || alias.failed)
        return mr__error_nomem();
    mr_relation parsed = {0};
    MR_TRY(mr__qname_parse(mr__buf_text(&name), what, &parsed.name));
    (void)snprintf(parsed.alias, sizeof(parsed.alias), "%s", parsed.name.name);
    if (alias.length > 0)
        MR_TRY(parse_alias(mr__buf_text(&alias), what, parsed.alias));
    *out = parsed;
    return NULL;
}

/* ---- Building ------------------------------------------------------------------------------ */

static mr_error *replace(char **slot, const char *text)
{
    char *copy = strdup(text);
    if (copy == NULL)
        return mr__error_nomem();
    free(*slot);
    *slot = copy;
    return NULL;
}

mr_error *mr__mapping_init(mr_mapping *mapping, const char *queue)
{
    *mapping = (mr_mapping){0};
    size_t length = strlen(queue);
    if (length == 0 || !mr__text_utf8(queue, length))
        return mr__error(MR_E_CONFIG, "a queue needs a name, in UTF-8");
    mapping->queue = strdup(queue);
    mapping->order = strdup("");
    mapping->condition = strdup("");
    if (mapping->queue != NULL && mapping->order != NULL && mapping->condition != NULL)
        return NULL;
    mr__mapping_free(mapping);
    return mr__error_nomem();
}

void mr__mapping_free(mr_mapping *mapping)
{
    free(mapping->queue);
    free(mapping->order);
    free(mapping->condition);
    for (size_t i = 0; i < mapping->value_count; i++) {
        free(mapping->values[i].name);
        free(mapping->values[i].expression);
    }
    free(mapping->values);
    *mapping = (mr_mapping){0};
}

mr_error *mr__mapping_table(mr_mapping *mapping, const char *text)
{
    return mr__relation_parse(text, "table", &mapping->table);
}

mr_error *mr__mapping_view(mr_mapping *mapping, const char *text)
{
    return mr__relation_parse(text, "view", &mapping->view);
}

mr_error *mr__mapping_order(mr_mapping *mapping, const char *expression)
{
    return replace(&mapping->order, expression);
}

mr_error *mr__mapping_condition(mr_mapping *mapping, const char *expression)
{
    return replace(&mapping->condition, expression);
}

static mr_error *unknown_column(const char *name)
{
    const char *names[MR_JOB_COLUMN_COUNT];
    for (int i = 0; i < MR_JOB_COLUMN_COUNT; i++)
        names[i] = columns[i].name;
    int near = mr__text_nearest(name, names, MR_JOB_COLUMN_COUNT);
    return mr__error(MR_E_CONFIG, "columns: a queue has no column '%s'%s%s%s", name,
                     near < 0 ? "" : "; did you mean '", near < 0 ? "" : names[near],
                     near < 0 ? "" : "'?");
}

mr_error *mr__mapping_column(mr_mapping *mapping, const char *name, const char *actual)
{
    int found = mr__job_column_find(name);
    if (found < 0)
        return unknown_column(name);
    size_t length = strlen(actual);
    if (length == 0 || length > MR_IDENT_MAX || !mr__text_utf8(actual, length))
        return mr__error(MR_E_CONFIG, "columns: the name for %s must have 1 to 63 bytes of UTF-8",
                         name);
    memcpy(mapping->column[found], actual, length + 1);
    return NULL;
}

mr_error *mr__mapping_value(mr_mapping *mapping, const char *name, const char *expression)
{
    MR_AUTO_BUF own = {0};
    if (expression == NULL) {
        mr__ident_quote(&own, name);
        if (own.failed)
            return mr__error_nomem();
        expression = mr__buf_text(&own);
    }
    for (size_t i = 0; i < mapping->value_count; i++)
        if (strcmp(mapping->values[i].name, name) == 0)
            return mr__error(MR_E_CONFIG, "values: '%s' is named twice", name);
    mr_value_spec *grown =
        realloc(mapping->values, (mapping->value_count + 1) * sizeof(*mapping->values));
    if (grown == NULL)
        return mr__error_nomem();
    mapping->values = grown;
    mr_value_spec value = {.name = strdup(name), .expression = strdup(expression)};
    if (value.name == NULL || value.expression == NULL) {
        free(value.name);
        free(value.expression);
        return mr__error_nomem();
    }
    mapping->values[mapping->value_count++] = value;
    return NULL;
}

const char *mr__mapping_actual(const mr_mapping *mapping, mr_job_column column)
{
    return mapping->column[column][0] != '\0' ? mapping->column[column] : columns[column].name;
}
