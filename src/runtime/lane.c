/* A queue's life in a worker: made from its spec, checked against the server, started, stopped. */
#include "runtime/lane.h"

#include "base/hash.h"
#include "cluster/template.h"
#include "runtime/conf_queue.h"
#include "runtime/worker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Microseconds between two looks below the low-water mark; the built-in table's are cheaper. */
enum { LOOK_BELOW = 1000000, LOOK_BELOW_BUILTIN = 100000 };

/* ---- Making -------------------------------------------------------------------------------- */

static void fill(mr_lane *lane)
{
    const mr_bag *bag = &lane->spec->bag;
    lane->name = mr__bag_text(bag, MR_OPT_Q_NAME);
    lane->num_handlers = mr__bag_number(bag, MR_OPT_Q_NUM_HANDLERS);
    lane->look_ahead = mr__bag_number(bag, MR_OPT_Q_LOOK_AHEAD);
    lane->interval = mr__bag_number(bag, MR_OPT_Q_INTERVAL);
    lane->heartbeat = mr__bag_number(bag, MR_OPT_Q_HEARTBEAT);
    lane->max_runtime = mr__bag_number(bag, MR_OPT_Q_MAX_RUNTIME);
    lane->max_total = mr__bag_number(bag, MR_OPT_Q_MAX_TOTAL);
    lane->max_active = mr__bag_number(bag, MR_OPT_Q_MAX_ACTIVE);
    lane->reset_interval = mr__bag_number(bag, MR_OPT_Q_RESET_INTERVAL);
    lane->hooks = (mr_job_hooks){
        .before = lane->spec->before, .after = lane->spec->after, .user = lane->spec->handle_user};
    lane->builtin = mr__queue_builtin(lane->spec);
    lane->transaction = lane->builtin && mr__bag_number(bag, MR_OPT_Q_MODE) == 1;
    lane->batch_size = mr__bag_number(bag, MR_OPT_Q_BATCH_SIZE);
    MR_AUTO_BUF identity = {0};
    mr__buf_printf(&identity, "resetter of %s in %s", lane->name, lane->worker->fleet.channel);
    (void)snprintf(lane->reset_lock, sizeof(lane->reset_lock), "%" PRId64,
                   (int64_t)mr__hash_fnv1a64(mr__buf_text(&identity), identity.length));
}

/* Unique for a registration, so that it can stand for the fence where there is no generation. Its
 * end is the worker's id, by which reset_jobs() knows whether the worker lives. */
static mr_error *identify(mr_lane *lane)
{
    char host[256] = "", text[300];
    (void)gethostname(host, sizeof(host) - 1);
    (void)snprintf(text, sizeof(text), "%.200s:%s", host, lane->worker->id);
    if (lane->identity != NULL && strcmp(lane->identity, text) == 0)
        return NULL;
    char **grown = realloc(lane->former, (lane->former_count + 1) * sizeof(*grown));
    char *fresh = strdup(text);
    if (grown != NULL)
        lane->former = grown;
    if (grown == NULL || fresh == NULL) {
        free(fresh);
        return mr__error_nomem();
    }
    if (lane->identity != NULL)
        lane->former[lane->former_count++] = lane->identity;
    lane->identity = fresh;
    return NULL;
}

mr_error *mr__lane_new(mr_worker *w, const mr_queue *spec, mr_lane **out)
{
    mr_lane *lane = calloc(1, sizeof(*lane));
    if (lane == NULL)
        return mr__error_nomem();
    lane->worker = w;
    lane->spec = spec;
    lane->write_most = MR_LANE_WRITE_MOST;
    (void)pthread_mutex_init(&lane->lock, NULL);
    fill(lane);
    mr_error *error = identify(lane);
    if (error != NULL) {
        mr__lane_free(lane);
        return error;
    }
    *out = lane;
    return NULL;
}

void mr__lane_free(mr_lane *lane)
{
    if (lane == NULL)
        return;
    while (lane->all != NULL)
        mr__lane_forget(lane, lane->all);
    mr__lane_claims_free(lane);
    mr__queue_call_free(&lane->claim);
    mr__mark_free(&lane->mark);
    mr__job_handler_free(lane->handler);
    mr__queue_close(lane->store);
    mr_error_free(lane->last_error);
    free((void *)lane->writing);
    free(lane->outcomes);
    free(lane->beats);
    free((void *)lane->beating);
    for (size_t i = 0; i < lane->former_count; i++)
        free(lane->former[i]);
    free((void *)lane->former);
    free(lane->identity);
    free(lane->buckets);
    mr__lane_keys_free(lane);
    mr__reset_care_clear(&lane->care);
    (void)pthread_mutex_destroy(&lane->lock);
    free(lane);
}

