/* A log of ten events and a conf: what the tests of pause, reset, skip and dead letters start from.
 */
#include "operate_fixture.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int operating_setup(void **state)
{
    operating *o = calloc(1, sizeof(*o));
    assert_non_null(o);
    void *inner = NULL;
    assert_int_equal(scratch_setup(&inner), 0);
    o->scratch = inner;
    o->conn = o->scratch->conn;
    begin(&inner, &o->log);
    o->conf = mr_conf_new();
    assert_non_null(o->conf);
    assert_ok(append(o->conn, &o->log, "o-1", MR_EXPECT_NONE, 5));
    assert_ok(append(o->conn, &o->log, "o-2", MR_EXPECT_NONE, 5));
    *state = o;
    return 0;
}

int operating_teardown(void **state)
{
    operating *o = *state;
    void *inner = o->scratch;
    mr_conf_free(o->conf);
    end(&o->log);
    free(o);
    return scratch_teardown(&inner);
}

void consumer(const operating *o, const char *name, int64_t position)
{
    char text[24];
    (void)snprintf(text, sizeof(text), "%" PRId64, position);
    const char *values[] = {name, text};
    PGresult *result = PQexecParams(o->conn,
                                    "INSERT INTO millrace.consumer_checkpoints (consumer_name,"
                                    " last_position) VALUES ($1, $2::int8)",
                                    2, NULL, values, NULL, NULL, 0);
    assert_int_equal(PQresultStatus(result), PGRES_COMMAND_OK);
    PQclear(result);
}

const char *value_of(PGconn *conn, const char *sql, const char *parameter)
{
    static _Thread_local char text[65536];
    PGresult *result = PQexecParams(conn, sql, 1, NULL, &parameter, NULL, NULL, 0);
    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(conn));
    (void)snprintf(text, sizeof(text), "%s",
                   PQntuples(result) == 0 ? "" : PQgetvalue(result, 0, 0));
    PQclear(result);
    return text;
}

const char *sqlstate_of(PGconn *conn, const char *sql)
{
    static _Thread_local char state[8];
    PGresult *result = PQexec(conn, sql);
    const char *found = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    (void)snprintf(state, sizeof(state), "%s", found == NULL ? "" : found);
    PQclear(result);
    return state;
}

void wait_for(PGconn *conn, const char *sql)
{
    struct timespec nap = {.tv_nsec = 5000000};
    for (int i = 0; i < 4000; i++) {
        if (value(conn, sql)[0] == 't')
            return;
        (void)nanosleep(&nap, NULL);
    }
    fail_msg("never came true: %s", sql);
}

void wait_for_waiter(PGconn *conn)
{
    wait_for(conn, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()"
                   " AND wait_event_type = 'Lock')");
}
