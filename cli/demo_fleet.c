/* The demo's fleet: who owns which consumer, and the accident that takes one worker away. */
#include "demo.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_MS = 20000 }; /* far beyond what a healthy fleet needs */

/* ---- Who owns what ------------------------------------------------------------------------- */

static int worker_index(const demo_workers *workers, const PGresult *rows, int row)
{
    long pid = strtol(cli_cell(rows, row, "pid"), NULL, 10);
    for (int i = 0; i < workers->count; i++)
        if (pid != 0 && workers->pid[i] == pid)
            return i;
    return -1;
}

static mr_error *read_workers(PGconn *conn, const mr_conf *conf, const demo_workers *workers,
                              demo_fleet *fleet)
{
    PGresult *rows = NULL;
    CLI_TRY(mr_list(conn, conf, "workers", &rows));
    for (int row = 0; row < PQntuples(rows); row++) {
        int index = worker_index(workers, rows, row);
        if (index >= 0 && strcmp(cli_cell(rows, row, "state"), "alive") == 0)
            fleet->alive++;
        if (index >= 0 && cli_cell(rows, row, "leader")[0] == 't')
            fleet->leader = index;
    }
    PQclear(rows);
    return NULL;
}

mr_error *demo_fleet_read(PGconn *conn, const mr_conf *conf, const demo_workers *workers,
                          demo_fleet *fleet)
{
    *fleet = (demo_fleet){.leader = -1};
    for (int i = 0; i < DEMO_CONSUMERS; i++)
        fleet->owner[i] = -1;
    CLI_TRY(read_workers(conn, conf, workers, fleet));
    PGresult *rows = NULL;
    CLI_TRY(mr_list(conn, conf, "consumers", &rows));
    for (int row = 0; row < PQntuples(rows); row++)
        for (int i = 0; i < DEMO_CONSUMERS; i++) {
            if (strcmp(demo_consumers[i].name, cli_cell(rows, row, "consumer")) != 0)
                continue;
            fleet->owner[i] = worker_index(workers, rows, row);
            fleet->checkpoint[i] = strtoll(cli_cell(rows, row, "checkpoint"), NULL, 10);
        }
    PQclear(rows);
    return NULL;
}

/* ---- The accident -------------------------------------------------------------------------- */

mr_error *demo_accident_plan(PGconn *conn, int64_t earliest_ms, demo_accident *accident)
{
    /* In a server's first ten seconds a missing session means nothing (all are just coming back),
     * so a leader waits for the heartbeat's timeout then. The demo is no place to wait that long.
     */
    int64_t young = 0;
    CLI_TRY(cli_query_int(conn,
                          "SELECT greatest(0, 10500 - 1000 * extract(epoch FROM clock_timestamp() "
                          "- pg_postmaster_start_time()))::int8",
                          &young));
    *accident = (demo_accident){.victim = -1};
    accident->due = cli_now_ms() + (young > earliest_ms ? young : earliest_ms);
    return NULL;
}

bool demo_accident_pending(const demo_accident *accident)
{
    return accident->due != 0 && accident->moved_ms == 0;
}

/* Names of the consumers that the killed worker owned; free(). */
static char *owned_names(const demo_accident *a)
{
    char *list = cli_strdup("");
    for (int i = 0; i < DEMO_CONSUMERS; i++) {
        if (!a->owned[i])
            continue;
        char *more =
            cli_format("%s%s%s", list, list[0] == '\0' ? "" : ", ", demo_consumers[i].name);
        free(list);
        list = more;
    }
    return list;
}

/* The worker with the most consumers: as much as possible has to move. */
static int pick_victim(const demo_workers *workers, const demo_fleet *fleet)
{
    int load[DEMO_MAX_WORKERS] = {0}, victim = 0;
    for (int i = 0; i < DEMO_CONSUMERS; i++)
        load[fleet->owner[i]]++;
    for (int i = 1; i < workers->count; i++)
        if (load[i] > load[victim])
            victim = i;
    return victim;
}

static bool settled(const demo_workers *workers, const demo_fleet *fleet)
{
    for (int i = 0; i < DEMO_CONSUMERS; i++)
        if (fleet->owner[i] < 0)
            return false;
    return fleet->alive == workers->count && fleet->leader >= 0;
}

static void strike(demo_accident *a, demo_workers *workers, const demo_fleet *fleet, char **news)
{
    a->victim = pick_victim(workers, fleet);
    a->pid = workers->pid[a->victim];
    a->leader = fleet->leader == a->victim;
    for (int i = 0; i < DEMO_CONSUMERS; i++) {
        a->owned[i] = fleet->owner[i] == a->victim;
        a->moving += a->owned[i];
    }
    a->killed_at = cli_now_ms();
    demo_workers_kill(workers, a->victim);
    char *names = owned_names(a);
    *news = cli_format("kill -9 worker %d%s, which owned %s", a->victim + 1,
                       a->leader ? ", the leader" : "", names);
    free(names);
}

/* A consumer has moved once it has handled something under its new owner. */
static void watch(demo_accident *a, const demo_fleet *fleet, char **news)
{
    for (int i = 0; i < DEMO_CONSUMERS; i++) {
        if (!a->owned[i] || fleet->owner[i] < 0)
            continue;
        if (!a->taken[i]) {
            a->taken[i] = true;
            a->taken_at[i] = fleet->checkpoint[i];
        } else if (a->taken_at[i] >= 0 && fleet->checkpoint[i] > a->taken_at[i]) {
            a->taken_at[i] = -1;
            a->moving--;
        }
    }
    if (a->moving > 0)
        return;
    a->moved_ms = cli_now_ms() - a->killed_at;
    char *names = owned_names(a);
    *news = cli_format("killed worker %d, its consumers moved in %lld ms: %s", a->victim + 1,
                       (long long)a->moved_ms, names);
    free(names);
}

mr_error *demo_accident_step(demo_accident *a, demo_workers *workers, const demo_fleet *fleet,
                             char **news)
{
    *news = NULL;
    int64_t now = cli_now_ms();
    if (!demo_accident_pending(a) || now < a->due)
        return NULL;
    if (a->killed_at == 0) {
        if (settled(workers, fleet))
            strike(a, workers, fleet, news);
        else if (now > a->due + MOST_MS)
            return mr_error_new(MR_E_CHECK, false,
                                "the workers did not share the consumers within %d s",
                                MOST_MS / 1000);
        return NULL;
    }
    watch(a, fleet, news);
    if (a->moving > 0 && now > a->killed_at + MOST_MS)
        return mr_error_new(MR_E_CHECK, false,
                            "the killed worker's consumers did not move within %d s",
                            MOST_MS / 1000);
    return NULL;
}
