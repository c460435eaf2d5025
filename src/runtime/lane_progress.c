/* How far running jobs are, for people: what handlers said last is written about once a second, for
 * all jobs of a queue in one statement. Only the built-in table has a place for it. Nothing rests
 * on it: what could not be written is forgotten. */
#include "runtime/lane.h"
#include "runtime/worker.h"

#include "cluster/template.h"

#include <stdlib.h>

enum { PROGRESS_EVERY = 1000 }; /* ms */

static void on_told(void *user, PGresult **results, mr_error *error)
{
    mr_lane *lane = user;
    (void)results;
    lane->telling = false;
    if (error != NULL && mr_error_code(error) != MR_E_CANCELLED)
        mr__log(&lane->worker->logger, MR_WARN, "progress of jobs not written",
                "queue=%s" MR_SEP "error=%s", lane->name, mr_error_message(error));
    mr_error_free(error);
}

/* The arguments of set_progress(). */
typedef struct arrays {
    mr_buf ids, fences, percents, texts;
} arrays;

static bool gather(mr_lane *lane, arrays *a)
{
    bool first = true;
    for (mr_lane_job *job = lane->all; job != NULL; job = job->next) {
        mr_job_word *word = mr__job_word_take(&job->job);
        if (word == NULL)
            continue;
        mr__array_add(&a->ids, first, job->job.row.id);
        mr__array_add_number(&a->fences, first, job->job.row.fence);
        mr__array_add_number(&a->percents, first, word->percent);
        mr__array_add(&a->texts, first, word->has_text ? word->text : NULL);
        first = false;
        free(word);
    }
    mr_buf *const each[] = {&a->ids, &a->fences, &a->percents, &a->texts};
    bool whole = !first;
    for (size_t i = 0; i < 4; i++) {
        mr__buf_putc(each[i], '}');
        whole = whole && !each[i]->failed;
    }
    return whole;
}

static void on_progress_timer(uv_timer_t *timer)
{
    mr_lane *lane = timer->data;
    mr_aconn *conn = mr__worker_jobs_conn(lane->worker);
    if (lane->claimed == 0 || lane->telling || !mr__aconn_up(conn))
        return;
    arrays a = {0};
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT ");
    mr__names_function(&lane->worker->names, "set_progress", &sql);
    mr__buf_puts(&sql, "($1::bigint[], $2::bigint[], $3::int[], $4::text[])");
    if (gather(lane, &a) && !sql.failed) {
        mr_flight_statement statement = {.sql = mr__buf_text(&sql),
                                         .count = 4,
                                         .values = {mr__buf_text(&a.ids), mr__buf_text(&a.fences),
                                                    mr__buf_text(&a.percents),
                                                    mr__buf_text(&a.texts)}};
        lane->telling = true;
        mr__aconn_send(conn, &statement, 1, on_told, lane);
    }
    mr__buf_free(&a.ids);
    mr__buf_free(&a.fences);
    mr__buf_free(&a.percents);
    mr__buf_free(&a.texts);
}

void mr__lane_progress_start(mr_lane *lane)
{
    if (lane->builtin)
        (void)uv_timer_start(&lane->progress, on_progress_timer, PROGRESS_EVERY, PROGRESS_EVERY);
}
