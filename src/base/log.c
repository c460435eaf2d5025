/* Structured log lines: an event name and key-value pairs, as logfmt or JSON, to a sink. */
#include "base/log.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void mr__logger_init(mr_logger *logger, mr_log_fn sink, void *user, mr_level level, bool json)
{
    *logger = (mr_logger){.sink = sink, .user = user, .level = level, .json = json};
    (void)pthread_mutex_init(&logger->lock, NULL);
}

void mr__logger_destroy(mr_logger *logger)
{
    (void)pthread_mutex_destroy(&logger->lock);
}

bool mr__log_level_parse(const char *text, mr_level *level)
{
    for (size_t i = 0; i < sizeof(level_names) / sizeof(level_names[0]); i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *level = (mr_level)i;
            return true;
        }
    }
    return false;
}

static void put_time(mr_buf *buf)
{
    int64_t wall = mr__clock_wall();
    time_t seconds = (time_t)(wall / 1000000);
    struct tm utc = {0};
    (void)gmtime_r(&seconds, &utc);
    char text[32];
    (void)strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
    mr__buf_printf(buf, "%s.%03dZ", text, (int)(wall / 1000 % 1000));
}

/* Quoted with JSON's escapes, which logfmt readers understand too. */
static void put_quoted(mr_buf *buf, const char *value)
{
    mr__buf_putc(buf, '"');
    for (const unsigned char *p = (const unsigned char *)value; *p != '\0'; p++) {
        if (*p == '"' || *p == '\\')
            mr__buf_printf(buf, "\\%c", *p);
        else if (*p == '\n')
            mr__buf_puts(buf, "\\n");
        else if (*p == '\t')
            mr__buf_puts(buf, "\\t");
        else if (*p < 0x20 || *p == 0x7F)
            mr__buf_printf(buf, "\\u%04x", *p);
        else
            mr__buf_putc(buf, (char)*p);
    }
    mr__buf_putc(buf, '"');
}

static bool is_number(const char *value)
{
    size_t sign = value[0] == '-' ? 1 : 0;
    size_t digits = strspn(value + sign, "0123456789");
    return digits > 0 && digits < 18 && value[sign + digits] == '\0' &&
           (value[sign] != '0' || digits == 1);
}

static void put_pair(mr_buf *buf, bool json, const char *key, const char *value)
{
    if (json) {
        mr__buf_putc(buf, ',');
        put_quoted(buf, key);
        mr__buf_putc(buf, ':');
        /* A SQLSTATE is a name even when it is all digits. */
        if (is_number(value) && strcmp(key, "sqlstate") != 0)
            mr__buf_puts(buf, value);
        else
            put_quoted(buf, value);
        return;
    }
    mr__buf_printf(buf, " %s=", key);
    bool plain = value[0] != '\0';
    for (const unsigned char *p = (const unsigned char *)value; *p != '\0'; p++)
        plain = plain && *p > ' ' && *p != '"' && *p != '=' && *p != '\\' && *p != 0x7F;
    if (plain)
        mr__buf_puts(buf, value);
    else
        put_quoted(buf, value);
}

static void put_pairs(mr_buf *buf, bool json, char *pairs)
{
    char *save = NULL;
    for (char *pair = strtok_r(pairs, MR_SEP, &save); pair != NULL;
         pair = strtok_r(NULL, MR_SEP, &save)) {
        char *value = strchr(pair, '=');
        if (value == NULL)
            continue;
        *value++ = '\0';
        put_pair(buf, json, pair, value);
    }
}

void mr__log(mr_logger *logger, mr_level level, const char *event, const char *pairs, ...)
{
    if (logger == NULL || logger->sink == NULL || level < logger->level)
        return;
    char *text = NULL;
    va_list args;
    va_start(args, pairs);
    int length = vasprintf(&text, pairs, args);
    va_end(args);
    if (length < 0)
        return;
    mr__text_mend(text); /* a reader of JSON takes nothing else */
    MR_AUTO_BUF line = {0};
    if (logger->json) {
        mr__buf_puts(&line, "{\"ts\":\"");
        put_time(&line);
        mr__buf_printf(&line, "\",\"level\":\"%s\",\"msg\":", level_names[level]);
        put_quoted(&line, event);
        put_pairs(&line, true, text);
        mr__buf_putc(&line, '}');
    } else {
        mr__buf_puts(&line, "ts=");
        put_time(&line);
        mr__buf_printf(&line, " level=%s msg=", level_names[level]);
        put_quoted(&line, event);
        put_pairs(&line, false, text);
    }
    free(text);
    if (line.failed)
        return;
    (void)pthread_mutex_lock(&logger->lock);
    logger->sink(logger->user, level, line.data);
    (void)pthread_mutex_unlock(&logger->lock);
}
