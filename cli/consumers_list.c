/* millrace consumers list: one line a consumer, slots taken together or each for itself. */
#include "consumers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CONSUMER, STATE, OWNER, HOST, CHECKPOINT, LAG, SECONDS, LETTERS, COLUMNS };

/* ---- Groups -------------------------------------------------------------------------------- */

cli_group cli_group_at(const PGresult *rows, int first, bool slots)
{
    cli_group group = {.rows = rows, .first = first, .count = 1};
    const char *base = cli_cell(rows, first, "base");
    const char *partitions = cli_cell(rows, first, "partitions");
    if (slots || strcmp(partitions, "1") == 0)
        return group;
    for (int row = first + 1; row < PQntuples(rows); row++, group.count++)
        if (strcmp(cli_cell(rows, row, "base"), base) != 0 ||
            strcmp(cli_cell(rows, row, "partitions"), partitions) != 0)
            break;
    return group;
}

/* What is not known (a slot that has not begun) is behind everything. */
static double number_at(const PGresult *rows, int row, const char *column)
{
    const char *text = cli_cell(rows, row, column);
    return text[0] == '\0' ? -1 : strtod(text, NULL);
}

static int pick(const cli_group *group, const char *column, double sign)
{
    int best = group->first;
    for (int row = group->first + 1; row < group->first + group->count; row++)
        if (sign * number_at(group->rows, row, column) >
            sign * number_at(group->rows, best, column))
            best = row;
    return best;
}

int cli_group_lowest(const cli_group *group, const char *column)
{
    return pick(group, column, -1);
}

int cli_group_largest(const cli_group *group, const char *column)
{
    return pick(group, column, 1);
}

int64_t cli_group_sum(const cli_group *group, const char *column)
{
    int64_t sum = 0;
    for (int row = group->first; row < group->first + group->count; row++)
        sum += strtoll(cli_cell(group->rows, row, column), NULL, 10);
    return sum;
}

static int badness(const char *state)
{
    static const char *const worst_first[] = {"paused",     "failing",    "no worker can run it",
                                              "owner gone", "unassigned", "owner silent",
                                              "blocked",    "running",    "idle"};
    int count = sizeof(worst_first) / sizeof(worst_first[0]);
    for (int i = 0; i < count; i++)
        if (strcmp(state, worst_first[i]) == 0)
            return count - i;
    return 0;
}

char *cli_group_state(const cli_group *group)
{
    const char *worst = cli_cell(group->rows, group->first, "state");
    for (int row = group->first; row < group->first + group->count; row++)
        if (badness(cli_cell(group->rows, row, "state")) > badness(worst))
            worst = cli_cell(group->rows, row, "state");
    int same = 0;
    for (int row = group->first; row < group->first + group->count; row++)
        same += strcmp(cli_cell(group->rows, row, "state"), worst) == 0;
    return same == group->count ? cli_strdup(worst)
                                : cli_format("%s (%d of %d)", worst, same, group->count);
}

/* ---- The table ----------------------------------------------------------------------------- */

/* How many different workers own a part of it; `*last` is a row of one. */
static int count_owners(const cli_group *group, int *last)
{
    int owners = 0;
    for (int row = group->first; row < group->first + group->count; row++) {
        const char *id = cli_cell(group->rows, row, "worker_id");
        bool seen = id[0] == '\0';
        for (int other = group->first; other < row && !seen; other++)
            seen = strcmp(cli_cell(group->rows, other, "worker_id"), id) == 0;
        if (!seen) {
            owners++;
            *last = row;
        }
    }
    return owners;
}

static void fill_owner(const cli_group *group, char **cell)
{
    int row = group->first;
    int owners = count_owners(group, &row);
    if (owners == 1) {
        cell[OWNER] = cli_strdup(cli_cell(group->rows, row, "worker_id"));
        cell[HOST] = cli_format("%s:%s", cli_cell(group->rows, row, "host"),
                                cli_cell(group->rows, row, "pid"));
    } else {
        cell[OWNER] = owners == 0 ? cli_strdup("-") : cli_format("%d workers", owners);
        cell[HOST] = cli_strdup("-");
    }
}

static void fill_line(const cli_group *group, char **cell)
{
    const PGresult *rows = group->rows;
    cell[CONSUMER] =
        cli_strdup(cli_cell(rows, group->first, group->count > 1 ? "base" : "consumer"));
    cell[STATE] = cli_group_state(group);
    fill_owner(group, cell);
    cell[CHECKPOINT] =
        cli_strdup(cli_cell(rows, cli_group_lowest(group, "checkpoint"), "checkpoint"));
    cell[LAG] = cli_strdup(cli_cell(rows, cli_group_largest(group, "lag"), "lag"));
    cell[SECONDS] =
        cli_strdup(cli_cell(rows, cli_group_largest(group, "lag_seconds"), "lag_seconds"));
    cell[LETTERS] = cli_format("%" PRId64, cli_group_sum(group, "dead_letters"));
}