/* ---- Checks -------------------------------------------------------------------------------- */

static mr_error *make_handler(mr_lane *lane)
{
    const mr_queue *q = lane->spec;
    const mr_bag *bag = &q->bag;
    mr_logger *logger = &lane->worker->logger;
    if (q->on_job != NULL)
        return mr__job_handler_callback(q->on_job, q->user, &lane->handler);
    const char *sql = mr__bag_text(bag, MR_OPT_Q_SQL);
    if (sql[0] != '\0')
        return mr__job_handler_sql(sql, lane->store, &lane->handler);
    const char *exec = mr__bag_text(bag, MR_OPT_Q_EXEC);
    if (exec[0] != '\0')
        return mr__job_handler_exec(lane->name, exec, logger, &lane->handler);
    return mr__job_handler_plugin(lane->name, mr__bag_text(bag, MR_OPT_Q_PLUGIN),
                                  mr__bag_text(bag, MR_OPT_Q_PLUGIN_CONFIG), &lane->handler);
}

/* What a claim would be refused for, said at the start. */
static mr_error *check_rights(mr_lane *lane, PGconn *conn)
{
    const mr_queue_shape *shape = mr__queue_shape(lane->store);
    MR_AUTO_BUF table = {0};
    MR_AUTO_BUF view = {0};
    mr__qname_quote(&table, &shape->table);
    mr__qname_quote(&view, &shape->view);
    const char *values[] = {mr__buf_text(&table), mr__buf_text(&view)};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows,
                        "SELECT has_table_privilege($1, 'SELECT') AND has_table_privilege($1,"
                        " 'UPDATE') AND has_table_privilege($2, 'SELECT')",
                        2, values));
    int limit = shape->limit[MR_JOB_WORKER_HOSTNAME];
    if (!shape->has[MR_JOB_GENERATION] && limit > 0 && limit < (int)strlen(lane->identity))
        return mr__error(MR_E_CONFIG,
                         "%s holds %d characters, too few to tell workers apart, which is what the "
                         "fence rests on without a lease_generation: make it text, or add that "
                         "column (bigint NOT NULL DEFAULT 0)",
                         mr__mapping_actual(shape->mapping, MR_JOB_WORKER_HOSTNAME), limit);
    if (PQgetvalue(rows, 0, 0)[0] == 't')
        return NULL;
    return mr__error(MR_E_CONFIG,
                     "the role %s cannot work on it; run: GRANT SELECT, UPDATE ON %s TO %s; GRANT "
                     "SELECT ON %s TO %s",
                     PQuser(conn), values[0], PQuser(conn), values[1], PQuser(conn));
}

/* One line of advice a line of the log. */
static void tell_advice(mr_lane *lane, const char *notes)
{
    while (notes != NULL && *notes != '\0') {
        int length = (int)strcspn(notes, "\n");
        mr__log(&lane->worker->logger, MR_INFO, "advice for a queue",
                "queue=%s" MR_SEP "advice=%.*s", lane->name, length, notes);
        notes += length + (notes[length] == '\n' ? 1 : 0);
    }
}

static mr_error *prepare(mr_lane *lane, PGconn *conn)
{
    mr_queue_policy policy = mr__queue_policy_of(lane->spec);
    mr_mapping mapping = {0};
    MR_TRY(mr__queue_mapping_of(lane->spec, &lane->worker->names, &mapping));
    mr_error *error = mr__queue_open(conn, &mapping, &policy, &lane->worker->names, &lane->store);
    mr__mapping_free(&mapping);
    MR_TRY(error);
    MR_TRY(mr__error_prefix(check_rights(lane, conn), "queue %s", lane->name));
    error = make_handler(lane);
    if (error == NULL && lane->handler->check != NULL)
        error = lane->handler->check(lane->handler, conn);
    MR_TRY(mr__error_prefix(error, "queue %s", lane->name));
    mr__queue_mark_init(lane->store, lane->builtin ? LOOK_BELOW_BUILTIN : LOOK_BELOW, &lane->mark);
    tell_advice(lane, mr__queue_shape(lane->store)->notes);
    return NULL;
}

