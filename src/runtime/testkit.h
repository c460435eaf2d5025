/* The innards of mr_test: a worker that is never started, whose consumer's places are moved by
 * hand; a log in memory; a transaction that is written down. One thread. */
#ifndef MR_RUNTIME_TESTKIT_H
#define MR_RUNTIME_TESTKIT_H

#include "runtime/worker.h"

/* ---- testkit_log.c: a log in memory ---- */

/* One event, its texts its own. */
typedef struct mr_test_event {
    int64_t position, aggregate_version, created_at;
    int64_t event_version;
    char *texts[MR_COL_COUNT]; /* by column, those that are text; NULL = SQL NULL */
    char *payload;
    size_t payload_length;
} mr_test_event;

typedef struct mr_test_log {
    mr_test_event *events; /* by position */
    size_t count, capacity;
    int64_t last;    /* position of the event appended last, 0 = none */
    int64_t decided; /* holes up to here are */
    const mr_clock *clock;
    mr_cache windows; /* of the run under way */
    mr_error *error;  /* why the last look found no window */
} mr_test_log;

void mr__test_log_free(mr_test_log *log);
int64_t mr__test_log_highest(const mr_test_log *log);
bool mr__test_log_has(const mr_test_log *log, int64_t position);
/* A source's find; `from` is the log. Windows live until mr__test_log_release(). */
mr_window *mr__test_log_find(void *from, int64_t position);
void mr__test_log_release(mr_test_log *log);

/* ---- testkit_tx.c: where a batch's statements go ---- */

typedef struct mr_test_said {
    char *sql;
    int count;
    char **values; /* NULL = SQL NULL */
    size_t *lengths;
} mr_test_said;

typedef struct mr_test_record {
    mr_test_said *items;
    size_t count, capacity;
    size_t committed, marked; /* how many of them are; how many there were at the mark */
    mr_script script;
    mr_test_query_fn on_query;
    void *on_query_user;
} mr_test_record;

void mr__test_record_init(mr_test_record *record);
void mr__test_record_free(mr_test_record *record);
/* The session for the next batch, opened when needed. */
mr_error *mr__test_session(mr_test *test, mr_session **out) MR_MUST_CHECK;

/* ---- testkit.c ---- */

typedef struct mr_test_letter {
    int64_t position;
    int attempts;
    bool parked;
    mr_error *error; /* NULL for a parked one */
} mr_test_letter;

/* What a worker's timers would know of a place. */
typedef struct mr_test_slot_state {
    int64_t ready_at;
    bool stopped;
} mr_test_slot_state;

struct mr_test {
    mr_worker *worker; /* never started; its places are the slots */
    mr_test_slot_state *slots;
    size_t slot; /* the one that is talked about */
    mr_clock clock;
    mr_test_log log;
    mr_test_record record;
    mr_test_letter *letters;
    size_t letter_count;
    mr_session *session; /* NULL until the first batch */
    char *conninfo;      /* NULL = no database */
    size_t handled;      /* by the last run */
    bool running;
};

static inline mr_place *mr__test_place(const mr_test *test)
{
    return test->worker->places[test->slot];
}
static inline const char *mr__test_option(const mr_test *test, mr_opt option)
{
    return mr__bag_text(&test->worker->places[0]->spec->bag, option);
}
/* What deadlines go by: real time where something real may hang. */
const mr_clock *mr__test_batch_clock(const mr_test *test);

/* ---- testkit_run.c: one batch ---- */

void mr__test_drop_sentence(mr_place *place);

#endif
