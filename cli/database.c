/* Which database a command works on, and connections to it. */
#include "cli.h"

#include "devserver.h"

#include <stdlib.h>
#include <string.h>

mr_error *cli_conf(const cli_context *cli, const char *file, mr_conf **out)
{
    mr_conf *conf = mr_conf_new();
    if (conf == NULL)
        return mr_error_new(MR_E_NOMEM, false, "out of memory");
    mr_error *error = NULL;
    if (file == NULL)
        file = cli->config;
    if (file != NULL)
        error = mr_conf_load(conf, file);
    if (error == NULL && cli->schema != NULL)
        error = mr_conf_set(conf, "schema", cli->schema);
    if (error != NULL) {
        mr_conf_free(conf);
        return error;
    }
    *out = conf;
    return NULL;
}

static const char *not_empty(const char *text)
{
    return text != NULL && text[0] != '\0' ? text : NULL;
}

static const char *chosen(const cli_context *cli, const mr_conf *conf)
{
    const char *const choices[] = {cli->database, getenv("MILLRACE_DATABASE"),
                                   getenv("DATABASE_URL"), mr_conf_get(conf, "database")};
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++)
        if (not_empty(choices[i]) != NULL)
            return choices[i];
    return NULL;
}

static void announce(const dev_server *server, bool started)
{
    cli_say("%s the embedded PostgreSQL in %s (--database or MILLRACE_DATABASE names another)",
            started ? "started" : "using", server->home);
    if (started && strcmp(server->base, server->home) != 0)
        cli_say("its data is in %s: user %s cannot enter %s", server->data, server->user,
                server->home);
}

mr_error *cli_database(cli_context *cli, mr_conf *conf)
{
    const char *database = chosen(cli, conf);
    if (database != NULL) {
        char *copy = cli_strdup(database);
        mr_error *error = mr_conf_set(conf, "database", copy);
        free(copy);
        return error;
    }
    dev_server *server = NULL;
    CLI_TRY(dev_open(&server));
    bool started = false;
    mr_error *error = dev_start(server, cli->verbose, &started);
    if (error == NULL) {
        announce(server, started);
        cli->embedded = true;
        error = mr_conf_set(conf, "database", server->uri);
    }
    dev_free(server);
    return error;
}

static void drop_notice(void *user, const char *message)
{
    (void)user;
    (void)message;
}

mr_error *cli_connect_to(const char *uri, const char *application, PGconn **conn)
{
    CLI_TRY(mr_connect(uri, application, conn));
    (void)PQsetNoticeProcessor(*conn, drop_notice, NULL);
    return NULL;
}

mr_error *cli_connect(const mr_conf *conf, PGconn **conn)
{
    return cli_connect_to(mr_conf_get(conf, "database"), "millrace", conn);
}

mr_error *cli_embedded_schema(const cli_context *cli, const mr_conf *conf, PGconn *conn)
{
    int current = 0, latest = 0, applied = 0;
    if (!cli->embedded)
        return NULL;
    CLI_TRY(mr_schema_status(conn, conf, &current, &latest));
    if (current >= latest)
        return NULL;
    CLI_TRY(mr_schema_apply(conn, conf, &applied));
    cli_say("installed Millrace's schema in the embedded PostgreSQL");
    return NULL;
}

mr_error *cli_open(cli_context *cli, mr_conf **conf_out, PGconn **conn_out)
{
    mr_conf *conf = NULL;
    PGconn *conn = NULL;
    CLI_TRY(cli_conf(cli, NULL, &conf));
    mr_error *error = cli_database(cli, conf);
    if (error == NULL)
        error = cli_connect(conf, &conn);
    if (error == NULL)
        error = cli_embedded_schema(cli, conf, conn);
    if (error != NULL) {
        PQfinish(conn);
        mr_conf_free(conf);
        return error;
    }
    *conf_out = conf;
    *conn_out = conn;
    return NULL;
}

mr_error *cli_list(cli_context *cli, const char *what, PGresult **rows)
{
    mr_conf *conf = NULL;
    PGconn *conn = NULL;
    CLI_TRY(cli_open(cli, &conf, &conn));
    mr_error *error = mr_list(conn, conf, what, rows);
    PQfinish(conn);
    mr_conf_free(conf);
    return error;
}

mr_error *cli_query(PGconn *conn, const char *sql, PGresult **rows)
{
    PGresult *result = PQexec(conn, sql);
    mr_error *error = mr_error_from_result(conn, result);
    if (error != NULL) {
        PQclear(result);
        return error;
    }
    *rows = result;
    return NULL;
}

mr_error *cli_exec(PGconn *conn, const char *sql)
{
    PGresult *result = NULL;
    CLI_TRY(cli_query(conn, sql, &result));
    PQclear(result);
    return NULL;
}

mr_error *cli_query_int(PGconn *conn, const char *sql, int64_t *value)
{
    PGresult *result = NULL;
    CLI_TRY(cli_query(conn, sql, &result));
    bool fits = PQntuples(result) == 1 && PQnfields(result) >= 1;
    if (fits)
        *value = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    return fits ? NULL : mr_error_new(MR_E_INTERNAL, false, "one row was expected of: %s", sql);
}
