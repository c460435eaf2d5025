/* Jobs handled by a child process: one line out, log lines and one answer in. A child works on one
 * job at a time.
 *
 * What must stay true: a child that is given back owes no answer; any other is killed. A job that a
 * child never began is not to blame for what became of the child. */
#include "handler/exec_fault.h"
#include "queue/job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOK_EVERY = 50,   /* ms between looks at whether the job should stop */
    GRACE = 2000000,   /* microseconds for an answer once the child was asked to give up */
    TERM_GRACE = 1000, /* ms between SIGTERM and SIGKILL */
    OID_JSON = 114,
    OID_JSONB = 3802,
};

typedef struct exec_handler {
    mr_job_handler base;
    mr_pool *pool;
} exec_handler;

/* One job's conversation. */
typedef struct talk {
    mr_pool *pool;
    mr_job *job;
    mr_child *child;
    mr_buf out;
    size_t sent;
    size_t job_length;  /* of `out`: what follows is the request to give up */
    char *what;         /* "job 7", for messages */
    int64_t asked_at;   /* when it was asked to give up, 0 = it was not */
    int64_t deaf_since; /* see mr__exec_deaf */
    bool answered;
    mr_exec_answer answer;
} talk;

static mr_exec_due due(const talk *t)
{
    return (mr_exec_due){.pool = t->pool, .child = t->child, .what = t->what};
}

/* ---- The job's line ------------------------------------------------------------------------ */

static mr_error *make_line(talk *t)
{
    const mr_jobs *jobs = t->job->row.jobs;
    size_t count = mr__jobs_values(jobs);
    mr_exec_value *values = calloc(count + 1, sizeof(*values));
    if (values == NULL)
        return mr__error_nomem();
    for (size_t i = 0; i < count; i++) {
        Oid type = mr__jobs_value_type(jobs, i);
        values[i] = (mr_exec_value){.name = mr__jobs_value_name(jobs, i),
                                    .text = mr__job_value_at(&t->job->row, i),
                                    .json = type == OID_JSON || type == OID_JSONB};
    }
    mr__exec_line_job(&t->out, mr_job_queue(t->job), t->job->row.id, values, count);
    free(values);
    t->job_length = t->out.length;
    return t->out.failed ? mr__error_nomem() : NULL;
}

/* ---- Its answer ---------------------------------------------------------------------------- */

/* The log line's entry is an extra: that it could not be written fails no job. */
static void take_log(talk *t)
{
    mr_exec_answer *line = &t->answer;
    mr__pool_log(t->pool, t->child, line->level, line->text);
    if (line->entry != NULL) {
        mr_error *error = mr_job_log(t->job, line->entry, NULL);
        if (error != NULL)
            mr__log(t->job->logger, MR_WARN, "execution log not written",
                    "queue=%s" MR_SEP "job=%s" MR_SEP "error=%s", mr_job_queue(t->job),
                    t->job->row.id, mr_error_message(error));
        mr_error_free(error);
    }
    mr__exec_answer_free(line);
}

/* As with the log: that it is lost fails no job. */
static void take_progress(talk *t)
{
    mr_error_free(mr_job_progress(t->job, t->answer.percent, t->answer.text));
    mr__exec_answer_free(&t->answer);
}

static mr_error *take_line(talk *t, const char *line, size_t length)
{
    mr_error *why = mr__exec_line_job_answer(line, length, &t->answer);
    mr_exec_due job = due(t);
    if (why != NULL)
        return mr__exec_bad_line(&job, why, line, length);
    if (t->answer.kind == MR_EXEC_LOG) {
        take_log(t);
        return NULL;
    }
    if (t->answer.kind == MR_EXEC_PROGRESS) {
        take_progress(t);
        return NULL;
    }
    if (t->answer.id != NULL && strcmp(t->answer.id, t->job->row.id) != 0)
        return mr__exec_complain(&job, MR_E_HANDLER,
                                 "answered out of order: job %.64s where %s "
                                 "was due",
                                 t->answer.id, t->what);
    t->answered = true;
    return NULL;
}

static mr_error *take_lines(talk *t)
{
    const char *line;
    size_t length;
    while (!t->answered && mr__child_line(t->child, &line, &length))
        MR_TRY(take_line(t, line, length));
    return NULL;
}

/* ---- Giving up ----------------------------------------------------------------------------- */

static const char *reason(const mr_job *job)
{
    switch ((mr_job_stop)atomic_load(&job->stop)) {
    case MR_STOP_CANCEL:
        return "canceled";
    case MR_STOP_LOST:
        return "lost";
    case MR_STOP_WORKER:
        return "stop";
    case MR_STOP_NONE: /* the job's own clock knows before anybody says so */
    case MR_STOP_RUNTIME:
        break;
    }
    return "max_runtime";
}

static mr_error *mind_stop(talk *t)
{
    int64_t now = mr__clock_now(&mr__clock_system);
    if (t->asked_at == 0) {
        if (!mr_job_cancelled(t->job))
            return NULL;
        mr__exec_line_cancel(&t->out, mr_job_queue(t->job), t->job->row.id, reason(t->job));
        t->asked_at = now;
        return t->out.failed ? mr__error_nomem() : NULL;
    }
    if (now - t->asked_at < GRACE)
        return NULL;
    mr_exec_due job = due(t);
    return mr__exec_complain(&job, MR_E_CANCELLED,
                             "did not answer %s within 2s of being told to give it up and was "
                             "killed",
                             t->what);
}

static bool should_stop(void *user)
{
    return mr_job_cancelled(((talk *)user)->job);
}

/* ---- The conversation ---------------------------------------------------------------------- */

