/* Dead letters of queues: jobs that failed, listed beside those of consumers, retried, dropped. */
#include "dead_letters.h"
#include "jobs.h"

#include <stdlib.h>
#include <string.h>

mr_error *cli_dead_jobs(const letters_run *run, PGresult **rows)
{
    CLI_TRY(mr_job_filter_add(run->filter, "limit", "1000000"));
    return mr_queue_jobs(run->conn, run->conf, run->queue, run->filter, rows);
}

/* Rows of a queue on a table of its own do not say whose they are. */
static const char *queue_of(const letters_run *run, const PGresult *rows, int row)
{
    return PQfnumber(rows, "queue") < 0 ? run->queue : cli_cell(rows, row, "queue");
}

/* ---- The table ----------------------------------------------------------------------------- */

enum { KIND, OF, AT, WHAT, STATE, ATTEMPTS, ERROR, COLUMNS, ERROR_SHOWN = 100 };

static char *shortened(const char *text)
{
    size_t length = strlen(text);
    bool cut = length > ERROR_SHOWN;
    length = cut ? ERROR_SHOWN : length;
    while (cut && length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80)
        length--; /* not in the middle of a character */
    return cli_format("%.*s%s", (int)length, text, cut ? "…" : "");
}

static void fill_event(const PGresult *rows, int row, char **cell)
{
    bool replay = cli_cell(rows, row, "replay")[0] == 't';
    cell[KIND] = cli_strdup("event");
    cell[OF] = cli_strdup(cli_cell(rows, row, "consumer"));
    cell[AT] = cli_strdup(cli_cell(rows, row, "position"));
    cell[WHAT] =
        cli_format("%s of %s/%s", cli_cell(rows, row, "event_type"),
                   cli_cell(rows, row, "aggregate_type"), cli_cell(rows, row, "aggregate_id"));
    cell[STATE] = cli_format("%s%s", cli_cell(rows, row, "state"), replay ? ", replay asked" : "");
    cell[ATTEMPTS] = cli_strdup(cli_cell(rows, row, "attempts"));
    cell[ERROR] = shortened(cli_cell(rows, row, "error"));
}

static void fill_job(const letters_run *run, const PGresult *rows, int row, char **cell)
{
    const char *key = cli_cell(rows, row, "key");
    bool held = strcmp(cli_cell(rows, row, "standing"), "held") == 0;
    cell[KIND] = cli_strdup("job");
    cell[OF] = cli_strdup(queue_of(run, rows, row));
    cell[AT] = cli_strdup(cli_cell(rows, row, "id"));
    cell[WHAT] = key[0] == '\0' ? cli_strdup("") : cli_format("key %s", key);
    cell[STATE] = cli_strdup(held ? "failed, keeps its key" : "failed");
    cell[ATTEMPTS] = cli_strdup(cli_cell(rows, row, "num_failures"));
    cell[ERROR] = shortened(cli_cell(rows, row, "failure_message"));
}

static void add_json(json_t *list, const PGresult *rows, const char *kind)
{
    for (int row = 0; rows != NULL && row < PQntuples(rows); row++) {
        json_t *object = cli_row_json(rows, row);
        (void)json_object_set_new(object, "kind", json_string(kind));
        (void)json_array_append_new(list, object);
    }
}

mr_error *cli_dead_print(const letters_run *run, const PGresult *events, const PGresult *jobs)
{
    static const cli_column columns[COLUMNS] = {
        [KIND] = {"kind", false},   [OF] = {"of", false},       [AT] = {"at", true},
        [WHAT] = {"what", false},   [STATE] = {"state", false}, [ATTEMPTS] = {"attempts", true},
        [ERROR] = {"error", false},
    };
    if (run->cli->json) {
        json_t *list = json_array();
        add_json(list, events, "event");
        add_json(list, jobs, "job");
        return cli_print_json(list);
    }
    int first = events == NULL ? 0 : PQntuples(events), count = first + PQntuples(jobs);
    if (count == 0)
        return cli_print_rows(run->cli, jobs, "No dead letter matches.");
    char **cells = cli_alloc((size_t)count * COLUMNS, sizeof(*cells));
    for (int row = 0; row < count; row++) {
        char **cell = cells + (ptrdiff_t)row * COLUMNS;
        if (row < first)
            fill_event(events, row, cell);
        else
            fill_job(run, jobs, row - first, cell);
    }
    cli_print_table(columns, COLUMNS, (const char *const *)cells, count);
    for (int i = 0; i < count * COLUMNS; i++)
        free(cells[i]);
    free((void *)cells);
    return NULL;
}

