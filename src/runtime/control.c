/* The worker's part in the fleet: registers, ticks, learns what it owns, leads when it is its turn.
 *
 * What must stay true: nothing here decides who may write. A batch is fenced by its checkpoint and
 * assignment, a leader's writes by require_leader(), both in the database; what this file believes
 * may be old. */
#include "cluster/picture.h"
#include "cluster/template.h"
#include "runtime/worker.h"

#include "base/hash.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void send_tick(mr_worker *w);
static void send_register(mr_worker *w);

static int64_t now(const mr_worker *w)
{
    return mr__clock_now(w->clock);
}

static bool by_lease(const mr_worker *w)
{
    return mr__bag_number(&w->conf->bag, MR_OPT_LEADER_STRATEGY) == 1;
}

/* ---- Statements ---------------------------------------------------------------------------- */

static mr_error *render(const mr_names *names, const char *function, const char *arguments,
                        const char *form, char **out)
{
    MR_AUTO_BUF sql = {0};
    mr__buf_printf(&sql, "SELECT %s ", form);
    mr__names_function(names, function, &sql);
    mr__buf_puts(&sql, arguments);
    free(*out);
    *out = mr__buf_take(&sql);
    return *out == NULL ? mr__error_nomem() : NULL;
}

mr_error *mr__control_init(mr_worker *w)
{
    mr_control *c = &w->fleet;
    MR_TRY(render(&w->names, "register_worker",
                  "($1::uuid, $2::text, $3::int4, $4::text, $5::text[], $6::int8, $7::interval,"
                  " $8::bool, $9::text[])",
                  "", &c->register_sql));
    MR_TRY(render(&w->names, "control_tick",
                  "($1::uuid, $2::bool, $3::jsonb, $4::int8, $5::bool, $6::bool, $7::interval,"
                  " $8::text[], $9::text[], $10::int8[])",
                  "known, leader, array_to_json(owned)::text, picture::text,"
                  " array_to_json(got)::text, epochs::text FROM",
                  &c->tick_sql));
    MR_TRY(render(&w->names, "note_failure", "($1::text, $2::uuid, $3::text, $4::int8, $5::bool)",
                  "", &c->failure_sql));
    MR_TRY(render(&w->names, "assign_consumers",
                  "($1::uuid, $2::int8, $3::text[], $4::uuid[], $5::text)", "", &c->assign_sql));
    MR_TRY(render(&w->names, "bury_workers", "($1::uuid, $2::int8, $3::uuid[])", "", &c->bury_sql));
    MR_TRY(render(&w->names, "leave_fleet", "($1::uuid, $2::int8, $3::bool, $4::bool)", "",
                  &c->leave_sql));
    uint64_t fleet = 0;
    MR_TRY(mr__names_fleet_key(&w->names, &fleet));
    int64_t key = mr__bag_number(&w->conf->bag, MR_OPT_LEADER_KEY);
    (void)snprintf(c->leader_lock, sizeof(c->leader_lock), "%" PRId64,
                   key >= 0 ? key : (int64_t)fleet);
    MR_TRY(mr__names_channel(&w->names, c->channel));
    MR_AUTO_BUF listen = {0};
    mr__buf_puts(&listen, "LISTEN ");
    mr__ident_quote(&listen, c->channel);
    c->listen_sql = mr__buf_take(&listen);
    return c->listen_sql == NULL ? mr__error_nomem() : NULL;
}

void mr__control_free(mr_worker *w)
{
    mr_control *c = &w->fleet;
    free(c->register_sql);
    free(c->tick_sql);
    free(c->assign_sql);
    free(c->bury_sql);
    free(c->leave_sql);
    free(c->listen_sql);
    free(c->failure_sql);
    mr__absent_free(&c->absent);
}

/* The leader's lock as a parameter: NULL where a lease takes its place. */
static const char *leader_lock(const mr_worker *w)
{
    return by_lease(w) ? NULL : w->fleet.leader_lock;
}

static void put_interval(char out[40], int64_t micros)
{
    (void)snprintf(out, 40, "%" PRId64 " microseconds", micros);
}

/* ---- Timing -------------------------------------------------------------------------------- */

/* Never longer than a heartbeat, which travels with a look. Half as often where a notification
 * tells of every change anyway; with a lease there is none, and what a person asked for must not
 * wait. Where there are no consumers there is nobody to hurry for. */
