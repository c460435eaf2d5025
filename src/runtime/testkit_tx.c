/* Where the statements of a tested batch go: a record of what was committed, or a real database.
 *
 * What must stay true: nothing of a transaction that was rolled back, or undone to its mark, stays
 * in the record. */
#include "runtime/testkit.h"

#include <stdlib.h>
#include <string.h>

/* ---- The record ---------------------------------------------------------------------------- */

static void free_statement(mr_test_said *s)
{
    for (int i = 0; s->values != NULL && i < s->count; i++)
        free(s->values[i]);
    free((void *)s->values);
    free(s->lengths);
    free(s->sql);
}

static void truncate_to(mr_test_record *record, size_t count)
{
    while (record->count > count)
        free_statement(&record->items[--record->count]);
}

static bool copy_values(mr_test_said *s, const char *const *values, const int *lengths,
                        const int *formats)
{
    for (int i = 0; i < s->count; i++) {
        if (values == NULL || values[i] == NULL)
            continue;
        bool binary = formats != NULL && formats[i] == 1;
        size_t length = binary && lengths != NULL ? (size_t)lengths[i] : strlen(values[i]);
        char *copy = malloc(length + 1);
        if (copy == NULL)
            return false;
        memcpy(copy, values[i], length);
        copy[length] = '\0';
        s->values[i] = copy;
        s->lengths[i] = length;
    }
    return true;
}

static mr_error *add(mr_test_record *record, const char *sql, int count, const char *const *values,
                     const int *lengths, const int *formats)
{
    if (record->count == record->capacity) {
        size_t capacity = record->capacity == 0 ? 16 : record->capacity * 2;
        mr_test_said *grown = realloc(record->items, capacity * sizeof(*grown));
        if (grown == NULL)
            return mr__error_nomem();
        record->items = grown;
        record->capacity = capacity;
    }
    mr_test_said s = {.sql = strdup(sql), .count = count < 0 ? 0 : count};
    s.values = calloc((size_t)s.count + 1, sizeof(*s.values));
    s.lengths = calloc((size_t)s.count + 1, sizeof(*s.lengths));
    if (s.sql == NULL || s.values == NULL || s.lengths == NULL ||
        !copy_values(&s, values, lengths, formats)) {
        free_statement(&s);
        return mr__error_nomem();
    }
    record->items[record->count++] = s;
    return NULL;
}

static mr_error *ask(const mr_test_record *record, const char *sql, int count,
                     const char *const *values, PGresult **rows)
{
    if (record->on_query == NULL)
        return mr__error(MR_E_STATE,
                         "the handler asked '%s', and nobody answers: give mr_test_on_query() a "
                         "function, or mr_test_database() a database",
                         sql);
    PGresult *found = NULL;
    MR_TRY(record->on_query(record->on_query_user, sql, count, values, &found));
    if (found == NULL)
        return mr__error(MR_E_STATE, "mr_test_on_query()'s function set no rows for '%s'", sql);
    *rows = found;
    return NULL;
}

static mr_error *statement(void *user, const char *sql, int count, const char *const *values,
                           const int *lengths, const int *formats, PGresult **rows)
{
    mr_test_record *record = user;
    MR_TRY(add(record, sql, count, values, lengths, formats));
    return rows == NULL ? NULL : ask(record, sql, count, values, rows);
}

static void step(void *user, mr_step step)
{
    mr_test_record *record = user;
    switch (step) {
    case MR_STEP_MARK:
        record->marked = record->count;
        break;
    case MR_STEP_UNDO:
        truncate_to(record, record->marked);
        break;
    case MR_STEP_COMMIT:
        record->committed = record->count;
        break;
    case MR_STEP_ROLLBACK:
        truncate_to(record, record->committed);
        break;
    case MR_STEP_BEGIN:
    case MR_STEP_UNMARK:
    default:
        break;
    }
}

void mr__test_record_init(mr_test_record *record)
{
    record->script = (mr_script){.statement = statement, .step = step, .user = record};
}

void mr__test_record_free(mr_test_record *record)
{
    truncate_to(record, 0);
    free(record->items);
}

/* ---- Looking at it -------------------------------------------------------------------------- */

static const mr_test_said *at(const mr_test *test, size_t index)
{
    return index < test->record.committed ? &test->record.items[index] : NULL;
}

size_t mr_test_statement_count(const mr_test *test)
{
    return test->record.committed;
}

const char *mr_test_statement(const mr_test *test, size_t index)
{
    const mr_test_said *s = at(test, index);
    return s == NULL ? NULL : s->sql;
}

int mr_test_parameter_count(const mr_test *test, size_t index)
{
    const mr_test_said *s = at(test, index);
    return s == NULL ? 0 : s->count;
}

const char *mr_test_parameter(const mr_test *test, size_t index, int parameter)
{
    const mr_test_said *s = at(test, index);
    return s == NULL || parameter < 0 || parameter >= s->count ? NULL : s->values[parameter];
}

size_t mr_test_parameter_length(const mr_test *test, size_t index, int parameter)
{
    const mr_test_said *s = at(test, index);
    return s == NULL || parameter < 0 || parameter >= s->count ? 0 : s->lengths[parameter];
}

void mr_test_forget(mr_test *test)
{
    if (test->running)
        return; /* what the batch has queued so far is not committed, and its count is in use */
    truncate_to(&test->record, 0);
    test->record.committed = 0;
}

void mr_test_on_query(mr_test *test, mr_test_query_fn answer, void *user)
{
    test->record.on_query = answer;
    test->record.on_query_user = user;
}

/* ---- Sessions ------------------------------------------------------------------------------- */

mr_error *mr__test_session(mr_test *test, mr_session **out)
{
    if (test->session != NULL && !mr__session_usable(test->session)) {
        mr__session_close(test->session);
        test->session = NULL;
    }
    if (test->session == NULL) {
        mr_session_params params = {
            .conn = {.conninfo = test->conninfo, .application = "millrace test"},
            .prepare = true,
            .clock = mr__test_batch_clock(test),
            .cancelled = &test->worker->cancelled};
        MR_TRY(test->conninfo == NULL
                   ? mr__session_script(&params, &test->record.script, &test->session)
                   : mr__session_open(&params, &test->session));
    }
    *out = test->session;
    return NULL;
}

mr_error *mr_test_database(mr_test *test, const char *conninfo)
{
    if (test->running)
        return mr__error(MR_E_STATE, "mr_test_database() while a batch runs");
    if (conninfo == NULL)
        return mr__error(MR_E_USAGE, "mr_test_database() needs a connection string");
    MR_AUTO_CONN conn = NULL;
    MR_TRY(mr_connect(conninfo, "millrace test", &conn));
    mr_place *place = mr__test_place(test);
    if (place->handler->check != NULL)
        MR_TRY(mr__error_prefix(place->handler->check(place->handler, conn), "consumer '%s'",
                                mr__place_base(place)));
    char *copy = strdup(conninfo);
    if (copy == NULL)
        return mr__error_nomem();
    mr__session_close(test->session);
    test->session = NULL;
    free(test->conninfo);
    test->conninfo = copy;
    return NULL;
}
