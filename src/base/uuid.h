/* UUIDs: version 7 for workers (sorts by start time), version 4 for events. */
#ifndef MR_BASE_UUID_H
#define MR_BASE_UUID_H

#include <stdbool.h>

enum { MR_UUID_TEXT = 37 };
void mr__uuid_v7(char out[MR_UUID_TEXT]);
void mr__uuid_v4(char out[MR_UUID_TEXT]);
bool mr__uuid_valid(const char *text);

#endif