static int64_t look_interval(const mr_worker *w)
{
    int64_t leader = mr__bag_number(&w->conf->bag, MR_OPT_REBALANCE_INTERVAL);
    int64_t beat = mr__bag_number(&w->conf->bag, MR_OPT_HEARTBEAT_INTERVAL);
    bool consumers = w->place_count > 0 || (w->fleet.leader && !w->fleet.calm);
    bool often = w->fleet.registered < 2 || (consumers && (w->fleet.leader || by_lease(w)));
    int64_t look = often ? leader : leader * 2;
    return look < beat ? look : beat;
}

static void on_tick_timer(uv_timer_t *timer)
{
    mr_worker *w = timer->data;
    if (!mr__aconn_up(w->control) || w->fleet.busy)
        return;
    if (w->fleet.registered < 2 && w->life == MR_LIFE_RUNNING)
        send_register(w);
    else
        send_tick(w);
}

static void tick_in(mr_worker *w, int64_t micros)
{
    if (w->life == MR_LIFE_RUNNING || w->life == MR_LIFE_STOPPING)
        (void)uv_timer_start(&w->heartbeat, on_tick_timer, (uint64_t)(micros / 1000), 0);
}

/* ---- Leading ------------------------------------------------------------------------------- */

static void set_leader(mr_worker *w, bool leader, const char *why)
{
    mr_control *c = &w->fleet;
    if (c->leader == leader)
        return;
    c->leader = leader;
    mr__log(&w->logger, MR_INFO, leader ? "became leader" : "leadership lost",
            "worker=%s" MR_SEP "by=%s" MR_SEP "why=%s", w->id, by_lease(w) ? "lease" : "advisory",
            why);
    mr__absent_free(&c->absent);
}

static void on_led(void *user, PGresult **results, mr_error *error)
{
    mr_worker *w = user;
    w->fleet.busy = false;
    (void)results;
    if (error != NULL) {
        mr__log(&w->logger, MR_WARN, "rebalance refused", "error=%s" MR_SEP "sqlstate=%s",
                mr_error_message(error), mr_error_sqlstate(error));
        if (mr_error_code(error) == MR_E_FENCED)
            set_leader(w, false, mr_error_message(error));
        mr_error_free(error);
        tick_in(w, look_interval(w));
        return;
    }
    tick_in(w, 0); /* own what is ours now at once */
}

static void add_move(mr_buf *names, mr_buf *owners, const mr_fleet *fleet, const mr_duty *duty)
{
    mr__buf_putc(names, names->length == 0 ? '{' : ',');
    char *one[] = {duty->name};
    char *array = mr__filter_array(one, 1);
    if (array == NULL) {
        names->failed = true;
        return;
    }
    mr__buf_add(names, array + 1,
                strlen(array) - 2); /* the item with its quotes, without the braces */
    free(array);
    mr__buf_printf(owners, "%c%s", owners->length == 0 ? '{' : ',',
                   duty->wanted < 0 ? "NULL" : fleet->members[duty->wanted].id);
}

/* Sends the moves, if any; returns how many. */
static size_t send_moves(mr_worker *w, const mr_fleet *fleet)
{
    MR_AUTO_BUF names = {0};
    MR_AUTO_BUF owners = {0};
    size_t moves = 0;
    for (size_t i = 0; i < fleet->duty_count; i++) {
        if (!mr__duty_moves(fleet, &fleet->duties[i]))
            continue;
        add_move(&names, &owners, fleet, &fleet->duties[i]);
        moves++;
    }
    if (moves == 0)
        return 0;
    mr__buf_putc(&names, '}');
    mr__buf_putc(&owners, '}');
    if (names.failed || owners.failed)
        return 0;
    mr__log(&w->logger, MR_INFO, "assignments change",
            "moves=%zu" MR_SEP "workers=%zu" MR_SEP "consumers=%zu", moves, fleet->member_count,
            fleet->duty_count);
    mr_flight_statement assign = {.sql = w->fleet.assign_sql,
                                  .count = 5,
                                  .values = {w->id, leader_lock(w), names.data, owners.data,
                                             by_lease(w) ? NULL : w->fleet.channel}};
    w->fleet.busy = true;
    mr__aconn_send(w->control, &assign, 1, on_led, w);
    return moves;
}

static void send_bury(mr_worker *w, const char *ids)
{
    mr__log(&w->logger, MR_WARN, "workers declared dead", "workers=%s", ids);
    mr_flight_statement bury = {
        .sql = w->fleet.bury_sql, .count = 3, .values = {w->id, leader_lock(w), ids}};
    w->fleet.busy = true;
    mr__aconn_send(w->control, &bury, 1, on_led, w);
}

