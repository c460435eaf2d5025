/* Public calls that translate a configuration's queue for src/queue. */
#include "runtime/api_queue.h"

#include "base/list.h"
#include "queue/enqueue.h"
#include "queue/operate.h"
#include "queue/own.h"
#include "queue/wake.h"
#include "runtime/conf_queue.h"

#include <stdlib.h>
#include <string.h>

mr_error *mr__api_queue_open(PGconn *conn, const mr_conf *conf, const mr_queue *queue,
                             mr_queue_store **out)
{
    mr_names names;
    MR_TRY(mr__conf_names(conf, &names));
    mr_mapping mapping;
    MR_TRY(mr__queue_mapping_of(queue, &names, &mapping));
    mr_queue_policy policy = mr__queue_policy_of(queue);
    mr_error *error = mr__queue_open(conn, &mapping, &policy, &names, out);
    if (error != NULL)
        mr__mapping_free(&mapping);
    return error;
}

/* ---- Where a queue's jobs are ---------------------------------------------------------------- */

/* On a table that the conf describes (`store`), or in Millrace's own. */
typedef struct place {
    mr_names names;
    mr_queue_store *store;
    mr_own_queue own;
} place;

static void leave_place(place *p)
{
    mr__queue_close(p->store);
}
#define AUTO_PLACE __attribute__((cleanup(leave_place))) place

static mr_error *names_of(const mr_conf *conf, mr_names *names)
{
    return conf == NULL ? mr__names_init(names, "millrace") : mr__conf_names(conf, names);
}

static const mr_queue *described(const mr_conf *conf, const char *name)
{
    for (size_t i = 0; conf != NULL && i < conf->queue_count; i++)
        if (strcmp(mr_conf_queue_name(conf, i), name) == 0)
            return conf->queues[i];
    return NULL;
}

/* No configuration has it: then the database must know it, or it is a slip. */
static mr_error *unknown(PGconn *conn, const mr_conf *conf, const mr_names *names, const char *name)
{
    bool known = false;
    char *near = NULL;
    const mr_queue *none = NULL;
    mr_error *error = mr__own_require(conn, names);
    if (error == NULL)
        error = mr__own_known(conn, names, name, &known, &near);
    else if (conf != NULL && conf->queue_count > 0 && mr_error_code(error) == MR_E_SCHEMA) {
        mr_error_free(error);
        return mr__conf_queue_find(conf, name, &none);
    }
    if (error != NULL || known)
        return error;
    if (near == NULL && conf != NULL && conf->queue_count > 0)
        return mr__conf_queue_find(conf, name, &none);
    error = near != NULL
                ? mr__error(MR_E_USAGE, "there is no queue '%.80s'; did you mean '%s'?", name, near)
                : mr__error(MR_E_USAGE,
                            "there is no queue '%.80s' in the database; one on a table of its own "
                            "is described by a file: --config worker.yaml",
                            name);
    free(near);
    return error;
}

static mr_error *find_place(PGconn *conn, const mr_conf *conf, const char *name, place *out)
{
    MR_TRY(names_of(conf, &out->names));
    const mr_queue *queue = described(conf, name);
    out->own = (mr_own_queue){.names = &out->names, .name = name, .lease = MR_OWN_LEASE};
    if (queue == NULL)
        return unknown(conn, conf, &out->names, name);
    if (!mr__queue_builtin(queue))
        return mr__api_queue_open(conn, conf, queue, &out->store);
    out->own.lease = mr__queue_policy_of(queue).stalled_max_age;
    return mr__own_require(conn, &out->names);
}

/* ---- Jobs ------------------------------------------------------------------------------------ */

mr_error *mr_queue_jobs(PGconn *conn, const mr_conf *conf, const char *queue,
                        const mr_job_filter *filter, PGresult **rows)
{
    AUTO_PLACE p = {.store = NULL};
    if (queue == NULL) {
        MR_TRY(names_of(conf, &p.names));
        MR_TRY(mr__own_require(conn, &p.names));
        p.own = (mr_own_queue){.names = &p.names, .lease = MR_OWN_LEASE};
    } else {
        MR_TRY(find_place(conn, conf, queue, &p));
    }
    return p.store == NULL ? mr__own_list(conn, &p.own, filter, rows)
                           : mr__jobs_list(conn, p.store, filter, rows);
}

mr_error *mr_queue_job(PGconn *conn, const mr_conf *conf, const char *queue, const char *id,
                       PGresult **rows)
{
    AUTO_PLACE p = {.store = NULL};
    MR_TRY(find_place(conn, conf, queue, &p));
    return p.store == NULL ? mr__own_show(conn, &p.own, id, rows)
                           : mr__jobs_show(conn, p.store, id, rows);
}

/* ---- Counts ---------------------------------------------------------------------------------- */

