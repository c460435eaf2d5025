/* What is done for jobs whose worker is gone. */
#include "queue/store.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { RESET_ID, RESET_STATE, RESET_AGE, RESET_KEY, RESET_LOWEST, RESET_MISSING, RESET_CEILING };

void mr__reset_care_clear(mr_reset_care *care)
{
    free(care->lowest);
    free(care->missing);
    *care = (mr_reset_care){0};
}

mr_error *mr__queue_reset_call(const mr_queue_store *store, const mr_reset_care *care,
                               const mr_own_claims *own, mr_queue_call *out)
{
    out->sql = store->sql.text[MR_QUEUE_RESET];
    if (!store->policy.builtin)
        return NULL;
    const char *const texts[] = {care->lowest == NULL ? "0" : care->lowest,
                                 care->missing == NULL ? "{}" : care->missing,
                                 own->worker,
                                 own->known,
                                 NULL,
                                 own->spent};
    out->count = sizeof(texts) / sizeof(texts[0]);
    for (int i = 0; i < out->count; i++) {
        if (texts[i] != NULL)
            mr__buf_puts(&out->text[i], texts[i]);
        else
            mr__buf_printf(&out->text[i], "%" PRId64, own->below);
        if (out->text[i].failed)
            return mr__error_nomem();
        out->values[i] = mr__buf_text(&out->text[i]);
    }
    return NULL;
}

/* The row about the queue. What could not be kept is only looked at again. */
static void take_care(const PGresult *rows, mr_reset_care *care)
{
    mr__reset_care_clear(care);
    care->lowest = strdup(PQgetvalue(rows, 0, RESET_LOWEST));
    care->missing = strdup(PQgetvalue(rows, 0, RESET_MISSING));
    (void)mr__text_int(PQgetvalue(rows, 0, RESET_CEILING), &care->ceiling);
}

mr_error *mr__queue_reset_take(const mr_queue_store *store, PGresult *rows, mr_mark *mark,
                               mr_reset_care *care, mr_resets *out)
{
    MR_AUTO_RESULT mine = rows;
    int first = store->policy.builtin ? 1 : 0;
    if (PQntuples(rows) < first)
        return mr__error(MR_E_INTERNAL, "the server said nothing about the queue");
    if (first > 0 && care != NULL)
        take_care(rows, care);
    size_t count = (size_t)(PQntuples(rows) - first);
    mr_resets resets = {.count = count,
                        .more = count >= (size_t)store->policy.reset_batch,
                        .rows = calloc(count + 1, sizeof(mr_reset))};
    if (resets.rows == NULL)
        return mr__error_nomem();
    for (size_t i = 0; i < count; i++) {
        mr_reset *reset = &resets.rows[i];
        int row = first + (int)i;
        reset->id = PQgetvalue(rows, row, RESET_ID);
        reset->state = PQgetvalue(rows, row, RESET_STATE);
        (void)mr__text_int(PQgetvalue(rows, row, RESET_AGE), &reset->age);
        if (first > 0 && PQgetisnull(rows, row, RESET_KEY) == 0)
            reset->key = PQgetvalue(rows, row, RESET_KEY);
    }
    if (mark != NULL && count > 0)
        mr__mark_stir(mark);
    resets.result = mine;
    mine = NULL;
    *out = resets;
    return NULL;
}

mr_error *mr__queue_reset(mr_queue_on on, const mr_queue_store *store, mr_mark *mark,
                          mr_resets *out)
{
    const mr_reset_care none = {0};
    const mr_own_claims nobodys = {.worker = "", .known = "{}", .spent = "{}"};
    MR_AUTO_CALL call = {0};
    MR_TRY(mr__queue_reset_call(store, &none, &nobodys, &call));
    PGresult *rows = NULL;
    MR_TRY(mr__queue_run(on, &call, &rows));
    return mr__queue_reset_take(store, rows, mark, NULL, out);
}

void mr__resets_free(mr_resets *resets)
{
    free(resets->rows);
    PQclear(resets->result);
    *resets = (mr_resets){0};
}
