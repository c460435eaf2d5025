/* Jobs gathered to be enqueued: what the caller says is checked here, one job at a time, so that
 * the server finds nothing wrong among thousands but what only it can know. Pure. */
#include "queue/draft.h"

#include "base/json.h"
#include "base/text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 16, TIME_MAX = 100 };

mr_job_draft *mr_job_draft_new(void)
{
    return calloc(1, sizeof(mr_job_draft));
}

void mr_job_draft_free(mr_job_draft *draft)
{
    if (draft == NULL)
        return;
    mr__buf_free(&draft->bytes);
    free(draft->rows);
    free(draft);
}

void mr_job_draft_clear(mr_job_draft *draft)
{
    mr__buf_clear(&draft->bytes);
    draft->count = 0;
}

size_t mr_job_draft_count(const mr_job_draft *draft)
{
    return draft->count;
}

int64_t mr_job_draft_id(const mr_job_draft *draft, size_t index)
{
    return index < draft->count ? draft->rows[index].id : 0;
}

bool mr_job_draft_created(const mr_job_draft *draft, size_t index)
{
    return index < draft->count && draft->rows[index].created;
}

const char *mr__job_draft_bytes(const mr_job_draft *draft, mr_slice slice)
{
    return slice.offset == MR_SLICE_NULL || draft->bytes.data == NULL
               ? ""
               : draft->bytes.data + slice.offset;
}

size_t mr__job_draft_size(const mr_job_draft *draft, size_t index)
{
    size_t size = 0;
    for (int i = 0; i < MR_JOB_TEXTS; i++)
        size += draft->rows[index].text[i].length;
    return size;
}

/* ---- Texts --------------------------------------------------------------------------------- */

/* The slice from `start` to the end, ended by a NUL that is not part of it. */
static mr_error *end_slice(mr_job_draft *draft, size_t start, mr_slice *slice)
{
    size_t length = draft->bytes.length - start;
    mr__buf_putc(&draft->bytes, '\0');
    if (draft->bytes.failed) {
        draft->bytes.failed = false; /* what is there stays whole */
        draft->bytes.length = start;
        return mr__error_nomem();
    }
    *slice = (mr_slice){start, length};
    return NULL;
}

static mr_error *add_text(mr_job_draft *draft, const char *what, const char *text, size_t most,
                          mr_slice *slice)
{
    size_t length = text == NULL ? 0 : strlen(text);
    if (length == 0 || length > most)
        return mr__error(MR_E_USAGE, "%s must have 1 to %zu bytes", what, most);
    if (!mr__text_utf8(text, length))
        return mr__error(MR_E_USAGE, "%s is not valid UTF-8", what);
    size_t start = draft->bytes.length;
    mr__buf_add(&draft->bytes, text, length);
    return end_slice(draft, start, slice);
}

static unsigned hex4(const char *p)
{
    char digits[5] = {p[0], p[1], p[2], p[3], '\0'};
    return (unsigned)strtoul(digits, NULL, 16);
}

/* Valid JSON may still hold escapes that stand for no text: jsonb refuses them. */
static bool escapes_fit(const char *text)
{
    for (const char *p = strchr(text, '\\'); p != NULL; p = strchr(p, '\\')) {
        if (p[1] != 'u') {
            p += 2;
            continue;
        }
        unsigned unit = hex4(p + 2);
        p += 6;
        if (unit == 0 || (unit >= 0xDC00 && unit <= 0xDFFF))
            return false;
        if (unit < 0xD800 || unit > 0xDBFF)
            continue;
        if (p[0] != '\\' || p[1] != 'u' || hex4(p + 2) < 0xDC00 || hex4(p + 2) > 0xDFFF)
            return false;
        p += 6;
    }
    return true;
}

static mr_error *bad_json(const char *what, const char *text, size_t length)
{
    json_error_t where;
    if (!mr__text_utf8(text, length))
        return mr__error(MR_E_PARSE, "%s is not valid UTF-8", what);
    json_t *value = json_loadb(text, length,
                               JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &where);
    if (value == NULL)
        return mr__error(MR_E_PARSE, "%s is not valid JSON at byte %d: %s", what, where.position,
                         where.text);
    json_decref(value);
    return mr__error(MR_E_PARSE, "%s is not valid JSON, or nested deeper than %d", what,
                     (int)MR_JSON_DEPTH);
}

