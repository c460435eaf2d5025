/* A batch handler: one call for up to batch_size events, so the work can be done in memory first
 * and written with few statements.
 *
 *   batch [URI]        else the environment's MILLRACE_DATABASE
 *
 * Counts events by type. A batch of a thousand events of three types writes three rows and one
 * line in the table `batches`, all in the transaction that also moves the checkpoint. */
#include <millrace/millrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char tables[] =
    "CREATE TABLE IF NOT EXISTS event_counts (event_type text PRIMARY KEY, n bigint NOT NULL);"
    "CREATE TABLE IF NOT EXISTS batches (first bigint PRIMARY KEY, last bigint NOT NULL,"
    " n bigint NOT NULL)";

enum { MOST_TYPES = 64 };

typedef struct tally {
    const char *type; /* the event's own text: valid until the handler returns */
    long long n;
} tally;

static mr_error *add(tally *tallies, size_t *used, const char *type)
{
    size_t i = 0;
    while (i < *used && strcmp(tallies[i].type, type) != 0)
        i++;
    if (i == MOST_TYPES)
        return mr_error_new(MR_E_HANDLER, false, "more than %d types in a batch", MOST_TYPES);
    if (i == *used)
        tallies[(*used)++] = (tally){.type = type};
    tallies[i].n++;
    return NULL;
}

static mr_error *write_counts(mr_tx *tx, const tally *tallies, size_t used)
{
    for (size_t i = 0; i < used; i++) {
        char n[24];
        (void)snprintf(n, sizeof(n), "%lld", tallies[i].n);
        const char *const values[] = {tallies[i].type, n};
        mr_error *error = mr_tx_exec(tx,
                                     "INSERT INTO event_counts AS c (event_type, n) VALUES ($1, $2)"
                                     " ON CONFLICT (event_type) DO UPDATE SET n = c.n + excluded.n",
                                     2, values);
        if (error != NULL)
            return error;
    }
    return NULL;
}

/* `events` are never none, and in the order of the log. Nothing of them may be kept afterwards. */
static mr_error *on_batch(mr_tx *tx, const mr_event *const *events, size_t count, void *user)
{
    (void)user;
    tally tallies[MOST_TYPES];
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        /* Long work between statements should look whether it is still wanted. */
        if (mr_tx_cancelled(tx))
            return mr_error_new(MR_E_CANCELLED, true, "told to stop");
        mr_error *error = add(tallies, &used, mr_event_type(events[i]));
        if (error != NULL)
            return error; /* rolls the whole batch back */
    }
    mr_error *error = write_counts(tx, tallies, used);
    if (error != NULL)
        return error;
    char first[24], last[24], n[24];
    (void)snprintf(first, sizeof(first), "%lld", (long long)mr_event_position(events[0]));
    (void)snprintf(last, sizeof(last), "%lld", (long long)mr_event_position(events[count - 1]));
    (void)snprintf(n, sizeof(n), "%zu", count);
    const char *const values[] = {first, last, n};
    return mr_tx_exec(tx, "INSERT INTO batches (first, last, n) VALUES ($1, $2, $3)", 3, values);
}

static mr_error *set_up(const char *uri, const mr_conf *conf)
{
    PGconn *conn = NULL;
    mr_error *error = mr_connect(uri, "batch", &conn);
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

/* A YAML text can hold options, and consumers with SQL handlers; handlers in C are added to it. */
static mr_error *configure(mr_conf *conf, const char *uri)
{
    static const char yaml[] = "worker: { batch_size: 1000, once: true }\n";
    mr_error *error = mr_conf_parse(conf, yaml, sizeof(yaml) - 1, "built in");
    if (error == NULL)
        error = mr_conf_set(conf, "database", uri);
    if (error != NULL)
        return error;
    mr_consumer *consumer = mr_consumer_new("event_counts_v1");
    mr_consumer_on_batch(consumer, on_batch, NULL, NULL);
    return mr_conf_take_consumer(conf, consumer);
}

static mr_error *run(mr_conf *conf, const char *uri)
{
    mr_worker *worker = NULL;
    mr_error *error = configure(conf, uri);
    if (error == NULL)
        error = set_up(uri, conf);
    if (error == NULL)
        error = mr_worker_new(conf, &worker);
    if (error != NULL) {
        mr_conf_free(conf);
        return error;
    }
    error = mr_worker_run(worker);
    (void)printf("%lld events in %lld batches\n",
                 (long long)mr_worker_metric(worker, "events_handled"),
                 (long long)mr_worker_metric(worker, "batches"));
    mr_worker_free(worker); /* and the conf with it */
    return error;
}

int main(int argc, char **argv)
{
    const char *uri = argc > 1 ? argv[1] : getenv("MILLRACE_DATABASE");
    if (uri == NULL) {
        (void)fprintf(stderr, "usage: batch URI\n");
        return 2;
    }
    mr_error *error = run(mr_conf_new(), uri);
    if (error != NULL)
        (void)fprintf(stderr, "batch: %s\n", mr_error_message(error));
    int status = error == NULL ? 0 : 1;
    mr_error_free(error);
    return status;
}