/* The leader's turn: the dead are buried first, then the rest shares the work. */
static void lead(mr_worker *w, const char *picture)
{
    mr_fleet fleet = {0};
    char *stale = NULL;
    mr_error *error = mr__picture_read(picture, &w->fleet.absent, &fleet, &stale);
    w->fleet.calm = error == NULL && fleet.duty_count == 0;
    if (error == NULL)
        error = mr__assign(
            &fleet, (mr_assignment_strategy)mr__bag_number(&w->conf->bag, MR_OPT_ASSIGNMENT));
    if (error != NULL)
        mr__log(&w->logger, MR_ERROR, "rebalance failed", "error=%s", mr_error_message(error));
    else if (stale != NULL)
        send_bury(w, stale);
    else
        (void)send_moves(w, &fleet);
    mr_error_free(error);
    mr__fleet_free(&fleet);
    free(stale);
}

/* ---- Failures ------------------------------------------------------------------------------ */

/* A pause after failures on its way. The consumer may be gone when the answer comes, so it is
 * named. */
typedef struct note {
    mr_worker *worker;
    char consumer[];
} note;

/* The pause is to be told again: until it is written, other workers do not know of it. */
static void keep_pause(const note *n)
{
    for (size_t i = 0; i < n->worker->place_count; i++) {
        mr_place *p = n->worker->places[i];
        if (p->state == MR_PLACE_PAUSED && strcmp(p->name, n->consumer) == 0)
            p->unnoted = true;
    }
}

static void on_noted(void *user, PGresult **results, mr_error *error)
{
    (void)results;
    note *n = user;
    if (error != NULL && mr_error_code(error) != MR_E_CANCELLED) {
        mr__log(&n->worker->logger, MR_WARN, "a failure could not be written down",
                "consumer=%s" MR_SEP "error=%s", n->consumer, mr_error_message(error));
        keep_pause(n);
    }
    mr_error_free(error);
    free(n);
}

static bool send_note(mr_place *p)
{
    mr_worker *w = p->worker;
    note *n = mr__aconn_up(w->control) ? calloc(1, sizeof(*n) + strlen(p->name) + 1) : NULL;
    if (n == NULL)
        return false;
    n->worker = w;
    memcpy(n->consumer, p->name, strlen(p->name) + 1);
    char at[24];
    (void)snprintf(at, sizeof(at), "%" PRId64, p->noted_position);
    mr_flight_statement statement = {.sql = w->fleet.failure_sql,
                                     .count = 5,
                                     .values = {p->name, w->id, mr_error_message(p->last_error),
                                                p->noted_position == 0 ? NULL : at, "true"}};
    mr__aconn_send(w->control, &statement, 1, on_noted, n);
    return true;
}

void mr__control_failure(mr_place *p, int64_t position)
{
    mr__control_tell(p->worker);
    p->noted_position = position;
    p->unnoted = !send_note(p); /* it is told when the fleet can be told */
}

static void note_pauses(mr_worker *w)
{
    for (size_t i = 0; i < w->place_count; i++)
        if (w->places[i]->unnoted && w->places[i]->state == MR_PLACE_PAUSED)
            w->places[i]->unnoted = !send_note(w->places[i]);
}

/* ---- Ticks --------------------------------------------------------------------------------- */

static char *make_info(const mr_worker *w)
{
    static const char *const states[] = {"away", "loading", "idle", "running", "resting", "paused"};
    json_t *consumers = json_object(), *locks = json_array();
    for (size_t i = 0; i < w->place_count; i++) {
        const mr_place *p = w->places[i];
        if (p->by_lock)
            (void)json_array_append_new(locks, json_string(p->name));
        if (p->state == MR_PLACE_AWAY)
            continue;
        json_t *one = json_pack("{s:s, s:I, s:i}", "state", states[p->state], "position",
                                (json_int_t)p->saved, "failures", p->trial.rounds);
        if (p->last_error != NULL && (p->trial.rounds > 0 || p->state == MR_PLACE_PAUSED))
            (void)json_object_set_new(one, "error", json_string(mr_error_message(p->last_error)));
        (void)json_object_set_new(consumers, p->name, one);
    }
    json_t *info =
        json_pack("{s:b, s:I, s:i, s:I, s:I, s:I, s:o, s:o, s:o}", "leader", w->fleet.leader,
                  "connections", (json_int_t)mr_worker_metric(w, "connections"), "running",
                  w->running, "events", (json_int_t)mr_worker_metric(w, "events_handled"), "head",
                  (json_int_t)(w->reader == NULL ? 0 : mr__reader_head(w->reader)), "gap",
                  (json_int_t)(w->reader == NULL ? 0 : mr__reader_gap(w->reader)), "consumers",
                  consumers, "locks", locks, "queues", mr__lanes_info(w));
    char *text = json_dumps(info, JSON_COMPACT);
    json_decref(info);
    return text;
}

