/* A log in memory: appending at chosen positions, holes, and the windows that a consumer reads.
 *
 * What must stay true: a window shows decided positions only, and what was decided stays so. Rows
 * take the way of a server's: a result in binary, parsed by log/rows.c. */
#include "runtime/testkit.h"

#include "base/text.h"
#include "log/frontier.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_ROWS = 1000, COLUMNS = 14 };

static const int64_t epoch_shift = 946684800LL * 1000000; /* PostgreSQL counts from 2000-01-01 */

static void free_event(mr_test_event *event)
{
    for (int i = 0; i < MR_COL_COUNT; i++)
        free(event->texts[i]);
    free(event->payload);
}

void mr__test_log_free(mr_test_log *log)
{
    mr__test_log_release(log);
    for (size_t i = 0; i < log->count; i++)
        free_event(&log->events[i]);
    free(log->events);
}

int64_t mr__test_log_highest(const mr_test_log *log)
{
    return log->count == 0 ? 0 : log->events[log->count - 1].position;
}

/* Index of the first event above `position`. */
static size_t seek(const mr_test_log *log, int64_t position)
{
    size_t low = 0, high = log->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (log->events[middle].position > position)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static mr_test_event *find(const mr_test_log *log, int64_t position)
{
    size_t after = seek(log, position);
    return after > 0 && log->events[after - 1].position == position ? &log->events[after - 1]
                                                                    : NULL;
}

bool mr__test_log_has(const mr_test_log *log, int64_t position)
{
    return find(log, position) != NULL;
}

/* ---- Appending ----------------------------------------------------------------------------- */

static mr_error *check_position(const mr_test_log *log, int64_t position)
{
    if (position <= 0)
        return mr__error(MR_E_USAGE, "positions begin at 1; %" PRId64 " is none", position);
    if (mr__test_log_has(log, position))
        return mr__error(MR_E_USAGE, "there is an event at position %" PRId64 " already", position);
    if (position <= log->decided)
        return mr__error(MR_E_STATE,
                         "position %" PRId64 " was decided by mr_test_settle(): it is rolled back "
                         "and cannot be filled any more",
                         position);
    return NULL;
}

static int64_t next_version(const mr_test_log *log, const char *type, const char *id)
{
    int64_t version = 0;
    for (size_t i = 0; i < log->count; i++) {
        const mr_test_event *e = &log->events[i];
        if (e->aggregate_version > version && strcmp(e->texts[MR_COL_AGGREGATE_ID], id) == 0 &&
            strcmp(e->texts[MR_COL_AGGREGATE_TYPE], type) == 0)
            version = e->aggregate_version;
    }
    return version + 1;
}

static mr_error *set_text(char **field, const char *name, const char *value)
{
    if (value == NULL)
        return mr__error(MR_E_USAGE, "%s has no value", name);
    if (!mr__text_utf8(value, strlen(value)))
        return mr__error(MR_E_USAGE, "%s is not UTF-8, which the log's columns take", name);
    char *copy = strdup(value);
    if (copy == NULL)
        return mr__error_nomem();
    free(*field);
    *field = copy;
    return NULL;
}

static mr_error *fill_event(mr_test_event *event, const char *type, const char *id,
                            const char *event_type, const void *payload, size_t length)
{
    MR_TRY(set_text(&event->texts[MR_COL_AGGREGATE_TYPE], "aggregate_type", type));
    MR_TRY(set_text(&event->texts[MR_COL_AGGREGATE_ID], "aggregate_id", id));
    MR_TRY(set_text(&event->texts[MR_COL_EVENT_TYPE], "event_type", event_type));
    char event_id[64];
    (void)snprintf(event_id, sizeof(event_id), "00000000-0000-7000-8000-%012" PRIx64,
                   (uint64_t)event->position & UINT64_C(0xFFFFFFFFFFFF));
    MR_TRY(set_text(&event->texts[MR_COL_EVENT_ID], "event_id", event_id));
    if (payload == NULL && length > 0)
        return mr__error(MR_E_USAGE, "the payload is NULL, but its length is not 0");
    if (length > INT32_MAX / 2)
        return mr__error(MR_E_USAGE, "a payload of more than 1 GiB fits no log");
    event->payload = malloc(length + 1);
    if (event->payload == NULL)
        return mr__error_nomem();
    if (length > 0)
        memcpy(event->payload, payload, length);
    event->payload[length] = '\0';
    event->payload_length = length;
    return NULL;
}

/* Takes what the event owns, also on failure. */
static mr_error *insert(mr_test_log *log, mr_test_event event)
{
    if (log->count == log->capacity) {
        size_t capacity = log->capacity == 0 ? 16 : log->capacity * 2;
        mr_test_event *grown = realloc(log->events, capacity * sizeof(*grown));
        if (grown == NULL) {
            free_event(&event);
            return mr__error_nomem();
        }
        log->events = grown;
        log->capacity = capacity;
    }
    size_t at = seek(log, event.position);
    memmove(log->events + at + 1, log->events + at, (log->count - at) * sizeof(*log->events));
    log->events[at] = event;
    log->count++;
    log->last = event.position;
    return NULL;
}

mr_error *mr_test_append(mr_test *test, int64_t position, const char *aggregate_type,
                         const char *aggregate_id, const char *event_type, const void *payload,
                         size_t length, int64_t *at)
{
    mr_test_log *log = &test->log;
    if (position == 0)
        position = mr__test_log_highest(log) + 1;
    MR_TRY(check_position(log, position));
    mr_test_event event = {
        .position = position, .event_version = 1, .created_at = mr__clock_now(log->clock)};
    mr_error *error = fill_event(&event, aggregate_type, aggregate_id, event_type, payload, length);
    if (error != NULL) {
        free_event(&event);
        return mr__error_prefix(error, "mr_test_append()");
    }
    event.aggregate_version = next_version(log, aggregate_type, aggregate_id);
    MR_TRY(insert(log, event));
    if (at != NULL)
        *at = position;
    return NULL;
}

static mr_error *set_number(int64_t *field, const char *name, const char *value, int64_t least,
                            int64_t most)
{
    int64_t number;
    if (!mr__text_int(value, &number) || number < least || number > most)
        return mr__error(MR_E_PARSE, "%s '%s' is not a whole number in its range", name, value);
    *field = number;
    return NULL;
}

static mr_error *check_json(const char *value)
{
    json_error_t problem;
    json_t *json = json_loads(value, JSON_DECODE_ANY, &problem);
    if (json == NULL)
        return mr__error(MR_E_PARSE, "metadata is not JSON: %s", problem.text);
    json_decref(json);
    return NULL;
}

mr_error *mr_test_field(mr_test *test, const char *name, const char *value)
{
    mr_test_event *event = find(&test->log, test->log.last);
    if (event == NULL)
        return mr__error(MR_E_USAGE, "mr_test_field(): there is no event yet");
    if (name == NULL || value == NULL)
        return mr__error(MR_E_USAGE, "mr_test_field(): name or value is NULL");
    int column = mr__log_column_find(name);
    switch (column) {
    case MR_COL_AGGREGATE_VERSION:
        return set_number(&event->aggregate_version, name, value, 1, INT64_MAX);
    case MR_COL_EVENT_VERSION:
        return set_number(&event->event_version, name, value, INT32_MIN, INT32_MAX);
    case MR_COL_EVENT_ID:
        if (!mr__uuid_valid(value))
            return mr__error(MR_E_PARSE, "event_id '%s' is not a UUID", value);
        break;
    case MR_COL_METADATA:
        MR_TRY(check_json(value));
        break;
    case MR_COL_TRACE_ID:
    case MR_COL_CORRELATION_ID:
    case MR_COL_CAUSATION_ID:
        break;
    default:
        return mr__error(MR_E_USAGE,
                         "mr_test_field() has no field '%s'; event_id, event_version, "
                         "aggregate_version, trace_id, correlation_id, causation_id and metadata "
                         "can be set",
                         name);
    }
    return set_text(&event->texts[column], name, value);
}

void mr_test_settle(mr_test *test)
{
    test->log.decided = mr__test_log_highest(&test->log);
}

/* ---- Reading ------------------------------------------------------------------------------- */

/* A row as it comes from a server, column by column in the order of log/rows.c. */
typedef struct row {
    PGresult *result;
    int row, column;
    bool failed;
} row;

static void put_bytes(row *r, const char *bytes, size_t length)
{
    int size = bytes == NULL ? -1 : (int)length;
    /* libpq copies; the parameter is only historically not const. */
    if (PQsetvalue(r->result, r->row, r->column++, (char *)(uintptr_t)bytes, size) == 0)
        r->failed = true;
}

static void put_text(row *r, const char *text)
{
    put_bytes(r, text, text == NULL ? 0 : strlen(text));
}

static void put_number(row *r, int64_t number)
{
    uint64_t raw = htobe64((uint64_t)number);
    put_bytes(r, (const char *)&raw, sizeof(raw));
}

static bool put_event(PGresult *result, int index, const mr_test_event *e)
{
    row r = {.result = result, .row = index};
    put_number(&r, e->position);
    put_text(&r, e->texts[MR_COL_AGGREGATE_TYPE]);
    put_text(&r, e->texts[MR_COL_AGGREGATE_ID]);
    put_text(&r, e->texts[MR_COL_EVENT_TYPE]);
    put_number(&r, e->aggregate_version);
    put_text(&r, e->texts[MR_COL_EVENT_ID]);
    put_number(&r, e->event_version);
    put_bytes(&r, e->payload, e->payload_length);
    put_number(&r, (int64_t)e->payload_length);
    put_text(&r, e->texts[MR_COL_TRACE_ID]);
    put_text(&r, e->texts[MR_COL_CORRELATION_ID]);
    put_text(&r, e->texts[MR_COL_CAUSATION_ID]);
    put_text(&r, e->texts[MR_COL_METADATA]);
    put_number(&r, e->created_at - epoch_shift);
    return !r.failed;
}

static PGresult *make_result(const mr_test_event *events, size_t count)
{
    PGresult *result = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    if (result == NULL)
        return NULL;
    char name[] = "";
    PGresAttDesc columns[COLUMNS];
    for (int i = 0; i < COLUMNS; i++)
        columns[i] = (PGresAttDesc){.name = name, .format = 1};
    bool ok = PQsetResultAttrs(result, COLUMNS, columns) != 0;
    for (size_t i = 0; ok && i < count; i++)
        ok = put_event(result, (int)i, &events[i]);
    if (ok)
        return result;
    PQclear(result);
    return NULL;
}

/* What a read of the log would show as decided after `position`; no window when that is nothing. */
static mr_error *read_window(mr_test_log *log, int64_t position, mr_window **out)
{
    size_t first = seek(log, position), left = log->count - first;
    size_t count = left < WINDOW_ROWS ? left : WINDOW_ROWS;
    int64_t positions[WINDOW_ROWS];
    for (size_t i = 0; i < count; i++)
        positions[i] = log->events[first + i].position;
    mr_frontier frontier = mr__frontier(position, log->decided, positions, count, count < left);
    if (frontier.to <= position)
        return NULL;
    PGresult *result = make_result(log->events + first, frontier.rows);
    if (result == NULL)
        return mr__error_nomem();
    return mr__window_new(result, false, position, frontier.to, frontier.rows,
                          mr__clock_now(log->clock), mr__test_log_highest(log), out);
}

mr_window *mr__test_log_find(void *from, int64_t position)
{
    mr_test_log *log = from;
    mr_window *window = mr__cache_find(&log->windows, position);
    if (window != NULL || log->error != NULL)
        return window;
    log->error = read_window(log, position, &window);
    if (window != NULL)
        mr__cache_add(&log->windows, window, false);
    return window;
}

void mr__test_log_release(mr_test_log *log)
{
    mr__cache_clear(&log->windows);
    mr_error_free(log->error);
    log->error = NULL;
}
