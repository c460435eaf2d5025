/* Small pure text helpers: durations, sizes, numbers, UTF-8, nearest names. */
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct unit {
    const char *name;
    int64_t factor;
} unit;

static const unit duration_units[] = {
    {"us", 1}, {"ms", 1000}, {"s", 1000000}, {"m", 60000000}, {"h", 3600000000LL}};
static const unit size_units[] = {
    {"", 1}, {"B", 1}, {"KiB", 1024}, {"MiB", 1024 * 1024}, {"GiB", 1024 * 1024 * 1024}};

/* A whole non-negative number followed by one of the units. */
static bool with_unit(const char *text, const unit *units, size_t count, int64_t *value)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 18)
        return false;
    int64_t number = strtoll(text, NULL, 10);
    if (number == 0 && text[digits] == '\0') {
        *value = 0;
        return true;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text + digits, units[i].name) != 0)
            continue;
        return !__builtin_mul_overflow(number, units[i].factor, value);
    }
    return false;
}

bool mr__text_duration(const char *text, int64_t *micros)
{
    return with_unit(text, duration_units, sizeof(duration_units) / sizeof(unit), micros);
}

void mr__text_duration_format(int64_t micros, char out[32])
{
    size_t best = 0;
    for (size_t i = 1; i < sizeof(duration_units) / sizeof(unit); i++)
        if (micros != 0 && micros % duration_units[i].factor == 0)
            best = i;
    if (micros == 0)
        (void)snprintf(out, 32, "0");
    else
        (void)snprintf(out, 32, "%" PRId64 "%s", micros / duration_units[best].factor,
                       duration_units[best].name);
}

bool mr__text_size(const char *text, int64_t *bytes)
{
    return with_unit(text, size_units, sizeof(size_units) / sizeof(unit), bytes);
}

bool mr__text_int(const char *text, int64_t *value)
{
    size_t sign = text[0] == '-' || text[0] == '+' ? 1 : 0;
    size_t digits = strspn(text + sign, "0123456789");
    if (digits == 0 || text[sign + digits] != '\0')
        return false;
    errno = 0;
    long long number = strtoll(text, NULL, 10);
    if (errno != 0)
        return false;
    *value = number;
    return true;
}

bool mr__text_bool(const char *text, bool *value)
{
    static const char *const yes[] = {"true", "yes", "on"};
    static const char *const no[] = {"false", "no", "off"};
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(text, yes[i]) == 0) {
            *value = true;
            return true;
        }
        if (strcmp(text, no[i]) == 0) {
            *value = false;
            return true;
        }
    }
    return false;
}

/* How many continuation bytes follow a lead byte, and the range of the first of them: that is where
 * overlong forms, surrogates and code points above U+10FFFF are told apart. -1: not a lead byte. */
static int utf8_tail(unsigned char lead, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF)
        return 1;
    if (lead >= 0xE0 && lead <= 0xEF) {
        if (lead == 0xE0)
            *low = 0xA0;
        if (lead == 0xED)
            *high = 0x9F;
        return 2;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        if (lead == 0xF0)
            *low = 0x90;
        if (lead == 0xF4)
            *high = 0x8F;
        return 3;
    }
    return -1;
}

bool mr__text_utf8(const char *bytes, size_t length)
{
    const unsigned char *p = (const unsigned char *)bytes;
    size_t i = 0;
    while (i < length) {
        unsigned char c = p[i++];
        if (c == 0)
            return false;
        if (c < 0x80)
            continue;
        unsigned char low, high;
        int tail = utf8_tail(c, &low, &high);
        if (tail < 0 || (size_t)tail > length - i || p[i] < low || p[i] > high)
            return false;
        for (int k = 1; k < tail; k++)
            if (p[i + (size_t)k] < 0x80 || p[i + (size_t)k] > 0xBF)
                return false;
        i += (size_t)tail;
    }
    return true;
}

size_t mr__text_cut(const char *text, size_t most)
{
    size_t length = strnlen(text, most + 1);
    if (length <= most)
        return length;
    length = most;
    while (length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80)
        length--;
    return length;
}

void mr__text_mend(char *text)
{
    if (mr__text_utf8(text, strlen(text)))
        return;
    for (char *p = text; *p != '\0';) {
        size_t length = 1;
        while (length <= 4 && (strnlen(p, length) < length || !mr__text_utf8(p, length)))
            length++;
        if (length <= 4) {
            p += length;
            continue;
        }
        *p++ = '?';
    }
}

enum { WORD_MAX = 64 }; /* what lies beyond is not compared */

size_t mr__text_distance(const char *a, const char *b)
{
    size_t n = strnlen(a, WORD_MAX), m = strnlen(b, WORD_MAX);
    size_t row[3][WORD_MAX + 1];
    for (size_t j = 0; j <= m; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *now = row[i % 3], *above = row[(i + 2) % 3], *twice = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
            if (above[j] + 1 < best)
                best = above[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                twice[j - 2] + 1 < best)
                best = twice[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[n % 3][m];
}

int mr__text_nearest(const char *word, const char *const *names, size_t count)
{
    size_t best = SIZE_MAX;
    int index = -1;
    for (size_t i = 0; i < count; i++) {
        size_t distance = mr__text_distance(word, names[i]);
        if (distance < best) {
            best = distance;
            index = (int)i;
        }
    }
    /* Beyond a third of the word a suggestion is noise. */
    size_t limit = strnlen(word, WORD_MAX) / 3 + 1;
    return best <= limit ? index : -1;
}