/* Another life: the old id is dead, its batches are over, the next registration is under a new one.
 */
static void begin_anew(mr_worker *w)
{
    mr__uuid_v7(w->id);
    (void)snprintf(w->application, sizeof(w->application), "millrace %s", w->id);
    w->fleet.lost = false;
    w->fleet.registered = 0;
    mr__log(&w->logger, MR_INFO, "registering anew", "worker=%s", w->id);
    /* Sessions carry the worker's name: all of them start over. Jobs that run finish on theirs. */
    mr__executors_renew(w->executors, w->application);
    mr__aconn_restart(w->control, "registering under a new id");
}

void mr__control_quiet(mr_worker *w)
{
    if (w->fleet.lost && w->errands == 0 && w->life == MR_LIFE_RUNNING)
        begin_anew(w);
}

static void lose_registration(mr_worker *w)
{
    mr__log(&w->logger, MR_ERROR, "registration lost",
            "worker=%s" MR_SEP
            "why=its row is gone or it was declared dead; its consumers stop and it "
            "registers under a new id",
            w->id);
    w->fleet.lost = true;
    set_leader(w, false, "registration lost");
    mr__dispatch_own(w, NULL, NULL);
    mr__dispatch_unlock(w);
    mr__control_quiet(w);
}

static void take_tick(mr_worker *w, const PGresult *row)
{
    mr_control *c = &w->fleet;
    if (PQgetvalue(row, 0, 0)[0] != 't') {
        if (w->life == MR_LIFE_RUNNING && !c->lost)
            lose_registration(w);
        return;
    }
    if (c->beat_sent) {
        c->beat_at = c->tick_at;
        note_pauses(w); /* whatever was in the way, once a heartbeat is often enough */
    }
    bool leader = PQgetvalue(row, 0, 1)[0] == 't';
    set_leader(w, leader, leader ? "the place was free" : "another holds it");
    if (leader)
        c->led_at = c->tick_at;
    if (w->life != MR_LIFE_RUNNING)
        return;
    json_t *owned = json_loads(PQgetvalue(row, 0, 2), 0, NULL);
    json_t *got = json_loads(PQgetvalue(row, 0, 4), 0, NULL);
    json_t *epochs = json_loads(PQgetvalue(row, 0, 5), 0, NULL);
    mr__dispatch_own(w, owned, got);
    mr__loading_epochs(w, epochs);
    json_decref(owned);
    json_decref(got);
    json_decref(epochs);
    if (leader && !PQgetisnull(row, 0, 3))
        lead(w, PQgetvalue(row, 0, 3));
}

static void on_tick(void *user, PGresult **results, mr_error *error)
{
    mr_worker *w = user;
    w->fleet.busy = false;
    if (error != NULL) {
        if (mr_error_code(error) != MR_E_CANCELLED)
            mr__log(&w->logger, MR_WARN, "heartbeat failed", "error=%s", mr_error_message(error));
        mr_error_free(error);
    } else {
        take_tick(w, results[0]);
    }
    if (!w->fleet.busy)
        tick_in(w, look_interval(w));
}

/* A lease that could not be renewed in time is over, whatever the row says by now. */
static void mind_lease(mr_worker *w)
{
    int64_t length = mr__bag_number(&w->conf->bag, MR_OPT_HEARTBEAT_TIMEOUT);
    if (w->fleet.leader && by_lease(w) && now(w) - w->fleet.led_at > length)
        set_leader(w, false, "the lease could not be renewed in time");
}

static void send_tick(mr_worker *w)
{
    mr_control *c = &w->fleet;
    mind_lease(w);
    int64_t beat = mr__bag_number(&w->conf->bag, MR_OPT_HEARTBEAT_INTERVAL);
    c->tick_at = now(w);
    c->beat_sent = c->tell || c->beat_at == 0 || c->tick_at - c->beat_at >= beat;
    c->tell = false;
    char *info = c->beat_sent ? make_info(w) : NULL;
    char timeout[40];
    put_interval(timeout, mr__bag_number(&w->conf->bag, MR_OPT_HEARTBEAT_TIMEOUT));
    MR_AUTO_BUF wanted = {0};
    MR_AUTO_BUF keys = {0};
    mr__locks_wanted(w, &wanted, &keys);
    char *mine = mr__worker_names(w, MR_WHICH_LOCKED);
    mr_flight_statement tick = {.sql = c->tick_sql,
                                .count = 10,
                                .values = {w->id, c->beat_sent ? "true" : "false", info,
                                           leader_lock(w), c->leader ? "true" : "false",
                                           w->life == MR_LIFE_RUNNING ? "true" : "false", timeout,
                                           mine == NULL ? "{}" : mine, mr__buf_text(&wanted),
                                           mr__buf_text(&keys)}};
    c->busy = true;
    mr__aconn_send(w->control, &tick, 1, on_tick, w);
    free(info);
    free(mine);
}

