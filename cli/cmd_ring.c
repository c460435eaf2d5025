/* millrace ring: who is at home with a key, and what moves when the pool changes. */
#include "ring.h"

#include <stdlib.h>
#include <string.h>

static const cli_option options[] = {
    [RING_WORKERS] = {"workers", "N", "simulate: number of workers; owner: their ids, as in a,b,c"},
    [RING_QUEUE] = {"queue", "NAME", "owner: among the workers that have this queue"},
    [RING_ADD] = {"add", "M", "simulate: so many workers come"},
    [RING_REMOVE] = {"remove", "M", "simulate: so many workers go"},
    [RING_KEYS] = {"keys", "K", "simulate: number of keys (default 100000)"},
    [RING_BUCKETS] = {"buckets", "B", "number of buckets (default: the database's, else 1024)"},
    [RING_VNODES] = {"vnodes", "V", "points of a worker on the ring (default 150)"},
    [RING_CAP] = {"cap", "C", "most buckets of a worker, in means (default 1.05), or none"},
    [RING_HASH] = {"hash", "NAME", "strong (default), or fnv1a: without a finaliser"},
    [RING_PICTURE] = {"picture", NULL, "simulate: draw the ring also when not on a terminal"},
    {NULL, NULL, NULL}};

mr_error *ring_from_args(const cli_args *args, mr_ring **out)
{
    static const int own[] = {RING_BUCKETS, RING_VNODES, RING_CAP, RING_HASH};
    mr_ring *ring = mr_ring_new();
    if (ring == NULL)
        return mr_error_new(MR_E_NOMEM, false, "out of memory");
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        const char *value = args->value[own[i]];
        mr_error *error = value == NULL ? NULL : mr_ring_set(ring, options[own[i]].name, value);
        if (error != NULL) {
            mr_error *ours = mr_error_new(MR_E_USAGE, false, "--%s", mr_error_message(error));
            mr_error_free(error);
            mr_ring_free(ring);
            return ours;
        }
    }
    *out = ring;
    return NULL;
}

/* ---- owner --------------------------------------------------------------------------------- */

static bool is_utf8(const char *text)
{
    json_t *value = json_string(text);
    json_decref(value);
    return value != NULL;
}

/* The ids to choose from. They point into `text` or into `rows`. */
typedef struct pool {
    const char **id;
    size_t count;
    char *text;
    PGresult *rows;
} pool;

static void pool_free(pool *p)
{
    free(p->id);
    free(p->text);
    PQclear(p->rows);
}

static mr_error *pool_from_list(pool *p, const char *list)
{
    if (!is_utf8(list))
        return mr_error_new(MR_E_USAGE, false, "--workers: the names are not valid UTF-8");
    p->text = cli_strdup(list);
    p->id = cli_alloc(strlen(list) + 1, sizeof(*p->id));
    for (char *rest = p->text, *id; (id = strsep(&rest, ",")) != NULL;) {
        if (id[0] == '\0')
            return mr_error_new(MR_E_USAGE, false,
                                "--workers: '%.80s' has an empty name; write ids with commas "
                                "between them, as in a,b,c",
                                list);
        p->id[p->count++] = id;
    }
    return NULL;
}

static bool has_queue(const PGresult *rows, int row, const char *queue)
{
    json_t *queues = json_loads(cli_cell(rows, row, "queues"), 0, NULL), *name;
    bool found = false;
    size_t i;
    json_array_foreach(queues, i, name)
    {
        found = found || strcmp(json_string_value(name), queue) == 0;
    }
    json_decref(queues);
    return found;
}

/* Those that are alive; who drains has left the ring already. `ring` gets the database's number of
 * buckets (NULL: it has its own). */
static mr_error *pool_from_database(cli_context *cli, pool *p, const char *queue, mr_ring *ring)
{
    mr_conf *conf = NULL;
    PGconn *conn = NULL;
    CLI_TRY(cli_open(cli, &conf, &conn));
    mr_error *error = mr_list(conn, conf, "workers", &p->rows);
    if (error == NULL && ring != NULL)
        error = mr_ring_ask(ring, conn, conf);
    PQfinish(conn);
    mr_conf_free(conf);
    CLI_TRY(error);
    p->id = cli_alloc((size_t)PQntuples(p->rows) + 1, sizeof(*p->id));
    for (int row = 0; row < PQntuples(p->rows); row++)
        if (strcmp(cli_cell(p->rows, row, "state"), "alive") == 0 &&
            (queue == NULL || has_queue(p->rows, row, queue)))
            p->id[p->count++] = cli_cell(p->rows, row, "worker_id");
    return NULL;
}