/* ---- One of them --------------------------------------------------------------------------- */

mr_error *cli_dead_job_show(const letters_run *run, const char *id)
{
    PGresult *rows = NULL;
    CLI_TRY(mr_queue_job(run->conn, run->conf, run->queue, id, &rows));
    mr_error *error = NULL;
    const char *state = cli_cell(rows, 0, "state");
    if (strcmp(state, "failed") != 0)
        error = mr_error_new(MR_E_STATE, false,
                             "job %s of queue %s is no dead letter: it is %s; see 'millrace jobs "
                             "show %s %s'",
                             id, run->queue, state, run->queue, id);
    else
        error = cli_jobs_show(run->cli, rows);
    PQclear(rows);
    return error;
}

/* ---- Retry and drop ------------------------------------------------------------------------ */

static void take_rows(const char *queue, const PGresult *rows, dead_told *told)
{
    for (int row = 0; row < PQntuples(rows); row++) {
        bool done = cli_cell(rows, row, "done")[0] == 't';
        told->done += done;
        told->left += !done;
        json_t *object = cli_row_json(rows, row);
        (void)json_object_set_new(object, "queue", json_string(queue));
        (void)json_array_append_new(told->rows, object);
    }
}

static mr_error *change_queue(const letters_run *run, const char *action, const char *queue,
                              dead_told *told)
{
    mr_decision *decision = mr_decision_new();
    PGresult *rows = NULL;
    mr_error *error = decision == NULL ? mr_error_new(MR_E_NOMEM, false, "out of memory")
                                       : mr_decision_by(decision, run->actor, run->reason);
    if (error == NULL)
        error = mr_queue_control(run->conn, run->conf, queue, action, run->filter, decision, &rows);
    if (error == NULL)
        take_rows(queue, rows, told);
    PQclear(rows);
    mr_decision_free(decision);
    return error;
}

mr_error *cli_dead_jobs_change(const letters_run *run, const char *action, dead_told *told)
{
    if (run->queue != NULL)
        return change_queue(run, action, run->queue, told);
    PGresult *rows = NULL;
    CLI_TRY(cli_dead_jobs(run, &rows));
    json_t *queues = json_object(); /* each once */
    for (int row = 0; row < PQntuples(rows); row++)
        (void)json_object_set_new(queues, cli_cell(rows, row, "queue"), json_true());
    PQclear(rows);
    mr_error *error = NULL;
    const char *queue = NULL;
    json_t *unused = NULL;
    json_object_foreach(queues, queue, unused)
    {
        if (error == NULL)
            error = change_queue(run, action, queue, told);
    }
    json_decref(queues);
    return error;
}

void cli_dead_left_out(const letters_run *run)
{
    if (!run->jobs || run->queue != NULL)
        return;
    char *names = cli_strdup("");
    for (size_t i = 0; i < mr_conf_queue_count(run->conf); i++) {
        if (mr_conf_queue_builtin(run->conf, i))
            continue;
        char *longer = cli_format("%s%s%s", names, names[0] == '\0' ? "" : ", ",
                                  mr_conf_queue_name(run->conf, i));
        free(names);
        names = longer;
    }
    char *plain = cli_plain(names, false);
    if (names[0] != '\0')
        cli_say(
            "left out, since they are on tables of their own: %s; ask for one with --queue NAME",
            plain);
    free(plain);
    free(names);
}

void cli_dead_jobs_told(const dead_told *told, const char *done)
{
    size_t i = 0;
    const json_t *row = NULL;
    json_array_foreach(told->rows, i, row)
    {
        const char *note = json_string_value(json_object_get(row, "note"));
        bool is_done = json_is_true(json_object_get(row, "done"));
        char *id = json_dumps(json_object_get(row, "id"), JSON_ENCODE_ANY);
        char *line =
            cli_format("job %s of %s: %s%s", id, json_string_value(json_object_get(row, "queue")),
                       is_done ? done : "left alone: ", note == NULL ? "" : note);
        cli_print_line("", line);
        free(line);
        free(id);
    }
}
