/* Settling against a model of concurrent transactions.
 *
 * The model has what PostgreSQL has: a sequence, transactions that take the table's lock, draw
 * positions, and end by commit, roll-back or PREPARE with a later COMMIT or ROLLBACK PREPARED. An
 * outcome becomes visible first and the lock goes afterwards, as two steps that anything may come
 * between. Savepoints give positions and the lock back early. The reader does what src/log/reader.c
 * does, one statement a step, so that the model moves between any two of them: rows alone; or head,
 * locks, rows; or locks, rows.
 *
 * What must hold: it never passes a position that becomes visible later; what it handled is what
 * was committed, in order; once all transactions are gone, it comes to the head in a few steps.
 *
 * Tried once each, to see this test fail: without the heirs rule in mr__settle_step() (a prepared
 * transaction goes on under another name); with the mark taken after the locks were listed; with
 * the rows read before the locks; with a lock given back before the outcome is visible. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "log/frontier.h"
#include "log/settle.h"

#include "random.h"

#include <inttypes.h>
#include <string.h>

enum { SESSIONS = 10, POSITIONS = 400, RUNS = 3000, STEPS = 700, NONE = -1 };

/* IDLE: no transaction. LOCKED: holds the lock, may have drawn positions. ENDING: the outcome is
 * visible, the lock is still held. The same for one that is prepared. */
typedef enum phase { IDLE, LOCKED, ENDING } phase;

typedef struct transaction {
    phase phase;
    bool prepared;
    int serial; /* its name while it is not prepared */
    int name;   /* its name as a prepared one; names of prepared ones may repeat, as the server's do
                 */
    int64_t drawn[16];
    int count;
    int savepoint; /* how many were drawn before it; NONE = no savepoint */
    bool locked_in_savepoint;
} transaction;

typedef struct model {
    rng random;
    int64_t sequence;
    bool visible[POSITIONS + 1];
    transaction sessions[SESSIONS], prepared[SESSIONS];
    int serial;
    bool closing; /* nobody begins any more */
} model;

typedef struct reader {
    int64_t tail, horizon;
    mr_settle settle;
    bool blocked;
    int limit;
    /* A flight under way. */
    int at; /* next statement */
    bool begin, evidence;
    int64_t mark, sent_horizon;
    int64_t handled[POSITIONS + 1];
    int handled_count;
    int steps;
} reader;

/* ---- The model ---- */

static void end_transaction(model *m, transaction *t, bool commit)
{
    for (int i = 0; i < t->count; i++)
        m->visible[t->drawn[i]] = commit;
    t->count = 0;
    t->phase = ENDING;
}

static void release(transaction *t)
{
    *t = (transaction){.savepoint = NONE};
}

static void prepare(model *m, transaction *t)
{
    for (int i = 0; i < SESSIONS; i++) {
        if (m->prepared[i].phase != IDLE)
            continue;
        m->prepared[i] = *t;
        m->prepared[i].prepared = true;
        m->prepared[i].name = (int)rng_below(&m->random, 4);
        release(t);
        return;
    }
}

static void roll_back_to_savepoint(transaction *t)
{
    t->count = t->savepoint;
    if (t->locked_in_savepoint)
        release(t); /* the lock was taken inside, so it goes; the positions are dead */
    else
        t->savepoint = NONE;
}

static void draw(model *m, transaction *t)
{
    if (m->sequence < POSITIONS && t->count < 16)
        t->drawn[t->count++] = ++m->sequence;
}

static void move_session(model *m, transaction *t)
{
    rng *r = &m->random;
    if (t->phase == IDLE) {
        if (m->closing || m->sequence >= POSITIONS)
            return;
        *t = (transaction){.phase = LOCKED, .serial = ++m->serial, .savepoint = NONE};
        t->locked_in_savepoint = rng_chance(r, 15);
        t->savepoint = t->locked_in_savepoint ? 0 : NONE;
        return; /* the lock first, the position in a later step */
    }
    if (t->phase == ENDING) {
        release(t);
        return;
    }
    unsigned what = (unsigned)rng_below(r, 100);
    if (what < 45 && !m->closing)
        draw(m, t);
    else if (what < 65)
        end_transaction(m, t, true);
    else if (what < 80)
        end_transaction(m, t, false);
    else if (what < 88)
        prepare(m, t);
    else if (t->savepoint == NONE)
        t->savepoint = t->count;
    else if (what < 95)
        roll_back_to_savepoint(t);
    else {
        t->savepoint = NONE; /* released: its lock is the transaction's now */
        t->locked_in_savepoint = false;
    }
}

