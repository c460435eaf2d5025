/* The lines that a child is given: an event, a job, the request to give a job up. Pure. */
#include "handler/exec_line.h"

#include "base/json.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

/* ---- An event's line ----------------------------------------------------------------------- */

static void put_key(mr_buf *out, const char *key)
{
    mr__buf_puts(out, ",\"");
    mr__buf_puts(out, key);
    mr__buf_puts(out, "\":");
}

static void put_text(mr_buf *out, const char *key, const char *text)
{
    put_key(out, key);
    if (text == NULL)
        mr__buf_puts(out, "null");
    else
        mr__json_quote(out, text, strlen(text));
}

static void put_number(mr_buf *out, const char *key, int64_t number)
{
    put_key(out, key);
    mr__buf_printf(out, "%" PRId64, number);
}

static void put_base64(mr_buf *out, const char *bytes, size_t length)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = (const unsigned char *)bytes;
    for (size_t i = 0; i < length; i += 3) {
        size_t left = length - i;
        unsigned bits = (unsigned)p[i] << 16 | (left > 1 ? (unsigned)p[i + 1] << 8 : 0) |
                        (left > 2 ? (unsigned)p[i + 2] : 0);
        char four[] = {alphabet[bits >> 18], alphabet[bits >> 12 & 63],
                       left > 1 ? alphabet[bits >> 6 & 63] : '=',
                       left > 2 ? alphabet[bits & 63] : '='};
        mr__buf_add(out, four, sizeof(four));
    }
}

static void put_payload(mr_buf *out, const mr_event *event)
{
    put_key(out, "data");
    if (mr__json_compact(out, event->payload, event->payload_length))
        return;
    mr__buf_puts(out, "null,\"payload\":\"");
    put_base64(out, event->payload, event->payload_length);
    mr__buf_putc(out, '"');
}

static void put_metadata(mr_buf *out, const char *metadata)
{
    put_key(out, "metadata");
    if (metadata == NULL)
        mr__buf_puts(out, "null");
    else if (!mr__json_compact(out, metadata, strlen(metadata)))
        mr__json_quote(out, metadata, strlen(metadata)); /* a text column may hold anything */
}

static void put_time(mr_buf *out, int64_t micros)
{
    put_key(out, "created_at");
    int fraction = (int)(micros % 1000000);
    time_t whole = (time_t)(micros / 1000000);
    if (fraction < 0) { /* before 1970 time runs forward too */
        fraction += 1000000;
        whole--;
    }
    struct tm utc = {0};
    if (micros == 0 || gmtime_r(&whole, &utc) == NULL) {
        mr__buf_puts(out, "null"); /* the log has none */
        return;
    }
    mr__buf_printf(out, "\"%04lld-%02d-%02dT%02d:%02d:%02d.%06dZ\"", 1900LL + utc.tm_year,
                   utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, fraction);
}

void mr__exec_line_event(mr_buf *out, const char *consumer, int attempt, const mr_event *event)
{
    mr__buf_puts(out, "{\"type\":\"event\"");
    put_text(out, "consumer", consumer);
    put_number(out, "attempt", attempt);
    put_number(out, "position", event->position);
    put_text(out, "aggregate_type", event->aggregate_type);
    put_text(out, "aggregate_id", event->aggregate_id);
    put_number(out, "aggregate_version", event->aggregate_version);
    put_text(out, "event_id", event->event_id[0] == '\0' ? NULL : event->event_id);
    put_text(out, "event_type", event->event_type);
    put_number(out, "event_version", event->event_version);
    put_payload(out, event);
    put_metadata(out, event->metadata);
    put_text(out, "trace_id", event->trace_id);
    put_text(out, "correlation_id", event->correlation_id);
    put_text(out, "causation_id", event->causation_id);
    put_time(out, event->created_at);
    mr__buf_puts(out, "}\n");
}

/* ---- A job's lines ------------------------------------------------------------------------- */

static void put_value(mr_buf *out, const mr_exec_value *value)
{
    if (value->text == NULL)
        mr__buf_puts(out, "null");
    else if (!value->json || !mr__json_compact(out, value->text, strlen(value->text)))
        mr__json_quote(out, value->text, strlen(value->text));
}

void mr__exec_line_job(mr_buf *out, const char *queue, const char *id, const mr_exec_value *values,
                       size_t count)
{
    mr__buf_puts(out, "{\"type\":\"job\"");
    put_text(out, "queue", queue);
    put_text(out, "id", id);
    put_key(out, "job");
    for (size_t i = 0; i < count; i++) {
        mr__buf_putc(out, i == 0 ? '{' : ',');
        mr__json_quote(out, values[i].name, strlen(values[i].name));
        mr__buf_putc(out, ':');
        put_value(out, &values[i]);
    }
    mr__buf_puts(out, count == 0 ? "{}}\n" : "}}\n");
}

void mr__exec_line_cancel(mr_buf *out, const char *queue, const char *id, const char *reason)
{
    mr__buf_puts(out, "{\"type\":\"cancel\"");
    put_text(out, "queue", queue);
    put_text(out, "id", id);
    put_text(out, "reason", reason);
    mr__buf_puts(out, "}\n");
}

/* ---- In messages --------------------------------------------------------------------------- */

void mr__exec_line_quote(mr_buf *out, const char *line, size_t length)
{
    size_t shown = length < MR_EXEC_QUOTE ? length : MR_EXEC_QUOTE;
    /* Not through the middle of a character, which would look damaged. */
    while (shown < length && shown > MR_EXEC_QUOTE - 4 &&
           ((unsigned char)line[shown] & 0xC0) == 0x80)
        shown--;
    mr__json_quote(out, line, shown);
    if (shown < length)
        mr__buf_printf(out, " … (%zu bytes)", length);
}
