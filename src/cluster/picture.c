/* The leader's picture of the fleet, from the JSON that control_tick() returns. */
#include "cluster/picture.h"

#include "base/buf.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void mr__absent_free(mr_absent *absent)
{
    for (size_t i = 0; i < absent->count; i++)
        free(absent->ids[i]);
    free(absent->ids);
    *absent = (mr_absent){0};
}

static bool was_absent(const mr_absent *absent, const char *id)
{
    for (size_t i = 0; i < absent->count; i++)
        if (strcmp(absent->ids[i], id) == 0)
            return true;
    return false;
}

static mr_error *note_absent(mr_absent *absent, const char *id)
{
    char **grown = realloc(absent->ids, (absent->count + 1) * sizeof(*grown));
    if (grown == NULL)
        return mr__error_nomem();
    absent->ids = grown;
    grown[absent->count] = strdup(id);
    if (grown[absent->count] == NULL)
        return mr__error_nomem();
    absent->count++;
    return NULL;
}

static mr_error *add_member(mr_fleet *fleet, const char *id, const json_t *consumers)
{
    mr_member *grown = realloc(fleet->members, (fleet->member_count + 1) * sizeof(*grown));
    if (grown == NULL)
        return mr__error_nomem();
    fleet->members = grown;
    mr_member *member = &grown[fleet->member_count++];
    size_t n = json_array_size(consumers);
    *member = (mr_member){.id = strdup(id), .consumers = calloc(n + 1, sizeof(char *))};
    if (member->id == NULL || member->consumers == NULL)
        return mr__error_nomem();
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(consumers, i));
        member->consumers[i] = strdup(name == NULL ? "" : name);
        if (member->consumers[i] == NULL)
            return mr__error_nomem();
        member->count++;
    }
    return NULL;
}

static mr_error *add_duty(mr_fleet *fleet, const char *name, const char *owner)
{
    mr_duty *grown = realloc(fleet->duties, (fleet->duty_count + 1) * sizeof(*grown));
    if (grown == NULL)
        return mr__error_nomem();
    fleet->duties = grown;
    mr_duty *duty = &grown[fleet->duty_count++];
    *duty = (mr_duty){.name = strdup(name), .owner = owner == NULL ? NULL : strdup(owner)};
    if (duty->name == NULL || (owner != NULL && duty->owner == NULL))
        return mr__error_nomem();
    return NULL;
}

/* One worker of the picture: a member, absent, or stale. */
static mr_error *take_worker(const json_t *worker, const mr_absent *before, mr_absent *after,
                             mr_fleet *fleet, mr_buf *stale)
{
    const char *id = json_string_value(json_object_get(worker, "id"));
    if (id == NULL)
        return mr__error(MR_E_INTERNAL, "a worker in the fleet's picture has no id");
    if (json_is_true(json_object_get(worker, "stale"))) {
        mr__buf_printf(stale, "%s\"%s\"", stale->length == 0 ? "{" : ",", id);
        return NULL;
    }
    bool absent = json_is_true(json_object_get(worker, "absent"));
    if (absent)
        MR_TRY(note_absent(after, id));
    if (json_is_true(json_object_get(worker, "draining")) || (absent && was_absent(before, id)))
        return NULL;
    return add_member(fleet, id, json_object_get(worker, "consumers"));
}

static mr_error *take_picture(const json_t *picture, const mr_absent *before, mr_absent *after,
                              mr_fleet *fleet, mr_buf *stale)
{
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(picture, "workers"), i, item)
    {
        MR_TRY(take_worker(item, before, after, fleet, stale));
    }
    json_array_foreach(json_object_get(picture, "assignments"), i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name == NULL)
            return mr__error(MR_E_INTERNAL, "an assignment in the fleet's picture has no name");
        MR_TRY(add_duty(fleet, name, json_string_value(json_object_get(item, "owner"))));
    }
    return NULL;
}

mr_error *mr__picture_read(const char *json, mr_absent *absent, mr_fleet *fleet, char **stale)
{
    json_error_t problem;
    json_t *picture = json_loads(json, 0, &problem);
    if (picture == NULL)
        return mr__error(MR_E_INTERNAL, "the fleet's picture is not JSON: %s", problem.text);
    mr_absent after = {0};
    MR_AUTO_BUF dead = {0};
    *fleet = (mr_fleet){0};
    *stale = NULL;
    mr_error *error = take_picture(picture, absent, &after, fleet, &dead);
    json_decref(picture);
    if (error == NULL && dead.length > 0) {
        mr__buf_putc(&dead, '}');
        *stale = mr__buf_take(&dead);
        if (*stale == NULL)
            error = mr__error_nomem();
    }
    if (error != NULL) {
        mr__absent_free(&after);
        mr__fleet_free(fleet);
        return error;
    }
    mr__absent_free(absent);
    *absent = after;
    return NULL;
}
