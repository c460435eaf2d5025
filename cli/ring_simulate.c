/* millrace ring simulate: shares of the workers, and what a change of the pool moves. */
#include "ring.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORKERS = 10000, MOST_KEYS = 10000000, KEYS = 100000, MOST_ROWS = 64 };

typedef struct spread {
    int64_t min, max;
    double mean;
} spread;

typedef struct simulation {
    int64_t workers, add, remove, keys;
    mr_ring *before, *after; /* after: NULL without a change */
    int64_t *keys_in;        /* of each bucket */
} simulation;

/* One worker's row; counts are -1 where it is not in the ring. */
typedef struct share {
    int64_t buckets, keys, after;
} share;

/* ---- Counting ------------------------------------------------------------------------------ */

static mr_error *read_args(const cli_args *args, simulation *s)
{
    const char *const *value = args->value;
    s->keys = KEYS;
    if (value[RING_WORKERS] == NULL)
        return mr_error_new(MR_E_USAGE, false,
                            "'millrace ring simulate' needs --workers N, the number of workers");
    CLI_TRY(cli_number("workers", value[RING_WORKERS], 1, MOST_WORKERS, &s->workers));
    if (value[RING_ADD] != NULL)
        CLI_TRY(cli_number("add", value[RING_ADD], 0, MOST_WORKERS, &s->add));
    if (value[RING_REMOVE] != NULL)
        CLI_TRY(cli_number("remove", value[RING_REMOVE], 0, s->workers, &s->remove));
    if (value[RING_KEYS] != NULL)
        CLI_TRY(cli_number("keys", value[RING_KEYS], 1, MOST_KEYS, &s->keys));
    if (s->workers - s->remove + s->add < 1)
        return mr_error_new(MR_E_USAGE, false,
                            "--remove: when all %" PRId64 " workers go and none comes, nothing is "
                            "left to look at",
                            s->workers);
    return NULL;
}

/* Workers worker-first to worker-last. */
static mr_error *place(mr_ring *ring, int64_t first, int64_t last)
{
    size_t count = (size_t)(last - first + 1);
    char **names = cli_alloc(count, sizeof(*names));
    for (size_t i = 0; i < count; i++)
        names[i] = cli_format("worker-%" PRId64, first + (int64_t)i);
    mr_error *error = mr_ring_place(ring, (const char *const *)names, count);
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
    return error;
}

static void count_keys(simulation *s)
{
    int buckets = mr_ring_bucket_count(s->before);
    s->keys_in = cli_alloc((size_t)buckets, sizeof(*s->keys_in));
    for (int64_t i = 0; i < s->keys; i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "key:%" PRId64, i + 1);
        s->keys_in[mr_key_bucket(key, buckets)]++;
    }
}

/* "worker-12" is the twelfth row. */
static int64_t row_of(const char *worker)
{
    return strtoll(strchr(worker, '-') + 1, NULL, 10) - 1;
}

static int64_t rows_of(const simulation *s)
{
    return s->workers + s->add;
}

static share *count_shares(const simulation *s)
{
    share *rows = cli_alloc((size_t)rows_of(s), sizeof(*rows));
    for (int64_t i = 0; i < rows_of(s); i++) {
        if (i >= s->workers)
            rows[i].buckets = rows[i].keys = -1;
        if (i < s->remove)
            rows[i].after = -1;
    }
    for (int i = 0; i < mr_ring_bucket_count(s->before); i++) {
        share *row = &rows[row_of(mr_ring_bucket_owner(s->before, i))];
        row->buckets++;
        row->keys += s->keys_in[i];
        if (s->after != NULL)
            rows[row_of(mr_ring_bucket_owner(s->after, i))].after++;
    }
    return rows;
}

/* `offset`: which count of a share. */
static spread spread_of(const simulation *s, const share *rows, size_t offset)
{
    spread result = {.min = INT64_MAX};
    int64_t sum = 0, count = 0;
    for (int64_t i = 0; i < rows_of(s); i++) {
        int64_t value = *(const int64_t *)((const char *)&rows[i] + offset);
        if (value < 0)
            continue;
        result.min = value < result.min ? value : result.min;
        result.max = value > result.max ? value : result.max;
        sum += value;
        count++;
    }
    result.mean = (double)sum / (double)count;
    return result;
}

static double max_to_mean(const spread *s)
{
    return s->mean > 0 ? (double)s->max / s->mean : 0;
}

static void count_moves(const simulation *s, int64_t *buckets, int64_t *keys)
{
    *buckets = *keys = 0;
    for (int i = 0; i < mr_ring_bucket_count(s->before); i++) {
        if (strcmp(mr_ring_bucket_owner(s->before, i), mr_ring_bucket_owner(s->after, i)) == 0)
            continue;
        ++*buckets;
        *keys += s->keys_in[i];
    }
}

