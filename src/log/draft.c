/* Events gathered for one append: what the caller says is checked here, so that the append itself
 * cannot fail on malformed input halfway. */
#include "log/draft.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/text.h"
#include "base/uuid.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { FIRST_CAPACITY = 16, FIRST_SLOTS = 64 };
/* One message to the server must stay below 1 GiB; the rest is for the other columns. */
static const size_t draft_max = 1000000000;

static const char *const text_names[MR_DRAFT_TEXTS] = {
    [MR_DRAFT_TRACE] = "trace_id",
    [MR_DRAFT_CORRELATION] = "correlation_id",
    [MR_DRAFT_CAUSATION] = "causation_id",
    [MR_DRAFT_METADATA] = "metadata",
};

mr_draft *mr_draft_new(void)
{
    return calloc(1, sizeof(mr_draft));
}

void mr_draft_free(mr_draft *draft)
{
    if (draft == NULL)
        return;
    mr__buf_free(&draft->bytes);
    free(draft->streams);
    free(draft->events);
    free(draft->slots);
    free(draft);
}

void mr_draft_clear(mr_draft *draft)
{
    mr__buf_clear(&draft->bytes);
    draft->bytes.failed = false;
    draft->stream_count = 0;
    draft->event_count = 0;
    if (draft->slot_count > 0)
        memset(draft->slots, 0, draft->slot_count * sizeof(*draft->slots));
}

size_t mr_draft_count(const mr_draft *draft)
{
    return draft->event_count;
}

const char *mr__draft_bytes(const mr_draft *draft, mr_slice slice)
{
    return slice.offset == MR_SLICE_NULL || draft->bytes.data == NULL
               ? ""
               : draft->bytes.data + slice.offset;
}

static mr_error *add_bytes(mr_draft *draft, const void *bytes, size_t length, mr_slice *slice)
{
    if (length > draft_max || draft->bytes.length > draft_max - length)
        return mr__error(MR_E_USAGE, "a draft must stay below %zu MB; append it in several",
                         draft_max / 1000000);
    *slice = (mr_slice){draft->bytes.length, length};
    mr__buf_add(&draft->bytes, bytes, length);
    if (!draft->bytes.failed)
        return NULL;
    draft->bytes.failed = false; /* what is there stays whole */
    return mr__error_nomem();
}

static mr_error *add_text(mr_draft *draft, const char *what, const char *text, bool may_be_empty,
                          mr_slice *slice)
{
    if (text == NULL || (text[0] == '\0' && !may_be_empty))
        return mr__error(MR_E_USAGE, "%s must not be empty", what);
    size_t length = strlen(text);
    if (!mr__text_utf8(text, length))
        return mr__error(MR_E_USAGE, "%s is not valid UTF-8", what);
    return add_bytes(draft, text, length, slice);
}

/* Makes room for one more; `*rows` has `count` of `*capacity` used. */
static bool grow(void **rows, size_t size, size_t count, size_t *capacity)
{
    if (count < *capacity)
        return true;
    size_t wanted = *capacity == 0 ? FIRST_CAPACITY : *capacity * 2;
    void *more = reallocarray(*rows, wanted, size);
    if (more == NULL)
        return false;
    *rows = more;
    *capacity = wanted;
    return true;
}

static size_t slot_of(const mr_draft *draft, uint64_t hash)
{
    return (size_t)hash & (draft->slot_count - 1);
}

/* Keeps the table of streams at most half full. */
static bool grow_slots(mr_draft *draft)
{
    if (draft->slot_count > 0 && draft->stream_count * 2 < draft->slot_count)
        return true;
    size_t wanted = draft->slot_count == 0 ? FIRST_SLOTS : draft->slot_count * 2;
    size_t *slots = calloc(wanted, sizeof(*slots));
    if (slots == NULL)
        return false;
    free(draft->slots);
    draft->slots = slots;
    draft->slot_count = wanted;
    for (size_t i = 0; i < draft->stream_count; i++) {
        size_t slot = slot_of(draft, draft->streams[i].hash);
        while (slots[slot] != 0)
            slot = (slot + 1) & (wanted - 1);
        slots[slot] = i + 1;
    }
    return true;
}

static bool slice_is(const mr_draft *draft, mr_slice slice, const char *text)
{
    return strlen(text) == slice.length &&
           memcmp(mr__draft_bytes(draft, slice), text, slice.length) == 0;
}

static uint64_t stream_hash(const char *type, const char *id)
{
    uint64_t hash = mr__hash_fnv1a64(type, strlen(type)) * 31 + mr__hash_fnv1a64(id, strlen(id));
    return hash ^ (hash >> 32);
}

/* The slot of the stream, or the free one where it belongs. */
static size_t find_stream(const mr_draft *draft, uint64_t hash, const char *type, const char *id)
{
    size_t slot = slot_of(draft, hash);
    for (; draft->slots[slot] != 0; slot = (slot + 1) & (draft->slot_count - 1)) {
        const mr_draft_stream_row *row = &draft->streams[draft->slots[slot] - 1];
        if (row->hash == hash && slice_is(draft, row->type, type) && slice_is(draft, row->id, id))
            break;
    }
    return slot;
}

