/* Which events a consumer wants: by aggregate type and by event type. Pure. */
#include "log/filter.h"

#include "base/error.h"
#include "base/list.h"

#include <stdlib.h>
#include <string.h>

static mr_error *read_list(const char *list, char ***items, size_t *count)
{
    MR_AUTO_BUF item = {0};
    while (mr__list_next(&list, &item, NULL)) {
        if (item.length == 0)
            continue;
        char **grown = realloc(*items, (*count + 1) * sizeof(*grown));
        char *copy = strdup(mr__buf_text(&item));
        if (grown != NULL)
            *items = grown;
        if (grown == NULL || copy == NULL) {
            free(copy);
            return mr__error_nomem();
        }
        grown[(*count)++] = copy;
    }
    return NULL;
}

mr_error *mr__filter_init(mr_filter *filter, const char *aggregate_types, const char *event_types)
{
    *filter = (mr_filter){0};
    MR_TRY(read_list(aggregate_types, &filter->aggregate_types, &filter->aggregate_type_count));
    return read_list(event_types, &filter->event_types, &filter->event_type_count);
}

static void free_list(char **items, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(items[i]);
    free(items);
}

void mr__filter_free(mr_filter *filter)
{
    free_list(filter->aggregate_types, filter->aggregate_type_count);
    free_list(filter->event_types, filter->event_type_count);
    *filter = (mr_filter){0};
}

static bool listed(char *const *items, size_t count, const char *word)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(items[i], word) == 0)
            return true;
    return count == 0;
}

bool mr__filter_matches(const mr_filter *filter, const mr_event *event)
{
    return listed(filter->aggregate_types, filter->aggregate_type_count, event->aggregate_type) &&
           listed(filter->event_types, filter->event_type_count, event->event_type);
}

char *mr__filter_array(char *const *items, size_t count)
{
    MR_AUTO_BUF array = {0};
    mr__buf_putc(&array, '{');
    for (size_t i = 0; i < count; i++) {
        mr__buf_puts(&array, i == 0 ? "\"" : ",\"");
        for (const char *p = items[i]; *p != '\0'; p++) {
            if (*p == '"' || *p == '\\')
                mr__buf_putc(&array, '\\');
            mr__buf_putc(&array, *p);
        }
        mr__buf_putc(&array, '"');
    }
    mr__buf_putc(&array, '}');
    return mr__buf_take(&array);
}
