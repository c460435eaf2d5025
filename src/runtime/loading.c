/* Checkpoints and controls: read when a consumer is gained, when somebody changed them, and
 * whenever it is not certain what the database has. Loop thread only. */
#include "runtime/worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { TROUBLE_FIRST = 100000, TROUBLE_MOST = 5000000 };

/* The columns of load_sql. */
enum { NAME, POSITION, EPOCH, PAUSED, PAUSED_BY, REASON, SKIPS, REPLAY, BLOCKED };

/* ---- One consumer's row -------------------------------------------------------------------- */

static mr_error *read_skips(mr_place *p, const char *text)
{
    free(p->skips);
    p->skips = NULL;
    p->skip_count = 0;
    json_t *list = json_loads(text, 0, NULL);
    size_t count = json_array_size(list);
    if (count > 0)
        p->skips = calloc(count, sizeof(*p->skips));
    bool good = count == 0 || p->skips != NULL;
    for (size_t i = 0; good && i < count; i++)
        p->skips[p->skip_count++] =
            json_integer_value(json_object_get(json_array_get(list, i), "position"));
    json_decref(list);
    return good ? NULL : mr__error_nomem();
}

static mr_error *read_blocked(mr_place *p, const char *text)
{
    mr__streams_clear(&p->blocked);
    json_t *list = json_loads(text, 0, NULL);
    mr_error *error = NULL;
    for (size_t i = 0; error == NULL && i < json_array_size(list); i++) {
        const json_t *pair = json_array_get(list, i);
        const char *type = json_string_value(json_array_get(pair, 0));
        const char *id = json_string_value(json_array_get(pair, 1));
        error = mr__streams_add(&p->blocked, type == NULL ? "" : type, id == NULL ? "" : id);
    }
    json_decref(list);
    return error;
}

/* Streams that wait behind a letter which a detached consumer has not written down yet. */
static mr_error *add_unsaved_blocked(mr_place *p)
{
    for (size_t i = 0; p->by_key && p->save != NULL && i < p->save->aside_count; i++) {
        const mr_aside *aside = &p->save->asides[i];
        if (aside->kind != MR_ASIDE_SKIP)
            MR_TRY(mr__streams_add(&p->blocked, aside->event->aggregate_type,
                                   aside->event->aggregate_id));
    }
    return NULL;
}

/* Where it stands. What a detached consumer has done beyond its checkpoint stays known, unless
 * somebody else moved that. */
static void take_position(mr_place *p, int64_t position)
{
    bool ahead = p->detached && p->save != NULL && p->reached > position && position == p->saved;
    p->saved = position;
    if (ahead)
        return;
    mr__batch_free(p->save);
    p->save = NULL;
    p->unsaved = 0;
    p->reached = position;
}

static void forget_trouble(mr_place *p)
{
    p->trial = (mr_trial){0};
    mr_error_free(p->sentence.error);
    p->sentence = (mr_sentence){0};
}

static void loaded_paused(mr_place *p, const PGresult *rows, int row)
{
    mr_worker *w = p->worker;
    if (p->save != NULL && p->reached > p->saved) {
        p->reload = true; /* what a detached one did is written down first */
        mr__dispatch_save(p);
        return;
    }
    mr__place_set_state(p, MR_PLACE_PAUSED, "it is paused");
    const char *by = PQgetvalue(rows, row, PAUSED_BY), *why = PQgetvalue(rows, row, REASON);
    mr__log(&w->logger, MR_INFO, "consumer is paused",
            "consumer=%s" MR_SEP "by=%s" MR_SEP "reason=%s", p->name, by, why);
    mr__control_tell(w);
    if (mr__bag_number(&w->conf->bag, MR_OPT_ONCE) != 0 && w->fatal == NULL)
        mr__worker_fail(w, mr__error(MR_E_STATE,
                                     "consumer '%s' is paused by %s (%s); millrace consumers "
                                     "resume %s lets it go on",
                                     p->name, by, why, mr__place_base(p)));
}

/* Only for who waits for it: the answer may be older than a batch that has committed since. */
static mr_error *place_loaded(mr_place *p, const PGresult *rows, int row)
{
    if (p->state != MR_PLACE_LOADING && p->state != MR_PLACE_AWAY)
        return NULL;
    mr__place_drop_draft(p);
    int64_t position = strtoll(PQgetvalue(rows, row, POSITION), NULL, 10);
    int64_t epoch = strtoll(PQgetvalue(rows, row, EPOCH), NULL, 10);
    if (epoch != p->epoch || position != p->saved)
        forget_trouble(p);
    take_position(p, position);
    MR_TRY(read_skips(p, PQgetvalue(rows, row, SKIPS)));
    MR_TRY(read_blocked(p, PQgetvalue(rows, row, BLOCKED)));
    MR_TRY(add_unsaved_blocked(p));
    p->epoch = epoch;
    p->replay = PQgetvalue(rows, row, REPLAY)[0] == 't';
    p->reload = false;
    p->missing = false;
    if (p->state != MR_PLACE_LOADING)
        return NULL;
    if (PQgetvalue(rows, row, PAUSED)[0] == 't') {
        loaded_paused(p, rows, row);
        return NULL;
    }
    mr__place_set_state(p, MR_PLACE_IDLE, "checkpoint read");
    mr__reader_raise(p->worker->reader, p->reached);
    return NULL;
}

