/* Which jobs an operator means: ids, states, a text, times. Pure. */
#include "queue/operate.h"

#include "base/list.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { STATES = 6, MOST_ROWS = 1000000 };
static const char *const state_names[STATES] = {"queued",    "errored", "processing",
                                                "completed", "failed",  "canceled"};

const char *mr__job_state_name(unsigned bit)
{
    for (int i = 0; i < STATES; i++)
        if (bit == 1U << i)
            return state_names[i];
    return "";
}

mr_job_filter *mr_job_filter_new(void)
{
    return calloc(1, sizeof(mr_job_filter));
}

void mr_job_filter_free(mr_job_filter *filter)
{
    if (filter == NULL)
        return;
    for (size_t i = 0; i < filter->id_count; i++)
        free(filter->ids[i]);
    free(filter->ids);
    free(filter->error);
    free(filter->before);
    free(filter->after);
    free(filter->key);
    free(filter);
}

static mr_error *add_states(mr_job_filter *filter, const char *value)
{
    MR_AUTO_BUF word = {0};
    unsigned states = 0;
    while (mr__list_next(&value, &word, NULL)) {
        const char *name = mr__buf_text(&word);
        unsigned found = 0;
        for (int i = 0; i < STATES; i++)
            found |= strcmp(state_names[i], name) == 0 ? 1U << i : 0;
        if (found == 0)
            return mr__error(MR_E_USAGE,
                             "state: '%.80s' is not one of queued, errored, processing, completed, "
                             "failed, canceled",
                             name);
        states |= found;
    }
    filter->states |= states;
    return NULL;
}

static mr_error *add_id(mr_job_filter *filter, const char *value)
{
    char **grown = realloc(filter->ids, (filter->id_count + 1) * sizeof(*grown));
    if (grown == NULL)
        return mr__error_nomem();
    filter->ids = grown;
    char *copy = strdup(value);
    if (copy == NULL)
        return mr__error_nomem();
    filter->ids[filter->id_count++] = copy;
    return NULL;
}

static mr_error *set_limit(mr_job_filter *filter, const char *value)
{
    int64_t limit = 0;
    if (!mr__text_int(value, &limit) || limit < 1 || limit > MOST_ROWS)
        return mr__error(MR_E_USAGE, "limit: '%.80s' is not a whole number from 1 to %d", value,
                         MOST_ROWS);
    filter->limit = limit;
    return NULL;
}

static mr_error *set_text(char **slot, const char *value)
{
    char *copy = strdup(value);
    if (copy == NULL)
        return mr__error_nomem();
    free(*slot);
    *slot = copy;
    return NULL;
}

mr_error *mr_job_filter_add(mr_job_filter *filter, const char *field, const char *value)
{
    static const char *const names[] = {"id",    "state", "error", "before",
                                        "after", "limit", "key",   "archived"};
    enum { ID, STATE, ERROR, BEFORE, AFTER, LIMIT, KEY, ARCHIVED, FIELDS };
    int which = 0;
    while (which < FIELDS && strcmp(names[which], field) != 0)
        which++;
    if (which == FIELDS) {
        int near = mr__text_nearest(field, names, FIELDS);
        return mr__error(MR_E_USAGE, "jobs have no field '%.80s'%s%s%s", field,
                         near < 0 ? "" : "; did you mean ", near < 0 ? "" : names[near],
                         near < 0 ? "" : "?");
    }
    /* An empty value would restrict nothing, or nothing would match: either is a slip. */
    if (value == NULL || value[0] == '\0')
        return mr__error(MR_E_USAGE, "%s: the value is empty", field);
    if (!mr__text_utf8(value, strlen(value)))
        return mr__error(MR_E_USAGE, "%s: the value is not valid UTF-8", field);
    switch (which) {
    case ID:
        return add_id(filter, value);
    case STATE:
        return add_states(filter, value);
    case LIMIT:
        return set_limit(filter, value);
    case ARCHIVED:
        filter->open = strcmp(value, "false") == 0;
        if (filter->open || strcmp(value, "true") == 0)
            return NULL;
        return mr__error(MR_E_USAGE, "archived: '%.80s' is neither true nor false", value);
    default:
        return set_text(which == ERROR    ? &filter->error
                        : which == KEY    ? &filter->key
                        : which == BEFORE ? &filter->before
                                          : &filter->after,
                        value);
    }
}

bool mr__job_filter_empty(const mr_job_filter *filter)
{
    return filter == NULL ||
           (filter->id_count == 0 && filter->states == 0 && filter->error == NULL &&
            filter->before == NULL && filter->after == NULL && filter->key == NULL);
}
