/* Jobs for people and for scripts: the table, one job with all there is of it, what was done. */
#include "jobs.h"

#include <stdlib.h>
#include <string.h>

/* ---- The table ----------------------------------------------------------------------------- */

enum { ID, STATE, SINCE, FAILURES, RESETS, WORKER, MESSAGE, KEY, COLUMNS, SHOWN = 100 };

/* Up to `most` bytes, not cut in the middle of a character; free(). */
static char *shortened(const char *text, size_t most)
{
    size_t length = strlen(text);
    bool cut = length > most;
    length = cut ? most : length;
    while (cut && length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80)
        length--;
    return cli_format("%.*s%s", (int)length, text, cut ? "…" : "");
}

static bool is_set(const PGresult *rows, int row, const char *column)
{
    return cli_cell(rows, row, column)[0] == 't';
}

/* The state with what else matters now, and since when; both free(). */
static void fill_state(const PGresult *rows, int row, const char **cell)
{
    const char *state = cli_cell(rows, row, "state");
    bool running = strcmp(state, "processing") == 0;
    const char *standing = cli_cell(rows, row, "standing");
    const char *more = running && is_set(rows, row, "stalled")  ? ", stalled"
                       : running && is_set(rows, row, "cancel") ? ", cancel asked"
                       : strcmp(standing, "blocked") == 0       ? ", behind its key"
                       : strcmp(standing, "held") == 0          ? ", keeps its key"
                       : is_set(rows, row, "archived") && strcmp(state, "failed") == 0 ? ", dropped"
                                                                                       : "";
    cell[STATE] = cli_format("%s%s", state, more);
    const char *finished = cli_cell(rows, row, "finished_at");
    const char *since = running               ? cli_cell(rows, row, "started_at")
                        : finished[0] != '\0' ? finished
                                              : cli_cell(rows, row, "queued_at");
    const char *due = cli_cell(rows, row, "process_after");
    cell[SINCE] = strcmp(state, "queued") == 0 && due[0] != '\0'
                      ? cli_format("%.19s, not before %.19s", since, due)
                      : cli_format("%.19s", since);
}

/* What it said last: why it failed or, while it runs, how far it is; free(). */
static char *message_of(const PGresult *rows, int row)
{
    const char *percent = cli_cell(rows, row, "progress");
    const char *text = cli_cell(rows, row, "progress_text");
    if (strcmp(cli_cell(rows, row, "state"), "processing") != 0 ||
        (percent[0] == '\0' && text[0] == '\0'))
        return shortened(cli_cell(rows, row, "failure_message"), SHOWN);
    char *whole = cli_format("%s%s%s", percent, percent[0] == '\0' ? "" : "% ", text);
    char *cut = shortened(whole, SHOWN);
    free(whole);
    return cut;
}

mr_error *cli_jobs_print(const cli_context *cli, const PGresult *rows, bool all)
{
    static const cli_column columns[COLUMNS] = {
        [ID] = {"id", true},           [STATE] = {"state", false},    [SINCE] = {"since", false},
        [FAILURES] = {"errors", true}, [RESETS] = {"resets", true},   [WORKER] = {"worker", false},
        [KEY] = {"key", false},        [MESSAGE] = {"message", false}};
    int count = PQntuples(rows);
    if (cli->json || count == 0)
        return cli_print_rows(cli, rows, all ? "The queue has no jobs." : "No job matches.");
    int wide = PQfnumber(rows, "key") < 0 ? KEY : COLUMNS; /* only built-in queues have keys */
    const char **cells = cli_alloc((size_t)count * (size_t)wide, sizeof(*cells));
    for (int row = 0; row < count; row++) {
        const char **cell = cells + (ptrdiff_t)row * wide;
        cell[ID] = cli_cell(rows, row, "id");
        fill_state(rows, row, cell);
        cell[FAILURES] = cli_cell(rows, row, "num_failures");
        cell[RESETS] = cli_cell(rows, row, "num_resets");
        cell[WORKER] = cli_cell(rows, row, "worker");
        cell[MESSAGE] = message_of(rows, row);
        if (wide > KEY)
            cell[KEY] = cli_cell(rows, row, "key");
    }
    cli_print_table(columns, wide, cells, count);
    for (int row = 0; row < count; row++) {
        const char **cell = cells + (ptrdiff_t)row * wide;
        free((void *)cell[STATE]);
        free((void *)cell[SINCE]);
        free((void *)cell[MESSAGE]);
    }
    free(cells);
    return NULL;
}

/* ---- One job ------------------------------------------------------------------------------- */

/* A value of the handler's, or an entry of its log; free(). */
static char *json_line(const json_t *value)
{
    if (json_is_string(value))
        return cli_strdup(json_string_value(value));
    return json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
}

