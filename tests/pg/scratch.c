/* A scratch database a test, on the server that MILLRACE_TEST_DATABASE names. */
#include "scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local char last_value[65536];

void scratch_require_server(void)
{
    if (getenv("MILLRACE_TEST_DATABASE") == NULL) {
        (void)fprintf(stderr, "MILLRACE_TEST_DATABASE is not set\n");
        exit(77);
    }
}

static PGconn *open_database(const char *conninfo, const char *name)
{
    /* Later keywords override what the conninfo before them says. */
    const char *keys[] = {"dbname", "dbname", "client_encoding", NULL};
    const char *values[] = {conninfo, name, "UTF8", NULL};
    PGconn *conn = PQconnectdbParams(keys, values, 1);
    if (PQstatus(conn) != CONNECTION_OK)
        fail_msg("cannot connect: %s", PQerrorMessage(conn));
    return conn;
}

PGconn *scratch_connect(const scratch *s)
{
    return open_database(s->conninfo, s->name);
}

int scratch_setup(void **state)
{
    static int count;
    scratch *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    (void)snprintf(s->conninfo, sizeof(s->conninfo), "%s", getenv("MILLRACE_TEST_DATABASE"));
    (void)snprintf(s->name, sizeof(s->name), "mr_test_%ld_%d", (long)getpid(), ++count);
    s->admin = open_database(s->conninfo, NULL);
    char sql[128];
    (void)snprintf(sql, sizeof(sql), "CREATE DATABASE %s", s->name);
    run(s->admin, sql);
    s->conn = scratch_connect(s);
    *state = s;
    return 0;
}

int scratch_teardown(void **state)
{
    scratch *s = *state;
    PQfinish(s->conn);
    char sql[128];
    (void)snprintf(sql, sizeof(sql), "DROP DATABASE %s WITH (FORCE)", s->name);
    run(s->admin, sql);
    PQfinish(s->admin);
    free(s);
    return 0;
}

void run(PGconn *conn, const char *sql)
{
    PGresult *result = PQexec(conn, sql);
    ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(conn));
    PQclear(result);
}

const char *value(PGconn *conn, const char *sql)
{
    PGresult *result = PQexec(conn, sql);
    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(conn));
    (void)snprintf(last_value, sizeof(last_value), "%s",
                   PQntuples(result) == 0 ? "" : PQgetvalue(result, 0, 0));
    PQclear(result);
    return last_value;
}

int64_t number(PGconn *conn, const char *sql)
{
    return strtoll(value(conn, sql), NULL, 10);
}

void scratch_assert_error(mr_error *error, mr_code wanted, const char *text, const char *expression,
                          const char *file, int line)
{
    if (error == NULL) {
        print_error("%s: succeeded, expected %s\n", expression, mr_code_name(wanted));
        _fail(file, line);
    }
    if (mr_error_code(error) != wanted || strstr(mr_error_message(error), text) == NULL) {
        print_error("%s: got %s '%s', expected %s '%s'\n", expression,
                    mr_code_name(mr_error_code(error)), mr_error_message(error),
                    mr_code_name(wanted), text);
        _fail(file, line);
    }
    mr_error_free(error);
}

const char *scratch_conninfo(const scratch *s)
{
    static _Thread_local char out[1200];
    const char *name = strstr(s->conninfo, "/postgres?");
    if (name != NULL)
        (void)snprintf(out, sizeof(out), "%.*s/%s%s", (int)(name - s->conninfo), s->conninfo,
                       s->name, name + strlen("/postgres"));
    else
        (void)snprintf(out, sizeof(out), "%s dbname=%s", s->conninfo, s->name);
    return out;
}
