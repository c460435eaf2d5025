/* millrace consumers show: everything about one consumer, for a person who has to decide. */
#include "consumers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LETTERS_SHOWN = 5, SKIPS_SHOWN = 5, AUDIT_SHOWN = 10, LISTING_LIMIT = 1000 };

/* What the listings say of the consumer. `group`: its rows of `consumers`. */
typedef struct view {
    const char *name;
    PGresult *consumers, *letters, *skips, *audit;
    cli_group group;
} view;

static void view_free(view *v)
{
    PQclear(v->consumers);
    PQclear(v->letters);
    PQclear(v->skips);
    PQclear(v->audit);
}

/* ---- Finding ------------------------------------------------------------------------------- */

mr_error *cli_consumer_unknown(const PGresult *rows, const char *name)
{
    int count = PQntuples(rows);
    const char **names = cli_alloc((size_t)count + 1, sizeof(*names));
    for (int row = 0; row < count; row++)
        names[row] = cli_cell(rows, row, "base");
    mr_error *error =
        cli_unknown("consumer", name, names, (size_t)count, "millrace consumers list");
    free(names);
    return error;
}

/* A slot's own name means that slot; a consumer's all of them. */
static mr_error *find(view *v)
{
    for (int row = 0; row < PQntuples(v->consumers); row++) {
        bool slot = strcmp(cli_cell(v->consumers, row, "consumer"), v->name) == 0;
        if (!slot && strcmp(cli_cell(v->consumers, row, "base"), v->name) != 0)
            continue;
        v->group = cli_group_at(v->consumers, row, slot);
        return NULL;
    }
    return cli_consumer_unknown(v->consumers, v->name);
}

static mr_error *past(PGconn *conn, const mr_conf *conf, const char *what, const char *name,
                      PGresult **rows)
{
    char *listing = cli_format("%s:%s", what, name);
    mr_error *error = mr_list(conn, conf, listing, rows);
    free(listing);
    return error;
}

static mr_error *look(PGconn *conn, const mr_conf *conf, view *v)
{
    CLI_TRY(mr_list(conn, conf, "consumers", &v->consumers));
    CLI_TRY(find(v));
    CLI_TRY(past(conn, conf, "dead_letters", v->name, &v->letters));
    CLI_TRY(past(conn, conf, "gaps.list", v->name, &v->skips));
    return past(conn, conf, "audit", v->name, &v->audit);
}

static int64_t skipped(const view *v)
{
    cli_group all = {.rows = v->skips, .first = 0, .count = PQntuples(v->skips)};
    return cli_group_sum(&all, "positions");
}

/* ---- For programs -------------------------------------------------------------------------- */

static mr_error *print_json(const view *v)
{
    json_t *slots = json_array();
    for (int row = v->group.first; row < v->group.first + v->group.count; row++)
        (void)json_array_append_new(slots, cli_row_json(v->consumers, row));
    char *state = cli_group_state(&v->group);
    json_t *object = json_pack("{s:s, s:s, s:o, s:{s:I, s:o}, s:{s:I, s:b, s:o}, s:o}", "consumer",
                               v->name, "state", state, "slots", slots, "dead_letters", "count",
                               (json_int_t)cli_group_sum(&v->group, "dead_letters"), "newest",
                               cli_rows_json(v->letters, LETTERS_SHOWN), "skipped", "count",
                               (json_int_t)skipped(v), "more", PQntuples(v->skips) >= LISTING_LIMIT,
                               "newest", cli_rows_json(v->skips, SKIPS_SHOWN), "audit",
                               cli_rows_json(v->audit, AUDIT_SHOWN));
    free(state);
    return cli_print_json(object);
}

/* ---- For people ---------------------------------------------------------------------------- */

static void print_fact(const char *what, const char *text)
{
    char *before = cli_format("%-14s ", what);
    cli_print_line(before, text);
    free(before);
}

/* "paused by ann since …: why", for a slot that is paused; free(). */
static char *pause_text(const PGresult *rows, int row)
{
    const char *by = cli_cell(rows, row, "paused_by"), *at = cli_cell(rows, row, "paused_at"),
               *why = cli_cell(rows, row, "last_error"),
               *position = cli_cell(rows, row, "last_error_position");
    bool failed = strcmp(cli_cell(rows, row, "pause_kind"), "failure") == 0;
    return cli_format("paused%s%s%s%s%s%s%s%s%s", failed ? " after failures" : "",
                      failed && position[0] != '\0' ? " at position " : "", failed ? position : "",
                      by[0] == '\0' ? "" : " by ", by, at[0] == '\0' ? "" : " since ", at,
                      why[0] == '\0' ? "" : ": ", why);
}

