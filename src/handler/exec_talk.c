/* One batch's conversation with a child: events go out while answers come in, with a bounded number
 * under way.
 *
 * What must stay true: `told` events were written whole, the first `answered` of them are answered,
 * and a line counts as an answer only while answered < told. A child that is given back owes
 * nothing; any other is killed. */
#include "handler/exec_talk.h"

#include "base/text.h"
#include "handler/exec_fault.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WINDOW = 256,        /* events given and not answered */
    WINDOW_DETACHED = 1, /* what follows an event that fails must not be done before it */
    AHEAD = 256 << 10,   /* bytes of events made into lines at once */
    SQL_MOST = 64 << 20, /* bytes of a batch's answers with sql */
    TX_SLACK = 250000,   /* microseconds */
    LOOK_EVERY = 50,     /* ms between looks at the deadline */
};

typedef struct conversation {
    mr_pool *pool;
    const mr_run *run;
    mr_tx *tx;
    const mr_clock *clock;
    int64_t began;
    mr_child *child;
    mr_buf out;                  /* lines on their way */
    size_t sent;                 /* bytes of `out` that were written */
    size_t given;                /* bytes written in all */
    size_t made, told, answered; /* events: made into lines, written whole, answered */
    size_t window, good;
    bool enough;         /* detached: what was answered is to be saved first */
    mr_answers *answers; /* NULL: detached */
    size_t kept;         /* bytes of answers with sql */
    int64_t deaf_since;  /* when its stdin was found closed, 0 = it is open */
    bool gone;           /* it was found dead; what it wrote before may still be there */
    char what[64];       /* what asked() names */
    mr_error *refusal;   /* what the child says of event `good`; what follows is only counted */
} conversation;

/* ---- Errors -------------------------------------------------------------------------------- */

/* Position of the event whose answer is due. */
static int64_t due(const conversation *c)
{
    size_t i = c->answered < c->run->count ? c->answered : c->run->count - 1;
    return c->run->events[i]->position;
}

/* Whose answer that is, for errors. */
static mr_exec_due asked(conversation *c)
{
    (void)snprintf(c->what, sizeof(c->what), "the event at position %" PRId64, due(c));
    return (mr_exec_due){.pool = c->pool, .child = c->child, .what = c->what};
}

/* Until one has ever answered, starting it is what does not work, whatever the event. So it is
 * later when this one has not read a byte: a release that broke the program, say. */
static bool begun(const conversation *c)
{
    return mr__pool_praised(c->pool) && c->given > mr__child_unread(c->child);
}

static mr_error *died(conversation *c)
{
    mr_exec_due event = asked(c);
    return mr__exec_died(&event, begun(c) ? MR_E_HANDLER : MR_E_IO);
}

static mr_error *too_late(conversation *c)
{
    /* Shown as it was set, not a hair less. */
    int64_t limit = (c->run->deadline - c->began + 9999) / 10000 * 10000;
    char text[32];
    mr__text_duration_format(limit > 0 ? limit : 0, text);
    mr_exec_due event = asked(c);
    return mr__exec_complain(&event, begun(c) ? MR_E_TIMEOUT : MR_E_IO,
                             "did not answer %s within batch_timeout (%s) and was killed",
                             event.what, text);
}

/* ---- Time ---------------------------------------------------------------------------------- */

static bool late(const conversation *c)
{
    if (c->run->deadline <= 0)
        return false;
    /* The transaction's own deadline was set a moment before the run's: that is no forced stop. */
    int64_t slack = c->tx != NULL && mr_tx_cancelled(c->tx) ? TX_SLACK : 0;
    return mr__clock_now(c->clock) >= c->run->deadline - slack;
}

static bool cancelled(const conversation *c)
{
    return (c->run->cancelled != NULL && atomic_load(c->run->cancelled)) ||
           (c->tx != NULL && mr_tx_cancelled(c->tx));
}

static bool should_stop(void *user)
{
    const conversation *c = user;
    return late(c) || cancelled(c);
}

static mr_error *check_time(conversation *c)
{
    if (late(c))
        return too_late(c);
    if (cancelled(c))
        return mr_error_new(MR_E_CANCELLED, true, "the batch was cancelled by a forced stop");
    return NULL;
}

/* ---- Giving events ------------------------------------------------------------------------- */

