/* From windows to batches: slots share a log without gaps or doubles, events are set aside for the
 * right reasons, streams wait behind dead letters. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "base/hash.h"
#include "consumer/gather.h"

#include "random.h"

#include <stdio.h>
#include <string.h>

/* ---- Streams ------------------------------------------------------------------------------- */

static void streams_are_a_set(void **state)
{
    (void)state;
    mr_streams set = {0};
    bool model[2][200] = {{false}};
    rng r = rng_new(rng_seed());
    for (int i = 0; i < 2000; i++) {
        int type = (int)rng_below(&r, 2), id = (int)rng_below(&r, 200);
        char name[16];
        (void)snprintf(name, sizeof(name), "%d", id);
        assert_int_equal(mr__streams_has(&set, type == 0 ? "A" : "B", name), model[type][id]);
        if (rng_chance(&r, 30)) {
            assert_null(mr__streams_add(&set, type == 0 ? "A" : "B", name));
            model[type][id] = true;
        }
    }
    assert_false(mr__streams_has(&set, "A1", "")); /* type and id are kept apart */
    assert_null(mr__streams_add(&set, "", "A1"));
    assert_false(mr__streams_has(&set, "A", "1x"));
    assert_true(mr__streams_has(&set, "", "A1"));
    mr__streams_clear(&set);
    assert_false(mr__streams_has(&set, "", "A1"));
}

/* Partitions of running systems rest on these. */
static void the_hash_of_a_stream_never_changes(void **state)
{
    (void)state;
    assert_int_equal(mr__hash_fnv1a("a", 1), 0xe40c292c);
    assert_int_equal(mr__hash_fnv1a("foobar", 6), 0xbf9cf968);
    assert_int_equal(mr__hash_stream("Order", "1"),
                     mr__hash_fmix32(mr__hash_fnv1a("Order\0001", 7)));
    assert_int_equal(mr__hash_stream("", ""), mr__hash_fmix32(mr__hash_fnv1a("\0", 1)));
}

/* ---- A log in memory ----------------------------------------------------------------------- */

enum { EVENTS = 400, STREAMS = 12, WINDOW = 50 };

typedef struct memory {
    mr_event events[EVENTS];
    char ids[EVENTS][8];
    mr_window windows[EVENTS / WINDOW];
} memory;

static mr_window *find(void *from, int64_t position)
{
    memory *m = from;
    return position >= EVENTS ? NULL : &m->windows[position / WINDOW];
}

static void fill(memory *m, rng *r)
{
    *m = (memory){0};
    for (int i = 0; i < EVENTS; i++) {
        (void)snprintf(m->ids[i], sizeof(m->ids[i]), "%d", (int)rng_below(r, STREAMS));
        m->events[i] = (mr_event){.position = i + 1,
                                  .aggregate_type = "Order",
                                  .aggregate_id = m->ids[i],
                                  .event_type = rng_chance(r, 20) ? "Other" : "Made",
                                  .payload = "{}",
                                  .payload_length = 2};
    }
    for (int k = 0; k < EVENTS / WINDOW; k++)
        m->windows[k] = (mr_window){.references = 1,
                                    .from = (int64_t)k * WINDOW,
                                    .to = (int64_t)(k + 1) * WINDOW,
                                    .events = &m->events[(ptrdiff_t)k * WINDOW],
                                    .count = WINDOW};
}

static void slots_share_the_log(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    for (int round = 0; round < 200; round++) {
        rng r = rng_new(seed + (uint64_t)round);
        memory m;
        fill(&m, &r);
        mr_filter filter;
        assert_null(mr__filter_init(&filter, "", "Made"));
        mr_source source = {find, &m};
        int slots = 1 + (int)rng_below(&r, 8), taken[EVENTS + 1] = {0};
        for (int slot = 0; slot < slots; slot++) {
            int64_t at = 0;
            mr_intake intake = {.filter = &filter,
                                .slot = slot,
                                .slots = slots,
                                .sentence = &(mr_sentence){0},
                                .batch_size = 1 + rng_below(&r, 30)};
            while (at < EVENTS) {
                mr_batch *batch = mr__batch_new();
                batch->expected = batch->target = at;
                assert_null(mr__gather(batch, &intake, &source));
                assert_true(batch->target > at && batch->count <= intake.batch_size);
                assert_int_equal(batch->some, slots > 1);
                int64_t last = at;
                for (size_t i = 0; i < batch->count; i++) {
                    const mr_event *e = batch->events[i];
                    assert_true(e->position > last && e->position <= batch->target);
                    assert_int_equal(mr__hash_stream(e->aggregate_type, e->aggregate_id) %
                                         (uint32_t)slots,
                                     (uint32_t)slot);
                    taken[e->position]++;
                    last = e->position;
                }
                at = batch->target;
                mr__batch_free(batch);
            }
        }
        for (int p = 1; p <= EVENTS; p++)
            assert_int_equal(taken[p], strcmp(m.events[p - 1].event_type, "Made") == 0);
        mr__filter_free(&filter);
    }
}

/* ---- Set aside ----------------------------------------------------------------------------- */

static void later_events_of_a_dead_letters_stream_wait(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    for (int round = 0; round < 200; round++) {
        rng r = rng_new(seed + (uint64_t)round);
        memory m;
        fill(&m, &r);
        mr_filter filter;
        assert_null(mr__filter_init(&filter, "", ""));
        mr_source source = {find, &m};
        mr_streams blocked = {0};
        bool by_key = rng_chance(&r, 70);
        int64_t poison = 1 + (int64_t)rng_below(&r, EVENTS),
                skip = 1 + (int64_t)rng_below(&r, EVENTS);
        const char *stream = m.events[poison - 1].aggregate_id;
        assert_null(mr__streams_add(&blocked, "Order", "blocked before"));
        mr_intake intake = {.filter = &filter,
                            .slots = 1,
                            .batch_size = 1 + rng_below(&r, 60),
                            .skips = &skip,
                            .skip_count = 1,
                            .by_key = by_key,
                            .blocked = &blocked,
                            .sentence = &(mr_sentence){.position = poison}};
        for (int64_t at = 0; at < EVENTS;) {
            mr_batch *batch = mr__batch_new();
            batch->expected = batch->target = at;
            assert_null(mr__gather(batch, &intake, &source));
            assert_int_equal(batch->count + batch->aside_count, batch->target - at);
            for (size_t i = 0; i < batch->count; i++) {
                const mr_event *e = batch->events[i];
                assert_true(e->position != skip && e->position != poison);
                assert_false(by_key && e->position > poison &&
                             strcmp(e->aggregate_id, stream) == 0 && skip != poison);
            }
            for (size_t i = 0; i < batch->aside_count; i++) {
                const mr_event *e = batch->asides[i].event;
                if (e->position == skip)
                    assert_int_equal(batch->asides[i].kind, MR_ASIDE_SKIP);
                else if (e->position == poison)
                    assert_int_equal(batch->asides[i].kind, MR_ASIDE_POISON);
                else
                    assert_true(batch->asides[i].kind == MR_ASIDE_PARKED && by_key &&
                                strcmp(e->aggregate_id, stream) == 0);
            }
            at = batch->target;
            mr__batch_free(batch);
        }
        mr__streams_clear(&blocked);
        mr__filter_free(&filter);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_are_a_set),
        cmocka_unit_test(the_hash_of_a_stream_never_changes),
        cmocka_unit_test(slots_share_the_log),
        cmocka_unit_test(later_events_of_a_dead_letters_stream_wait),
    };
    return cmocka_run_group_tests_name("gather", tests, NULL, NULL);
}
