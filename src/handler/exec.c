/* The exec handler: what a batch's children answer becomes the batch's effects. */
#include "handler/exec_talk.h"
#include "handler/handler.h"
#include "handler/whole.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct exec_handler {
    mr_handler base;
    mr_pool *pool;
} exec_handler;

/* ---- In a transaction, or right before one ------------------------------------------------- */

static mr_error *talk(mr_handler *handler, const mr_run *run, size_t *good, bool *sure,
                      mr_answers **answers)
{
    return mr__exec_talk(((exec_handler *)handler)->pool, run, NULL, good, sure, answers);
}

static mr_error *apply_one(mr_tx *tx, const mr_exec_answer *answer)
{
    for (size_t i = 0; i < answer->sql_count; i++) {
        const mr_exec_sql *sql = &answer->sql[i];
        MR_TRY(mr_tx_exec(tx, sql->text, sql->count, (const char *const *)sql->params));
    }
    return NULL;
}

static mr_error *apply(mr_handler *handler, mr_tx *tx, const mr_run *run, const mr_answers *answers,
                       size_t good)
{
    (void)handler;
    (void)run;
    for (size_t i = 0; answers != NULL && i < good && i < answers->count; i++) {
        mr__tx_tag(tx, (int)i);
        MR_TRY(apply_one(tx, &answers->items[i]));
    }
    mr__tx_tag(tx, -1);
    return NULL;
}

static mr_error *talk_and_apply(exec_handler *h, mr_tx *tx, const mr_run *run)
{
    size_t good = 0;
    mr_answers *answers = NULL;
    mr_error *error = mr__exec_talk(h->pool, run, tx, &good, NULL, &answers);
    if (error == NULL)
        error = apply(&h->base, tx, run, answers, good);
    else if (good < run->count)
        mr__tx_tag(tx, (int)good);
    mr__answers_free(answers);
    return error;
}

static mr_error *run_exec(mr_handler *handler, mr_tx *tx, const mr_run *run)
{
    exec_handler *h = (exec_handler *)handler;
    if (!mr__whole_needed(run))
        return talk_and_apply(h, tx, run);
    mr_whole whole = {0};
    mr_error *error = mr__whole_load(tx, run, &whole);
    if (error == NULL) {
        mr_run complete = *run;
        complete.events = whole.events;
        error = talk_and_apply(h, tx, &complete);
    }
    mr__whole_free(&whole);
    return error;
}

/* ---- Without one --------------------------------------------------------------------------- */

static mr_error *deliver(mr_handler *handler, const mr_run *run, size_t *good)
{
    return mr__exec_talk(((exec_handler *)handler)->pool, run, NULL, good, NULL, NULL);
}

/* ---- Life ---------------------------------------------------------------------------------- */

static mr_error *check(mr_handler *handler, PGconn *conn)
{
    (void)conn;
    mr_error *error = mr__pool_check(((exec_handler *)handler)->pool);
    if (error == NULL)
        return NULL;
    mr_error *told = mr__error(MR_E_CONFIG, "exec: %s", mr_error_message(error));
    mr_error_free(error);
    return told;
}

static void free_exec(mr_handler *handler)
{
    exec_handler *h = (exec_handler *)handler;
    mr__pool_free(h->pool);
    free(h);
}

static mr_error *make_pool(const char *consumer, const char *command, mr_logger *logger,
                           mr_pool **out)
{
    MR_AUTO_BUF name = {0};
    mr__buf_printf(&name, "MILLRACE_CONSUMER=%s", consumer);
    if (name.failed)
        return mr__error_nomem();
    const char *const vars[] = {name.data, "MILLRACE_PROTOCOL=" MR_EXEC_PROTOCOL, NULL};
    mr_pool_spec spec = {
        .kind = "consumer", .name = consumer, .command = command, .vars = vars, .logger = logger};
    return mr__pool_new(&spec, out);
}

mr_error *mr__handler_exec(const char *consumer, const char *command, mr_logger *logger,
                           mr_handler **out)
{
    exec_handler *h = calloc(1, sizeof(*h));
    if (h == NULL)
        return mr__error_nomem();
    h->base = (mr_handler){.run = run_exec,
                           .talk = talk,
                           .apply = apply,
                           .forget = mr__answers_free,
                           .deliver = deliver,
                           .check = check,
                           .free = free_exec,
                           .counts = true,
                           .wants_rows = true};
    mr_error *error = make_pool(consumer, command, logger, &h->pool);
    if (error != NULL) {
        free(h);
        return error;
    }
    *out = &h->base;
    return NULL;
}