/* Its row was not among the answers. That answer may be to a question from before the consumer
 * came, so the row counts as gone only when a second look does not find it either. */
static void place_missing(mr_place *p)
{
    if (p->state != MR_PLACE_LOADING && p->state != MR_PLACE_IDLE)
        return;
    if (p->missing) {
        mr__place_pause(p,
                        mr__error(MR_E_STATE,
                                  "its row in consumer_checkpoints is gone; a restart makes "
                                  "a new one at start_from"),
                        0);
        return;
    }
    p->missing = true;
    p->reload = true;
    mr__place_drop_draft(p);
    mr__place_rest(p, TROUBLE_FIRST, "no checkpoint found");
}

/* ---- All of them --------------------------------------------------------------------------- */

static int row_of(const PGresult *rows, const char *name)
{
    for (int row = 0; row < PQntuples(rows); row++)
        if (strcmp(PQgetvalue(rows, row, NAME), name) == 0)
            return row;
    return -1;
}

static void take_rows(mr_worker *w, const PGresult *rows)
{
    for (size_t i = 0; i < w->place_count; i++) {
        mr_place *p = w->places[i];
        int row = row_of(rows, p->name);
        mr_error *error = NULL;
        if (row < 0)
            place_missing(p);
        else
            error = place_loaded(p, rows, row);
        if (error != NULL) {
            mr_error_free(error);
            p->reload = true;
            mr__place_trouble(p, TROUBLE_MOST, "no memory");
        }
    }
}

static void loading_failed(mr_worker *w, mr_error *error, bool follow)
{
    mr__log(&w->logger, MR_WARN, "reading checkpoints failed", "error=%s", mr_error_message(error));
    mr_error_free(error);
    for (size_t i = 0; i < w->place_count && !follow; i++) {
        mr_place *p = w->places[i];
        if (p->state != MR_PLACE_LOADING)
            continue;
        p->reload = true;
        mr__place_trouble(p, TROUBLE_MOST, "reload failed");
    }
    if (follow)
        mr__aconn_restart(mr__reader_conn(w->reader), "checkpoints could not be read");
}

static void on_rows(mr_worker *w, PGresult **results, mr_error *error, bool follow)
{
    if (w->life != MR_LIFE_RUNNING) {
        mr_error_free(error);
        return;
    }
    if (error != NULL) {
        loading_failed(w, error, follow);
        return;
    }
    take_rows(w, results[0]);
    if (!follow) {
        mr__dispatch_progress(w);
        return;
    }
    int64_t tail = 0;
    for (size_t i = 0; i < w->place_count; i++)
        if (w->places[i]->reached > tail && w->places[i]->owned)
            tail = w->places[i]->reached;
    mr__reader_follow(w->reader, tail);
}

static void on_all(void *user, PGresult **results, mr_error *error)
{
    on_rows(user, results, error, true);
}

static void on_some(void *user, PGresult **results, mr_error *error)
{
    on_rows(user, results, error, false);
}

static void load(mr_worker *w, mr_aconn *conn, bool follow)
{
    char *names = mr__worker_names(w, MR_WHICH_ALL);
    char *by_key = mr__worker_names(w, MR_WHICH_BY_KEY);
    mr_flight_statement read = {.sql = w->load_sql, .count = 2, .values = {names, by_key}};
    if (names == NULL || by_key == NULL)
        mr__worker_fail(w, mr__error_nomem());
    else
        mr__aconn_send(conn, &read, 1, follow ? on_all : on_some, w);
    free(names);
    free(by_key);
}

void mr__loading_some(mr_worker *w)
{
    load(w, w->control, false);
}

void mr__loading_all(mr_worker *w)
{
    for (size_t i = 0; i < w->place_count; i++) {
        mr_place *p = w->places[i];
        mr__place_drop_draft(p);
        if (p->state == MR_PLACE_IDLE)
            mr__place_set_state(p, MR_PLACE_LOADING, "reconnected");
    }
    load(w, mr__reader_conn(w->reader), true);
}

void mr__loading_epochs(mr_worker *w, const json_t *epochs)
{
    bool any = false;
    for (size_t i = 0; i < w->place_count; i++) {
        mr_place *p = w->places[i];
        int64_t epoch = json_integer_value(json_object_get(epochs, p->name));
        if (!p->owned || p->state == MR_PLACE_AWAY || p->state == MR_PLACE_LOADING ||
            epoch == p->epoch)
            continue;
        p->reload = true; /* a batch under way finds out by itself, at its fence */
        if (p->state == MR_PLACE_RUNNING) {
            atomic_store(&p->recalled, true);
            continue;
        }
        (void)uv_timer_stop(&p->timer);
        mr__place_set_state(p, MR_PLACE_LOADING, "controls changed");
        any = true;
    }
    if (any)
        mr__loading_some(w);
}