/* Its stdout is closed. When it has not read a byte of the job, starting it is what does not work,
 * whatever the job. */
static mr_error *died(talk *t)
{
    bool begun = t->sent > mr__child_unread(t->child);
    t->job->blameless = !begun;
    mr_exec_due job = due(t);
    return mr__exec_died(&job, begun ? MR_E_HANDLER : MR_E_IO);
}

static mr_error *step(talk *t)
{
    size_t written = 0;
    mr_child_state state = mr__child_pump(t->child, t->out.data + t->sent, t->out.length - t->sent,
                                          LOOK_EVERY, &written);
    t->sent += written;
    MR_TRY(take_lines(t));
    if (t->answered)
        return NULL;
    if (state == MR_CHILD_ENDED)
        return died(t);
    mr_exec_due job = due(t);
    if (state == MR_CHILD_TOO_LONG)
        return mr__exec_too_long(&job);
    /* One that reads nothing more may still answer what it was given, and needs no cancel line. */
    if (t->asked_at == 0)
        MR_TRY(mr__exec_deaf(&job, t->out.length - t->sent, &t->deaf_since));
    return mind_stop(t);
}

static mr_error *converse(talk *t)
{
    while (!t->answered)
        MR_TRY(step(t));
    mr__pool_praise(t->pool);
    return NULL;
}

static void part(talk *t, const mr_error *broken)
{
    bool fatal = t->answered && t->answer.kind == MR_EXEC_ERROR && t->answer.fatal;
    /* Half of a line would be the beginning of the next job's. */
    bool whole = t->sent == t->job_length || t->sent == t->out.length;
    if (broken == NULL && !fatal && whole) {
        mr__pool_give(t->pool, t->child);
        return;
    }
    if (t->asked_at != 0 && !t->answered) {
        mr__child_signal(t->child, SIGTERM);
        (void)mr__child_await(t->child, TERM_GRACE);
    }
    mr__pool_kill(t->pool, t->child);
    mr__pool_bury(t->pool, t->child);
}

/* ---- What the answer asks for -------------------------------------------------------------- */

static mr_error *run_sql(mr_job *job, const mr_exec_answer *answer)
{
    if (answer->sql_count == 0)
        return NULL;
    mr_tx *tx = NULL;
    MR_TRY(mr_job_tx(job, &tx));
    for (size_t i = 0; i < answer->sql_count; i++) {
        const mr_exec_sql *sql = &answer->sql[i];
        MR_TRY(mr_tx_exec(tx, sql->text, sql->count, (const char *const *)sql->params));
    }
    return NULL;
}

static mr_error *obey(mr_job *job, const mr_exec_answer *answer)
{
    if (answer->kind == MR_EXEC_ERROR)
        return mr__exec_refusal(answer);
    if (answer->kind == MR_EXEC_SNOOZE)
        mr_job_snooze(job, answer->delay / 1000);
    if (answer->kind == MR_EXEC_REQUEUE)
        mr_job_requeue(job, answer->delay / 1000);
    return run_sql(job, answer);
}

/* ---- One job ------------------------------------------------------------------------------- */

/* That no child can be had is no job's fault, nor is what one did while nobody used it. */
static mr_error *take_child(talk *t)
{
    mr_job *job = t->job;
    int64_t left = job->deadline == INT64_MAX ? INT32_MAX : job->deadline - job->began;
    mr_error *error = mr__pool_take(t->pool, left / 2, should_stop, t, &t->child);
    job->blameless = error != NULL && mr_error_code(error) != MR_E_CANCELLED;
    return error;
}

static mr_error *run(talk *t)
{
    if (asprintf(&t->what, "job %s", t->job->row.id) < 0) {
        t->what = NULL;
        return mr__error_nomem();
    }
    MR_TRY(make_line(t));
    MR_TRY(take_child(t));
    mr_error *error = converse(t);
    part(t, error);
    return error != NULL ? error : obey(t->job, &t->answer);
}

static mr_error *handle(mr_job_handler *handler, mr_job *job)
{
    talk t = {.pool = ((exec_handler *)handler)->pool, .job = job};
    mr_error *error = run(&t);
    mr__exec_answer_free(&t.answer);
    mr__buf_free(&t.out);
    free(t.what);
    return error;
}

/* ---- Life ---------------------------------------------------------------------------------- */

static mr_error *check(mr_job_handler *handler, PGconn *conn)
{
    (void)conn;
    mr_error *error = mr__pool_check(((exec_handler *)handler)->pool);
    if (error == NULL)
        return NULL;
    mr_error *told = mr__error(MR_E_CONFIG, "exec: %s", mr_error_message(error));
    mr_error_free(error);
    return told;
}

static void free_handler(mr_job_handler *handler)
{
    mr__pool_free(((exec_handler *)handler)->pool);
    free(handler);
}

mr_error *mr__job_handler_exec(const char *queue, const char *command, mr_logger *logger,
                               mr_job_handler **out)
{
    MR_AUTO_BUF name = {0};
    mr__buf_printf(&name, "MILLRACE_QUEUE=%s", queue);
    exec_handler *h = calloc(1, sizeof(*h));
    if (h == NULL || name.failed) {
        free(h);
        return mr__error_nomem();
    }
    h->base = (mr_job_handler){.handle = handle, .check = check, .free = free_handler};
    const char *const vars[] = {name.data, "MILLRACE_PROTOCOL=" MR_EXEC_PROTOCOL, NULL};
    mr_pool_spec spec = {
        .kind = "queue", .name = queue, .command = command, .vars = vars, .logger = logger};
    mr_error *error = mr__pool_new(&spec, &h->pool);
    if (error != NULL) {
        free(h);
        return error;
    }
    *out = &h->base;
    return NULL;
}
