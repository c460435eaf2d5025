/* Consumers that are new to the database: their set-up step, their checkpoints, and what forbids a
 * start: checkpoints of another number of partitions. */
#include "handler/sqltext.h"
#include "log/start.h"
#include "runtime/worker.h"

#include "base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Set-up -------------------------------------------------------------------------------- */

static bool has_setup(const mr_place *place)
{
    return place->spec->on_setup != NULL ||
           mr__bag_text(&place->spec->bag, MR_OPT_C_SETUP)[0] != '\0';
}

/* A lock that goes with the transaction, so that of several workers that start together one does
 * what is done once and the others find it done. */
static mr_error *lock_consumer(mr_worker *w, PGconn *conn, const char *name)
{
    MR_AUTO_BUF identity = {0};
    mr__buf_printf(&identity, "set-up of %s in %s", name, w->fleet.channel);
    char key[24];
    (void)snprintf(key, sizeof(key), "%" PRId64,
                   (int64_t)mr__hash_fnv1a64(mr__buf_text(&identity), identity.length));
    const char *values[] = {key};
    return mr__pg_query(conn, NULL, "SELECT pg_catalog.pg_advisory_xact_lock($1::int8)", 1, values);
}

static mr_error *setup_done(mr_worker *w, PGconn *conn, const char *name, bool *done)
{
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT 1 FROM ");
    mr__qname_quote(&sql, &w->names.table[MR_TABLE_CONTROLS]);
    mr__buf_puts(&sql, " WHERE consumer_name = $1 AND setup_at IS NOT NULL");
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, mr__buf_text(&sql), 1, &name));
    *done = PQntuples(rows) > 0;
    return NULL;
}

static mr_error *not_its_affair(void)
{
    return mr__error(MR_E_CONFIG,
                     "setup: it must not end its transaction; leave BEGIN, COMMIT and ROLLBACK "
                     "to the worker");
}

static mr_error *run_setup(mr_worker *w, PGconn *conn, const mr_place *place)
{
    const char *script = mr__bag_text(&place->spec->bag, MR_OPT_C_SETUP);
    /* Looked at before it runs: what it has committed nobody takes back. */
    if (mr__sqltext_control(script) != NULL)
        return not_its_affair();
    if (script[0] != '\0')
        MR_TRY(mr__error_prefix(mr__pg_script(conn, script), "setup"));
    if (place->spec->on_setup != NULL)
        MR_TRY(mr__error_prefix(place->spec->on_setup(conn, place->spec->on_setup_user), "setup"));
    if (PQtransactionStatus(conn) != PQTRANS_INTRANS)
        return not_its_affair();
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "INSERT INTO ");
    mr__qname_quote(&sql, &w->names.table[MR_TABLE_CONTROLS]);
    mr__buf_puts(&sql, " AS k (consumer_name, setup_at) VALUES ($1, pg_catalog.clock_timestamp())"
                       " ON CONFLICT (consumer_name) DO UPDATE SET setup_at = excluded.setup_at");
    const char *name = mr__place_base(place);
    return mr__pg_query(conn, NULL, mr__buf_text(&sql), 1, &name);
}

/* `*done`: another worker has run it meanwhile. */
static mr_error *setup_locked(mr_worker *w, PGconn *conn, const mr_place *place, bool *done)
{
    const char *name = mr__place_base(place);
    MR_TRY(lock_consumer(w, conn, name));
    MR_TRY(setup_done(w, conn, name, done));
    return *done ? NULL : run_setup(w, conn, place);
}

mr_error *mr__enrol_setup(mr_worker *w, PGconn *conn, const mr_place *place, bool trial)
{
    bool done = false;
    if (!has_setup(place))
        return NULL;
    MR_TRY(setup_done(w, conn, mr__place_base(place), &done));
    if (done && !trial)
        return NULL;
    MR_TRY(mr__pg_query(conn, NULL, "BEGIN", 0, NULL));
    mr_error *error = setup_locked(w, conn, place, &done);
    if (error == NULL && trial)
        return NULL; /* rolled back once the handler has been checked against it */
    if (error == NULL)
        error = mr__pg_query(conn, NULL, "COMMIT", 0, NULL);
    if (error == NULL && !done)
        mr__log(&w->logger, MR_INFO, "consumer set up", "consumer=%s", mr__place_base(place));
    if (error != NULL && PQtransactionStatus(conn) != PQTRANS_IDLE)
        mr_error_free(mr__pg_query(conn, NULL, "ROLLBACK", 0, NULL)); /* the cause is known */
    return error;
}

