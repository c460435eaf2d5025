/* Randomness from the kernel: UUIDs (version 7, which sorts by time) and jitter. */
#ifndef MR_BASE_UUID_H
#define MR_BASE_UUID_H

#include <stdbool.h>
#include <stdint.h>

enum { MR_UUID_TEXT = 37 };
void mr__uuid_v7(char out[MR_UUID_TEXT]);
/* A random number from 0 up to and including `most`, for jitter. */
int64_t mr__random_upto(int64_t most);
bool mr__uuid_valid(const char *text);

#endif