static char *error_text(const PGresult *rows, int row)
{
    const char *position = cli_cell(rows, row, "last_error_position"),
               *at = cli_cell(rows, row, "last_error_at");
    return cli_format("%s%s%s%s%s%s", position[0] == '\0' ? "" : "at position ", position,
                      position[0] == '\0' || at[0] == '\0' ? "" : ", ", at,
                      position[0] == '\0' && at[0] == '\0' ? "" : ": ",
                      cli_cell(rows, row, "last_error"));
}

/* Why it is as it is, a line a slot unless slots say the same. */
static void print_reasons(const view *v, const char *what,
                          char *(*text_of)(const PGresult *rows, int row), bool pauses)
{
    char *last = cli_strdup("");
    for (int row = v->group.first; row < v->group.first + v->group.count; row++) {
        bool paused = strcmp(cli_cell(v->consumers, row, "state"), "paused") == 0;
        bool applies =
            pauses ? paused : !paused && cli_cell(v->consumers, row, "last_error")[0] != '\0';
        if (!applies)
            continue;
        char *text = text_of(v->consumers, row);
        if (strcmp(text, last) != 0)
            print_fact(what, text);
        free(last);
        last = text;
    }
    free(last);
}

static void print_facts(const view *v)
{
    const PGresult *rows = v->consumers;
    int first = v->group.first;
    print_fact("consumer", v->name);
    char *state = cli_group_state(&v->group);
    print_fact("state", state);
    free(state);
    print_reasons(v, "why", pause_text, true);
    print_reasons(v, "last error", error_text, false);
    print_fact("owned by", cli_cell(rows, first, "ownership"));
    if (strcmp(cli_cell(rows, first, "partitions"), "1") != 0)
        print_fact("partitions", cli_cell(rows, first, "partitions"));
    print_fact("head", cli_cell(rows, first, "head"));
}

/* The first rows of a listing as a table with these columns; `titles` end with NULL. */
static void print_part(const char *title, const PGresult *rows, int most,
                       const char *const *columns)
{
    enum { MOST_COLUMNS = 8 };
    cli_column titles[MOST_COLUMNS];
    int width = 0;
    for (; width < MOST_COLUMNS && columns[width] != NULL; width++)
        titles[width] = (cli_column){columns[width], false};
    int count = PQntuples(rows) < most ? PQntuples(rows) : most;
    const char **cells = cli_alloc((size_t)count * (size_t)width + 1, sizeof(*cells));
    for (int row = 0; row < count; row++)
        for (int column = 0; column < width; column++)
            cells[row * width + column] = cli_cell(rows, row, columns[column]);
    (void)printf("\n%s\n", title);
    cli_print_table(titles, width, cells, count);
    free(cells);
}

static void print_past(const view *v)
{
    static const char *const letters[] = {
        "position",     "state",    "event_type", "aggregate_type",
        "aggregate_id", "attempts", "error",      NULL};
    static const char *const skips[] = {"gap_position", "gap_end",    "strategy", "decided_by",
                                        "reason",       "created_at", NULL};
    static const char *const audit[] = {"created_at", "action", "actor", "reason", "detail", NULL};
    int64_t dead = cli_group_sum(&v->group, "dead_letters"), passed = skipped(v);
    char *title = cli_format("dead letters: %" PRId64 ", the newest:", dead);
    if (dead > 0)
        print_part(title, v->letters, LETTERS_SHOWN, letters);
    free(title);
    title = cli_format("positions passed over: %" PRId64 "%s, the newest:", passed,
                       PQntuples(v->skips) >= LISTING_LIMIT ? " or more" : "");
    if (passed > 0)
        print_part(title, v->skips, SKIPS_SHOWN, skips);
    free(title);
    if (PQntuples(v->audit) > 0)
        print_part("what was done to it:", v->audit, AUDIT_SHOWN, audit);
}

static void print_view(const view *v)
{
    print_facts(v);
    cli_group *slots = cli_alloc((size_t)v->group.count, sizeof(*slots));
    for (int i = 0; i < v->group.count; i++)
        slots[i] = cli_group_at(v->consumers, v->group.first + i, true);
    (void)printf("\n");
    cli_print_groups(slots, v->group.count);
    free(slots);
    print_past(v);
}

mr_error *cli_consumers_show(cli_context *cli, const cli_args *args)
{
    enum { NAME = 1, WORDS = 2 };
    CLI_TRY(cli_at_most(args, WORDS));
    if (args->count < WORDS)
        return mr_error_new(MR_E_USAGE, false,
                            "'millrace consumers show' needs a consumer: "
                            "millrace consumers show NAME");
    mr_conf *conf = NULL;
    PGconn *conn = NULL;
    CLI_TRY(cli_open(cli, &conf, &conn));
    view v = {.name = args->rest[NAME]};
    mr_error *error = look(conn, conf, &v);
    PQfinish(conn);
    mr_conf_free(conf);
    if (error == NULL && cli->json)
        error = print_json(&v);
    else if (error == NULL)
        print_view(&v);
    view_free(&v);
    return error;
}
