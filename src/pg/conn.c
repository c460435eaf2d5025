/* Blocking use of a libpq connection: connect, one-statement helpers, errors from results. */
#include "pg/conn.h"

#include "base/buf.h"

#include <stdlib.h>
#include <string.h>

void mr__conn_keywords(const mr_conn_params *params, const char *keys[MR_CONN_KEYS],
                       const char *values[MR_CONN_KEYS])
{
    /* Later entries win over earlier ones in libpq, so the user's conninfo comes last. The
     * keepalives notice a peer that vanished within half a minute instead of two hours. */
    static const char *const fixed[][2] = {
        {"connect_timeout", "10"},    {"keepalives", "1"},       {"keepalives_idle", "10"},
        {"keepalives_interval", "5"}, {"keepalives_count", "3"}, {"tcp_user_timeout", "25000"},
        {"client_encoding", "UTF8"},
    };
    size_t n = 0;
    for (; n < sizeof(fixed) / sizeof(fixed[0]); n++) {
        keys[n] = fixed[n][0];
        values[n] = fixed[n][1];
    }
    keys[n] = "dbname";
    values[n++] = params->conninfo;
    /* After the user's own: a worker is known by it to those who must end its sessions. */
    keys[n] = "application_name";
    values[n++] = params->application;
    keys[n] = NULL;
    values[n] = NULL;
}

/* libpq quotes what it cannot parse, and with it a password. Only what names an option is safe to
 * repeat. */
static mr_error *check_conninfo(const char *conninfo)
{
    /* Without either it is just a database's name. */
    if (strchr(conninfo, '=') == NULL && strstr(conninfo, "://") == NULL)
        return NULL;
    char *why = NULL;
    PQconninfoOption *options = PQconninfoParse(conninfo, &why);
    if (options != NULL) {
        PQconninfoFree(options);
        return NULL;
    }
    static const char *const safe[] = {"invalid connection option", "invalid URI query parameter"};
    bool tell = false;
    for (size_t i = 0; why != NULL && i < sizeof(safe) / sizeof(safe[0]); i++)
        tell = tell || strncmp(why, safe[i], strlen(safe[i])) == 0;
    mr_error *error = mr__error(MR_E_CONNECT,
                                "the database's URI or connection string is not valid%s%s; write "
                                "postgresql://user@host:port/database",
                                tell ? ": " : "", tell ? why : "");
    PQfreemem(why);
    return error;
}

mr_error *mr_connect(const char *conninfo, const char *application, PGconn **out)
{
    MR_TRY(check_conninfo(conninfo));
    const char *keys[MR_CONN_KEYS], *values[MR_CONN_KEYS];
    mr_conn_params params = {.conninfo = conninfo, .application = application};
    mr__conn_keywords(&params, keys, values);
    MR_AUTO_CONN conn = PQconnectdbParams(keys, values, 1);
    if (conn == NULL)
        return mr__error_nomem();
    if (PQstatus(conn) != CONNECTION_OK)
        return mr__pg_conn_error(conn);
    *out = conn;
    conn = NULL;
    return NULL;
}

/* libpq quotes the conninfo it could not parse, and with it a password: take it out. */
static char *scrub(const char *message, const char *password)
{
    MR_AUTO_BUF out = {0};
    size_t secret = password == NULL ? 0 : strlen(password);
    while (*message != '\0') {
        if (secret > 0 && strncmp(message, password, secret) == 0) {
            mr__buf_puts(&out, "********");
            message += secret;
        } else {
            mr__buf_putc(&out, *message++);
        }
    }
    return mr__buf_take(&out);
}

mr_error *mr__pg_conn_error(PGconn *conn)
{
    const char *text = PQerrorMessage(conn);
    bool conninfo_bad = PQpass(conn) == NULL && strstr(text, "://") != NULL;
    if (conninfo_bad)
        return mr__error(MR_E_CONNECT, "the database URI is not valid; write "
                                       "postgresql://user@host:port/database");
    char *clean = scrub(text, PQpass(conn));
    if (clean == NULL)
        return mr__error_nomem();
    mr_error *error = mr__error_db(MR_E_CONNECT, NULL, true, "%s",
                                   clean[0] == '\0' ? "the connection was lost" : clean);
    free(clean);
    return error;
}

bool mr__pg_sqlstate_connection(const char *sqlstate)
{
    /* 08P01, a protocol violation, is the sender's own: a wrong number of parameters, say. */
    if (strcmp(sqlstate, "08P01") == 0)
        return false;
    /* 08: connection exceptions; 57P0x: shutdown, crash, cannot connect now, dropped database, idle
     * session; 25P03: idle in transaction too long. */
    return strncmp(sqlstate, "08", 2) == 0 || strncmp(sqlstate, "57P0", 4) == 0 ||
           strcmp(sqlstate, "25P03") == 0;
}

