/* Appends events in the program's own transaction, and deals with a version conflict.
 *
 *   appender [URI] [ORDER]        else the environment's MILLRACE_DATABASE, and order "o-1"
 *
 * One transaction writes a row of the application's own table and an event: both commit, or
 * neither. The first run places the order. A later run finds that its stream exists already, which
 * is a conflict with "must not exist", and confirms the order instead. */
#include <millrace/millrace.h>
#include <stdio.h>
#include <stdlib.h>

static mr_error *sql(PGconn *conn, const char *text, const char *value)
{
    const char *const values[] = {value};
    PGresult *result = PQexecParams(conn, text, value == NULL ? 0 : 1, NULL, values, NULL, NULL, 0);
    mr_error *error = mr_error_from_result(conn, result);
    PQclear(result);
    return error;
}

/* One event for one stream. A draft takes many events of many streams; all go in one round trip. */
static mr_error *append(PGconn *conn, const mr_log *log, const char *order, int64_t expected,
                        const char *type)
{
    static const char payload[] = "{\"by\": \"example\"}";
    mr_draft *draft = mr_draft_new();
    mr_error *error = mr_draft_stream(draft, "Order", order, expected);
    if (error == NULL)
        error = mr_draft_event(draft, type, payload, sizeof(payload) - 1);
    if (error == NULL)
        error = mr_draft_field(draft, "correlation_id", order);
    if (error == NULL)
        error = mr_append(conn, log, draft);
    if (error == NULL)
        (void)printf("%s at position %lld, version %lld\n", type,
                     (long long)mr_draft_position(draft, 0), (long long)mr_draft_version(draft, 0));
    mr_draft_free(draft);
    return error;
}

/* The order exists: decide by what happened to it so far, and append only if nothing else has
 * happened meanwhile. When something has, look and decide again. */
static mr_error *confirm(PGconn *conn, const mr_log *log, const char *order)
{
    mr_error *error = NULL;
    for (int attempt = 0; attempt < 5; attempt++) {
        mr_events *events = NULL;
        error = mr_log_read_stream(conn, log, "Order", order, 0, 0, &events);
        if (error != NULL)
            return error;
        size_t count = mr_events_count(events);
        int64_t version = mr_event_aggregate_version(mr_events_at(events, count - 1));
        mr_events_free(events);
        error = append(conn, log, order, version, "OrderConfirmed");
        if (mr_error_code(error) != MR_E_CONFLICT)
            return error;
        mr_error_free(error);
        error = NULL;
    }
    return mr_error_new(MR_E_CONFLICT, true, "order %s changes all the time", order);
}

/* Everything between BEGIN and COMMIT. mr_append() neither commits nor rolls back. */
static mr_error *place(PGconn *conn, const mr_log *log, const char *order)
{
    mr_error *error = sql(conn,
                          "INSERT INTO orders (id) VALUES ($1)"
                          " ON CONFLICT (id) DO UPDATE SET saves = orders.saves + 1",
                          order);
    if (error != NULL)
        return error;
    error = append(conn, log, order, MR_EXPECT_NONE, "OrderPlaced");
    if (mr_error_code(error) != MR_E_CONFLICT)
        return error;
    /* A conflict leaves the transaction usable, and no position was drawn for the event. */
    (void)printf("conflict: %s\n", mr_error_message(error));
    mr_error_free(error);
    return confirm(conn, log, order);
}

static mr_error *in_transaction(PGconn *conn, const mr_log *log, const char *order)
{
    mr_error *error = sql(conn, "BEGIN", NULL);
    if (error == NULL)
        error = place(conn, log, order);
    if (error == NULL)
        return sql(conn, "COMMIT", NULL);
    mr_error_free(sql(conn, "ROLLBACK", NULL));
    return error;
}

static mr_error *run(PGconn *conn, const char *order)
{
    mr_conf *conf = mr_conf_new(); /* the defaults: table events, schema millrace */
    mr_log *log = NULL;
    mr_error *error = mr_schema_apply(conn, conf, NULL);
    if (error == NULL)
        error = sql(conn,
                    "CREATE TABLE IF NOT EXISTS orders"
                    " (id text PRIMARY KEY, saves integer NOT NULL DEFAULT 1)",
                    NULL);
    /* Open it once and keep it: it holds what the catalog says about the log. */
    if (error == NULL)
        error = mr_log_open(conn, conf, &log);
    if (error == NULL)
        error = in_transaction(conn, log, order);
    mr_log_free(log);
    mr_conf_free(conf);
    return error;
}

int main(int argc, char **argv)
{
    const char *uri = argc > 1 ? argv[1] : getenv("MILLRACE_DATABASE");
    if (uri == NULL) {
        (void)fprintf(stderr, "usage: appender URI [ORDER]\n");
        return 2;
    }
    PGconn *conn = NULL;
    mr_error *error = mr_connect(uri, "appender", &conn); /* any PGconn will do */
    if (error == NULL)
        error = run(conn, argc > 2 ? argv[2] : "o-1");
    PQfinish(conn);
    if (error != NULL)
        (void)fprintf(stderr, "appender: %s (%s)\n", mr_error_message(error),
                      mr_code_name(mr_error_code(error)));
    int status = error == NULL ? 0 : 1;
    mr_error_free(error);
    return status;
}