/* More lines once the last are written, as many as the window allows. */
static mr_error *make_lines(conversation *c)
{
    if (c->sent < c->out.length || c->refusal != NULL)
        return NULL;
    mr__buf_clear(&c->out);
    c->sent = 0;
    while (c->made < c->run->count && c->made - c->answered < c->window && c->out.length < AHEAD)
        mr__exec_line_event(&c->out, c->run->consumer == NULL ? "" : c->run->consumer,
                            c->run->attempt, c->run->events[c->made++]);
    return c->out.failed ? mr__error_nomem() : NULL;
}

/* A line has no newline but the one at its end, so counting those counts events. */
static void count_told(conversation *c, size_t written)
{
    if (written == 0)
        return;
    c->given += written;
    const char *p = c->out.data + c->sent, *end = p + written;
    while (p < end && (p = memchr(p, '\n', (size_t)(end - p))) != NULL) {
        c->told++;
        p++;
    }
    c->sent += written;
}

/* After a refusal no further event is given: what is not begun is dropped. */
static void drop_rest(conversation *c)
{
    bool between = c->sent == 0 || c->sent == c->out.length || c->out.data[c->sent - 1] == '\n';
    size_t end = c->sent;
    if (!between)
        end = (size_t)((char *)memchr(c->out.data + c->sent, '\n', c->out.length - c->sent) + 1 -
                       c->out.data);
    c->out.length = end;
    c->made = c->told + (between ? 0 : 1);
}

/* ---- Taking answers ------------------------------------------------------------------------ */

static size_t size_of(const mr_exec_answer *answer)
{
    size_t size = 0;
    for (size_t i = 0; i < answer->sql_count; i++) {
        size += strlen(answer->sql[i].text) + sizeof(mr_exec_sql);
        for (int k = 0; k < answer->sql[i].count; k++)
            size += sizeof(char *) +
                    (answer->sql[i].params[k] == NULL ? 0 : strlen(answer->sql[i].params[k]));
    }
    return size;
}

/* Keeps a good answer (taken), or says why it is none after all. */
static mr_error *keep(conversation *c, mr_exec_answer *answer)
{
    if (c->answers == NULL) {
        if (answer->sql_count == 0)
            return NULL;
        return mr__error(MR_E_HANDLER, "the answer has \"sql\", but a detached consumer has no "
                                       "transaction to run it in");
    }
    c->kept += size_of(answer);
    if (c->kept > SQL_MOST)
        return mr_error_new(MR_E_HANDLER, true,
                            "the answers of this batch hold more than 64 MiB of sql; a smaller "
                            "batch_size helps");
    c->answers->items[c->answers->count++] = *answer;
    *answer = (mr_exec_answer){0};
    return NULL;
}

static void take_answer(conversation *c, mr_exec_answer *answer)
{
    if (c->refusal != NULL)
        return;
    c->refusal = answer->kind == MR_EXEC_OK ? keep(c, answer) : mr__exec_refusal(answer);
    if (c->refusal != NULL) {
        drop_rest(c);
        return;
    }
    if (c->good++ == 0)
        mr__pool_praise(c->pool);
    c->enough = c->answers == NULL && mr__run_enough(c->run);
}

static mr_error *take_line(conversation *c, const char *line, size_t length)
{
    mr_exec_answer answer;
    mr_error *why = mr__exec_line_answer(line, length, &answer);
    mr_exec_due event = asked(c);
    if (why != NULL)
        return mr__exec_bad_line(&event, why, line, length);
    mr_error *error = NULL;
    if (answer.kind == MR_EXEC_LOG) {
        mr__pool_log(c->pool, c->child, answer.level, answer.text);
    } else if (c->answered == c->told) {
        error = mr__exec_complain(&event, MR_E_HANDLER,
                                  "answered out of order: it was not yet given %s", event.what);
    } else if (answer.placed && answer.position != due(c)) {
        error = mr__exec_complain(&event, MR_E_HANDLER,
                                  "answered out of order: position %" PRId64 " where %" PRId64
                                  " was due",
                                  answer.position, due(c));
    } else {
        take_answer(c, &answer);
        c->answered++;
    }
    mr__exec_answer_free(&answer);
    return error;
}

static bool finished(const conversation *c)
{
    bool all = c->refusal == NULL && !c->enough;
    return c->answered == (all ? c->run->count : c->made);
}

