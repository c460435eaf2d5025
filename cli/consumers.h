/* What the files behind `millrace consumers` share: options, and rows taken together by consumer.
 */
#ifndef MILLRACE_CLI_CONSUMERS_H
#define MILLRACE_CLI_CONSUMERS_H

#include "cli.h"

/* Index of each option in cli_args. */
enum { CONSUMERS_SLOTS, CONSUMERS_TIMEOUT, CONSUMERS_TO, CONSUMERS_REASON, CONSUMERS_ACTOR };

mr_error *cli_consumers_list(cli_context *cli, const cli_args *args) MR_MUST_CHECK;
mr_error *cli_consumers_show(cli_context *cli, const cli_args *args) MR_MUST_CHECK;
mr_error *cli_consumers_wait(cli_context *cli, const cli_args *args) MR_MUST_CHECK;
/* pause, resume, reset or skip: whichever the command line's first word is. */
mr_error *cli_consumers_control(cli_context *cli, const cli_args *args) MR_MUST_CHECK;

/* Rows of the listing "consumers" that belong to one consumer: neighbours, one unless it has
 * slots. */
typedef struct cli_group {
    const PGresult *rows;
    int first, count;
} cli_group;

/* The group that begins at a row; with `slots` each row is one of its own. */
cli_group cli_group_at(const PGresult *rows, int first, bool slots);
/* The row of a group with the smallest or largest number in a column. */
int cli_group_lowest(const cli_group *group, const char *column);
int cli_group_largest(const cli_group *group, const char *column);
int64_t cli_group_sum(const cli_group *group, const char *column);
/* The worst state, with a count when not all slots are in it: "paused (1 of 8)". free(). */
char *cli_group_state(const cli_group *group);
/* One line a group: owner, checkpoint, lag and so on. */
void cli_print_groups(const cli_group *groups, int count);

/* MR_E_USAGE for a name that none of the listed consumers has; suggests the nearest. */
mr_error *cli_consumer_unknown(const PGresult *rows, const char *name) MR_MUST_CHECK;

#endif
