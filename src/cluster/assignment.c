/* Who runs what: spreads consumers over the workers that can run them. Pure and deterministic. */
#include "cluster/assignment.h"

#include <stdlib.h>
#include <string.h>

void mr__fleet_free(mr_fleet *fleet)
{
    for (size_t i = 0; i < fleet->member_count; i++) {
        for (size_t k = 0; k < fleet->members[i].count; k++)
            free(fleet->members[i].consumers[k]);
        free(fleet->members[i].consumers);
        free(fleet->members[i].id);
    }
    for (size_t i = 0; i < fleet->duty_count; i++) {
        free(fleet->duties[i].name);
        free(fleet->duties[i].owner);
    }
    free(fleet->members);
    free(fleet->duties);
    *fleet = (mr_fleet){0};
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int compare_member(const void *a, const void *b)
{
    return strcmp(((const mr_member *)a)->id, ((const mr_member *)b)->id);
}

static int compare_duty(const void *a, const void *b)
{
    return strcmp(((const mr_duty *)a)->name, ((const mr_duty *)b)->name);
}

bool mr__member_can(const mr_member *member, const char *consumer)
{
    return member->count > 0 && bsearch(&consumer, member->consumers, member->count,
                                        sizeof(*member->consumers), compare_text) != NULL;
}

bool mr__duty_moves(const mr_fleet *fleet, const mr_duty *duty)
{
    if (duty->wanted < 0)
        return duty->owner != NULL;
    return duty->owner == NULL || strcmp(duty->owner, fleet->members[duty->wanted].id) != 0;
}

/* The `nth` of the members that can run it, counted round and round; -1 when none can. */
static int nth_able(const mr_fleet *fleet, const char *name, size_t nth)
{
    size_t able = 0;
    for (size_t i = 0; i < fleet->member_count; i++)
        able += mr__member_can(&fleet->members[i], name);
    if (able == 0)
        return -1;
    size_t skip = nth % able;
    for (size_t i = 0; i < fleet->member_count; i++)
        if (mr__member_can(&fleet->members[i], name) && skip-- == 0)
            return (int)i;
    return -1;
}

/* Names that nobody can run take no turn, so that a removed consumer does not skew the rest. */
static void round_robin(mr_fleet *fleet)
{
    size_t turn = 0;
    for (size_t i = 0; i < fleet->duty_count; i++) {
        mr_duty *duty = &fleet->duties[i];
        duty->wanted = nth_able(fleet, duty->name, turn);
        if (duty->wanted >= 0)
            turn++;
    }
}

static int member_index(const mr_fleet *fleet, const char *id)
{
    for (size_t i = 0; id != NULL && i < fleet->member_count; i++)
        if (strcmp(fleet->members[i].id, id) == 0)
            return (int)i;
    return -1;
}

/* The least loaded member that can run it; the lowest id among equals. */
static int lightest(const mr_fleet *fleet, const size_t *load, const char *name)
{
    int best = -1;
    for (size_t i = 0; i < fleet->member_count; i++)
        if (mr__member_can(&fleet->members[i], name) && (best < 0 || load[i] < load[best]))
            best = (int)i;
    return best;
}

/* One move from a fuller to an emptier member, when that brings their loads closer; false when none
 * does. */
static bool level_once(mr_fleet *fleet, size_t *load)
{
    mr_duty *best = NULL;
    int best_to = -1;
    size_t best_gap = 1;
    for (size_t i = 0; i < fleet->duty_count; i++) {
        mr_duty *duty = &fleet->duties[i];
        if (duty->wanted < 0)
            continue;
        int to = lightest(fleet, load, duty->name);
        size_t gap = load[duty->wanted] > load[to] ? load[duty->wanted] - load[to] : 0;
        if (gap > best_gap) {
            best = duty;
            best_to = to;
            best_gap = gap;
        }
    }
    if (best == NULL)
        return false;
    load[best->wanted]--;
    load[best_to]++;
    best->wanted = best_to;
    return true;
}

static mr_error *sticky(mr_fleet *fleet)
{
    size_t *load = calloc(fleet->member_count + 1, sizeof(*load));
    if (load == NULL)
        return mr__error_nomem();
    for (size_t i = 0; i < fleet->duty_count; i++) {
        mr_duty *duty = &fleet->duties[i];
        duty->wanted = member_index(fleet, duty->owner);
        if (duty->wanted >= 0 && !mr__member_can(&fleet->members[duty->wanted], duty->name))
            duty->wanted = -1;
        if (duty->wanted >= 0)
            load[duty->wanted]++;
    }
    for (size_t i = 0; i < fleet->duty_count; i++) {
        mr_duty *duty = &fleet->duties[i];
        if (duty->wanted >= 0)
            continue;
        duty->wanted = lightest(fleet, load, duty->name);
        if (duty->wanted >= 0)
            load[duty->wanted]++;
    }
    while (level_once(fleet, load)) {
    }
    free(load);
    return NULL;
}

mr_error *mr__assign(mr_fleet *fleet, mr_assignment_strategy strategy)
{
    if (fleet->member_count > 0)
        qsort(fleet->members, fleet->member_count, sizeof(*fleet->members), compare_member);
    if (fleet->duty_count > 0)
        qsort(fleet->duties, fleet->duty_count, sizeof(*fleet->duties), compare_duty);
    for (size_t i = 0; i < fleet->member_count; i++)
        if (fleet->members[i].count > 0)
            qsort(fleet->members[i].consumers, fleet->members[i].count,
                  sizeof(*fleet->members[i].consumers), compare_text);
    if (strategy == MR_ASSIGN_STICKY)
        return sticky(fleet);
    round_robin(fleet);
    return NULL;
}