static void move(model *m)
{
    int i = (int)rng_below(&m->random, 2 * SESSIONS);
    if (i < SESSIONS) {
        move_session(m, &m->sessions[i]);
        return;
    }
    transaction *p = &m->prepared[i - SESSIONS];
    if (p->phase == ENDING)
        release(p);
    else if (p->phase == LOCKED && rng_chance(&m->random, m->closing ? 100 : 25))
        end_transaction(m, p, rng_chance(&m->random, 60));
}

static int64_t head(const model *m)
{
    int64_t p = m->sequence;
    while (p > 0 && !m->visible[p])
        p--;
    return p;
}

static size_t list_holders(const model *m, mr_holder *holders)
{
    size_t n = 0;
    for (int i = 0; i < SESSIONS; i++) {
        if (m->sessions[i].phase != IDLE)
            (void)snprintf(holders[n++].id, sizeof(holders[0].id), "%d/%d:%d", i,
                           m->sessions[i].serial, 1000 + i);
    }
    for (int i = 0; i < SESSIONS; i++) {
        if (m->prepared[i].phase == IDLE)
            continue;
        holders[n].prepared = true;
        (void)snprintf(holders[n++].id, sizeof(holders[0].id), "-1/%d:", m->prepared[i].name);
    }
    return n;
}

/* ---- The reader ---- */

static void settled(reader *r)
{
    if (r->settle.mark > r->horizon)
        r->horizon = r->settle.mark;
    mr__settle_cancel(&r->settle);
}

static void look_at_locks(reader *r, const model *m)
{
    mr_holder holders[2 * SESSIONS] = {0};
    size_t count = list_holders(m, holders);
    bool done = false;
    mr_error *error = r->begin ? mr__settle_begin(&r->settle, r->mark, holders, count, &done)
                               : mr__settle_step(&r->settle, holders, count, &done);
    assert_null(error);
    if (done)
        settled(r);
}

static void look_at_rows(reader *r, const model *m)
{
    int64_t rows[POSITIONS] = {0};
    size_t count = 0;
    for (int64_t p = r->tail + 1; p <= m->sequence && (int)count < r->limit; p++)
        if (m->visible[p])
            rows[count++] = p;
    int64_t horizon = r->evidence ? r->horizon : r->sent_horizon;
    mr_frontier f = mr__frontier(r->tail, horizon, rows, count, (int)count >= r->limit);
    for (size_t i = 0; i < f.rows; i++)
        r->handled[r->handled_count++] = rows[i];
    r->blocked = f.blocked;
    int64_t from = r->tail;
    r->tail = f.to;
    if (from <= r->horizon && r->tail > r->horizon)
        r->horizon = r->tail;
}

/* One statement of the flight under way, or a new flight. */
static void read_on(reader *r, model *m)
{
    enum { HEAD, LOCKS, ROWS };
    if (r->at == HEAD) {
        r->steps++;
        r->begin = r->blocked && !r->settle.active;
        r->evidence = r->begin || r->settle.active;
        r->sent_horizon = r->horizon;
        r->limit = 1 + (int)rng_below(&m->random, 12);
        if (r->begin)
            r->mark = head(m);
        r->at = r->evidence ? LOCKS : ROWS;
    } else if (r->at == LOCKS) {
        look_at_locks(r, m);
        r->at = ROWS;
    } else {
        look_at_rows(r, m);
        r->at = HEAD;
    }
}

static void restart(reader *r)
{
    mr__settle_free(&r->settle);
    r->horizon = 0;
    r->blocked = true; /* the first look is a proof */
    r->at = 0;
}

/* ---- What must hold ---- */

static void check_passed(const reader *r, const model *m, uint64_t seed, int run)
{
    int at = 0;
    for (int64_t p = 1; p <= r->tail; p++) {
        bool handled = at < r->handled_count && r->handled[at] == p;
        at += handled;
        if (handled != m->visible[p])
            fail_msg("MILLRACE_SEED=%" PRIu64 " run %d: position %" PRId64 " is %s, tail %" PRId64,
                     seed, run, p,
                     handled ? "handled but not committed" : "committed but was passed over",
                     r->tail);
    }
    if (at != r->handled_count)
        fail_msg("MILLRACE_SEED=%" PRIu64 " run %d: handled out of order", seed, run);
}

static bool quiet(const model *m)
{
    for (int i = 0; i < SESSIONS; i++)
        if (m->sessions[i].phase != IDLE || m->prepared[i].phase != IDLE)
            return false;
    return true;
}

/* A transaction that is open for the whole run, with a low position. */
static void hold_one(model *m, bool prepared)
{
    transaction *t = &m->sessions[0];
    *t = (transaction){.phase = LOCKED, .serial = ++m->serial, .savepoint = NONE};
    draw(m, t);
    if (prepared)
        prepare(m, t);
}

static int64_t holes_passed;