mr_error *mr_draft_stream(mr_draft *draft, const char *aggregate_type, const char *aggregate_id,
                          int64_t expected_version)
{
    if (expected_version < MR_EXPECT_ANY)
        return mr__error(MR_E_USAGE,
                         "the expected version must be any (-1), none (0) or the exact one, not "
                         "%lld",
                         (long long)expected_version);
    mr_draft_stream_row row = {.expected = expected_version};
    size_t mark = draft->bytes.length;
    MR_TRY(add_text(draft, "aggregate_type", aggregate_type, false, &row.type));
    MR_TRY(add_text(draft, "aggregate_id", aggregate_id, false, &row.id));
    if (!grow_slots(draft) ||
        !grow((void **)&draft->streams, sizeof(row), draft->stream_count, &draft->stream_capacity))
        return mr__error_nomem();
    row.hash = stream_hash(aggregate_type, aggregate_id);
    size_t slot = find_stream(draft, row.hash, aggregate_type, aggregate_id);
    if (draft->slots[slot] != 0) {
        draft->bytes.length = mark; /* known already */
        draft->current = draft->slots[slot] - 1;
        return NULL;
    }
    draft->current = draft->stream_count;
    draft->streams[draft->stream_count++] = row;
    draft->slots[slot] = draft->stream_count;
    return NULL;
}

/* A UUID (version 7) in binary: ids that are made one after the other lie side by side in the log's
 * unique index, which random ones scatter all over it. */
static mr_error *make_id(mr_draft *draft, unsigned char id[16])
{
    if (draft->random_left < 16) {
        /* Never short for up to 256 bytes once the system has seeded itself. */
        if (getrandom(draft->random, sizeof(draft->random), 0) != (ssize_t)sizeof(draft->random))
            return mr__error(MR_E_IO, "the system gave no random numbers");
        draft->random_left = sizeof(draft->random);
    }
    draft->random_left -= 16;
    memcpy(id, draft->random + draft->random_left, 16);
    uint64_t milliseconds = (uint64_t)mr__clock_wall() / 1000;
    for (int i = 0; i < 6; i++)
        id[i] = (unsigned char)(milliseconds >> (8 * (5 - i)));
    id[6] = (unsigned char)((id[6] & 0x0FU) | 0x70U);
    id[8] = (unsigned char)((id[8] & 0x3FU) | 0x80U);
    return NULL;
}

static unsigned hex_digit(char c)
{
    return c <= '9' ? (unsigned)(c - '0') : (unsigned)((c | 0x20) - 'a' + 10);
}

/* Binary from the text form, which has been checked. */
static void parse_id(const char *text, unsigned char id[16])
{
    for (size_t i = 0; i < 16; i++) {
        if (*text == '-')
            text++;
        id[i] = (unsigned char)(hex_digit(text[0]) << 4 | hex_digit(text[1]));
        text += 2;
    }
}

mr_error *mr_draft_event(mr_draft *draft, const char *event_type, const void *payload,
                         size_t length)
{
    if (draft->stream_count == 0)
        return mr__error(MR_E_USAGE, "name a stream with mr_draft_stream() before its events");
    if (draft->event_count >= INT32_MAX / 2)
        return mr__error(MR_E_USAGE, "too many events in one draft");
    mr_draft_event_row row = {.stream = draft->current, .event_version = 1};
    MR_TRY(add_text(draft, "event_type", event_type, false, &row.type));
    MR_TRY(add_bytes(draft, payload, length, &row.payload));
    if (!grow((void **)&draft->events, sizeof(row), draft->event_count, &draft->event_capacity))
        return mr__error_nomem();
    for (int i = 0; i < MR_DRAFT_TEXTS; i++)
        row.text[i].offset = MR_SLICE_NULL;
    MR_TRY(make_id(draft, row.event_id));
    row.seq = ++draft->streams[draft->current].count;
    draft->events[draft->event_count++] = row;
    return NULL;
}

static mr_error *set_metadata(mr_draft *draft, mr_draft_event_row *row, const char *value)
{
    json_error_t problem;
    json_t *json = json_loads(value, JSON_DECODE_ANY, &problem);
    if (json == NULL)
        return mr__error(MR_E_PARSE, "metadata is not JSON: %s", problem.text);
    json_decref(json);
    return add_text(draft, "metadata", value, false, &row->text[MR_DRAFT_METADATA]);
}

static mr_error *set_version(mr_draft_event_row *row, const char *value)
{
    int64_t version;
    if (!mr__text_int(value, &version) || version < INT32_MIN || version > INT32_MAX)
        return mr__error(MR_E_PARSE, "event_version '%s' is not a whole number", value);
    row->event_version = (int32_t)version;
    return NULL;
}

mr_error *mr_draft_field(mr_draft *draft, const char *name, const char *value)
{
    if (draft->event_count == 0)
        return mr__error(MR_E_USAGE, "mr_draft_field(): there is no event yet");
    if (value == NULL)
        return mr__error(MR_E_USAGE, "mr_draft_field(): %s has no value", name);
    mr_draft_event_row *row = &draft->events[draft->event_count - 1];
    if (strcmp(name, "event_id") == 0) {
        if (!mr__uuid_valid(value))
            return mr__error(MR_E_PARSE, "event_id '%s' is not a UUID", value);
        parse_id(value, row->event_id);
        return NULL;
    }
    if (strcmp(name, "event_version") == 0)
        return set_version(row, value);
    if (strcmp(name, "metadata") == 0)
        return set_metadata(draft, row, value);
    for (int i = 0; i < MR_DRAFT_METADATA; i++)
        if (strcmp(name, text_names[i]) == 0)
            return add_text(draft, name, value, true, &row->text[i]);
    return mr__error(MR_E_USAGE,
                     "an event has no field '%s'; event_id, event_version, trace_id, "
                     "correlation_id, causation_id and metadata can be set",
                     name);
}

int64_t mr_draft_position(const mr_draft *draft, size_t index)
{
    return index < draft->event_count ? draft->events[index].position : 0;
}

int64_t mr_draft_version(const mr_draft *draft, size_t index)
{
    return index < draft->event_count ? draft->events[index].version : 0;
}
