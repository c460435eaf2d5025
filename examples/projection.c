/* A projection in C: keeps the stock of products up to date from the events of the log, and asks
 * for more when a product runs low.
 *
 *   projection [URI]        else the environment's MILLRACE_DATABASE
 *
 * Events it understands, each in a stream of type Product whose id is the product's name:
 *   Received {"pieces": 10}     Shipped {"pieces": 3}
 *
 * Whatever the handler writes through `tx` commits together with the consumer's checkpoint. So each
 * event counts once, also when this program is killed in the middle and started again. */
#include <millrace/millrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char tables[] =
    "CREATE TABLE IF NOT EXISTS stock (product text PRIMARY KEY, pieces integer NOT NULL);"
    "CREATE TABLE IF NOT EXISTS reorders (position bigint PRIMARY KEY, product text NOT NULL,"
    " pieces integer NOT NULL)";

/* One call an event, in the order of the log. `user` is what mr_consumer_on_event() was given. */
static mr_error *on_event(mr_tx *tx, const mr_event *event, void *user)
{
    const int *low = user;
    bool shipped = strcmp(mr_event_type(event), "Shipped") == 0;

    /* Parameters are texts. The payload is JSON here, so the server may take it apart. Only a
     * payload without NUL bytes can go as text; mr_tx_exec_params() sends any bytes. */
    const char *const change[] = {mr_event_aggregate_id(event), mr_event_payload(event, NULL),
                                  shipped ? "-1" : "1"};
    /* Queued, not waited for: a thousand of these cost one round trip. If the server refuses this
     * one, the batch is rolled back and the log names this event. */
    mr_error *error =
        mr_tx_exec(tx,
                   "INSERT INTO stock AS s (product, pieces)"
                   " VALUES ($1, ($2::jsonb ->> 'pieces')::integer * $3::integer)"
                   " ON CONFLICT (product) DO UPDATE SET pieces = s.pieces + excluded.pieces",
                   3, change);
    if (error != NULL || !shipped)
        return error;

    /* A query sees what was queued before it, and costs a round trip. Ask only when you must. */
    PGresult *rows = NULL;
    error = mr_tx_query(tx, "SELECT pieces FROM stock WHERE product = $1", 1, change, &rows);
    if (error != NULL)
        return error; /* the rows are set on success only */
    long pieces = strtol(PQgetvalue(rows, 0, 0), NULL, 10);
    PQclear(rows);
    if (pieces >= *low)
        return NULL;

    char position[24], left[24];
    (void)snprintf(position, sizeof(position), "%lld", (long long)mr_event_position(event));
    (void)snprintf(left, sizeof(left), "%ld", pieces);
    const char *const order[] = {position, mr_event_aggregate_id(event), left};
    return mr_tx_exec(tx, "INSERT INTO reorders (position, product, pieces) VALUES ($1, $2, $3)", 3,
                      order);
}

/* Millrace's schema, if it is not there yet, and the tables of this projection. */
static mr_error *set_up(const char *uri, const mr_conf *conf)
{
    PGconn *conn = NULL;
    mr_error *error = mr_connect(uri, "projection", &conn);
    if (error != NULL)
        return error;
    error = mr_schema_apply(conn, conf, NULL);
    if (error == NULL) {
        PGresult *result = PQexec(conn, tables);
        error = mr_error_from_result(conn, result);
        PQclear(result);
    }
    PQfinish(conn);
    return error;
}

static mr_error *configure(mr_conf *conf, const char *uri, int *low)
{
    mr_error *error = mr_conf_set(conf, "database", uri);
    /* Handle what is in the log now, then stop. Without this it runs until mr_worker_stop(). */
    if (error == NULL)
        error = mr_conf_set(conf, "once", "true");
    mr_consumer *consumer = mr_consumer_new("stock_v1");
    if (error == NULL)
        error = mr_consumer_set(consumer, "aggregate_types", "Product");
    if (error == NULL)
        error = mr_consumer_set(consumer, "event_types", "Received,Shipped");
    if (error != NULL) {
        mr_consumer_free(consumer);
        return error;
    }
    mr_consumer_on_event(consumer, on_event, low, NULL);
    return mr_conf_take_consumer(conf, consumer); /* the conf owns it from here on */
}

/* Log lines come from several threads, one at a time. */
static void on_log(void *user, mr_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)fprintf(stderr, "%s\n", line);
}

static mr_error *run(const char *uri)
{
    int low = 5; /* lives longer than the worker that uses it */
    mr_conf *conf = mr_conf_new();
    mr_worker *worker = NULL;
    mr_error *error = configure(conf, uri, &low);
    if (error == NULL)
        error = set_up(uri, conf);
    mr_conf_on_log(conf, on_log, NULL);
    if (error == NULL)
        error = mr_worker_new(conf, &worker);
    if (error != NULL) {
        mr_conf_free(conf); /* a worker that was made owns the conf; here there is none */
        return error;
    }
    error = mr_worker_run(worker);
    if (error == NULL)
        (void)printf("handled %lld events\n",
                     (long long)mr_worker_metric(worker, "events_handled"));
    mr_worker_free(worker);
    return error;
}

int main(int argc, char **argv)
{
    const char *uri = argc > 1 ? argv[1] : getenv("MILLRACE_DATABASE");
    if (uri == NULL) {
        (void)fprintf(stderr, "usage: projection URI\n");
        return 2;
    }
    mr_error *error = run(uri);
    if (error != NULL)
        (void)fprintf(stderr, "projection: %s\n", mr_error_message(error));
    int status = error == NULL ? 0 : 1;
    mr_error_free(error);
    return status;
}