static mr_error *read_states(const char *list, unsigned *states)
{
    static const char *const names[] = {"queued",    "errored", "processing",
                                        "completed", "failed",  "canceled"};
    enum { STATES = sizeof(names) / sizeof(names[0]) };
    MR_AUTO_BUF item = {0};
    *states = 0;
    while (mr__list_next(&list, &item, NULL)) {
        unsigned bit = 0;
        for (unsigned i = 0; i < STATES; i++)
            if (strcmp(names[i], mr__buf_text(&item)) == 0)
                bit = 1U << i;
        if (bit == 0)
            return mr__error(MR_E_USAGE,
                             "a job has no state '%.40s'; there are queued, errored, processing, "
                             "completed, failed and canceled",
                             mr__buf_text(&item));
        *states |= bit;
    }
    return NULL;
}

mr_error *mr_queue_count(PGconn *conn, const mr_conf *conf, const char *queue, const char *states,
                         int64_t *count)
{
    AUTO_PLACE p = {.store = NULL};
    unsigned set = 0;
    MR_TRY(read_states(states, &set));
    MR_TRY(find_place(conn, conf, queue, &p));
    return p.store == NULL ? mr__own_count(conn, &p.own, set, false, count)
                           : mr__queue_count((mr_queue_on){.conn = conn}, p.store, set, count);
}

mr_error *mr_queue_exists(PGconn *conn, const mr_conf *conf, const char *queue, const char *states,
                          bool *exists)
{
    AUTO_PLACE p = {.store = NULL};
    unsigned set = 0;
    MR_TRY(read_states(states, &set));
    MR_TRY(find_place(conn, conf, queue, &p));
    if (p.store != NULL)
        return mr__queue_exists((mr_queue_on){.conn = conn}, p.store, set, exists);
    int64_t count = 0;
    MR_TRY(mr__own_count(conn, &p.own, set, true, &count));
    *exists = count > 0;
    return NULL;
}

mr_error *mr_queue_wait(PGconn *conn, const mr_conf *conf, const char *queue, int64_t *wait)
{
    AUTO_PLACE p = {.store = NULL};
    MR_TRY(find_place(conn, conf, queue, &p));
    return p.store == NULL ? mr__own_wait(conn, &p.own, wait)
                           : mr__queue_wait((mr_queue_on){.conn = conn}, p.store, wait);
}

/* ---- Changes --------------------------------------------------------------------------------- */

static mr_error *operate(PGconn *conn, const mr_conf *conf, const char *queue,
                         const mr_job_order *order, PGresult **rows)
{
    AUTO_PLACE p = {.store = NULL};
    MR_TRY(find_place(conn, conf, queue, &p));
    if (p.store == NULL)
        return mr__own_operate(conn, &p.own, order, rows);
    if (order->action == MR_JOB_DROP)
        return mr__error(
            MR_E_USAGE,
            "queue %s lies on a table of its own, whose failed jobs stay there; delete "
            "their rows, or retry them",
            queue);
    return mr__jobs_operate(conn, p.store, order, rows);
}

mr_error *mr_queue_retry(PGconn *conn, const mr_conf *conf, const char *queue,
                         const mr_job_filter *filter, bool all, bool reset_counters,
                         PGresult **rows)
{
    mr_job_order order = {
        .action = MR_JOB_RETRY, .filter = filter, .all = all, .reset_counters = reset_counters};
    return operate(conn, conf, queue, &order, rows);
}

mr_error *mr_queue_cancel(PGconn *conn, const mr_conf *conf, const char *queue,
                          const mr_job_filter *filter, bool all, const char *reason,
                          PGresult **rows)
{
    mr_job_order order = {
        .action = MR_JOB_CALL_OFF, .filter = filter, .all = all, .reason = reason};
    return operate(conn, conf, queue, &order, rows);
}

static mr_error *check_delay(int64_t delay_ms)
{
    enum { MICROS = 1000 };
    if (delay_ms < 0 || delay_ms > INT64_MAX / MICROS)
        return mr__error(MR_E_USAGE, "the delay must be 0 to 10 years");
    return NULL;
}

mr_error *mr_queue_requeue(PGconn *conn, const mr_conf *conf, const char *queue,
                           const mr_job_filter *filter, bool all, const char *at, int64_t delay_ms,
                           bool reset_counters, PGresult **rows)
{
    MR_TRY(check_delay(delay_ms));
    mr_job_order order = {.action = MR_JOB_REQUEUE,
                          .filter = filter,
                          .all = all,
                          .at = at,
                          .delay = delay_ms * 1000,
                          .reset_counters = reset_counters};
    return operate(conn, conf, queue, &order, rows);
}

/* ---- Enqueueing ------------------------------------------------------------------------------ */

mr_error *mr_enqueue_many(PGconn *conn, const mr_conf *conf, const char *queue, mr_job_draft *draft)
{
    mr_names names;
    MR_TRY(mr__conf_names(conf, &names));
    return mr__enqueue(conn, &names, queue, draft);
}

