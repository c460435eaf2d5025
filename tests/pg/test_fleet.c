/* The control plane's functions, and consumers that come and go while a worker runs. */
#include "append_fixture.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define A "'00000000-0000-7000-8000-00000000000a'"
#define B "'00000000-0000-7000-8000-00000000000b'"
#define C "'00000000-0000-7000-8000-00000000000c'"
#define REGISTER_AS(id, lock, consumers, again)                                                    \
    "SELECT millrace.register_worker(" id ", 'host', 1, '0', '" consumers "', " lock               \
    ", '10 s', " again ")"
#define REGISTER(id, lock, consumers) REGISTER_AS(id, lock, consumers, "false")
#define TICK(what, id, lock, is_leader, timeout)                                                   \
    "SELECT " what " FROM millrace.control_tick(" id ", true, '{}', " lock ", " is_leader          \
    ", true, '" timeout "')"
#define ASSIGN(id, lock, owner)                                                                    \
    "SELECT millrace.assign_consumers(" id ", " lock ", '{x}', ARRAY[" owner "]::uuid[], NULL)"
#define BURY(id, lock, dead)                                                                       \
    "SELECT millrace.bury_workers(" id ", " lock ", ARRAY[" dead "]::uuid[])"

static fixture fleet;

static int set_up(void **state)
{
    int status = scratch_setup(state);
    begin(state, &fleet);
    return status;
}

static int tear_down(void **state)
{
    end(&fleet);
    return scratch_teardown(state);
}

static PGconn *conn_of(void **state)
{
    return ((scratch *)*state)->conn;
}

/* A session as a worker's: its application_name says whose it is. */
static PGconn *worker_session(void **state, const char *id)
{
    PGconn *conn = scratch_connect(*state);
    char sql[128];
    (void)snprintf(sql, sizeof(sql), "SET application_name = 'millrace %.36s'", id + 1);
    run(conn, sql);
    return conn;
}

static void assert_refused(PGconn *conn, const char *sql, const char *sqlstate)
{
    PGresult *result = PQexec(conn, sql);
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    if (state == NULL || strcmp(state, sqlstate) != 0)
        fail_msg("%s: SQLSTATE %s, not %s", sql, state == NULL ? "none" : state, sqlstate);
    PQclear(result);
}

static bool waits(bool (*condition)(void *), void *user, int seconds)
{
    struct timespec pause = {.tv_nsec = 5000000};
    for (int i = 0; i < seconds * 200; i++) {
        if (condition(user))
            return true;
        (void)nanosleep(&pause, NULL);
    }
    return condition(user);
}

static bool is_gone(void *user)
{
    PGconn *conn = user;
    PGresult *result = PQexec(conn, "SELECT 1");
    bool gone = PQresultStatus(result) != PGRES_TUPLES_OK;
    PQclear(result);
    return gone;
}

static void assert_untouched(PGconn *conn)
{
    assert_string_equal(value(conn, "SELECT string_agg(consumer_name || ':' || generation || ':' ||"
                                    " coalesce(worker_id::text, '-'), ' ') FROM"
                                    " millrace.consumer_assignments"),
                        "x:0:-");
    assert_int_equal(number(conn, "SELECT count(*) FROM millrace.worker_nodes"
                                  " WHERE state <> 'alive'"),
                     0);
}

/* ---- Fences -------------------------------------------------------------------------------- */

static void writes_need_the_session_lock(void **state)
{
    PGconn *conn = conn_of(state);
    PGconn *leader = worker_session(state, A), *other = worker_session(state, B);
    run(leader, REGISTER(A, "101", "{x}"));
    run(other, REGISTER(B, "102", "{x}"));
    assert_refused(other, ASSIGN(B, "7", B), "MR006"); /* nobody leads */
    assert_string_equal(value(leader, TICK("leader", A, "7", "false", "10 s")), "t");
    assert_string_equal(value(other, TICK("leader", B, "7", "false", "10 s")), "f");
    assert_refused(other, ASSIGN(B, "7", B), "MR006");
    assert_refused(other, BURY(B, "7", A), "MR006");
    /* It is the session that counts, not the name: also under the leader's id. */
    assert_refused(other, ASSIGN(A, "7", B), "MR006");
    assert_refused(other, BURY(A, "7", B), "MR006");
    /* Another lock that this session holds is not the leader's. */
    run(other, "SELECT pg_advisory_lock(8), pg_advisory_lock(0, 7), pg_advisory_lock_shared(9)");
    assert_refused(other, ASSIGN(B, "7", B), "MR006");
    assert_untouched(conn);
    assert_int_equal(number(leader, ASSIGN(A, "7", B)), 1);
    assert_int_equal(number(leader, ASSIGN(A, "7", B)), 0); /* nothing new: no new generation */
    assert_int_equal(number(conn, "SELECT generation FROM millrace.consumer_assignments"), 1);
    /* The lock goes with the session. */
    PQfinish(leader);
    leader = worker_session(state, A);
    assert_refused(leader, ASSIGN(A, "7", A), "MR006");
    assert_int_equal(number(conn, "SELECT generation FROM millrace.consumer_assignments"), 1);
    PQfinish(leader);
    PQfinish(other);
}

