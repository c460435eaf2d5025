/* Jobs as binary arrays, in pieces of a size that neither side has to fear. */
#include "pg/array.h"
#include "queue/enqueue.h"

#include <limits.h>
#include <string.h>

enum {
    CHUNK_JOBS = 1000,
    CHUNK_BYTES = 8 << 20, /* of texts; one larger job goes alone */
};

/* The parameters' places; sql/functions/enqueue_rows.sql has the same order. */
enum {
    P_QUEUE,
    P_PAYLOADS,
    P_KEYS,
    P_PRIORITIES,
    P_RUN_ATS,
    P_IDEMPOTENCY,
    P_ATTEMPTS,
    P_TIMEOUTS,
    P_METADATAS
};
_Static_assert(P_METADATAS + 1 == MR_ENQUEUE_PARAMS, "every parameter has its place");

size_t mr__enqueue_chunk(const mr_job_draft *draft, size_t first)
{
    size_t count = 0, bytes = 0;
    while (first + count < draft->count && count < CHUNK_JOBS) {
        bytes += mr__job_draft_size(draft, first + count);
        if (count > 0 && bytes > CHUNK_BYTES)
            break;
        count++;
    }
    return count;
}

static void begin(mr_enqueue_params *p, int param, Oid array, Oid element, size_t count)
{
    p->types[param] = array;
    mr__array_begin(&p->data[param], element, count);
}

static void put_text(mr_buf *buf, const mr_job_draft *draft, mr_slice slice)
{
    if (slice.offset == MR_SLICE_NULL)
        mr__array_null(buf);
    else
        mr__array_bytes(buf, mr__job_draft_bytes(draft, slice), slice.length);
}

static void put_json(mr_buf *buf, const mr_job_draft *draft, mr_slice slice)
{
    if (slice.offset == MR_SLICE_NULL)
        mr__array_null(buf);
    else
        mr__array_jsonb(buf, mr__job_draft_bytes(draft, slice), slice.length);
}

static void put_int(mr_buf *buf, int32_t value, int32_t none)
{
    if (value == none)
        mr__array_null(buf);
    else
        mr__array_int4(buf, value);
}

static mr_error *finish(mr_enqueue_params *p, int count)
{
    for (int i = 0; i < count; i++) {
        const mr_buf *buf = &p->data[i];
        if (buf->failed || buf->length > INT_MAX / 2) {
            bool failed = buf->failed;
            mr__enqueue_params_free(p);
            return failed ? mr__error_nomem()
                          : mr__error(MR_E_USAGE, "the jobs are too large for one call");
        }
        p->values[i] = mr__buf_text(buf);
        p->lengths[i] = (int)buf->length;
        p->formats[i] = 1;
    }
    return NULL;
}

mr_error *mr__enqueue_encode(const mr_job_draft *draft, const char *queue, size_t first,
                             size_t count, mr_enqueue_params *params)
{
    static const struct {
        int param;
        mr_job_text text;
    } texts[] = {{P_KEYS, MR_JOB_TEXT_KEY},
                 {P_RUN_ATS, MR_JOB_TEXT_RUN_AT},
                 {P_IDEMPOTENCY, MR_JOB_TEXT_IDEMPOTENCY},
                 {P_TIMEOUTS, MR_JOB_TEXT_TIMEOUT}};
    enum { TEXTS = sizeof(texts) / sizeof(texts[0]) };
    mr_enqueue_params *p = params;
    *p = (mr_enqueue_params){0};
    p->types[P_QUEUE] = MR_OID_TEXT;
    mr__buf_puts(&p->data[P_QUEUE], queue);
    begin(p, P_PAYLOADS, MR_OID_JSONB_ARRAY, MR_OID_JSONB, count);
    begin(p, P_PRIORITIES, MR_OID_INT4_ARRAY, MR_OID_INT4, count);
    begin(p, P_ATTEMPTS, MR_OID_INT4_ARRAY, MR_OID_INT4, count);
    begin(p, P_METADATAS, MR_OID_JSONB_ARRAY, MR_OID_JSONB, count);
    for (size_t k = 0; k < TEXTS; k++)
        begin(p, texts[k].param, MR_OID_TEXT_ARRAY, MR_OID_TEXT, count);
    for (size_t i = first; i < first + count; i++) {
        const mr_job_draft_row *row = &draft->rows[i];
        put_json(&p->data[P_PAYLOADS], draft, row->text[MR_JOB_TEXT_PAYLOAD]);
        put_json(&p->data[P_METADATAS], draft, row->text[MR_JOB_TEXT_METADATA]);
        put_int(&p->data[P_PRIORITIES], row->priority, -1);
        put_int(&p->data[P_ATTEMPTS], row->max_attempts, 0);
        for (size_t k = 0; k < TEXTS; k++)
            put_text(&p->data[texts[k].param], draft, row->text[texts[k].text]);
    }
    return finish(p, MR_ENQUEUE_PARAMS);
}

mr_error *mr__enqueue_encode_keys(const mr_job_draft *draft, const char *queue,
                                  mr_enqueue_params *params)
{
    *params = (mr_enqueue_params){0};
    size_t count = 0;
    for (size_t i = 0; i < draft->count; i++)
        count += draft->rows[i].text[MR_JOB_TEXT_KEY].offset != MR_SLICE_NULL;
    params->types[0] = MR_OID_TEXT;
    mr__buf_puts(&params->data[0], queue);
    begin(params, 1, MR_OID_TEXT_ARRAY, MR_OID_TEXT, count);
    for (size_t i = 0; i < draft->count; i++)
        if (draft->rows[i].text[MR_JOB_TEXT_KEY].offset != MR_SLICE_NULL)
            put_text(&params->data[1], draft, draft->rows[i].text[MR_JOB_TEXT_KEY]);
    return finish(params, 2);
}

void mr__enqueue_params_free(mr_enqueue_params *params)
{
    for (int i = 0; i < MR_ENQUEUE_PARAMS; i++)
        mr__buf_free(&params->data[i]);
}
