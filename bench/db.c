/* The benchmark's own dealings with the database: statements by hand, the schema, generated events.
 */
#include "bench.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void bench_die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)fputs("bench: ", stderr);
    (void)vfprintf(stderr, format, arguments);
    (void)fputc('\n', stderr);
    va_end(arguments);
    exit(3);
}

void bench_must(mr_error *error, const char *what)
{
    if (error != NULL)
        bench_die("%s: %s", what, mr_error_message(error));
}

PGconn *bench_connect(const bench *b, const char *application)
{
    PGconn *conn = NULL;
    bench_must(mr_connect(b->conninfo, application, &conn), "connecting");
    bench_exec(conn, "SET client_min_messages = warning", 0, NULL);
    return conn;
}

PGresult *bench_query(PGconn *conn, const char *sql, int count, const char *const *values)
{
    PGresult *rows = PQexecParams(conn, sql, count, NULL, values, NULL, NULL, 0);
    bench_must(mr_error_from_result(conn, rows), sql);
    return rows;
}

void bench_exec(PGconn *conn, const char *sql, int count, const char *const *values)
{
    PQclear(bench_query(conn, sql, count, values));
}

int64_t bench_number(PGconn *conn, const char *sql)
{
    PGresult *rows = bench_query(conn, sql, 0, NULL);
    int64_t number = PQntuples(rows) == 0 ? 0 : strtoll(PQgetvalue(rows, 0, 0), NULL, 10);
    PQclear(rows);
    return number;
}

void bench_schema(bench *b)
{
    if (bench_number(b->conn, "SELECT count(*) FROM pg_class WHERE relname = 'events'") > 0)
        bench_die("this database holds a log already; give the benchmark an empty one");
    mr_conf *conf = mr_conf_new();
    if (conf == NULL)
        bench_die("no memory");
    bench_must(mr_schema_apply(b->conn, conf, NULL), "creating the schema");
    mr_conf_free(conf);
}

/* About 200 bytes of JSON an event, as an application would write. */
void bench_generate(PGconn *conn, const char *stream_type, int64_t from, int64_t to)
{
    char first[24], last[24], streams[24];
    (void)snprintf(first, sizeof(first), "%" PRId64, from);
    (void)snprintf(last, sizeof(last), "%" PRId64, to);
    (void)snprintf(streams, sizeof(streams), "%d", BENCH_STREAMS);
    const char *values[] = {stream_type, first, last, streams};
    bench_exec(
        conn,
        "INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id,"
        " event_type, payload)"
        " SELECT $1, 'order-' || n % $4::int8, n / $4::int8 + 1, gen_random_uuid(),"
        " CASE n % 3 WHEN 0 THEN 'OrderPlaced' WHEN 1 THEN 'OrderPaid' ELSE 'OrderSent' END,"
        " convert_to(rpad('{\"n\": ' || n || ', \"text\": \"', 198, 'lorem ipsum ') || '\"}',"
        " 'UTF8') FROM generate_series($2::int8, $3::int8) AS n ORDER BY n",
        4, values);
}

int64_t bench_log(bench *b, int64_t events)
{
    enum { AT_ONCE = 100000 };
    bool grew = b->loaded < events;
    while (b->loaded < events) {
        int64_t to = events - b->loaded < AT_ONCE ? events : b->loaded + AT_ONCE;
        bench_generate(b->conn, "Order", b->loaded + 1, to);
        b->loaded = to;
    }
    if (grew) /* so that neither side pays for hint bits or meets a vacuum */
        bench_exec(b->conn, "VACUUM (ANALYZE) events", 0, NULL);
    return bench_number(b->conn, "SELECT coalesce(max(global_position), 0) FROM events");
}

void bench_checkpoint(PGconn *conn, const char *consumer, int64_t position)
{
    char text[24];
    (void)snprintf(text, sizeof(text), "%" PRId64, position);
    const char *values[] = {consumer, text};
    bench_exec(conn,
               "INSERT INTO millrace.consumer_checkpoints (consumer_name, last_position)"
               " VALUES ($1, $2::int8) ON CONFLICT (consumer_name)"
               " DO UPDATE SET last_position = excluded.last_position",
               2, values);
}