static void locks_of_any_key(void **state)
{
    PGconn *conn = conn_of(state);
    static const char *const keys[] = {"0",
                                       "-1",
                                       "4294967296",
                                       "4294967295",
                                       "-9223372036854775808",
                                       "9223372036854775807",
                                       "7237492748123847",
                                       "-7237492748123847"};
    run(conn, REGISTER(A, "NULL", "{x}"));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        char sql[512];
        (void)snprintf(sql, sizeof(sql),
                       "SELECT leader AND picture IS NOT NULL AND millrace.assign_consumers(" A
                       ", (%s)::bigint, '{x}', ARRAY[NULL]::uuid[], NULL) = 0"
                       " FROM millrace.control_tick(" A
                       ", true, '{}', (%s)::bigint, false, true, '10 s')",
                       keys[i], keys[i]);
        assert_string_equal(value(conn, sql), "t");
        run(conn, "SELECT pg_advisory_unlock_all()");
    }
}

static void writes_need_a_running_lease(void **state)
{
    PGconn *conn = conn_of(state);
    PGconn *other = scratch_connect(*state);
    run(conn, REGISTER(A, "NULL", "{x}"));
    run(conn, REGISTER(B, "NULL", "{x}"));
    assert_refused(conn, ASSIGN(A, "NULL", A), "MR006");
    assert_string_equal(value(conn, TICK("leader", A, "NULL", "false", "200 ms")), "t");
    /* A lease is bound to no session. */
    assert_int_equal(number(other, ASSIGN(A, "NULL", "NULL")), 0);
    assert_refused(other, ASSIGN(B, "NULL", B), "MR006");
    run(conn, "SELECT pg_sleep(0.25)");
    /* Over, although nobody has taken it. */
    assert_refused(conn, ASSIGN(A, "NULL", A), "MR006");
    assert_refused(conn, BURY(A, "NULL", B), "MR006");
    assert_untouched(conn);
    assert_string_equal(value(other, TICK("leader", B, "NULL", "false", "10 s")), "t");
    assert_int_equal(number(conn, "SELECT term FROM millrace.worker_leader_election"), 2);
    assert_string_equal(value(conn, TICK("leader", A, "NULL", "true", "10 s")), "f");
    assert_refused(conn, ASSIGN(A, "NULL", A), "MR006");
    assert_untouched(conn);
    PQfinish(other);
}

/* Nobody can take a lease over in the middle of what its holder writes. */
static void a_lease_holds_through_its_write(void **state)
{
    PGconn *conn = conn_of(state);
    PGconn *other = scratch_connect(*state);
    run(conn, REGISTER(A, "NULL", "{x}"));
    run(conn, REGISTER(B, "NULL", "{x}"));
    run(conn, TICK("leader", A, "NULL", "false", "100 ms"));
    run(conn, "BEGIN");
    assert_int_equal(number(conn, ASSIGN(A, "NULL", A)), 1);
    run(conn, "SELECT pg_sleep(0.15)"); /* over, but the row is locked */
    run(other, "SET lock_timeout = '100ms'");
    assert_refused(other, TICK("leader", B, "NULL", "false", "10 s"), "55P03");
    run(conn, "COMMIT");
    assert_string_equal(value(other, TICK("leader", B, "NULL", "false", "10 s")), "t");
    PQfinish(other);
}