static mr_error *add_json(mr_job_draft *draft, const char *what, const char *text, mr_slice *slice)
{
    size_t start = draft->bytes.length, length = strlen(text);
    if (!mr__json_compact(&draft->bytes, text, length))
        return bad_json(what, text, length);
    MR_TRY(end_slice(draft, start, slice));
    if (escapes_fit(mr__job_draft_bytes(draft, *slice)))
        return NULL;
    draft->bytes.length = start;
    *slice = (mr_slice){MR_SLICE_NULL, 0};
    return mr__error(MR_E_PARSE,
                     "%s holds \\u0000 or half of a surrogate pair, which PostgreSQL cannot keep",
                     what);
}

/* ---- Jobs ---------------------------------------------------------------------------------- */

mr_error *mr_job_draft_add(mr_job_draft *draft, const char *payload)
{
    if (draft->count == draft->capacity) {
        size_t wanted = draft->capacity == 0 ? FIRST_CAPACITY : draft->capacity * 2;
        mr_job_draft_row *rows = reallocarray(draft->rows, wanted, sizeof(*rows));
        if (rows == NULL)
            return mr__error_nomem();
        draft->rows = rows;
        draft->capacity = wanted;
    }
    mr_job_draft_row row = {.priority = -1};
    for (int i = 0; i < MR_JOB_TEXTS; i++)
        row.text[i].offset = MR_SLICE_NULL;
    if (payload != NULL)
        MR_TRY(add_json(draft, "payload", payload, &row.text[MR_JOB_TEXT_PAYLOAD]));
    draft->rows[draft->count++] = row;
    return NULL;
}

static mr_error *set_number(const char *name, const char *value, int64_t low, int64_t high,
                            int32_t *out)
{
    int64_t number = 0;
    if (!mr__text_int(value, &number) || number < low || number > high)
        return mr__error(MR_E_USAGE,
                         "%s: '%.40s' is not a whole number from %" PRId64 " to %" PRId64, name,
                         value, low, high);
    *out = (int32_t)number;
    return NULL;
}

/* "30s" as in the configuration, else what PostgreSQL takes for an interval. */
static mr_error *set_timeout(mr_job_draft *draft, const char *value, mr_slice *slice)
{
    int64_t micros = 0;
    char text[40];
    if (mr__text_duration(value, &micros)) {
        if (micros == 0)
            return mr__error(MR_E_USAGE, "timeout must be more than 0");
        (void)snprintf(text, sizeof(text), "%" PRId64 " us", micros);
        value = text;
    } else if (mr__text_int(value, &micros)) {
        return mr__error(MR_E_USAGE, "timeout: '%.40s' has no unit; write 30s, 5m or 1 day", value);
    }
    return add_text(draft, "timeout", value, TIME_MAX, slice);
}

mr_error *mr_job_draft_field(mr_job_draft *draft, const char *name, const char *value)
{
    if (draft->count == 0)
        return mr__error(MR_E_USAGE, "the draft has no job yet; call mr_job_draft_add() first");
    if (value == NULL)
        return mr__error(MR_E_USAGE, "%s must not be NULL", name);
    mr_job_draft_row *row = &draft->rows[draft->count - 1];
    if (strcmp(name, "key") == 0)
        return add_text(draft, name, value, MR_JOB_KEY_MAX, &row->text[MR_JOB_TEXT_KEY]);
    if (strcmp(name, "idempotency_key") == 0)
        return add_text(draft, name, value, MR_JOB_KEY_MAX, &row->text[MR_JOB_TEXT_IDEMPOTENCY]);
    if (strcmp(name, "run_at") == 0)
        return add_text(draft, name, value, TIME_MAX, &row->text[MR_JOB_TEXT_RUN_AT]);
    if (strcmp(name, "priority") == 0)
        return set_number(name, value, 0, 9, &row->priority);
    if (strcmp(name, "max_attempts") == 0)
        return set_number(name, value, 1, INT32_MAX, &row->max_attempts);
    if (strcmp(name, "timeout") == 0)
        return set_timeout(draft, value, &row->text[MR_JOB_TEXT_TIMEOUT]);
    if (strcmp(name, "metadata") == 0)
        return add_json(draft, name, value, &row->text[MR_JOB_TEXT_METADATA]);
    return mr__error(
        MR_E_USAGE,
        "a job has no field '%.40s'; there are key, priority, run_at, idempotency_key, "
        "max_attempts, timeout and metadata",
        name);
}
