/* What the demo's tables say: every event once for every consumer, in order, or not. */
#include "demo.h"

#include <stdlib.h>
#include <string.h>

mr_error *demo_prepare(PGconn *conn, const mr_conf *conf)
{
    CLI_TRY(mr_schema_apply(conn, conf, NULL));
    /* No unique key on purpose: a doubled effect has to be visible. */
    CLI_TRY(cli_exec(conn, "CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY, "
                           "consumer text NOT NULL, position bigint NOT NULL)"));
    return NULL;
}

static int consumer_index(const char *name)
{
    for (int i = 0; i < DEMO_CONSUMERS; i++)
        if (strcmp(demo_consumers[i].name, name) == 0)
            return i;
    return -1;
}

mr_error *demo_count(PGconn *conn, demo_counts *counts)
{
    PGresult *rows = NULL;
    CLI_TRY(cli_query(conn, "SELECT consumer, count(*) FROM effects GROUP BY consumer", &rows));
    memset(counts->handled, 0, sizeof(counts->handled));
    for (int row = 0; row < PQntuples(rows); row++) {
        int index = consumer_index(PQgetvalue(rows, row, 0));
        if (index >= 0)
            counts->handled[index] = strtoll(PQgetvalue(rows, row, 1), NULL, 10);
    }
    PQclear(rows);
    counts->least = counts->handled[0];
    for (int i = 1; i < DEMO_CONSUMERS; i++)
        if (counts->handled[i] < counts->least)
            counts->least = counts->handled[i];
    return cli_query_int(conn, "SELECT count(*) FROM millrace.consumer_gap_skips", &counts->holes);
}

/* The consumers as a relation, so that one without any effect counts as well. */
static char *consumer_values(void)
{
    char *list = cli_strdup("");
    for (int i = 0; i < DEMO_CONSUMERS; i++) {
        char *more = cli_format("%s%s('%s')", list, i == 0 ? "" : ", ", demo_consumers[i].name);
        free(list);
        list = more;
    }
    return list;
}

mr_error *demo_verify(PGconn *conn, demo_counts *counts)
{
    CLI_TRY(demo_count(conn, counts));
    CLI_TRY(cli_query_int(conn, "SELECT count(*) FROM events", &counts->committed));
    char *values = consumer_values();
    char *lost = cli_format(
        "SELECT count(*) FROM events e CROSS JOIN (VALUES %s) AS c (name) WHERE NOT EXISTS "
        "(SELECT 1 FROM effects f WHERE f.consumer = c.name AND f.position = e.global_position)",
        values);
    free(values);
    mr_error *error = cli_query_int(conn, lost, &counts->lost);
    free(lost);
    CLI_TRY(error);
    /* An effect of an event that was rolled back is one too many as well. */
    CLI_TRY(
        cli_query_int(conn,
                      "SELECT coalesce(sum(n - CASE WHEN e.global_position IS NULL THEN 0 ELSE "
                      "1 END), 0) FROM (SELECT consumer, position, count(*) AS n FROM effects "
                      "GROUP BY 1, 2) AS f LEFT JOIN events e ON e.global_position = f.position",
                      &counts->doubled));
    return cli_query_int(conn,
                         "SELECT count(*) FROM (SELECT position - lag(position) OVER (PARTITION BY "
                         "consumer ORDER BY id) AS step FROM effects) AS s WHERE step < 0",
                         &counts->disorder);
}