static void leases_are_renewed_and_left(void **state)
{
    PGconn *conn = conn_of(state);
    run(conn, REGISTER(A, "NULL", "{x}"));
    run(conn, REGISTER(B, "NULL", "{x}"));
    run(conn, TICK("leader", A, "NULL", "false", "10 s"));
    static const char until[] = "SELECT (extract(epoch FROM expires_at) * 1000000)::bigint FROM "
                                "millrace.worker_leader_election";
    int64_t first = number(conn, until);
    run(conn, TICK("leader", A, "NULL", "true", "10 s"));
    int64_t second = number(conn, until);
    assert_true(second > first);
    /* A look without a beat keeps the place but not the length. */
    run(conn, "SELECT * FROM millrace.control_tick(" A ", false, NULL, NULL, true, true, '10 s')");
    assert_int_equal(number(conn, until), second);
    assert_int_equal(number(conn, "SELECT term FROM millrace.worker_leader_election"), 1);
    run(conn, "SELECT millrace.leave_fleet(" B ", NULL, false, false)"); /* not its own to give */
    assert_string_equal(value(conn, TICK("leader", A, "NULL", "true", "10 s")), "t");
    run(conn, "SELECT millrace.leave_fleet(" A ", NULL, true, false)");
    assert_refused(conn, ASSIGN(A, "NULL", A), "MR006");
    assert_string_equal(value(conn, TICK("leader", B, "NULL", "false", "10 s")), "t");
    assert_int_equal(number(conn, "SELECT term FROM millrace.worker_leader_election"), 2);
    /* A worker whose row is gone leaves the lease behind for the next, with its term. */
    run(conn, "DELETE FROM millrace.worker_nodes WHERE worker_id = " B);
    assert_string_equal(value(conn, TICK("known", B, "NULL", "true", "10 s")), "f");
    assert_string_equal(value(conn, TICK("leader", B, "NULL", "true", "10 s")), "f");
    run(conn, REGISTER(C, "NULL", "{x}"));
    assert_string_equal(value(conn, TICK("leader", C, "NULL", "false", "10 s")), "t");
    assert_int_equal(number(conn, "SELECT term FROM millrace.worker_leader_election"), 3);
}

/* ---- Candidates that run at the same time -------------------------------------------------- */

typedef struct candidate {
    PGconn *conn;
    pthread_barrier_t *start;
    const char *sql;
    bool won;
} candidate;

static void *stand(void *argument)
{
    candidate *c = argument;
    (void)pthread_barrier_wait(c->start);
    PGresult *result = PQexec(c->conn, c->sql);
    c->won = PQresultStatus(result) == PGRES_TUPLES_OK && PQgetvalue(result, 0, 0)[0] == 't';
    PQclear(result);
    return NULL;
}

static int elect(candidate *candidates, int count)
{
    pthread_barrier_t start;
    (void)pthread_barrier_init(&start, NULL, (unsigned)count);
    pthread_t threads[8];
    for (int i = 0; i < count; i++) {
        candidates[i].start = &start;
        assert_int_equal(pthread_create(&threads[i], NULL, stand, &candidates[i]), 0);
    }
    int winners = 0;
    for (int i = 0; i < count; i++) {
        (void)pthread_join(threads[i], NULL);
        winners += candidates[i].won;
    }
    (void)pthread_barrier_destroy(&start);
    return winners;
}

static void one_candidate_wins(void **state)
{
    PGconn *conn = conn_of(state);
    run(conn, REGISTER(A, "NULL", "{x}"));
    run(conn, REGISTER(B, "NULL", "{x}"));
    run(conn, REGISTER(C, "NULL", "{x}"));
    candidate lease[3] = {{.sql = TICK("leader", A, "NULL", "false", "10 s")},
                          {.sql = TICK("leader", B, "NULL", "false", "10 s")},
                          {.sql = TICK("leader", C, "NULL", "false", "10 s")}};
    candidate lock[3] = {{.sql = TICK("leader", A, "77", "false", "10 s")},
                         {.sql = TICK("leader", B, "77", "false", "10 s")},
                         {.sql = TICK("leader", C, "77", "false", "10 s")}};
    for (int i = 0; i < 3; i++) {
        lease[i].conn = scratch_connect(*state);
        lock[i].conn = lease[i].conn;
    }
    for (int round = 1; round <= 25; round++) {
        assert_int_equal(elect(lease, 3), 1);
        assert_int_equal(elect(lock, 3), 1);
        /* Every other round the holder left in good order; otherwise its time is over. */
        run(conn, round % 2 == 0 ? "UPDATE millrace.worker_leader_election SET leader_id = NULL"
                                 : "UPDATE millrace.worker_leader_election SET"
                                   " expires_at = clock_timestamp() - interval '1 s'");
        for (int i = 0; i < 3; i++)
            run(lock[i].conn, "SELECT pg_advisory_unlock_all()");
    }
    /* A term never repeats; one that wins again after its time keeps its term, and its fence. */
    int64_t term = number(conn, "SELECT term FROM millrace.worker_leader_election");
    assert_in_range(term, 13, 25);
    for (int i = 0; i < 3; i++)
        PQfinish(lease[i].conn);
}

/* ---- Stopped leaders ----------------------------------------------------------------------- */

static void silent(PGconn *conn, const char *worker)
{
    char sql[256];
    (void)snprintf(sql, sizeof(sql),
                   "UPDATE millrace.worker_nodes SET heartbeat_at = now() - interval '1 minute'"
                   " WHERE worker_id = %s",
                   worker);
    run(conn, sql);
}

