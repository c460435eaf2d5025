/* millrace consumers: who runs each consumer, how far it is and how it is. */
#include "consumers.h"

/* One word after `consumers`: what it runs and which options it takes (bits by index). */
typedef struct verb {
    const char *name;
    mr_error *(*run)(cli_context *cli, const cli_args *args);
    unsigned options;
} verb;

enum { AUDITED = 1u << CONSUMERS_REASON | 1u << CONSUMERS_ACTOR };

static const verb verbs[] = {
    {"list", cli_consumers_list, 1u << CONSUMERS_SLOTS},
    {"show", cli_consumers_show, 0},
    {"wait", cli_consumers_wait, 1u << CONSUMERS_TIMEOUT},
    {"pause", cli_consumers_control, AUDITED},
    {"resume", cli_consumers_control, AUDITED},
    {"reset", cli_consumers_control, AUDITED | 1u << CONSUMERS_TO},
    {"skip", cli_consumers_control, AUDITED},
};
enum { VERBS = sizeof(verbs) / sizeof(verbs[0]) };

static const cli_option options[] = {
    [CONSUMERS_SLOTS] = {"slots", NULL, "list: a line for each slot of a partitioned consumer"},
    [CONSUMERS_TIMEOUT] = {"timeout", "TIME", "wait: how long, as 500ms, 30s (default), 5m, 1h"},
    [CONSUMERS_TO] = {"to", "WHERE", "reset: beginning, now, a position or a time"},
    [CONSUMERS_REASON] = {"reason", "TEXT", "pause, resume, reset, skip: why, for the audit"},
    [CONSUMERS_ACTOR] = {"actor", "NAME", "who, for the audit; user@host unless given"},
    {NULL, NULL, NULL}};

static mr_error *run(cli_context *cli, const cli_args *args)
{
    const char *names[VERBS + 1] = {NULL};
    for (int i = 0; i < VERBS; i++)
        names[i] = verbs[i].name;
    int which = 0;
    CLI_TRY(cli_subcommand("consumers", args, names, &which));
    for (int i = 0; options[i].name != NULL; i++)
        if (args->value[i] != NULL && (verbs[which].options & 1u << i) == 0)
            return mr_error_new(MR_E_USAGE, false,
                                "--%s does not go with 'consumers %s'; see 'millrace consumers "
                                "--help'",
                                options[i].name, verbs[which].name);
    return verbs[which].run(cli, args);
}

const cli_command cli_cmd_consumers = {
    .name = "consumers",
    .summary = "The consumers: how they are; pause, resume, reset, skip, wait",
    .usage = "list [--slots] | show NAME | wait NAME POSITION [--timeout TIME] |\n"
             "       pause NAME | resume NAME | reset NAME --to WHERE | skip NAME POSITION\n"
             "       [--reason TEXT] [--actor NAME] [--json]",
    .details =
        "  list   one line a consumer. State: running (there are events to handle), idle (caught\n"
        "         up), blocked (it waits before a hole; see 'millrace gaps open'), failing (its\n"
        "         last batch failed, it tries again), paused (by a person, or by its worker\n"
        "         after max_retries), unassigned, no worker can run it, owner silent, owner gone.\n"
        "         lag: positions from the checkpoint to the real head of the log. seconds: age\n"
        "         of the first event after the checkpoint, empty when the log has no created_at.\n"
        "         failing and its error are as of the owner's last heartbeat.\n"
        "         Slots of a partitioned consumer share a line: the worst state, the lowest\n"
        "         checkpoint, the largest lag. --json always has each slot.\n"
        "  show   all about one: why it is paused or fails, its slots, its newest dead letters "
        "and\n"
        "         skipped positions, and what was done to it\n"
        "  wait   returns once the consumer (every slot of it) has applied POSITION. Exit code 1\n"
        "         when it has not in time, and at once when it is paused or the position went to\n"
        "         its dead letters; the message says how far it is and what may hold it.\n"
        "  pause  no batch of the consumer commits from then on, until it is resumed\n"
        "  resume ends a pause, also one after failures\n"
        "  reset  moves the checkpoint. --to is the last position that counts as handled, a time\n"
        "         (events from then on are handled), beginning or now. Back: events are handled\n"
        "         again, and dead letters above it go. Forward: events are passed over\n"
        "  skip   the event at POSITION will not be handled\n\n"
        "A partitioned consumer's name means all its slots, 'name#3/8' one of them. The last four\n"
        "hold once the command has returned, and leave a row in consumer_audit.",
    .options = options,
    .run = run,
};
