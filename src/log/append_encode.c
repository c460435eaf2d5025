/* A draft as binary arrays: lengths instead of escapes, so a payload is copied and nothing else. */
#include "log/append.h"

#include "pg/array.h"

#include <limits.h>

/* The parameters' places; sql/log_functions/append_events.sql has the same order. */
enum {
    P_LOG,
    P_STREAM_TYPES,
    P_STREAM_IDS,
    P_EXPECTED,
    P_COUNTS,
    P_EV_STREAM,
    P_EV_SEQ,
    P_EVENT_TYPES,
    P_PAYLOADS,
    P_EVENT_IDS,
    P_EVENT_VERSIONS,
    P_TEXTS /* trace, correlation, causation, metadata */
};
_Static_assert(P_TEXTS + MR_DRAFT_TEXTS == MR_APPEND_PARAMS, "every parameter has its place");

static void item_slice(mr_buf *buf, const mr_draft *draft, mr_slice slice)
{
    if (slice.offset == MR_SLICE_NULL)
        mr__array_null(buf);
    else
        mr__array_bytes(buf, mr__draft_bytes(draft, slice), slice.length);
}

static void array_begin(mr_append_params *p, int param, Oid array, Oid element, size_t count)
{
    p->types[param] = array;
    mr__array_begin(&p->data[param], element, count);
}

static void encode_streams(mr_draft *draft, mr_append_params *p)
{
    int32_t used = 0;
    for (size_t i = 0; i < draft->stream_count; i++)
        if (draft->streams[i].count > 0)
            draft->streams[i].sent = ++used;
    size_t count = (size_t)used;
    array_begin(p, P_STREAM_TYPES, MR_OID_TEXT_ARRAY, MR_OID_TEXT, count);
    array_begin(p, P_STREAM_IDS, MR_OID_TEXT_ARRAY, MR_OID_TEXT, count);
    array_begin(p, P_EXPECTED, MR_OID_INT8_ARRAY, MR_OID_INT8, count);
    array_begin(p, P_COUNTS, MR_OID_INT8_ARRAY, MR_OID_INT8, count);
    for (size_t i = 0; i < draft->stream_count; i++) {
        const mr_draft_stream_row *row = &draft->streams[i];
        if (row->count == 0)
            continue; /* named without events: nothing to reserve */
        item_slice(&p->data[P_STREAM_TYPES], draft, row->type);
        item_slice(&p->data[P_STREAM_IDS], draft, row->id);
        mr__array_int8(&p->data[P_EXPECTED], row->expected);
        mr__array_int8(&p->data[P_COUNTS], row->count);
    }
}

static void encode_events(const mr_draft *draft, mr_append_params *p)
{
    size_t count = draft->event_count;
    array_begin(p, P_EV_STREAM, MR_OID_INT4_ARRAY, MR_OID_INT4, count);
    array_begin(p, P_EV_SEQ, MR_OID_INT4_ARRAY, MR_OID_INT4, count);
    array_begin(p, P_EVENT_TYPES, MR_OID_TEXT_ARRAY, MR_OID_TEXT, count);
    array_begin(p, P_PAYLOADS, MR_OID_BYTEA_ARRAY, MR_OID_BYTEA, count);
    array_begin(p, P_EVENT_IDS, MR_OID_UUID_ARRAY, MR_OID_UUID, count);
    array_begin(p, P_EVENT_VERSIONS, MR_OID_INT4_ARRAY, MR_OID_INT4, count);
    for (int k = 0; k < MR_DRAFT_TEXTS; k++)
        array_begin(p, P_TEXTS + k, MR_OID_TEXT_ARRAY, MR_OID_TEXT, count);
    for (size_t i = 0; i < count; i++) {
        const mr_draft_event_row *row = &draft->events[i];
        mr__array_int4(&p->data[P_EV_STREAM], draft->streams[row->stream].sent);
        mr__array_int4(&p->data[P_EV_SEQ], row->seq);
        item_slice(&p->data[P_EVENT_TYPES], draft, row->type);
        item_slice(&p->data[P_PAYLOADS], draft, row->payload);
        mr__array_bytes(&p->data[P_EVENT_IDS], row->event_id, sizeof(row->event_id));
        mr__array_int4(&p->data[P_EVENT_VERSIONS], row->event_version);
        for (int k = 0; k < MR_DRAFT_TEXTS; k++)
            item_slice(&p->data[P_TEXTS + k], draft, row->text[k]);
    }
}

mr_error *mr__append_encode(const mr_log_shape *shape, mr_draft *draft, mr_append_params *params)
{
    *params = (mr_append_params){0};
    params->types[P_LOG] = MR_OID_TEXT;
    mr__qname_quote(&params->data[P_LOG], &shape->table);
    encode_streams(draft, params);
    encode_events(draft, params);
    for (int i = 0; i < MR_APPEND_PARAMS; i++) {
        const mr_buf *buf = &params->data[i];
        if (buf->failed) {
            mr__append_params_free(params);
            return mr__error_nomem();
        }
        if (buf->length > INT_MAX / 2) {
            mr__append_params_free(params);
            return mr__error(MR_E_USAGE, "the draft is too large; append it in several");
        }
        params->values[i] = mr__buf_text(buf);
        params->lengths[i] = (int)buf->length;
        params->formats[i] = 1;
    }
    return NULL;
}

void mr__append_params_free(mr_append_params *params)
{
    for (int i = 0; i < MR_APPEND_PARAMS; i++)
        mr__buf_free(&params->data[i]);
}