static void only_silent_leaders_are_deposed(void **state)
{
    PGconn *conn = conn_of(state);
    PGconn *leader = worker_session(state, A), *other = worker_session(state, B);
    run(leader, REGISTER(A, "101", "{x}"));
    run(other, REGISTER(B, "102", "{x}"));
    assert_string_equal(value(leader, TICK("leader", A, "7", "false", "10 s")), "t");
    assert_string_equal(value(other, TICK("leader", B, "7", "false", "10 s")), "f");
    assert_int_equal(number(other, "SELECT millrace.depose_leader(7, '10 s')"), 0);
    assert_false(is_gone(leader));
    silent(conn, A);
    /* Somebody else's lock of another key stays, however silent the worker. */
    assert_int_equal(number(other, "SELECT millrace.depose_leader(8, '10 s')"), 0);
    assert_false(is_gone(leader));
    assert_int_equal(number(other, "SELECT millrace.depose_leader(7, '10 s')"), 1);
    assert_true(waits(is_gone, leader, 10));
    PQfinish(leader);
    /* A session that is no worker's is never ended: it may be a person's. */
    PGconn *person = scratch_connect(*state);
    run(person, "SET application_name = 'psql'; SELECT pg_advisory_lock(7)");
    assert_int_equal(number(other, "SELECT millrace.depose_leader(7, '10 s')"), 0);
    assert_false(is_gone(person));
    PQfinish(person);
    /* One that was declared dead, and one whose row is gone, hold it no longer. */
    leader = worker_session(state, A);
    run(leader, "SELECT pg_advisory_lock(7)");
    run(conn, "UPDATE millrace.worker_nodes SET state = 'dead', heartbeat_at = now()"
              " WHERE worker_id = " A);
    assert_int_equal(number(other, "SELECT millrace.depose_leader(7, '10 s')"), 1);
    assert_true(waits(is_gone, leader, 10));
    PQfinish(leader);
    leader = worker_session(state, A);
    run(leader, "SELECT pg_advisory_lock(7)");
    run(conn, "DELETE FROM millrace.worker_nodes WHERE worker_id = " A);
    assert_int_equal(number(other, "SELECT millrace.depose_leader(7, '10 s')"), 1);
    assert_true(waits(is_gone, leader, 10));
    PQfinish(leader);
    PQfinish(other);
}

/* A role without the right to end sessions does nothing, and its tick still works. */
static void without_rights_nobody_is_deposed(void **state)
{
    PGconn *conn = conn_of(state);
    PGconn *leader = worker_session(state, A), *plain = worker_session(state, B);
    char role[80], sql[512];
    (void)snprintf(role, sizeof(role), "plain_%s", ((scratch *)*state)->name);
    (void)snprintf(sql, sizeof(sql),
                   "CREATE ROLE %s; GRANT USAGE ON SCHEMA millrace TO %s;"
                   "GRANT ALL ON ALL TABLES IN SCHEMA millrace TO %s",
                   role, role, role);
    run(conn, sql);
    run(leader, REGISTER(A, "101", "{x}"));
    run(leader, TICK("leader", A, "7", "false", "10 s"));
    (void)snprintf(sql, sizeof(sql), "SET ROLE %s", role);
    run(plain, sql);
    run(plain, REGISTER(B, "102", "{x}"));
    silent(conn, A);
    assert_string_equal(value(plain, TICK("leader", B, "7", "false", "10 s")), "f");
    assert_false(is_gone(leader));
    PQfinish(leader);
    /* As a leader it declares dead even those whose sessions it may not end. */
    PGconn *dead = worker_session(state, A);
    run(dead, "SELECT 1");
    assert_string_equal(value(plain, TICK("leader", B, "7", "false", "10 s")), "t");
    assert_int_equal(number(plain, BURY(B, "7", A)), 1);
    assert_false(is_gone(dead));
    PQfinish(dead);
    PQfinish(plain);
    (void)snprintf(sql, sizeof(sql), "DROP OWNED BY %s; DROP ROLE %s", role, role);
    run(conn, sql);
}

/* ---- Registration and ticks ---------------------------------------------------------------- */