mr_error *mr__lane_prepare(mr_lane *lane, PGconn *conn)
{
    mr__mark_free(&lane->mark);
    mr__job_handler_free(lane->handler);
    lane->handler = NULL;
    mr__queue_close(lane->store);
    lane->store = NULL;
    return prepare(lane, conn);
}

/* ---- All of them --------------------------------------------------------------------------- */

mr_error *mr__lanes_enrol(mr_worker *w, PGconn *conn)
{
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT ");
    mr__names_function(&w->names, "configure_queue", &sql);
    mr__buf_puts(&sql, "($1::text, $2::boolean, $3::integer)");
    MR_AUTO_BUF days = {0};
    mr__buf_puts(&days, "SELECT ");
    mr__names_function(&w->names, "archive_days", &days);
    mr__buf_printf(&days, "(%" PRId64 " * interval '1 microsecond')",
                   mr__bag_number(&w->conf->bag, MR_OPT_RETENTION));
    bool any = false;
    for (size_t i = 0; i < w->lane_count; i++) {
        mr_lane *lane = w->lanes[i];
        if (!lane->builtin)
            continue;
        int64_t limit = mr__bag_number(&lane->spec->bag, MR_OPT_Q_MAX_RUNNING);
        char most[24];
        (void)snprintf(most, sizeof(most), "%" PRId64, limit);
        const char *values[] = {lane->name, mr__queue_ordered(lane->spec) ? "true" : "false",
                                limit < 0 ? NULL : most};
        MR_TRY(mr__error_prefix(mr__pg_query(conn, NULL, mr__buf_text(&sql), 3, values), "queue %s",
                                lane->name));
        any = true;
    }
    return any ? mr__pg_query(conn, NULL, mr__buf_text(&days), 0, NULL) : NULL;
}

void mr__lanes_registered(mr_worker *w)
{
    for (size_t i = 0; i < w->lane_count; i++) {
        mr_lane *lane = w->lanes[i];
        if (!lane->builtin)
            continue; /* who lives there is told by heartbeats, and they name who claimed */
        /* Without memory it goes on under the old name, and its jobs are reset: nothing is lost. */
        mr_error_free(identify(lane));
        mr__lane_look(lane);
    }
    mr__ring_look(w);
}

void mr__lanes_start(mr_worker *w)
{
    mr__ring_start(w);
    mr__house_start(w);
    for (size_t i = 0; i < w->lane_count; i++) {
        mr_lane *lane = w->lanes[i];
        lane->began = mr__clock_now(w->clock);
        mr__lane_care_start(lane);
        mr__lane_progress_start(lane);
        mr__lane_look_in(lane, 0);
    }
}

static void on_isolated(void *user, PGresult **results, mr_error *error)
{
    (void)results;
    mr_worker *w = user;
    if (error != NULL && mr_error_code(error) != MR_E_CANCELLED)
        mr__log(&w->logger, MR_WARN, "SET failed", "error=%s", mr_error_message(error));
    mr_error_free(error);
}

/* A statement that first takes a lock and then looks must see what was committed before it had the
 * lock, whatever the database's default. Before anything else on the connection; where sessions do
 * not last, the start has checked the default. */
static void isolate(mr_worker *w)
{
    mr_flight_statement set = {.sql = "SET default_transaction_isolation TO 'read committed'"};
    if (w->lane_count > 0 && mr__bag_number(&w->conf->bag, MR_OPT_LEADER_STRATEGY) != 1)
        mr__aconn_send(mr__worker_jobs_conn(w), &set, 1, on_isolated, w);
}

void mr__lanes_state(mr_worker *w, bool up)
{
    if (up)
        isolate(w);
    for (size_t i = 0; i < w->lane_count; i++) {
        mr_lane *lane = w->lanes[i];
        if (!up) {
            lane->resetter = false; /* the lock went with the session */
            continue;
        }
        mr__lane_write(lane);
        mr__lane_promote(lane);
        mr__lane_look(lane);
    }
}

/* A flood of them costs a look each MR_WAKE_EVERY, not one each. */
void mr__lanes_wake(mr_worker *w, const char *name)
{
    for (size_t i = 0; i < w->lane_count; i++) {
        mr_lane *lane = w->lanes[i];
        if (strcmp(lane->name, name) != 0)
            continue;
        int64_t now = mr__clock_now(w->clock);
        lane->woken = now + MR_LANE_AGAIN;
        if (lane->claiming) {
            lane->called = true; /* what it finds may be from before */
        } else if (now - lane->claim_sent < MR_WAKE_EVERY) {
            lane->called = true;
            mr__lane_look_in(lane, MR_WAKE_EVERY);
        } else {
            mr__lane_look(lane);
        }
    }
}