void cli_print_groups(const cli_group *groups, int count)
{
    static const cli_column columns[COLUMNS] = {
        [CONSUMER] = {"consumer", false},    [STATE] = {"state", false},
        [OWNER] = {"owner", false},          [HOST] = {"host", false},
        [CHECKPOINT] = {"checkpoint", true}, [LAG] = {"lag", true},
        [SECONDS] = {"seconds", true},       [LETTERS] = {"dead letters", true},
    };
    bool letters = false;
    for (int i = 0; i < count; i++)
        letters = letters || cli_group_sum(&groups[i], "dead_letters") > 0;
    int shown = letters ? COLUMNS : COLUMNS - 1;
    const char **cells = cli_alloc((size_t)count * COLUMNS + 1, sizeof(*cells));
    for (int i = 0; i < count; i++) {
        char *cell[COLUMNS];
        fill_line(&groups[i], cell);
        for (int column = 0; column < COLUMNS; column++)
            if (column < shown)
                cells[i * shown + column] = cell[column];
            else
                free(cell[column]);
    }
    cli_print_table(columns, shown, cells, count);
    for (int i = 0; i < count * shown; i++)
        free((void *)cells[i]);
    free(cells);
}

/* What is said of a row in one of the sections below the table; free(), NULL for nothing. */
static char *pause_of(const PGresult *rows, int row)
{
    if (strcmp(cli_cell(rows, row, "pause_kind"), "command") != 0)
        return NULL;
    const char *by = cli_cell(rows, row, "paused_by"), *why = cli_cell(rows, row, "pause_reason");
    return cli_format("by %s%s%s", by[0] == '\0' ? "somebody" : by, why[0] == '\0' ? "" : ": ",
                      why);
}

/* An error that was got over is history: `consumers show` has it. */
static char *error_of(const PGresult *rows, int row)
{
    const char *error = cli_cell(rows, row, "last_error");
    if (error[0] == '\0' || badness(cli_cell(rows, row, "state")) <= badness("blocked") ||
        strcmp(cli_cell(rows, row, "pause_kind"), "command") == 0)
        return NULL;
    return cli_strdup(error);
}

/* A line for each row of which something is said; neighbours of one consumer that say the same
 * share it. */
static void print_section(const char *title, const PGresult *rows,
                          char *(*text_of)(const PGresult *rows, int row))
{
    bool any = false;
    int next = 0;
    for (int row = 0; row < PQntuples(rows); row = next) {
        char *text = text_of(rows, row);
        for (next = row + 1; text != NULL && next < PQntuples(rows); next++) {
            char *other = text_of(rows, next);
            bool same = other != NULL && strcmp(other, text) == 0 &&
                        strcmp(cli_cell(rows, row, "base"), cli_cell(rows, next, "base")) == 0;
            free(other);
            if (!same)
                break;
        }
        if (text == NULL)
            continue;
        char *line = next - row == 1 ? cli_format("%s: %s", cli_cell(rows, row, "consumer"), text)
                                     : cli_format("%s (%d slots): %s", cli_cell(rows, row, "base"),
                                                  next - row, text);
        char *before = any ? cli_strdup("") : cli_format("\n%s:\n", title);
        cli_print_line(before, line);
        any = true;
        free(before);
        free(line);
        free(text);
    }
}

/* The head is the same for all and stands above; errors have a line of their own below. */
static void print_consumers(const PGresult *rows, bool slots)
{
    cli_group *groups = cli_alloc((size_t)PQntuples(rows) + 1, sizeof(*groups));
    int count = 0;
    for (int row = 0; row < PQntuples(rows); row += groups[count++].count)
        groups[count] = cli_group_at(rows, row, slots);
    (void)printf("head of the log: %s\n\n", cli_cell(rows, 0, "head"));
    cli_print_groups(groups, count);
    free(groups);
    print_section("paused", rows, pause_of);
    print_section("last errors", rows, error_of);
}

mr_error *cli_consumers_list(cli_context *cli, const cli_args *args)
{
    CLI_TRY(cli_at_most(args, 1));
    PGresult *rows = NULL;
    CLI_TRY(cli_list(cli, "consumers", &rows));
    mr_error *error = NULL;
    if (cli->json || PQntuples(rows) == 0)
        error = cli_print_rows(cli, rows, "There are no consumers yet: no worker has run here.");
    else
        print_consumers(rows, args->value[CONSUMERS_SLOTS] != NULL);
    PQclear(rows);
    return error;
}