static void registration_clears_the_very_stale(void **state)
{
    PGconn *conn = conn_of(state);
    run(conn, REGISTER(A, "NULL", "{x}"));
    run(conn, REGISTER(B, "NULL", "{y}"));
    run(conn, "UPDATE millrace.worker_nodes SET heartbeat_at = clock_timestamp() - interval"
              " '9 s' WHERE worker_id = " A);
    run(conn, "UPDATE millrace.worker_nodes SET heartbeat_at = clock_timestamp() - interval"
              " '11 s' WHERE worker_id = " B);
    run(conn, "UPDATE millrace.consumer_assignments SET worker_id = " B);
    assert_int_equal(number(conn, REGISTER(C, "NULL", "{y,z}")), 2);
    assert_string_equal(value(conn,
                              "SELECT string_agg(right(worker_id::text, 1), '' ORDER BY worker_id)"
                              " FROM millrace.worker_nodes"),
                        "ac");
    assert_string_equal(
        value(conn, "SELECT string_agg(consumer_name || coalesce(worker_id::text, '-'), ' '"
                    " ORDER BY 1) FROM millrace.consumer_assignments"),
        "x- y- z-");
    /* Its own row is not thrown away, however old: the worker comes back under the same id. */
    run(conn, "UPDATE millrace.worker_nodes SET heartbeat_at = clock_timestamp() - interval"
              " '1 h' WHERE worker_id = " C);
    assert_int_equal(number(conn, REGISTER_AS(C, "NULL", "{y}", "true")), 2);
    assert_string_equal(value(conn, "SELECT consumers FROM millrace.worker_nodes"
                                    " WHERE worker_id = " C),
                        "{y}");
    run(conn, "UPDATE millrace.worker_nodes SET state = 'dead' WHERE worker_id = " C);
    assert_int_equal(number(conn, REGISTER(C, "NULL", "{y}")), 0);
    assert_string_equal(value(conn, TICK("known", C, "NULL", "false", "10 s")), "f");
    /* Nor does one come back under an id whose row is gone. */
    run(conn, "DELETE FROM millrace.worker_nodes WHERE worker_id = " C);
    assert_int_equal(number(conn, REGISTER_AS(C, "NULL", "{y}", "true")), 0);
    assert_int_equal(number(conn, "SELECT count(*) FROM millrace.worker_nodes"
                                  " WHERE worker_id = " C),
                     0);
}

/* A worker that comes back while its old session still stands (half open: the server does not know
 * yet) gets its place back soon, and the leadership is not held by a ghost. */
static void a_ghost_of_its_own_goes(void **state)
{
    PGconn *ghost = worker_session(state, A), *again = worker_session(state, A);
    PGconn *other = worker_session(state, B);
    assert_int_equal(number(ghost, REGISTER(A, "101", "{x}")), 2);
    assert_string_equal(value(ghost, TICK("leader", A, "7", "false", "10 s")), "t");
    int status = 1;
    for (int i = 0; i < 500 && status == 1; i++) {
        status = (int)number(again, REGISTER(A, "101", "{x}"));
        run(again, "SELECT pg_sleep(0.01)");
    }
    assert_int_equal(status, 2);
    assert_true(waits(is_gone, ghost, 10));
    run(other, REGISTER(B, "102", "{x}"));
    assert_string_equal(value(other, TICK("leader", B, "7", "false", "10 s")), "t");
    PQfinish(ghost);
    PQfinish(again);
    PQfinish(other);
}

static void ticks_tell_what_is_owned(void **state)
{
    PGconn *conn = conn_of(state);
    run(conn, REGISTER(A, "NULL", "{z,x,y}"));
    run(conn,
        "UPDATE millrace.consumer_assignments SET worker_id = " A " WHERE consumer_name <> 'y'");
    assert_string_equal(value(conn, TICK("owned", A, "7", "false", "10 s")), "{x,z}");
    assert_string_equal(value(conn, TICK("known", B, "7", "false", "10 s")), "f");
    assert_string_equal(value(conn, TICK("owned", B, "7", "false", "10 s")), "{}");
    /* One that is not known never leads, and one that drains does not want to. */
    assert_string_equal(value(conn, TICK("leader", B, "9", "false", "10 s")), "f");
    assert_string_equal(value(conn, "SELECT leader FROM millrace.control_tick(" A
                                    ", true, '{}', 9, false, false, '10 s')"),
                        "f");
    assert_string_equal(value(conn, "SELECT info FROM millrace.worker_nodes WHERE worker_id = " A),
                        "{}");
    int64_t beat = number(conn, "SELECT (extract(epoch FROM heartbeat_at) * 1000000)::bigint"
                                " FROM millrace.worker_nodes");
    run(conn,
        "SELECT * FROM millrace.control_tick(" A ", false, '{\"a\": 1}', 7, true, true, '10 s')");
    assert_int_equal(number(conn, "SELECT (extract(epoch FROM heartbeat_at) * 1000000)::bigint"
                                  " FROM millrace.worker_nodes"),
                     beat);
}