mr_error *mr__enrol_setup_end(const mr_place *place, PGconn *conn, bool trial)
{
    if (!trial || !has_setup(place) || PQtransactionStatus(conn) == PQTRANS_IDLE)
        return NULL;
    return mr__pg_query(conn, NULL, "ROLLBACK", 0, NULL);
}

/* ---- Partitions ---------------------------------------------------------------------------- */

/* The consumer's checkpoints that another number of partitions left. */
static mr_error *check_partitions(mr_worker *w, PGconn *conn, const mr_place *place)
{
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT count(*), min(last_position), max(last_position),"
                       " max(coalesce(substring(consumer_name from '[0-9]+$'), '1')"
                       "::int4) FILTER (WHERE consumer_name <> $1), min(consumer_name) FROM ");
    mr__qname_quote(&sql, &w->names.table[MR_TABLE_CHECKPOINTS]);
    mr__buf_puts(&sql, " WHERE (consumer_name = $1 AND $2::int4 > 1)"
                       " OR (starts_with(consumer_name, $1 || '#')"
                       " AND substr(consumer_name, length($1) + 1) ~ '^#[0-9]+/[0-9]+$'"
                       " AND ($2::int4 = 1 OR NOT consumer_name LIKE '%/' || $2))");
    char slots[16];
    (void)snprintf(slots, sizeof(slots), "%d", place->slots);
    const char *values[] = {mr__place_base(place), slots};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, mr__buf_text(&sql), 2, values));
    if (strcmp(PQgetvalue(rows, 0, 0), "0") == 0)
        return NULL;
    const char *before = PQgetisnull(rows, 0, 3) ? "1" : PQgetvalue(rows, 0, 3);
    return mr__error(
        MR_E_CONFIG,
        "consumer '%s' has checkpoints for partitions: %s (at positions %s to %s), and the "
        "configuration says %d; streams would change their slots and lose their order. Keep "
        "partitions: %s, or let all slots reach the same position and go on under a new name with "
        "start_from: that position",
        mr__place_base(place), before, PQgetvalue(rows, 0, 1), PQgetvalue(rows, 0, 2), place->slots,
        before);
}

/* ---- Checkpoints --------------------------------------------------------------------------- */

static mr_error *make_checkpoint(mr_worker *w, PGconn *conn, const mr_place *place,
                                 int64_t position)
{
    char text[24];
    (void)snprintf(text, sizeof(text), "%" PRId64, position);
    MR_AUTO_BUF insert = {0};
    mr__buf_puts(&insert, "INSERT INTO ");
    mr__qname_quote(&insert, &w->names.table[MR_TABLE_CHECKPOINTS]);
    mr__buf_puts(&insert, " (consumer_name, last_position) VALUES ($1, $2::int8)"
                          " ON CONFLICT (consumer_name) DO NOTHING");
    const char *values[] = {place->name, text};
    MR_TRY(mr__pg_query(conn, NULL, mr__buf_text(&insert), 2, values));
    mr__log(&w->logger, MR_INFO, "consumer is new",
            "consumer=%s" MR_SEP "start_from=%s" MR_SEP "position=%" PRId64, place->name,
            mr__bag_text(&place->spec->bag, MR_OPT_C_START_FROM), position);
    return NULL;
}

static mr_error *has_checkpoint(mr_worker *w, PGconn *conn, const mr_place *place, bool *yes)
{
    MR_AUTO_BUF find = {0};
    mr__buf_puts(&find, "SELECT 1 FROM ");
    mr__qname_quote(&find, &w->names.table[MR_TABLE_CHECKPOINTS]);
    mr__buf_puts(&find, " WHERE consumer_name = $1");
    const char *values[] = {place->name};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, mr__buf_text(&find), 1, values));
    *yes = PQntuples(rows) > 0;
    return NULL;
}