static mr_error *enqueue_one(PGconn *conn, const mr_conf *conf, const char *queue,
                             const char *payload, const char *const *fields, mr_job_draft *draft)
{
    MR_TRY(mr_job_draft_add(draft, payload));
    for (; fields != NULL && fields[0] != NULL; fields += 2)
        MR_TRY(mr_job_draft_field(draft, fields[0], fields[1]));
    return mr_enqueue_many(conn, conf, queue, draft);
}

mr_error *mr_enqueue(PGconn *conn, const mr_conf *conf, const char *queue, const char *payload,
                     const char *const *fields, int64_t *id, bool *created)
{
    mr_job_draft draft = {0};
    mr_error *error = enqueue_one(conn, conf, queue, payload, fields, &draft);
    if (error == NULL && id != NULL)
        *id = mr_job_draft_id(&draft, 0);
    if (error == NULL && created != NULL)
        *created = mr_job_draft_created(&draft, 0);
    mr__buf_free(&draft.bytes);
    free(draft.rows);
    return error;
}

mr_error *mr_queue_wake(PGconn *conn, const mr_conf *conf, const char *queue)
{
    mr_names names;
    MR_TRY(mr__conf_names(conf, &names));
    return mr__queue_wake(conn, &names, queue);
}

/* ---- By a person, with who and why ----------------------------------------------------------- */

struct mr_decision {
    char *actor, *reason, *at;
    int64_t delay; /* microseconds */
    bool all, counters;
};

mr_decision *mr_decision_new(void)
{
    return calloc(1, sizeof(mr_decision));
}

void mr_decision_free(mr_decision *decision)
{
    if (decision == NULL)
        return;
    free(decision->actor);
    free(decision->reason);
    free(decision->at);
    free(decision);
}

static mr_error *set_text(char **slot, const char *value)
{
    char *copy = value == NULL ? NULL : strdup(value);
    if (value != NULL && copy == NULL)
        return mr__error_nomem();
    free(*slot);
    *slot = copy;
    return NULL;
}

mr_error *mr_decision_by(mr_decision *decision, const char *actor, const char *reason)
{
    MR_TRY(set_text(&decision->actor, actor));
    return set_text(&decision->reason, reason);
}

mr_error *mr_decision_due(mr_decision *decision, const char *at, int64_t delay_ms)
{
    MR_TRY(check_delay(delay_ms));
    decision->delay = delay_ms * 1000;
    return set_text(&decision->at, at);
}

void mr_decision_all(mr_decision *decision)
{
    decision->all = true;
}

void mr_decision_reset_counters(mr_decision *decision)
{
    decision->counters = true;
}

static mr_error *pause_or_resume(PGconn *conn, const mr_conf *conf, const char *queue, bool resume,
                                 const mr_decision *decision, PGresult **rows)
{
    AUTO_PLACE p = {.store = NULL};
    MR_TRY(find_place(conn, conf, queue, &p));
    if (p.store != NULL)
        return mr__error(MR_E_USAGE,
                         "queue %s lies on a table of its own, and only queues of the built-in "
                         "table can be paused; stop its workers, or refuse in a dequeue hook",
                         queue);
    return mr__own_pause(conn, &p.own, resume, decision == NULL ? NULL : decision->actor,
                         decision == NULL ? NULL : decision->reason, rows);
}

mr_error *mr_queue_control(PGconn *conn, const mr_conf *conf, const char *queue, const char *action,
                           const mr_job_filter *filter, const mr_decision *decision,
                           PGresult **rows)
{
    static const char *const actions[] = {"retry", "cancel", "requeue", "drop", "pause", "resume"};
    enum { JOB_ACTIONS = 4, ACTIONS = 6, RESUME = 5 };
    int which = 0;
    while (which < ACTIONS && strcmp(actions[which], action) != 0)
        which++;
    if (which == ACTIONS)
        return mr__error(MR_E_USAGE,
                         "there is no '%.40s'; use retry, cancel, requeue, drop, pause or resume",
                         action);
    if (which >= JOB_ACTIONS)
        return pause_or_resume(conn, conf, queue, which == RESUME, decision, rows);
    static const mr_decision plain = {.all = false};
    const mr_decision *d = decision == NULL ? &plain : decision;
    mr_job_order order = {.action = (mr_job_action)which,
                          .filter = filter,
                          .all = d->all,
                          .reset_counters = d->counters,
                          .actor = d->actor,
                          .reason = d->reason,
                          .at = d->at,
                          .delay = d->delay};
    return operate(conn, conf, queue, &order, rows);
}

/* ---- Buckets --------------------------------------------------------------------------------- */

mr_error *mr_ring_ask(mr_ring *ring, PGconn *conn, const mr_conf *conf)
{
    mr_names names;
    MR_TRY(mr__conf_names(conf, &names));
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT s.buckets FROM ");
    mr__qname_quote(&sql, &names.table[MR_TABLE_JOB_SETTINGS]);
    mr__buf_puts(&sql, " AS s");
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, mr__buf_text(&sql), 0, NULL));
    return PQntuples(rows) == 0 ? NULL : mr_ring_set(ring, "buckets", PQgetvalue(rows, 0, 0));
}