static void pictures_show_everybody(void **state)
{
    PGconn *conn = conn_of(state);
    run(conn, REGISTER(A, "101", "{x}"));
    run(conn, REGISTER(B, "NULL", "{y}"));
    run(conn, REGISTER(C, "103", "{}")); /* this session holds its lock too */
    run(conn, "UPDATE millrace.worker_nodes SET state = 'draining' WHERE worker_id = " B);
    silent(conn, B);
    assert_string_equal(value(conn, TICK("picture IS NULL", A, "7", "false", "1 h")), "f");
    run(conn, "CREATE TABLE seen AS SELECT picture FROM millrace.control_tick(" A
              ", true, '{}', 7, true, true, '10 s')");
    run(conn, "CREATE VIEW workers AS SELECT w.* FROM seen, jsonb_to_recordset(picture->'workers')"
              " AS w(id uuid, consumers text[], draining bool, stale bool, absent bool)");
    assert_int_equal(number(conn, "SELECT count(*) FROM workers"), 3);
    assert_string_equal(value(conn, "SELECT (stale, draining, absent, consumers) FROM workers"
                                    " WHERE id = " A),
                        "(f,f,f,{x})");
    assert_string_equal(value(conn, "SELECT (stale, draining, absent, consumers) FROM workers"
                                    " WHERE id = " B),
                        "(t,t,f,{y})");
    assert_string_equal(value(conn, "SELECT picture->'assignments' FROM seen"),
                        "[{\"name\": \"x\", \"owner\": null}, {\"name\": \"y\", \"owner\": null}]");
    /* Locks count once the server is up for a while; before that all its sessions are new. */
    if (number(conn, "SELECT (pg_postmaster_start_time() < now() - interval '11 s')::int") == 1) {
        run(conn, "SELECT pg_advisory_unlock(103)");
        assert_string_equal(value(conn, TICK("picture @? '$.workers[*] ? (@.absent == true)'", A,
                                             "7", "true", "10 s")),
                            "t");
    }
    run(conn, "UPDATE millrace.worker_nodes SET state = 'dead' WHERE worker_id = " C);
    assert_int_equal(
        number(conn, TICK("jsonb_array_length(picture->'workers')", A, "7", "true", "10 s")), 2);
}

static void burying_ends_sessions_of_the_dead_only(void **state)
{
    PGconn *leader = worker_session(state, A), *dead = worker_session(state, B);
    PGconn *well = worker_session(state, C);
    run(leader, REGISTER(A, "101", "{x}"));
    run(dead, REGISTER(B, "102", "{x}"));
    run(well, REGISTER(C, "103", "{x}"));
    run(leader, TICK("leader", A, "7", "false", "10 s"));
    run(dead, "BEGIN; SELECT * FROM millrace.consumer_checkpoints");
    assert_int_equal(number(leader, BURY(A, "7", B)), 1);
    assert_int_equal(number(leader, BURY(A, "7", B)), 0);
    assert_true(waits(is_gone, dead, 10));
    assert_false(is_gone(well));
    PQfinish(leader);
    PQfinish(dead);
    PQfinish(well);
}

/* ---- The batch's fence --------------------------------------------------------------------- */

static void batches_are_fenced(void **state)
{
    PGconn *conn = conn_of(state);
    run(conn, REGISTER(A, "NULL", "{x}"));
    run(conn, REGISTER(B, "NULL", "{x}"));
    assert_refused(conn, "SELECT millrace.advance_checkpoint('x', " A ", 0, 5)", "MR004");
    run(conn, "INSERT INTO millrace.consumer_checkpoints (consumer_name) VALUES ('x')");
    run(conn, "UPDATE millrace.consumer_assignments SET worker_id = " A);
    assert_refused(conn, "SELECT millrace.advance_checkpoint('x', " B ", 0, 5)", "MR003");
    assert_refused(conn, "SELECT millrace.advance_checkpoint('x', " A ", 3, 5)", "MR002");
    assert_refused(conn, "SELECT millrace.advance_checkpoint('x', " A ", 0, -1)", "22023");
    run(conn, "SELECT millrace.advance_checkpoint('x', " A ", 0, 5)");
    assert_refused(conn, "SELECT millrace.advance_checkpoint('x', " A ", 0, 5)", "MR002");
    assert_int_equal(number(conn, "SELECT last_position FROM millrace.consumer_checkpoints"), 5);
}

/* The leader moves a consumer while its batch runs, without waiting for it. */
static void a_rebalance_waits_for_no_batch(void **state)
{
    PGconn *conn = conn_of(state);
    PGconn *batch = scratch_connect(*state), *next = scratch_connect(*state);
    run(conn, REGISTER(A, "NULL", "{x}"));
    run(conn, REGISTER(B, "NULL", "{x}"));
    run(conn, "INSERT INTO millrace.consumer_checkpoints (consumer_name) VALUES ('x')");
    run(conn, TICK("leader", A, "7", "false", "10 s"));
    run(conn, ASSIGN(A, "7", A));
    run(batch, "BEGIN; SELECT millrace.advance_checkpoint('x', " A ", 0, 5)");
    run(conn, "SET lock_timeout = '1s'");
    assert_int_equal(number(conn, ASSIGN(A, "7", B)), 1);
    assert_int_equal(number(conn, BURY(A, "7", A)), 1);
    run(conn, "DELETE FROM millrace.worker_nodes WHERE worker_id = " A);
    /* The new owner meets the old one's batch. Whatever it is told, it does not get in between. */
    assert_refused(next, "SELECT millrace.advance_checkpoint('x', " B ", 0, 7)", "55P03");
    assert_string_equal(value(next, "SHOW lock_timeout"), "0"); /* the handler's own is untouched */
    run(batch, "COMMIT");
    assert_refused(next, "SELECT millrace.advance_checkpoint('x', " B ", 0, 7)", "MR002");
    run(next, "SELECT millrace.advance_checkpoint('x', " B ", 5, 7)");
    PQfinish(batch);
    PQfinish(next);
}