/* The least share that has to move: what those who go had, or what those who come must get. */
static double ideal_of(const simulation *s)
{
    double gone = (double)s->remove / (double)s->workers;
    double come = (double)s->add / (double)(s->workers - s->remove + s->add);
    return gone > come ? gone : come;
}

/* ---- For people ---------------------------------------------------------------------------- */

static const char *given(const cli_args *args, int option, const char *standard)
{
    return args->value[option] != NULL ? args->value[option] : standard;
}

static char *count_text(int64_t count)
{
    return count < 0 ? cli_strdup("-") : cli_format("%" PRId64, count);
}

static char *share_text(int64_t count, int64_t of)
{
    return count < 0 ? cli_strdup("-") : cli_format("%.2f %%", 100.0 * (double)count / (double)of);
}

static void print_cells(const cli_column *columns, int count, char **cells, int rows)
{
    cli_print_table(columns, count, (const char *const *)cells, rows);
    for (int i = 0; i < count * rows; i++)
        free(cells[i]);
}

static void print_shares(const simulation *s, const share *rows)
{
    static const cli_column columns[] = {{"worker", false}, {"buckets", true}, {"share", true},
                                         {"keys", true},    {"share", true},   {"after", true}};
    enum { ALL = sizeof(columns) / sizeof(columns[0]) };
    if (rows_of(s) > MOST_ROWS) {
        (void)printf("more than %d workers: one by one with --json\n", MOST_ROWS);
        return;
    }
    int used = s->after != NULL ? ALL : ALL - 1, count = (int)rows_of(s);
    int64_t buckets = mr_ring_bucket_count(s->before);
    char **cells = cli_alloc((size_t)used * (size_t)count, sizeof(*cells));
    for (int i = 0; i < count; i++) {
        char **cell = cells + (ptrdiff_t)i * used;
        cell[0] = cli_format("worker-%d", i + 1);
        cell[1] = count_text(rows[i].buckets);
        cell[2] = share_text(rows[i].buckets, buckets);
        cell[3] = count_text(rows[i].keys);
        cell[4] = share_text(rows[i].keys, s->keys);
        if (used == ALL)
            cell[5] = count_text(rows[i].after);
    }
    print_cells(columns, used, cells, count);
    free(cells);
}

static void print_spread(const simulation *s, const share *rows)
{
    static const cli_column columns[] = {
        {"", false}, {"min", true}, {"mean", true}, {"max", true}, {"max/mean", true}};
    static const struct {
        const char *name;
        size_t offset;
    } lines[] = {{"buckets", offsetof(share, buckets)},
                 {"keys", offsetof(share, keys)},
                 {"buckets after", offsetof(share, after)}};
    enum { ALL = sizeof(columns) / sizeof(columns[0]) };
    char *cells[3 * ALL];
    int used = s->after != NULL ? 3 : 2;
    for (int i = 0; i < used; i++) {
        spread found = spread_of(s, rows, lines[i].offset);
        char **cell = cells + (ptrdiff_t)i * ALL;
        cell[0] = cli_strdup(lines[i].name);
        cell[1] = count_text(found.min);
        cell[2] = cli_format("%.1f", found.mean);
        cell[3] = count_text(found.max);
        cell[4] = cli_format("%.3f", max_to_mean(&found));
    }
    (void)putchar('\n');
    print_cells(columns, ALL, cells, used);
}

static void print_moves(const simulation *s)
{
    static const cli_column columns[] = {
        {"moved", false}, {"count", true}, {"share", true}, {"ideal", true}, {"times ideal", true}};
    enum { ALL = sizeof(columns) / sizeof(columns[0]) };
    int64_t of[2] = {mr_ring_bucket_count(s->before), s->keys}, moved[2];
    double ideal = ideal_of(s);
    char *cells[2 * ALL];
    count_moves(s, &moved[0], &moved[1]);
    for (int i = 0; i < 2; i++) {
        char **cell = cells + (ptrdiff_t)i * ALL;
        cell[0] = cli_strdup(i == 0 ? "buckets" : "keys");
        cell[1] = count_text(moved[i]);
        cell[2] = share_text(moved[i], of[i]);
        cell[3] = cli_format("%.2f %%", 100 * ideal);
        cell[4] = cli_format("%.2f", (double)moved[i] / (double)of[i] / ideal);
    }
    (void)printf("\n%" PRId64 " workers become %" PRId64 ": %" PRId64 " new, %" PRId64 " gone\n",
                 s->workers, s->workers + s->add - s->remove, s->add, s->remove);
    print_cells(columns, ALL, cells, 2);
}

