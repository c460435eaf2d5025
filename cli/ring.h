/* What the parts of `millrace ring` share. */
#ifndef MILLRACE_CLI_RING_H
#define MILLRACE_CLI_RING_H

#include "cli.h"

enum {
    RING_WORKERS,
    RING_QUEUE,
    RING_ADD,
    RING_REMOVE,
    RING_KEYS,
    RING_BUCKETS,
    RING_VNODES,
    RING_CAP,
    RING_HASH,
    RING_PICTURE,
};

/* A ring with the options of the command line; `*out` is the caller's. */
mr_error *ring_from_args(const cli_args *args, mr_ring **out) MR_MUST_CHECK;
mr_error *ring_simulate(const cli_context *cli, const cli_args *args) MR_MUST_CHECK;
/* Draws the circle of buckets: outside who has them, inside (`after` not NULL) who has got those
 * that moved. */
void ring_draw(const mr_ring *ring, const mr_ring *after);
bool ring_can_draw(void); /* stdout is a terminal with room for it */

#endif
