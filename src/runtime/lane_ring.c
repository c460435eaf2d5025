/* Which keys of a queue are this worker's: who shares the queue, and where the ring puts each
 * bucket. Affinity only; whoever is wrong for a moment does no harm. */
#include "cluster/ring.h"
#include "cluster/template.h"
#include "runtime/lane.h"
#include "runtime/worker.h"

#include "base/text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { RING_INTERVAL = 5000 }; /* milliseconds; a new member is seen within that time */

static bool wanted(const mr_lane *lane)
{
    return lane->builtin && mr__bag_number(&lane->spec->bag, MR_OPT_Q_AFFINITY) == 0;
}

/* Takes the text of an int[], or NULL. Executors read it in mode: transaction. */
static void set_buckets(mr_lane *lane, char *buckets)
{
    (void)pthread_mutex_lock(&lane->lock);
    char *old = lane->buckets;
    lane->buckets = buckets;
    (void)pthread_mutex_unlock(&lane->lock);
    free(old);
}

static char *own_buckets(const mr_lane *lane, const mr_ring *ring)
{
    int *own = calloc((size_t)mr__ring_buckets(ring) + 1, sizeof(*own));
    if (own == NULL)
        return NULL;
    size_t count = mr__ring_buckets_of(ring, lane->worker->id, own);
    MR_AUTO_BUF text = {0};
    for (size_t i = 0; i < count; i++)
        mr__array_add_number(&text, i == 0, own[i]);
    mr__buf_puts(&text, count == 0 ? "{}" : "}");
    free(own);
    return mr__buf_take(&text);
}

/* Alone, everything is its own; so it is while the ring cannot be made. */
static void place(mr_lane *lane, const json_t *members, int buckets)
{
    size_t count = json_array_size(members);
    const char **ids = calloc(count + 1, sizeof(*ids));
    mr_ring *ring = NULL;
    char *own = NULL;
    if (ids != NULL && count > 1) {
        for (size_t i = 0; i < count; i++)
            ids[i] = json_string_value(json_array_get(members, i));
        mr_ring_options options = mr__ring_defaults();
        options.buckets = buckets;
        mr_error *error = mr__ring_build(&options, ids, count, &ring);
        if (error == NULL)
            own = own_buckets(lane, ring);
        mr_error_free(error);
    }
    set_buckets(lane, own);
    mr__ring_free(ring);
    free((void *)ids);
}

static bool is_among(const json_t *members, const char *id)
{
    size_t i;
    const json_t *member;
    json_array_foreach((json_t *)(uintptr_t)members, i,
                       member) if (strcmp(json_string_value(member), id) == 0) return true;
    return false;
}

/* Who is gone may have finished jobs without promoting the next of their keys. Takes the members as
 * they are now. */
static void look_who_left(mr_worker *w, json_t *queues)
{
    bool left = false;
    const char *queue;
    json_t *members;
    json_object_foreach(w->ring_members, queue, members) for (size_t i = 0;
                                                              i < json_array_size(members) && !left;
                                                              i++) left =
        !is_among(json_object_get(queues, queue), json_string_value(json_array_get(members, i)));
    json_decref(w->ring_members);
    w->ring_members = queues;
    if (left)
        mr__house_soon(w);
}

static void on_members(void *user, PGresult **results, mr_error *error)
{
    mr_worker *w = user;
    if (error != NULL) {
        if (mr_error_code(error) != MR_E_CANCELLED)
            mr__log(&w->logger, MR_WARN, "the ring's members could not be read", "error=%s",
                    mr_error_message(error));
        mr_error_free(error);
        return;
    }
    json_t *queues = json_loads(PQgetvalue(results[0], 0, 0), 0, NULL);
    int64_t buckets = 0;
    if (!mr__text_int(PQgetvalue(results[0], 0, 1), &buckets) || buckets < 1)
        buckets = MR_RING_BUCKETS;
    for (size_t i = 0; i < w->lane_count; i++)
        if (wanted(w->lanes[i]))
            place(w->lanes[i], json_object_get(queues, w->lanes[i]->name), (int)buckets);
    look_who_left(w, queues);
}

/* {queue: [worker, …]} of those that are alive and do not drain. */
static mr_error *render(mr_worker *w)
{
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(
        &sql, "SELECT coalesce((SELECT jsonb_object_agg(q.queue, q.members) FROM (SELECT u.queue,"
              " jsonb_agg(n.worker_id) AS members FROM ");
    mr__qname_quote(&sql, &w->names.table[MR_TABLE_WORKER_NODES]);
    mr__buf_puts(&sql, " AS n, unnest(n.queues) AS u(queue) WHERE n.state = 'alive'"
                       " AND n.heartbeat_at > pg_catalog.clock_timestamp() - ");
    mr__buf_printf(&sql, "%" PRId64 " * interval '1 microsecond'",
                   mr__bag_number(&w->conf->bag, MR_OPT_HEARTBEAT_TIMEOUT));
    mr__buf_puts(&sql, " AND n.worker_id::text NOT IN (SELECT ");
    mr__names_function(&w->names, "absent_workers", &sql);
    mr__buf_puts(&sql, "()) GROUP BY u.queue) AS q), '{}'), (SELECT s.buckets FROM ");
    mr__qname_quote(&sql, &w->names.table[MR_TABLE_JOB_SETTINGS]);
    mr__buf_puts(&sql, " AS s)");
    free(w->ring_sql);
    w->ring_sql = mr__buf_take(&sql);
    return w->ring_sql == NULL ? mr__error_nomem() : NULL;
}

void mr__ring_look(mr_worker *w)
{
    if (w->ring_sql == NULL || w->life != MR_LIFE_RUNNING || !mr__aconn_up(mr__worker_jobs_conn(w)))
        return;
    mr_flight_statement statement = {.sql = w->ring_sql};
    mr__aconn_send(mr__worker_jobs_conn(w), &statement, 1, on_members, w);
}

static void on_ring_timer(uv_timer_t *timer)
{
    mr__ring_look(timer->data);
}

void mr__ring_start(mr_worker *w)
{
    bool any = false;
    for (size_t i = 0; i < w->lane_count; i++)
        any = any || wanted(w->lanes[i]);
    if (!any)
        return;
    mr_error *error = render(w);
    if (error != NULL)
        mr_error_free(error); /* without memory there is no ring: everything is everybody's */
    else
        (void)uv_timer_start(&w->ring, on_ring_timer, RING_INTERVAL, RING_INTERVAL);
}
