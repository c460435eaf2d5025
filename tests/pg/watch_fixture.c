/* Rows as workers and people leave them, made by hand. */
#include "watch_fixture.h"

#include <stdio.h>

mr_conf *conf;
static fixture watched;

int watch_setup(void **state)
{
    int status = scratch_setup(state);
    begin(state, &watched);
    conf = mr_conf_new();
    assert_non_null(conf);
    return status;
}

int watch_teardown(void **state)
{
    mr_conf_free(conf);
    end(&watched);
    return scratch_teardown(state);
}

PGconn *conn_of(void **state)
{
    return ((scratch *)*state)->conn;
}

void add_worker(PGconn *conn, const char *id, const char *consumers, const char *info)
{
    char sql[2048];
    (void)snprintf(sql, sizeof(sql),
                   "INSERT INTO millrace.worker_nodes (worker_id, host, pid, consumers, info)"
                   " VALUES (%s, 'host', 7, '%s', '%s');"
                   "INSERT INTO millrace.worker_leader_election (lease_key, leader_id, expires_at)"
                   " VALUES ('leader', %s, now() + interval '1 h')"
                   " ON CONFLICT DO NOTHING",
                   id, consumers, info, id);
    run(conn, sql);
}

void assign(PGconn *conn, const char *consumer, const char *owner)
{
    char sql[512];
    (void)snprintf(sql, sizeof(sql),
                   "INSERT INTO millrace.consumer_assignments (consumer_name, worker_id)"
                   " VALUES ('%s', %s)",
                   consumer, owner);
    run(conn, sql);
}

void move_to(PGconn *conn, const char *consumer, int position)
{
    char sql[512];
    (void)snprintf(sql, sizeof(sql),
                   "INSERT INTO millrace.consumer_checkpoints (consumer_name, last_position)"
                   " VALUES ('%s', %d) ON CONFLICT (consumer_name) DO UPDATE"
                   " SET last_position = excluded.last_position, updated_at = now()",
                   consumer, position);
    run(conn, sql);
}

void pause_consumer(PGconn *conn, const char *consumer, const char *kind, const char *by,
                    const char *reason)
{
    char sql[512];
    (void)snprintf(
        sql, sizeof(sql),
        "INSERT INTO millrace.consumer_controls (consumer_name, paused, pause_kind,"
        " paused_by, paused_at, pause_reason) VALUES ('%s', true, '%s', '%s', now(), %s)",
        consumer, kind, by, reason);
    run(conn, sql);
}

void add_letter(PGconn *conn, const char *consumer, int position, const char *letter)
{
    char sql[512];
    (void)snprintf(sql, sizeof(sql),
                   "INSERT INTO millrace.consumer_dead_letters (consumer_name, global_position,"
                   " state, error) VALUES ('%s', %d, '%s', 'no such account')",
                   consumer, position, letter);
    run(conn, sql);
}

void add_events(PGconn *conn, int count)
{
    assert_ok(append(conn, &watched, "o-1", MR_EXPECT_ANY, count));
}