static mr_error *take_lines(conversation *c)
{
    const char *line;
    size_t length;
    while (!finished(c) && mr__child_line(c->child, &line, &length))
        MR_TRY(take_line(c, line, length));
    return NULL;
}

/* ---- The conversation ---------------------------------------------------------------------- */

/* A process that the child started may hold its stdout open for longer than the child lives. Asked
 * when nothing moved; true the second time, when all that it wrote has been read. */
static bool left_behind(conversation *c)
{
    bool before = c->gone;
    c->gone = mr__child_await(c->child, 0);
    return before && c->gone;
}

static mr_error *step(conversation *c)
{
    MR_TRY(make_lines(c));
    size_t written = 0, answered = c->answered, pending = mr__child_pending(c->child);
    const char *bytes = c->out.data == NULL ? NULL : c->out.data + c->sent;
    mr_child_state state =
        mr__child_pump(c->child, bytes, c->out.length - c->sent, LOOK_EVERY, &written);
    count_told(c, written);
    MR_TRY(take_lines(c));
    if (finished(c))
        return NULL;
    bool still = written == 0 && c->answered == answered && mr__child_pending(c->child) == pending;
    if (state == MR_CHILD_ENDED || (still && left_behind(c)))
        return died(c);
    mr_exec_due event = asked(c);
    if (state == MR_CHILD_TOO_LONG)
        return mr__exec_too_long(&event);
    MR_TRY(mr__exec_deaf(&event, c->out.length - c->sent, &c->deaf_since));
    return check_time(c);
}

static mr_error *converse(conversation *c)
{
    while (!finished(c))
        MR_TRY(step(c));
    return NULL;
}

/* The child refused that event itself, or had no other that could have felled it: it may read ahead
 * and answer late. */
static bool names_one(const conversation *c)
{
    return c->refusal != NULL || c->made - c->answered <= 1;
}

/* The child's part is over: what it said of an event comes before what then went wrong with it. */
static mr_error *part(conversation *c, mr_error *broken)
{
    if (broken == NULL && mr_error_code(c->refusal) != MR_E_FATAL) {
        mr__pool_give(c->pool, c->child);
    } else {
        mr__pool_kill(c->pool, c->child);
        mr__pool_bury(c->pool, c->child);
    }
    if (c->refusal == NULL)
        return broken;
    mr_error_free(broken);
    return c->refusal;
}

static mr_answers *answers_new(size_t count)
{
    mr_answers *answers = calloc(1, sizeof(*answers));
    if (answers == NULL)
        return NULL;
    answers->items = calloc(count, sizeof(*answers->items));
    if (answers->items != NULL)
        return answers;
    free(answers);
    return NULL;
}

void mr__answers_free(mr_answers *answers)
{
    if (answers == NULL)
        return;
    for (size_t i = 0; i < answers->count; i++)
        mr__exec_answer_free(&answers->items[i]);
    free(answers->items);
    free(answers);
}

mr_error *mr__exec_talk(mr_pool *pool, const mr_run *run, mr_tx *tx, size_t *good, bool *sure,
                        mr_answers **answers)
{
    *good = 0;
    if (sure != NULL)
        *sure = false;
    if (run->count == 0)
        return NULL;
    conversation c = {.pool = pool,
                      .run = run,
                      .tx = tx,
                      .clock = run->clock == NULL ? &mr__clock_system : run->clock,
                      .window = answers == NULL ? WINDOW_DETACHED : WINDOW};
    /* A batch that failed before goes event by event: the blame is exact, and no event after the
     * one that fails is begun again. */
    if (run->attempt > 1)
        c.window = 1;
    c.began = mr__clock_now(c.clock);
    if (answers != NULL) {
        c.answers = answers_new(run->count);
        if (c.answers == NULL)
            return mr__error_nomem();
        *answers = c.answers;
    }
    /* Half of the time for a restart's backoff, so that the other half is for the work. */
    int64_t most_wait = run->deadline > 0 ? (run->deadline - c.began) / 2 : INT32_MAX;
    MR_TRY(mr__pool_take(pool, most_wait, should_stop, &c, &c.child));
    mr_error *error = part(&c, converse(&c));
    if (sure != NULL)
        *sure = names_one(&c);
    mr__buf_free(&c.out);
    *good = c.good;
    return error;
}
