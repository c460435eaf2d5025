/* Jobs of the built-in table that stand behind each other: once one is over, and that is committed,
 * the next of its key comes into line.
 *
 * Not in the outcome's own statement: a producer that saw the job open puts its own behind it, and
 * only what is committed can be seen by whoever comes after. A worker that dies in between leaves
 * the key to the sweep of keep_house(). */
#include "queue/builtin.h"
#include "runtime/lane.h"
#include "runtime/worker.h"

#include <stdlib.h>
#include <string.h>

enum {
    ASK_MOST = 100,   /* keys of one call: each takes a lock on the server for a moment */
    OWED_WAIT = 5000, /* microseconds; doubles up to … */
    OWED_MOST = 250000,
    TROUBLE_WAIT = 500000,
};

static bool add(char ***list, size_t *count, char *key)
{
    char **grown = realloc(*list, (*count + 1) * sizeof(*grown));
    if (grown == NULL) {
        free(key); /* the sweep finds it */
        return false;
    }
    *list = grown;
    grown[(*count)++] = key;
    return true;
}

void mr__lane_key(mr_lane *lane, const char *key)
{
    char *copy = strdup(key);
    if (copy != NULL)
        (void)add(&lane->keys.fresh, &lane->keys.fresh_count, copy);
}

void mr__lane_key_of(mr_lane *lane, const mr_job *job, const char *became)
{
    if (!lane->builtin || strcmp(became, "errored") == 0 ||
        job->outcome.kind == MR_OUTCOME_SNOOZE || job->outcome.kind == MR_OUTCOME_RELEASE)
        return;
    const char *ordered = mr_job_value(job, MR_BUILTIN_ORDERED);
    const char *key = mr_job_value(job, MR_BUILTIN_KEY);
    if (key != NULL && ordered != NULL && ordered[0] == 't')
        mr__lane_key(lane, key);
}

static void on_promote_timer(uv_timer_t *timer)
{
    mr_lane *lane = timer->data;
    mr_lane_keys *keys = &lane->keys;
    for (size_t i = 0; i < keys->owed_count; i++)
        (void)add(&keys->fresh, &keys->fresh_count, keys->owed[i]);
    keys->owed_count = 0;
    mr__lane_promote(lane);
}

static void again_in(mr_lane *lane, int64_t micros)
{
    if (uv_is_active((uv_handle_t *)&lane->promote) == 0)
        (void)uv_timer_start(&lane->promote, on_promote_timer, (uint64_t)(micros / 1000), 0);
}

/* All that were asked about are owed. */
static void owe_asked(mr_lane_keys *keys)
{
    for (size_t i = 0; i < keys->asked_count; i++)
        (void)add(&keys->owed, &keys->owed_count, keys->asked[i]);
    keys->asked_count = 0;
}

static void on_promoted(void *user, PGresult **results, mr_error *error)
{
    mr_lane *lane = user;
    mr_worker *w = lane->worker;
    mr_lane_keys *keys = &lane->keys;
    if (error != NULL) {
        if (mr_error_code(error) != MR_E_CANCELLED)
            mr__log(&w->logger, MR_WARN, "keys could not be promoted", "queue=%s" MR_SEP "error=%s",
                    lane->name, mr_error_message(error));
        mr_error_free(error);
        owe_asked(keys);
        if (w->life == MR_LIFE_RUNNING)
            again_in(lane, TROUBLE_WAIT);
        else
            mr__worker_settle_stop(w);
        return;
    }
    int owed = PQntuples(results[0]);
    size_t asked = keys->asked_count;
    for (int i = 0; i < owed; i++) {
        char *copy = strdup(PQgetvalue(results[0], i, 0));
        if (copy != NULL)
            (void)add(&keys->owed, &keys->owed_count, copy);
    }
    for (size_t i = 0; i < asked; i++)
        free(keys->asked[i]);
    keys->asked_count = 0;
    keys->wait = owed == 0 ? OWED_WAIT : keys->wait * 2 < OWED_MOST ? keys->wait * 2 : OWED_MOST;
    if (w->life != MR_LIFE_RUNNING) {
        mr__lane_promote(lane);
        mr__worker_settle_stop(w);
        return;
    }
    if (keys->owed_count > 0)
        again_in(lane, keys->wait);
    mr__lane_promote(lane);
    if ((size_t)owed < asked)
        mr__lane_look(lane); /* something came into line */
    mr__dispatch_settle(w);
}

void mr__lane_promote(mr_lane *lane)
{
    mr_lane_keys *keys = &lane->keys;
    if (keys->fresh_count == 0 || keys->asked_count > 0 ||
        !mr__aconn_up(mr__worker_jobs_conn(lane->worker)))
        return;
    MR_AUTO_BUF array = {0};
    size_t count = keys->fresh_count < ASK_MOST ? keys->fresh_count : ASK_MOST;
    for (size_t i = 0; i < count; i++)
        mr__array_add(&array, i == 0, keys->fresh[i]);
    mr__buf_putc(&array, '}');
    if (array.failed) {
        again_in(lane, TROUBLE_WAIT);
        return;
    }
    for (size_t i = 0; i < count; i++)
        (void)add(&keys->asked, &keys->asked_count, keys->fresh[i]);
    keys->fresh_count -= count;
    memmove((void *)keys->fresh, (void *)(keys->fresh + count),
            keys->fresh_count * sizeof(*keys->fresh));
    mr_flight_statement statement = {.sql = mr__queue_text(lane->store, MR_QUEUE_PROMOTE),
                                     .count = 1,
                                     .values = {mr__buf_text(&array)}};
    mr__aconn_send(mr__worker_jobs_conn(lane->worker), &statement, 1, on_promoted, lane);
}

static void free_list(char **list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(list[i]);
    free((void *)list);
}

void mr__lane_keys_free(mr_lane *lane)
{
    mr_lane_keys *keys = &lane->keys;
    free_list(keys->fresh, keys->fresh_count);
    free_list(keys->owed, keys->owed_count);
    free_list(keys->asked, keys->asked_count);
    *keys = (mr_lane_keys){0};
}
