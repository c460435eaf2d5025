/* Randomness from the kernel: UUIDs and jitter. */
#include "base/uuid.h"

#include "base/clock.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static void fill_random(unsigned char *bytes, size_t count)
{
    size_t done = 0;
    while (done < count) {
        ssize_t got = getrandom(bytes + done, count - done, 0);
        if (got > 0)
            done += (size_t)got;
    }
}

static void format(const unsigned char b[16], char out[MR_UUID_TEXT])
{
    (void)snprintf(out, MR_UUID_TEXT,
                   "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                   b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                   b[14], b[15]);
}

void mr__uuid_v7(char out[MR_UUID_TEXT])
{
    unsigned char b[16];
    fill_random(b, sizeof(b));
    uint64_t ms = (uint64_t)mr__clock_wall() / 1000;
    for (int i = 0; i < 6; i++)
        b[i] = (unsigned char)(ms >> (8 * (5 - i)));
    b[6] = (unsigned char)((b[6] & 0x0FU) | 0x70U);
    b[8] = (unsigned char)((b[8] & 0x3FU) | 0x80U);
    format(b, out);
}

bool mr__uuid_valid(const char *text)
{
    if (strlen(text) != 36)
        return false;
    for (int i = 0; i < 36; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash ? text[i] != '-' : !isxdigit((unsigned char)text[i]))
            return false;
    }
    return true;
}

int64_t mr__random_upto(int64_t most)
{
    uint64_t number;
    fill_random((unsigned char *)&number, sizeof(number));
    return most <= 0 ? 0 : (int64_t)(number % ((uint64_t)most + 1));
}