/* ---- Two fleets in one database ------------------------------------------------------------ */

static void two_fleets(void **state)
{
    PGconn *conn = conn_of(state);
    fixture second;
    fixture_init(&second);
    assert_ok(mr__names_init(&second.names, "other"));
    const mr_schema_input input = {.names = &second.names, .log = &second.spec};
    assert_ok(mr__schema_apply(conn, &input, NULL));
    run(conn, REGISTER(A, "101", "{x}"));
    run(conn, "SELECT other.register_worker(" B ", 'host', 1, '0', '{x}', 102, '10 s', false)");
    assert_int_equal(number(conn, "SELECT count(*) FROM millrace.worker_nodes"), 1);
    assert_int_equal(number(conn, "SELECT count(*) FROM other.worker_nodes"), 1);
    assert_string_equal(value(conn, TICK("leader", A, "NULL", "false", "10 s")), "t");
    assert_string_equal(value(conn, "SELECT leader FROM other.control_tick(" B
                                    ", true, '{}', NULL, false, true, '10 s')"),
                        "t");
    assert_refused(conn,
                   "SELECT other.assign_consumers(" A ", NULL, '{x}', ARRAY[" A "]::uuid[], NULL)",
                   "MR006");
    assert_int_equal(number(conn, ASSIGN(A, "NULL", A)), 1);
    assert_int_equal(number(conn, "SELECT count(worker_id) FROM other.consumer_assignments"), 0);
}

/* ---- Consumers that come and go while it runs ---------------------------------------------- */

typedef struct counting {
    atomic_int events;
} counting;

static mr_error *count_event(mr_tx *tx, const mr_event *event, void *user)
{
    (void)tx;
    (void)event;
    counting *c = user;
    atomic_fetch_add(&c->events, 1);
    return NULL;
}

static mr_consumer *counting_consumer(const char *name, counting *c)
{
    mr_consumer *consumer = mr_consumer_new(name);
    assert_non_null(consumer);
    mr_consumer_on_event(consumer, count_event, c, NULL);
    return consumer;
}

static mr_conf *make_conf(void **state)
{
    const scratch *s = *state;
    char uri[2048];
    PGconn *conn = s->conn;
    (void)snprintf(uri, sizeof(uri), "host=%s port=%s user=%s dbname=%s", PQhost(conn),
                   PQport(conn), PQuser(conn), PQdb(conn));
    mr_conf *conf = mr_conf_new();
    assert_non_null(conf);
    assert_ok(mr_conf_set(conf, "database", uri));
    assert_ok(mr_conf_set(conf, "rebalance_interval", "20ms"));
    assert_ok(mr_conf_set(conf, "heartbeat_interval", "50ms"));
    assert_ok(mr_conf_set(conf, "log_level", "error"));
    return conf;
}

static void *run_worker(void *worker)
{
    return mr_worker_run(worker);
}

typedef struct expected {
    counting *counter;
    int events;
} expected;

static bool counted(void *user)
{
    const expected *e = user;
    return atomic_load(&e->counter->events) >= e->events;
}

typedef struct listed {
    mr_worker *worker;
    size_t count;
} listed;

static bool has_count(void *user)
{
    const listed *l = user;
    return mr_worker_consumers(l->worker, NULL, 0) == l->count;
}

static bool started(void *user)
{
    PGconn *conn = user;
    return number(conn, "SELECT count(*) FROM millrace.consumer_assignments"
                        " WHERE worker_id IS NOT NULL") > 0;
}

