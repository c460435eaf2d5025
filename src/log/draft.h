/* Events gathered for one append: streams and events as offsets into one block of bytes. */
#ifndef MR_LOG_DRAFT_H
#define MR_LOG_DRAFT_H

#include "base/buf.h"
#include "base/error.h"

typedef struct mr_draft_stream_row {
    mr_slice type, id;
    uint64_t hash;
    int64_t expected;
    int32_t count; /* events so far */
    int32_t sent;  /* place among the streams that have events, from 1; set by the append */
} mr_draft_stream_row;

typedef enum mr_draft_text {
    MR_DRAFT_TRACE,
    MR_DRAFT_CORRELATION,
    MR_DRAFT_CAUSATION,
    MR_DRAFT_METADATA,
    MR_DRAFT_TEXTS
} mr_draft_text;

typedef struct mr_draft_event_row {
    size_t stream; /* index */
    int32_t seq;   /* which of the stream's new events, from 1 */
    int32_t event_version;
    mr_slice type, payload, text[MR_DRAFT_TEXTS];
    unsigned char event_id[16];
    int64_t position, version; /* 0 until appended */
} mr_draft_event_row;

struct mr_draft {
    mr_buf bytes;
    mr_draft_stream_row *streams;
    size_t stream_count, stream_capacity;
    mr_draft_event_row *events;
    size_t event_count, event_capacity;
    size_t *slots; /* open addressing: index + 1 of a stream, 0 = free */
    size_t slot_count;
    unsigned char random[256]; /* drawn in one go: one system call for sixteen event ids */
    size_t random_left;
    size_t current; /* index of the current stream; meaningless while there is none */
};

const char *mr__draft_bytes(const mr_draft *draft, mr_slice slice);

#endif