void mr__control_tell(mr_worker *w)
{
    w->fleet.tell = true;
}

void mr__control_look(mr_worker *w)
{
    if (w->life == MR_LIFE_RUNNING)
        tick_in(w, 0);
}

void mr__control_roster(mr_worker *w)
{
    w->fleet.grown = true;
    w->fleet.registered = w->fleet.registered > 1 ? 1 : w->fleet.registered;
    mr__control_look(w);
}

/* ---- Registration -------------------------------------------------------------------------- */

static void on_registered(void *user, PGresult **results, mr_error *error)
{
    mr_worker *w = user;
    w->fleet.busy = false;
    if (error != NULL) {
        if (mr_error_code(error) != MR_E_CANCELLED)
            mr__log(&w->logger, MR_WARN, "registration failed", "error=%s",
                    mr_error_message(error));
        mr_error_free(error);
        tick_in(w, 1000000);
        return;
    }
    int before = w->fleet.registered;
    w->fleet.registered = (int)strtol(PQgetvalue(results[by_lease(w) ? 0 : 1], 0, 0), NULL, 10);
    if (w->fleet.registered == 0) {
        if (!w->fleet.lost)
            lose_registration(w);
        return;
    }
    if (before == 0)
        mr__log(&w->logger, MR_INFO, "registered", "worker=%s", w->id);
    note_pauses(w);
    mr__lanes_registered(w);
    if (w->fleet.grown && w->life == MR_LIFE_RUNNING) {
        w->fleet.registered = 1; /* as it was sent it left somebody out */
        tick_in(w, 0);
        return;
    }
    send_tick(w);
}

static void send_register(mr_worker *w)
{
    char host[256] = "", pid[16], lock[32], stale[40];
    (void)gethostname(host, sizeof(host) - 1);
    (void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
    (void)snprintf(lock, sizeof(lock), "%" PRId64, (int64_t)mr__hash_fnv1a64(w->id, strlen(w->id)));
    put_interval(stale, 2 * mr__bag_number(&w->conf->bag, MR_OPT_HEARTBEAT_TIMEOUT));
    char *consumers = mr__worker_names(w, MR_WHICH_ASSIGNED);
    if (consumers == NULL) {
        tick_in(w, 1000000);
        return;
    }
    mr_flight_statement listen = {.sql = w->fleet.listen_sql};
    char *queues = mr__lanes_names(w);
    mr_flight_statement enrol = {
        .sql = w->fleet.register_sql,
        .count = 9,
        .values = {w->id, host, pid, MR_VERSION, consumers, by_lease(w) ? NULL : lock, stale,
                   w->fleet.registered > 0 ? "true" : "false", queues == NULL ? "{}" : queues}};
    mr_flight_statement flight[2] = {listen, enrol};
    w->fleet.busy = true;
    w->fleet.grown = false;
    /* Without sessions there is nothing to listen on: looks alone must do. */
    mr__aconn_send(w->control, by_lease(w) ? &flight[1] : flight, by_lease(w) ? 1 : 2,
                   on_registered, w);
    free(consumers);
    free(queues);
}

void mr__control_state(mr_worker *w, bool up)
{
    w->fleet.busy = false;
    if (!up) {
        /* A session lock went with the session; a lease runs on until it is over. */
        if (!by_lease(w))
            set_leader(w, false, "the connection was lost");
        if (w->life == MR_LIFE_RUNNING)
            mr__dispatch_unlock(w);
        if (w->fleet.registered > 1)
            w->fleet.registered = 1;
        return;
    }
    if (w->life == MR_LIFE_RUNNING && !w->fleet.lost)
        send_register(w);
    else if (w->life == MR_LIFE_STOPPING)
        tick_in(w, 0); /* a long drain must not look dead */
}

/* ---- Leaving ------------------------------------------------------------------------------- */

bool mr__control_leave(mr_worker *w, bool for_good, mr_flight_fn callback)
{
    if (!mr__aconn_up(w->control))
        return false;
    mr_flight_statement leave = {.sql = w->fleet.leave_sql,
                                 .count = 4,
                                 .values = {w->id, leader_lock(w),
                                            w->fleet.leader ? "true" : "false",
                                            for_good ? "true" : "false"}};
    mr__aconn_send(w->control, &leave, 1, callback, w);
    set_leader(w, false, "stopping");
    return true;
}
