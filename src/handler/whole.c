/* A batch's events with the payloads that were too large to be read with their windows. */
#include "handler/whole.h"

#include <stdlib.h>

bool mr__whole_needed(const mr_run *run)
{
    for (size_t i = 0; i < run->count; i++)
        if (run->events[i]->payload == NULL)
            return true;
    return false;
}

mr_error *mr__whole_load(mr_tx *tx, const mr_run *run, mr_whole *whole)
{
    whole->events = calloc(run->count, sizeof(*whole->events));
    whole->copies = calloc(run->count, sizeof(*whole->copies));
    whole->rows = calloc(run->count, sizeof(PGresult *));
    if (whole->events == NULL || whole->copies == NULL || whole->rows == NULL)
        return mr__error_nomem();
    for (size_t i = 0; i < run->count; i++) {
        whole->events[i] = run->events[i];
        if (run->events[i]->payload != NULL)
            continue;
        mr__tx_tag(tx, (int)i);
        MR_TRY(mr__handler_load(tx, run->shape, run->events[i], &whole->copies[i],
                                &whole->rows[whole->loaded]));
        whole->loaded++;
        whole->events[i] = &whole->copies[i];
    }
    mr__tx_tag(tx, -1);
    return NULL;
}

void mr__whole_free(mr_whole *whole)
{
    for (size_t i = 0; i < whole->loaded; i++)
        PQclear(whole->rows[i]);
    free((void *)whole->events);
    free(whole->copies);
    free(whole->rows);
    *whole = (mr_whole){0};
}