static void print_text(const cli_args *args, const simulation *s, const share *rows)
{
    (void)printf("%" PRId64 " worker%s, %d buckets, %s points a worker, cap %s, hash %s\n\n",
                 s->workers, s->workers == 1 ? "" : "s", mr_ring_bucket_count(s->before),
                 given(args, RING_VNODES, "150"), given(args, RING_CAP, "1.05"),
                 given(args, RING_HASH, "strong"));
    if (args->value[RING_PICTURE] != NULL || ring_can_draw())
        ring_draw(s->before, s->after);
    print_shares(s, rows);
    print_spread(s, rows);
    if (s->after != NULL)
        print_moves(s);
}

/* ---- For programs -------------------------------------------------------------------------- */

static json_t *spread_json(const simulation *s, const share *rows, size_t offset)
{
    spread found = spread_of(s, rows, offset);
    return json_pack("{s:I, s:f, s:I, s:f}", "min", (json_int_t)found.min, "mean", found.mean,
                     "max", (json_int_t)found.max, "max_to_mean", max_to_mean(&found));
}

static json_t *count_json(int64_t count)
{
    return count < 0 ? json_null() : json_integer(count);
}

static json_t *moves_json(const simulation *s, int64_t moved, int64_t of)
{
    double part = (double)moved / (double)of;
    return json_pack("{s:I, s:f, s:f, s:f}", "moved", (json_int_t)moved, "share", part, "ideal",
                     ideal_of(s), "times_ideal", part / ideal_of(s));
}

static mr_error *print_json(const cli_args *args, const simulation *s, const share *rows)
{
    const char *cap = given(args, RING_CAP, "1.05");
    json_t *list = json_array();
    for (int64_t i = 0; i < rows_of(s); i++) {
        char *name = cli_format("worker-%" PRId64, i + 1);
        json_t *row = json_pack("{s:s, s:o, s:o}", "worker", name, "buckets",
                                count_json(rows[i].buckets), "keys", count_json(rows[i].keys));
        if (s->after != NULL)
            (void)json_object_set_new(row, "buckets_after", count_json(rows[i].after));
        (void)json_array_append_new(list, row);
        free(name);
    }
    json_t *all = json_pack("{s:I, s:i, s:I, s:I, s:o, s:s, s:o, s:o, s:o}", "workers",
                            (json_int_t)s->workers, "buckets", mr_ring_bucket_count(s->before),
                            "keys", (json_int_t)s->keys, "vnodes",
                            (json_int_t)strtol(given(args, RING_VNODES, "150"), NULL, 10), "cap",
                            strcmp(cap, "none") == 0 ? json_null() : json_real(strtod(cap, NULL)),
                            "hash", given(args, RING_HASH, "strong"), "bucket_spread",
                            spread_json(s, rows, offsetof(share, buckets)), "key_spread",
                            spread_json(s, rows, offsetof(share, keys)), "shares", list);
    if (s->after != NULL) {
        int64_t buckets = 0, keys = 0;
        count_moves(s, &buckets, &keys);
        (void)json_object_set_new(
            all, "change",
            json_pack("{s:I, s:I, s:I, s:o, s:o, s:o}", "added", (json_int_t)s->add, "removed",
                      (json_int_t)s->remove, "workers",
                      (json_int_t)(s->workers + s->add - s->remove), "buckets",
                      moves_json(s, buckets, mr_ring_bucket_count(s->before)), "keys",
                      moves_json(s, keys, s->keys), "bucket_spread",
                      spread_json(s, rows, offsetof(share, after))));
    }
    return cli_print_json(all);
}

static mr_error *simulate(const cli_context *cli, const cli_args *args, simulation *s)
{
    CLI_TRY(ring_from_args(args, &s->before));
    CLI_TRY(place(s->before, 1, s->workers));
    if (s->add + s->remove > 0) {
        CLI_TRY(ring_from_args(args, &s->after));
        CLI_TRY(place(s->after, 1 + s->remove, s->workers + s->add));
    }
    count_keys(s);
    share *rows = count_shares(s);
    mr_error *error = NULL;
    if (cli->json)
        error = print_json(args, s, rows);
    else
        print_text(args, s, rows);
    free(rows);
    return error;
}

mr_error *ring_simulate(const cli_context *cli, const cli_args *args)
{
    simulation s = {0};
    CLI_TRY(read_args(args, &s));
    mr_error *error = simulate(cli, args, &s);
    mr_ring_free(s.before);
    mr_ring_free(s.after);
    free(s.keys_in);
    return error;
}