static void add_and_remove_while_it_runs(void **state)
{
    PGconn *conn = conn_of(state);
    counting a = {0}, b = {0};
    mr_conf *conf = make_conf(state);
    assert_ok(mr_conf_take_consumer(conf, counting_consumer("a", &a)));
    mr_worker *worker = NULL;
    assert_ok(mr_worker_new(conf, &worker));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_worker, worker), 0);
    assert_true(waits(started, conn, 20));
    assert_ok(append(conn, &fleet, "s", MR_EXPECT_ANY, 10));
    assert_true(waits(counted, &(expected){&a, 10}, 20));

    assert_error(mr_worker_add_consumer(worker, counting_consumer("a", &a)), MR_E_CONFIG,
                 "already");
    assert_error(mr_worker_remove_consumer(worker, "b"), MR_E_USAGE, "no consumer 'b'");
    assert_ok(mr_worker_add_consumer(worker, counting_consumer("b", &b)));
    assert_true(waits(counted, &(expected){&b, 10}, 20)); /* from the beginning */
    char *names[4] = {NULL};
    assert_int_equal(mr_worker_consumers(worker, names, 1), 2);
    assert_string_equal(names[0], "a");
    assert_null(names[1]);
    mr_free(names[0]);

    assert_ok(mr_worker_remove_consumer(worker, "a"));
    assert_true(waits(has_count, &(listed){worker, 1}, 20));
    assert_ok(append(conn, &fleet, "s", MR_EXPECT_ANY, 5));
    assert_true(waits(counted, &(expected){&b, 15}, 20));
    assert_int_equal(atomic_load(&a.events), 10);
    assert_int_equal(number(conn, "SELECT last_position FROM millrace.consumer_checkpoints"
                                  " WHERE consumer_name = 'a'"),
                     10);
    /* Again, under the same name: it goes on where it was. */
    assert_ok(mr_worker_add_consumer(worker, counting_consumer("a", &a)));
    assert_true(waits(counted, &(expected){&a, 15}, 20));
    assert_int_equal(atomic_load(&a.events), 15);

    mr_worker_stop(worker);
    void *result = NULL;
    (void)pthread_join(thread, &result);
    assert_ok(result);
    mr_worker_free(worker);
    assert_int_equal(number(conn, "SELECT count(*) FROM millrace.worker_nodes"), 0);
}

/* Many threads that add and remove while events flow; each consumer that stays sees all. */
typedef struct changer {
    mr_worker *worker;
    counting *counters;
    int number;
} changer;

static void *keep_changing(void *argument)
{
    changer *c = argument;
    for (int round = 0; round < 12; round++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "t%d_%d", c->number, round % 3);
        mr_error *error =
            mr_worker_add_consumer(c->worker, counting_consumer(name, &c->counters[round % 3]));
        if (error != NULL && mr_error_code(error) != MR_E_CONFIG)
            return error;
        mr_error_free(error);
        (void)mr_worker_consumers(c->worker, NULL, 0);
        (void)mr_worker_metric(c->worker, "events_handled");
        mr_worker_wake(c->worker);
        error = mr_worker_remove_consumer(c->worker, name);
        if (error != NULL && mr_error_code(error) != MR_E_USAGE)
            return error;
        mr_error_free(error);
    }
    return NULL;
}

static void many_changes_at_once(void **state)
{
    PGconn *conn = conn_of(state);
    counting stays = {0}, others[3][3] = {0};
    mr_conf *conf = make_conf(state);
    assert_ok(mr_conf_take_consumer(conf, counting_consumer("stays", &stays)));
    mr_worker *worker = NULL;
    assert_ok(mr_worker_new(conf, &worker));
    pthread_t thread, changing[3];
    changer changers[3];
    assert_int_equal(pthread_create(&thread, NULL, run_worker, worker), 0);
    assert_true(waits(started, conn, 20));
    for (int i = 0; i < 3; i++) {
        changers[i] = (changer){.worker = worker, .counters = others[i], .number = i};
        assert_int_equal(pthread_create(&changing[i], NULL, keep_changing, &changers[i]), 0);
    }
    for (int i = 0; i < 40; i++)
        assert_ok(append(conn, &fleet, "s", MR_EXPECT_ANY, 5));
    for (int i = 0; i < 3; i++) {
        void *result = NULL;
        (void)pthread_join(changing[i], &result);
        assert_ok(result);
    }
    assert_true(waits(counted, &(expected){&stays, 200}, 30));
    assert_int_equal(atomic_load(&stays.events), 200);
    assert_true(waits(has_count, &(listed){worker, 1}, 20));
    mr_worker_stop(worker);
    void *result = NULL;
    (void)pthread_join(thread, &result);
    assert_ok(result);
    mr_worker_free(worker);
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        TEST(writes_need_the_session_lock),
        TEST(locks_of_any_key),
        TEST(writes_need_a_running_lease),
        TEST(a_lease_holds_through_its_write),
        TEST(leases_are_renewed_and_left),
        TEST(one_candidate_wins),
        TEST(only_silent_leaders_are_deposed),
        TEST(without_rights_nobody_is_deposed),
        TEST(registration_clears_the_very_stale),
        TEST(a_ghost_of_its_own_goes),
        TEST(ticks_tell_what_is_owned),
        TEST(pictures_show_everybody),
        TEST(burying_ends_sessions_of_the_dead_only),
        TEST(batches_are_fenced),
        TEST(a_rebalance_waits_for_no_batch),
        TEST(two_fleets),
        TEST(add_and_remove_while_it_runs),
        TEST(many_changes_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
