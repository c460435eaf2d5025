/* Millrace's statements for jobs in plain loops, without a worker: what a worker's side of `drain`
 * could reach at most. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HAND_LOOPS = 2 };

typedef struct loop {
    const bench *bench;
    const char *queue;
    bool lease;
    pthread_t thread;
} loop;

static const char *const claim_sql =
    "SELECT job, fence, next_marks, payload FROM millrace.claim_jobs($1, $2::int, 'by hand',"
    " $3::bigint[], $4::bool, 0, NULL, 0, NULL, NULL, $5::bigint[])";
static const char *const take_sql =
    "SELECT job, fence, next_marks, payload FROM millrace.take_jobs($1, $2::int, $3::bigint[],"
    " $4::bool, NULL, 0, NULL)";
static const char *const finish_sql = "SELECT coalesce(min(n), -1) FROM millrace.finish_jobs($1, "
                                      "$2::bigint[], $3::bigint[], NULL, NULL, NULL,"
                                      " NULL, false, 25, '1 s', '1 h', false, true)";
static const char *const finish_taken_sql =
    "SELECT millrace.finish_taken($1, 'by hand', $2::bigint[], NULL, NULL, NULL, NULL, 25, '1 s',"
    " '1 h', false, true)";

/* A column of all rows as an array's text; freed by the caller. */
static char *array_of(const PGresult *rows, int column)
{
    enum { DIGITS = 21 };
    char *text = malloc((size_t)PQntuples(rows) * DIGITS + 3);
    size_t used = 0;
    if (text == NULL)
        bench_die("no memory");
    text[used++] = '{';
    for (int i = 0; i < PQntuples(rows); i++) {
        size_t length = (size_t)PQgetlength(rows, i, column);
        if (i > 0)
            text[used++] = ',';
        memcpy(text + used, PQgetvalue(rows, i, column), length);
        used += length;
    }
    memcpy(text + used, "}", 2);
    return text;
}

static void prepare(PGconn *conn, const char *name, const char *sql)
{
    PGresult *result = PQprepare(conn, name, sql, 0, NULL);
    bench_must(mr_error_from_result(conn, result), name);
    PQclear(result);
}

static PGresult *prepared(PGconn *conn, const char *name, int count, const char *const *values)
{
    PGresult *rows = PQexecPrepared(conn, name, count, values, NULL, NULL, 0);
    bench_must(mr_error_from_result(conn, rows), name);
    return rows;
}

static void finish(const loop *l, PGconn *conn, const PGresult *jobs)
{
    char *ids = array_of(jobs, 0), *fences = array_of(jobs, 1);
    const char *values[] = {l->queue, ids, fences};
    PGresult *rows = prepared(conn, "finish", l->lease ? 3 : 2, values);
    if (l->lease && strcmp(PQgetvalue(rows, 0, 0), "0") != 0) /* 0 stands for all */
        bench_die("not all claimed jobs could be finished");
    PQclear(rows);
    free(ids);
    free(fences);
}

/* Where the next batch starts, and the claim before it, which is over. */
typedef struct place {
    char *marks;
    char spent[24];
} place;

/* One batch; false when there was none. */
static bool batch(const loop *l, PGconn *conn, place *p)
{
    bool whole = p->marks == NULL;
    const char *values[] = {l->queue, "500", p->marks, whole ? "true" : "false", p->spent};
    if (!l->lease)
        bench_exec(conn, "BEGIN", 0, NULL);
    PGresult *jobs = prepared(conn, "claim", l->lease ? 5 : 4, values);
    bool any = PQntuples(jobs) > 0;
    free(p->marks);
    p->marks = NULL; /* an empty look is repeated from the beginning */
    if (any) {
        p->marks = strdup(PQgetvalue(jobs, 0, 2));
        (void)snprintf(p->spent, sizeof(p->spent), "{%s}", PQgetvalue(jobs, 0, 1));
        finish(l, conn, jobs);
    }
    if (!l->lease)
        bench_exec(conn, "COMMIT", 0, NULL);
    PQclear(jobs);
    return any || !whole;
}

static void *run(void *argument)
{
    const loop *l = argument;
    PGconn *conn = bench_connect(l->bench, "bench by hand");
    prepare(conn, "claim", l->lease ? claim_sql : take_sql);
    prepare(conn, "finish", l->lease ? finish_sql : finish_taken_sql);
    place p = {.spent = "{}"};
    while (batch(l, conn, &p)) {
    }
    free(p.marks);
    PQfinish(conn);
    return NULL;
}

void bench_jobs_by_hand(const bench *b, const char *queue, bool lease)
{
    loop loops[HAND_LOOPS];
    for (int i = 0; i < HAND_LOOPS; i++) {
        loops[i] = (loop){.bench = b, .queue = queue, .lease = lease};
        if (pthread_create(&loops[i].thread, NULL, run, &loops[i]) != 0)
            bench_die("cannot start a thread");
    }
    for (int i = 0; i < HAND_LOOPS; i++)
        (void)pthread_join(loops[i].thread, NULL);
}