/* Where a worker of the database runs, free(); NULL when it is not from there. */
static char *address_of(const pool *p, const char *id)
{
    for (int row = 0; id != NULL && p->rows != NULL && row < PQntuples(p->rows); row++)
        if (strcmp(cli_cell(p->rows, row, "worker_id"), id) == 0)
            return cli_format("%s:%s", cli_cell(p->rows, row, "host"),
                              cli_cell(p->rows, row, "pid"));
    return NULL;
}

static mr_error *print_owner(const cli_context *cli, const mr_ring *ring, const pool *p,
                             const char *key, const char *queue)
{
    int buckets = mr_ring_bucket_count(ring), bucket = mr_key_bucket(key, buckets);
    const char *owner = mr_ring_owner(ring, key);
    char *address = address_of(p, owner);
    mr_error *error = NULL;
    if (cli->json) {
        error = cli_print_json(json_pack("{s:s, s:i, s:i, s:s?, s:s?, s:I}", "key", key, "bucket",
                                         bucket, "buckets", buckets, "owner", owner, "address",
                                         address, "workers", (json_int_t)p->count));
    } else {
        cli_print_line("key     ", key);
        (void)printf("bucket  %d of %d\n", bucket, buckets);
        char *line = NULL;
        if (owner == NULL && queue != NULL)
            line = cli_format("nobody: no worker that is alive has the queue %s", queue);
        else if (owner == NULL)
            line = cli_strdup("nobody: no worker is alive");
        else if (address != NULL)
            line = cli_format("%s  %s", owner, address);
        cli_print_line("owner   ", line != NULL ? line : owner);
        free(line);
    }
    free(address);
    return error;
}

static mr_error *run_owner(cli_context *cli, const cli_args *args)
{
    CLI_TRY(cli_at_most(args, 2));
    const char *list = args->value[RING_WORKERS], *queue = args->value[RING_QUEUE];
    if (args->count < 2)
        return mr_error_new(MR_E_USAGE, false, "'millrace ring owner' needs a key");
    const char *key = args->rest[1];
    if (!is_utf8(key))
        return mr_error_new(MR_E_USAGE, false, "the key is not valid UTF-8");
    if (list != NULL && queue != NULL)
        return mr_error_new(MR_E_USAGE, false,
                            "--workers and --queue exclude each other: the first needs no database,"
                            " the second asks it");
    mr_ring *ring = NULL;
    CLI_TRY(ring_from_args(args, &ring));
    pool p = {0};
    mr_ring *asking = args->value[RING_BUCKETS] == NULL ? ring : NULL;
    mr_error *error =
        list != NULL ? pool_from_list(&p, list) : pool_from_database(cli, &p, queue, asking);
    if (error == NULL)
        error = mr_ring_place(ring, p.id, p.count);
    if (error == NULL)
        error = print_owner(cli, ring, &p, key, queue);
    pool_free(&p);
    mr_ring_free(ring);
    return error;
}

/* ---- The command --------------------------------------------------------------------------- */

static mr_error *refuse(const cli_args *args, const char *command, const int *which, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (args->value[which[i]] != NULL)
            return mr_error_new(MR_E_USAGE, false, "'millrace ring %s' has no option --%s", command,
                                options[which[i]].name);
    return NULL;
}

static mr_error *run(cli_context *cli, const cli_args *args)
{
    static const char *const names[] = {"owner", "simulate", NULL};
    static const int not_owner[] = {RING_ADD, RING_REMOVE, RING_KEYS, RING_PICTURE};
    static const int not_simulate[] = {RING_QUEUE};
    int which = 0;
    CLI_TRY(cli_subcommand("ring", args, names, &which));
    if (which == 0) {
        CLI_TRY(refuse(args, "owner", not_owner, sizeof(not_owner) / sizeof(not_owner[0])));
        return run_owner(cli, args);
    }
    CLI_TRY(refuse(args, "simulate", not_simulate, 1));
    CLI_TRY(cli_at_most(args, 1));
    return ring_simulate(cli, args);
}

const cli_command cli_cmd_ring = {
    .name = "ring",
    .summary = "Which worker a key belongs to, and what moves when workers come or go",
    .usage = "owner KEY | simulate --workers N [--add M] [--remove M] [option ...]",
    .details =
        "  owner KEY   the key's bucket and the worker that is at home with it: of those that are\n"
        "              alive in the database, or with --workers a,b,c of these, without one\n"
        "  simulate    how evenly N workers share the buckets and K keys, and what moves when M\n"
        "              come or go, beside the least that has to. On a terminal also a picture:\n"
        "              outside who has each bucket, from 0 at the top clockwise; inside those\n"
        "              that moved, in the colour of who has got them.\n\n"
        "A key belongs to a bucket for ever; the ring only says which worker looks after a bucket\n"
        "now.",
    .options = options,
    .run = run,
};