bool mr__pg_sqlstate_retryable(const char *sqlstate)
{
    static const char *const states[] = {
        "40001", /* serialization failure */
        "40P01", /* deadlock */
        "25006", /* read-only: a standby after a fail-over */
        "53300", /* too many connections */
        "55P03", /* lock not available */
    };
    if (sqlstate[0] == '\0' || mr__pg_sqlstate_connection(sqlstate))
        return true;
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++)
        if (strcmp(sqlstate, states[i]) == 0)
            return true;
    return strncmp(sqlstate, "53", 2) == 0; /* resources: disk full, out of memory */
}

bool mr__pg_sqlstate_permanent(const char *sqlstate)
{
    return strncmp(sqlstate, "22", 2) == 0 || strcmp(sqlstate, "23502") == 0 ||
           strcmp(sqlstate, "23514") == 0;
}

bool mr__pg_nobodys_fault(const mr_error *error)
{
    return mr_error_sqlstate(error)[0] != '\0' &&
           (mr_error_retryable(error) || mr_error_code(error) == MR_E_FENCED);
}

/* Millrace's own functions raise class MR; see sql/functions. */
static mr_code code_of(const char *sqlstate)
{
    static const struct {
        const char *state;
        mr_code code;
    } own[] = {{"MR001", MR_E_CONFLICT}, {"MR002", MR_E_FENCED}, {"MR003", MR_E_FENCED},
               {"MR004", MR_E_FENCED},   {"MR005", MR_E_LOG},    {"MR006", MR_E_FENCED},
               {"MR007", MR_E_USAGE},    {"MR008", MR_E_STATE},  {"MR009", MR_E_FENCED},
               {"MR010", MR_E_FENCED},   {"MR020", MR_E_USAGE},  {"57014", MR_E_TIMEOUT}};
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (strcmp(sqlstate, own[i].state) == 0)
            return own[i].code;
    return mr__pg_sqlstate_connection(sqlstate) ? MR_E_CONNECT : MR_E_DB;
}

/* A pooler ends sessions with 08P01, for want of a better code, and calls it fatal. */
static bool pooler_hung_up(const PGresult *result, const char *sqlstate)
{
    const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
    if (severity == NULL)
        severity = PQresultErrorField(result, PG_DIAG_SEVERITY);
    return strcmp(sqlstate, "08P01") == 0 && severity != NULL && strcmp(severity, "FATAL") == 0;
}

mr_error *mr_error_from_result(PGconn *conn, const PGresult *result)
{
    if (result == NULL)
        return mr__pg_conn_error(conn);
    switch (PQresultStatus(result)) {
    case PGRES_COMMAND_OK:
    case PGRES_TUPLES_OK:
    case PGRES_SINGLE_TUPLE:
    case PGRES_EMPTY_QUERY:
    case PGRES_PIPELINE_SYNC:
    case PGRES_NONFATAL_ERROR:
    case PGRES_COPY_IN:
    case PGRES_COPY_OUT:
    case PGRES_COPY_BOTH:
        return NULL;
    case PGRES_PIPELINE_ABORTED:
        return mr__error(MR_E_DB, "not run because an earlier statement failed");
    case PGRES_BAD_RESPONSE:
    case PGRES_FATAL_ERROR:
    default:
        break;
    }
    /* The server's fields are optional: a lost connection leaves a result without them. */
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *primary = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    const char *detail = PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL);
    const char *hint = PQresultErrorField(result, PG_DIAG_MESSAGE_HINT);
    if (state == NULL || primary == NULL)
        return mr__error_db(MR_E_CONNECT, NULL, true, "%s", PQresultErrorMessage(result));
    bool gone = pooler_hung_up(result, state);
    return mr__error_db(
        gone ? MR_E_CONNECT : code_of(state), state, gone || mr__pg_sqlstate_retryable(state),
        "%s%s%s%s%s%s", primary, detail != NULL ? " (" : "", detail != NULL ? detail : "",
        detail != NULL ? ")" : "", hint != NULL ? "; " : "", hint != NULL ? hint : "");
}

mr_error *mr__pg_query(PGconn *conn, PGresult **rows, const char *sql, int count,
                       const char *const *values)
{
    MR_AUTO_RESULT result = PQexecParams(conn, sql, count, NULL, values, NULL, NULL, 0);
    MR_TRY(mr_error_from_result(conn, result));
    if (rows != NULL) {
        *rows = result;
        result = NULL;
    }
    return NULL;
}

mr_error *mr__pg_script(PGconn *conn, const char *sql)
{
    MR_AUTO_RESULT result = PQexec(conn, sql);
    return mr_error_from_result(conn, result);
}

void mr__pg_clear(PGresult **result)
{
    PQclear(*result);
    *result = NULL;
}

void mr__pg_finish(PGconn **conn)
{
    PQfinish(*conn);
    *conn = NULL;
}