void mr__lanes_done(mr_worker *w)
{
    for (size_t i = 0; i < w->lane_count; i++)
        mr__lane_collect(w->lanes[i]);
}

void mr__lanes_stop(mr_worker *w)
{
    for (size_t i = 0; i < w->lane_count; i++) {
        (void)uv_timer_stop(&w->lanes[i]->look);
        mr__lane_release(w->lanes[i]);
        mr__lane_write(w->lanes[i]);
    }
}

void mr__lanes_cancel(mr_worker *w)
{
    for (size_t i = 0; i < w->lane_count; i++)
        for (mr_lane_job *job = w->lanes[i]->all; job != NULL; job = job->next) {
            int none = MR_STOP_NONE;
            (void)atomic_compare_exchange_strong(&job->job.stop, &none, MR_STOP_WORKER);
        }
}

bool mr__lanes_quiet(const mr_worker *w)
{
    for (size_t i = 0; i < w->lane_count; i++) {
        const mr_lane *lane = w->lanes[i];
        /* Without a connection nothing can be written: the resetter of another worker does it. */
        bool can_write = mr__aconn_up(mr__worker_jobs_conn(w));
        bool patient = w->overdue < 2; /* nor can it when it was tried long enough */
        bool promoting = lane->keys.fresh_count > 0 || lane->keys.asked_count > 0;
        if (can_write && patient && (lane->claimed > 0 || lane->claiming || promoting))
            return false;
    }
    return true;
}

bool mr__lane_resting(const mr_lane *lane)
{
    const mr_lane_keys *keys = &lane->keys;
    return lane->claimed == 0 && !lane->claiming && !lane->asking && lane->handlers == 0 &&
           keys->fresh_count + keys->owed_count + keys->asked_count == 0;
}

bool mr__lanes_drained(const mr_worker *w)
{
    for (size_t i = 0; i < w->lane_count; i++) {
        const mr_lane *lane = w->lanes[i];
        if (!mr__lane_resting(lane) || !(lane->empty || mr__lane_over(lane)))
            return false;
    }
    return true;
}

bool mr__lanes_spent(const mr_worker *w)
{
    for (size_t i = 0; i < w->lane_count; i++) {
        const mr_lane *lane = w->lanes[i];
        if (!mr__lane_over(lane) || lane->claimed > 0 || lane->claiming || lane->asking)
            return false;
    }
    return true;
}

json_t *mr__lanes_info(const mr_worker *w)
{
    json_t *queues = json_object();
    for (size_t i = 0; i < w->lane_count; i++) {
        const mr_lane *lane = w->lanes[i];
        bool bad = lane->sick >= MR_LANE_SICK || lane->troubles >= MR_LANE_SICK;
        json_t *one = json_pack("{s:I, s:I, s:b}", "claimed", (json_int_t)lane->claimed, "active",
                                (json_int_t)lane->active, "sick", bad);
        if (bad && lane->last_error != NULL)
            (void)json_object_set_new(one, "error",
                                      json_string(mr_error_message(lane->last_error)));
        (void)json_object_set_new(queues, lane->name, one);
    }
    return queues;
}

char *mr__lanes_names(const mr_worker *w)
{
    char **names = calloc(w->lane_count + 1, sizeof(*names));
    if (names == NULL)
        return NULL;
    for (size_t i = 0; i < w->lane_count; i++)
        names[i] = (char *)(uintptr_t)w->lanes[i]->name;
    char *array = mr__filter_array(names, w->lane_count);
    free((void *)names);
    return array;
}

void mr__lanes_close(mr_worker *w)
{
    for (size_t i = 0; i < w->lane_count; i++) {
        uv_close((uv_handle_t *)&w->lanes[i]->look, NULL);
        uv_close((uv_handle_t *)&w->lanes[i]->beat, NULL);
        uv_close((uv_handle_t *)&w->lanes[i]->reset, NULL);
        uv_close((uv_handle_t *)&w->lanes[i]->later, NULL);
        uv_close((uv_handle_t *)&w->lanes[i]->promote, NULL);
        uv_close((uv_handle_t *)&w->lanes[i]->progress, NULL);
    }
}