static void print_values(json_t *values)
{
    const char *name = NULL;
    json_t *value = NULL;
    (void)printf("\nvalues for the handler:\n");
    json_object_foreach(values, name, value)
    {
        char *plain = cli_plain(name, false);
        char *before = cli_format("  %-18s ", plain);
        char *text = json_line(value);
        cli_print_line(before, text == NULL ? "" : text);
        free(text);
        free(before);
        free(plain);
    }
}

static void print_logs(const json_t *logs)
{
    size_t index = 0;
    json_t *entry = NULL;
    (void)printf("\nexecution log:%s\n", json_array_size(logs) == 0 ? " empty" : "");
    json_array_foreach(logs, index, entry)
    {
        char *before = cli_format("  %zu. ", index + 1);
        char *text = json_line(entry);
        cli_print_line(before, text == NULL ? "" : text);
        free(text);
        free(before);
    }
}

static void print_errors(const json_t *errors)
{
    size_t index = 0;
    json_t *entry = NULL;
    if (json_array_size(errors) == 0)
        return;
    (void)printf("\nerrors:\n");
    json_array_foreach(errors, index, entry)
    {
        const char *at = json_string_value(json_object_get(entry, "at"));
        const char *text = json_string_value(json_object_get(entry, "error"));
        const char *worker = json_string_value(json_object_get(entry, "worker"));
        char *line =
            cli_format("  %.19s  attempt %" JSON_INTEGER_FORMAT ", %s: %s", at == NULL ? "" : at,
                       json_integer_value(json_object_get(entry, "attempt")),
                       worker == NULL ? "" : worker, text == NULL ? "" : text);
        cli_print_line("", line);
        free(line);
    }
}

static void print_plain(const PGresult *rows, int column)
{
    const char *name = PQfname(rows, column), *value = PQgetvalue(rows, 0, column);
    if (name == NULL || PQgetisnull(rows, 0, column))
        return;
    bool cancel = strcmp(name, "cancel") == 0, flag = cancel || strcmp(name, "stalled") == 0;
    if (flag && value[0] != 't')
        return;
    char *before = cli_format("%-18s ", name);
    cli_print_line(before, cancel ? "asked for" : flag ? "yes: its worker is silent" : value);
    free(before);
}

mr_error *cli_jobs_show(const cli_context *cli, const PGresult *rows)
{
    if (cli->json)
        return cli_print_json(cli_row_json(rows, 0));
    int logs = PQfnumber(rows, "execution_logs"), values = PQfnumber(rows, "values");
    int errors = PQfnumber(rows, "errors");
    for (int i = 0; i < PQnfields(rows); i++)
        if (i != logs && i != values && i != errors)
            print_plain(rows, i);
    json_t *history = errors < 0 ? NULL : json_loads(PQgetvalue(rows, 0, errors), 0, NULL);
    print_errors(history);
    json_decref(history);
    json_t *object = json_loads(PQgetvalue(rows, 0, values), 0, NULL);
    print_values(object);
    json_decref(object);
    json_t *list = json_loads(PQgetvalue(rows, 0, logs), 0, NULL);
    print_logs(list);
    json_decref(list);
    return NULL;
}

/* ---- What was done ------------------------------------------------------------------------- */

static void print_told(const PGresult *rows, int row, const char *done)
{
    bool changed = is_set(rows, row, "done");
    const char *note = cli_cell(rows, row, "note"), *was = cli_cell(rows, row, "was");
    char *line = changed && note[0] != '\0' ? cli_format("%s: %s", cli_cell(rows, row, "id"), note)
                 : changed ? cli_format("%s: %s; it was %s", cli_cell(rows, row, "id"), done, was)
                           : cli_format("%s: left alone: %s", cli_cell(rows, row, "id"), note);
    cli_print_line("", line);
    free(line);
}

mr_error *cli_jobs_left(int left, int count, const char *id)
{
    if (left == 0)
        return NULL;
    if (count == 1)
        return mr_error_new(MR_E_STATE, false, "job %s was left alone", id);
    return mr_error_new(MR_E_STATE, false, "%d of %d jobs %s left alone", left, count,
                        left == 1 ? "was" : "were");
}

mr_error *cli_jobs_told(const cli_context *cli, const PGresult *rows, const char *done)
{
    int left = 0, count = PQntuples(rows);
    const char *first = count == 0 ? "" : cli_cell(rows, 0, "id");
    for (int row = 0; row < count; row++)
        left += !is_set(rows, row, "done");
    if (cli->json)
        CLI_TRY(cli_print_rows(cli, rows, ""));
    else if (count == 0)
        (void)printf("No job matches.\n");
    else
        for (int row = 0; row < count; row++)
            print_told(rows, row, done);
    return cli_jobs_left(left, count, first);
}