/* A consumer that stopped after failures gets another chance from a worker that starts: with a
 * mended handler, perhaps. What a person paused stays paused. */
static mr_error *clear_failures(mr_worker *w, PGconn *conn, const mr_place *place)
{
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "WITH gone AS (UPDATE ");
    mr__qname_quote(&sql, &w->names.table[MR_TABLE_CONTROLS]);
    mr__buf_puts(&sql, " SET paused = false, pause_kind = NULL, paused_by = NULL, paused_at = NULL,"
                       " pause_reason = NULL, epoch = epoch + 1,"
                       " updated_at = pg_catalog.clock_timestamp()"
                       " WHERE consumer_name = $1 AND paused AND pause_kind = 'failure'"
                       " RETURNING last_error, last_error_position) INSERT INTO ");
    mr__qname_quote(&sql, &w->names.table[MR_TABLE_AUDIT]);
    mr__buf_puts(&sql, " (consumer_name, action, actor, reason, detail)"
                       " SELECT $1, 'resume', 'worker ' || $2::text, 'a worker starts',"
                       " jsonb_build_object('kind', 'failure', 'last_error', g.last_error,"
                       " 'position', g.last_error_position) FROM gone AS g RETURNING 1");
    const char *values[] = {place->name, w->id};
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, mr__buf_text(&sql), 2, values));
    if (PQntuples(rows) > 0)
        mr__log(&w->logger, MR_INFO, "consumer resumed",
                "consumer=%s" MR_SEP "why=it was paused after failures and a worker starts",
                place->name);
    return NULL;
}

static mr_error *start_of(mr_worker *w, PGconn *conn, const mr_place *place, int64_t *position)
{
    return mr__error_prefix(mr__log_start(conn, &w->shape,
                                          mr__bag_text(&place->spec->bag, MR_OPT_C_START_FROM),
                                          MR_E_CONFIG, position),
                            "consumer '%s': start_from", mr__place_base(place));
}

/* Under the lock: two workers that start together must not each see no checkpoints, and make some
 * for different numbers of partitions, or at different places of `now`. */
static mr_error *enrol_locked(mr_worker *w, PGconn *conn, mr_place **slots)
{
    int count = slots[0]->slots;
    MR_TRY(lock_consumer(w, conn, mr__place_base(slots[0])));
    MR_TRY(check_partitions(w, conn, slots[0]));
    int64_t position = -1;
    for (int i = 0; i < count; i++) {
        bool found = false;
        MR_TRY(has_checkpoint(w, conn, slots[i], &found));
        if (found) {
            MR_TRY(clear_failures(w, conn, slots[i]));
            continue;
        }
        /* One start for all slots: `now` must not be a different one for each. */
        if (position < 0)
            MR_TRY(start_of(w, conn, slots[i], &position));
        MR_TRY(make_checkpoint(w, conn, slots[i], position));
    }
    return NULL;
}

static mr_error *enrol(mr_worker *w, PGconn *conn, mr_place **slots)
{
    MR_TRY(mr__pg_query(conn, NULL, "BEGIN ISOLATION LEVEL READ COMMITTED", 0, NULL));
    mr_error *error = enrol_locked(w, conn, slots);
    if (error == NULL)
        return mr__pg_query(conn, NULL, "COMMIT", 0, NULL);
    mr_error_free(mr__pg_query(conn, NULL, "ROLLBACK", 0, NULL)); /* the cause is known */
    return error;
}

mr_error *mr__enrol_check(mr_worker *w, PGconn *conn)
{
    for (size_t i = 0; i < w->place_count; i += (size_t)w->places[i]->slots) {
        int64_t position = 0;
        MR_TRY(check_partitions(w, conn, w->places[i]));
        MR_TRY(start_of(w, conn, w->places[i], &position));
    }
    return NULL;
}

mr_error *mr__enrol_places(mr_worker *w, PGconn *conn, mr_place **places, size_t count)
{
    for (size_t i = 0; i < count; i += (size_t)places[i]->slots)
        MR_TRY(enrol(w, conn, &places[i]));
    return NULL;
}