static void one_run(uint64_t seed, int run)
{
    model m = {.random = rng_new(seed + (uint64_t)run)};
    for (int i = 0; i < SESSIONS; i++) {
        release(&m.sessions[i]);
        release(&m.prepared[i]);
    }
    reader r = {.blocked = true};
    if (rng_chance(&m.random, 10))
        hold_one(&m, rng_chance(&m.random, 50));
    unsigned pace = 20 + (unsigned)rng_below(&m.random, 60);
    for (int step = 0; step < STEPS; step++) {
        if (rng_chance(&m.random, pace))
            move(&m);
        else
            read_on(&r, &m);
        if (rng_chance(&m.random, 1) && rng_chance(&m.random, 30))
            restart(&r);
        check_passed(&r, &m, seed, run);
    }
    m.closing = true;
    while (!quiet(&m)) {
        move(&m);
        if (rng_chance(&m.random, 20))
            read_on(&r, &m);
        check_passed(&r, &m, seed, run);
    }
    /* All are gone: two looks at most are needed for all holes there are, then rows alone. */
    r.steps = 0;
    int64_t end = head(&m);
    while (r.tail < end && r.steps < 3 + POSITIONS)
        read_on(&r, &m);
    check_passed(&r, &m, seed, run);
    if (r.tail < end)
        fail_msg("MILLRACE_SEED=%" PRIu64 " run %d: stuck at %" PRId64 " of %" PRId64, seed, run,
                 r.tail, end);
    holes_passed += r.tail - r.handled_count;
    mr__settle_free(&r.settle);
}

static void handled_is_committed(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    holes_passed = 0;
    for (int run = 0; run < RUNS; run++)
        one_run(seed, run);
    assert_true(holes_passed > 10000);
}

/* ---- By hand ---- */

static mr_holder holder(const char *id, bool prepared)
{
    mr_holder h = {.prepared = prepared};
    (void)snprintf(h.id, sizeof(h.id), "%s", id);
    return h;
}

static void nobody_to_wait_for(void **state)
{
    (void)state;
    mr_settle settle = {0};
    bool done = false;
    assert_null(mr__settle_begin(&settle, 9, NULL, 0, &done));
    assert_true(done && !settle.active && settle.mark == 9);
    mr__settle_free(&settle);
}

static void later_ones_are_not_waited_for(void **state)
{
    (void)state;
    mr_settle settle = {0};
    bool done = true;
    mr_holder one = holder("3/1:10", false);
    assert_null(mr__settle_begin(&settle, 9, &one, 1, &done));
    assert_false(done);
    mr_holder two[] = {holder("3/1:10", false), holder("4/1:11", false)};
    assert_null(mr__settle_step(&settle, two, 2, &done));
    assert_true(!done && settle.count == 1);
    mr_holder next[] = {holder("3/2:10", false), holder("4/1:11", false)};
    assert_null(mr__settle_step(&settle, next, 2, &done));
    assert_true(done); /* the same session with its next transaction is another one */
    mr__settle_free(&settle);
}

static void a_prepared_heir_is_waited_for(void **state)
{
    (void)state;
    mr_settle settle = {0};
    bool done = false;
    mr_holder one = holder("3/1:10", false);
    assert_null(mr__settle_begin(&settle, 9, &one, 1, &done));
    mr_holder heir[] = {holder("-1/700:", true), holder("5/1:12", false)};
    assert_null(mr__settle_step(&settle, heir, 2, &done));
    assert_true(!done && settle.count == 1);
    /* Nobody plain is left to be inherited from, so a later prepared one does not matter. */
    mr_holder later[] = {holder("-1/700:", true), holder("-1/701:", true)};
    assert_null(mr__settle_step(&settle, later, 2, &done));
    assert_true(!done && settle.count == 1);
    assert_null(mr__settle_step(&settle, later + 1, 1, &done));
    assert_true(done);
    mr__settle_free(&settle);
}

static void the_same_lock_on_parent_and_leaf(void **state)
{
    (void)state;
    mr_settle settle = {0};
    bool done = false;
    mr_holder twice[] = {holder("3/1:10", false), holder("3/1:10", false)};
    assert_null(mr__settle_begin(&settle, 9, twice, 2, &done));
    assert_null(mr__settle_step(&settle, twice, 1, &done));
    assert_false(done);
    assert_null(mr__settle_step(&settle, NULL, 0, &done));
    assert_true(done);
    mr__settle_free(&settle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handled_is_committed),
        cmocka_unit_test(nobody_to_wait_for),
        cmocka_unit_test(later_ones_are_not_waited_for),
        cmocka_unit_test(a_prepared_heir_is_waited_for),
        cmocka_unit_test(the_same_lock_on_parent_and_leaf),
    };
    return cmocka_run_group_tests_name("settle", tests, NULL, NULL);
}
