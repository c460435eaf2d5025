/* From windows to a batch. */
#include "consumer/gather.h"

#include "base/hash.h"

enum {
    SCAN_MOST = 20000,      /* rows looked at for one batch before others get their turn */
    BATCH_BYTES = 16 << 20, /* payload bytes of one batch */
};

/* How much of the bounds is used up. */
typedef struct progress {
    size_t scanned, bytes;
} progress;

static bool full(const mr_batch *draft, const mr_intake *in, const progress *p)
{
    return draft->count + draft->aside_count >= in->batch_size || p->bytes >= BATCH_BYTES;
}

static bool mine(const mr_intake *in, const mr_event *event)
{
    if (!mr__filter_matches(in->filter, event))
        return false;
    return in->slots <= 1 || (int)(mr__hash_stream(event->aggregate_type, event->aggregate_id) %
                                   (uint32_t)in->slots) == in->slot;
}

static bool skipped(const mr_intake *in, int64_t position)
{
    for (size_t i = 0; i < in->skip_count; i++)
        if (in->skips[i] == position)
            return true;
    return false;
}

static mr_error *take(mr_batch *draft, const mr_intake *in, const mr_event *event)
{
    if (skipped(in, event->position))
        return mr__batch_add_aside(draft, MR_ASIDE_SKIP, event, NULL);
    if (event->position == in->sentence->position) {
        if (in->by_key)
            MR_TRY(mr__streams_add(in->blocked, event->aggregate_type, event->aggregate_id));
        return mr__batch_add_aside(draft, MR_ASIDE_POISON, event, in->sentence);
    }
    if (in->by_key && mr__streams_has(in->blocked, event->aggregate_type, event->aggregate_id))
        return mr__batch_add_aside(draft, MR_ASIDE_PARKED, event, NULL);
    return mr__batch_add_event(draft, event);
}

static mr_error *take_window(mr_batch *draft, const mr_intake *in, mr_window *window, progress *p)
{
    int64_t upto = window->to;
    bool took = false;
    for (size_t i = mr__window_seek(window, draft->target); i < window->count; i++) {
        const mr_event *event = &window->events[i];
        p->scanned++;
        if (!mine(in, event))
            continue;
        MR_TRY(take(draft, in, event));
        took = true;
        p->bytes += event->payload_length;
        if (full(draft, in, p)) {
            upto = event->position;
            break;
        }
    }
    if (took)
        MR_TRY(mr__batch_add_window(draft, window));
    MR_TRY(mr__batch_add_holes(draft, window, draft->target, upto));
    draft->target = upto;
    return NULL;
}

mr_error *mr__gather(mr_batch *draft, const mr_intake *in, const mr_source *source)
{
    progress p = {0};
    draft->some = in->slots > 1;
    while (!full(draft, in, &p) && p.scanned < SCAN_MOST) {
        mr_window *window = source->find(source->from, draft->target);
        if (window == NULL)
            break;
        MR_TRY(take_window(draft, in, window, &p));
    }
    return NULL;
}
