/* The one table of options: names, types, defaults, meanings; validation and typed access. */
#ifndef MR_RUNTIME_OPTIONS_H
#define MR_RUNTIME_OPTIONS_H

#include "base/error.h"

typedef enum mr_type {
    MR_TYPE_TEXT,
    MR_TYPE_NAME, /* not empty, at most 255 bytes of UTF-8 */
    MR_TYPE_INT,
    MR_TYPE_BOOL,
    MR_TYPE_DURATION,
    MR_TYPE_SIZE,
    MR_TYPE_CHOICE, /* one of `choices`, its index is the number */
    MR_TYPE_LIST,   /* texts; "a,b" or a YAML sequence */
    MR_TYPE_MAP,    /* names to names; "a=b,c=d" or a YAML mapping */
} mr_type;

/* X(symbol, section, name, type, default, reference default or "", choices/alias or "", lowest,
 * highest, meaning). For INT, DURATION and SIZE `choices` may name one word that stands for -1. */
#define MR_OPTIONS(X)                                                                              \
    X(DATABASE, "", "database", TEXT, "", "", "", 0, 0,                                            \
      "connection URI or keyword string; several hosts and every libpq setting work")              \
    X(SCHEMA, "", "schema", NAME, "millrace", "", "", 0, 0,                                        \
      "schema of the control plane's tables and functions")                                        \
    X(NO_LOG, "", "no_log", BOOL, "false", "", "", 0, 0,                                           \
      "leave the log's tables out of the schema")                                                  \
    X(BATCH_SIZE, "worker", "batch_size", INT, "100", "", "", 1, 100000,                           \
      "most events a batch hands to a handler; one batch is one transaction")                      \
    X(BATCH_PAUSE, "worker", "batch_pause", DURATION, "0", "200ms", "", 0, 0,                      \
      "wait between two batches of a consumer; 0 because a pause only caps the rate")              \
    X(BATCH_TIMEOUT, "worker", "batch_timeout", DURATION, "30s", "", "", 1, 0,                     \
      "longest a batch may run; then its statement is cancelled and the batch rolled back")        \
    X(MAX_FAILURES, "worker", "max_consecutive_failures", INT, "5", "", "", 0, 1000000,            \
      "failures in a row before on_failure applies; 0 = never, keep retrying")                     \
    X(ON_FAILURE, "worker", "on_failure", CHOICE, "pause", "fatal", "pause,fatal", 0, 0,           \
      "what a consumer that keeps failing does: pause = it alone stops until a restart; fatal = "  \
      "the process exits")                                                                         \
    X(POLL_INTERVAL, "worker", "poll_interval", DURATION, "1s", "", "", 1000, 0,                   \
      "first wait of a consumer after a failed batch; doubles, with jitter")                       \
    X(MAX_POLL_INTERVAL, "worker", "max_poll_interval", DURATION, "30s", "", "", 1000, 0,          \
      "longest such wait")                                                                         \
    X(DISPATCHER_INTERVAL, "worker", "dispatcher_interval", DURATION, "adaptive", "200ms",         \
      "adaptive", 1000, 0,                                                                         \
      "how often the process looks at the head of the log; adaptive = 5ms while events arrive, "   \
      "growing to 500ms when idle: quicker when it matters, fewer queries when not")               \
    X(HEARTBEAT_INTERVAL, "worker", "heartbeat_interval", DURATION, "5s", "", "", 10000, 0,        \
      "how often the worker stamps its row in worker_nodes")                                       \
    X(HEARTBEAT_TIMEOUT, "worker", "heartbeat_timeout", DURATION, "30s", "", "", 100000, 0,        \
      "a worker silent for this long is dead; also the length of a leader's lease")                \
    X(REBALANCE_INTERVAL, "worker", "rebalance_interval", DURATION, "500ms", "5s", "", 10000, 0,   \
      "how often the leader looks at the fleet; others look half as often. Shorter because a "     \
      "killed worker is seen at once and a look is one statement")                                 \
    X(LEADER_STRATEGY, "worker", "leader_strategy", CHOICE, "advisory", "", "advisory,lease", 0,   \
      0,                                                                                           \
      "how the leader is chosen: advisory = a session lock; lease = a row, for transaction "       \
      "poolers")                                                                                   \
    X(LEADER_KEY, "worker", "leader_key", INT, "auto", "7237492748123847", "auto", 0, 0,           \
      "key of the leader's advisory lock; auto = derived from the tables' names, so that two "     \
      "fleets in one database do not meet")                                                        \
    X(ASSIGNMENT, "worker", "assignment_strategy", CHOICE, "round_robin", "",                      \
      "round_robin,sticky", 0, 0,                                                                  \
      "how consumers are spread: round_robin = sorted names over sorted workers; sticky = the "    \
      "fewest moves")                                                                              \
    X(DISPATCHER, "worker", "dispatcher_strategy", CHOICE, "poll", "", "poll,notify", 0, 0,        \
      "how new events are noticed: poll = look at the head; notify = LISTEN, and look every "      \
      "second all the same")                                                                       \
    X(NOTIFY_CHANNEL, "worker", "notify_channel", NAME, "worker_events", "", "", 0, 0,             \
      "notify: the channel, case and all; payloads are hints only")                                \
    X(NOTIFY_CONNECTION, "worker", "notify_connection_string", TEXT, "", "", "", 0, 0,             \
      "notify: a connection of its own for LISTEN, past a transaction pooler")                     \
    X(GAP_STRATEGY, "worker", "gap_strategy", CHOICE, "settled", "harbor",                         \
      "settled,harbor,timeout,snapshot,published,single_writer", 0, 0,                             \
      "how a missing position is decided (docs/gaps.md); settled proves it and loses nothing")     \
    X(STALE_GAP_THRESHOLD, "worker", "stale_gap_threshold", DURATION, "30s", "", "", 0, 0,         \
      "harbor: age at which a hole is passed over")                                                \
    X(STALE_GAP_LAG, "worker", "stale_gap_harbor_lag", INT, "8", "", "", 0, 100000,                \
      "harbor: how many rows behind the visible head to stop")                                     \
    X(GAP_TIMEOUT, "worker", "gap_timeout", DURATION, "5s", "", "", 0, 0,                          \
      "timeout: how long to wait for a missing position")                                          \
    X(GAP_ACTION, "worker", "gap_action", CHOICE, "error", "", "error,skip", 0, 0,                 \
      "timeout: then report and stay (error), or look once more and pass over it (skip)")          \
    X(MAX_GAP_WAIT, "worker", "max_gap_wait", DURATION, "1m", "", "", 0, 0,                        \
      "timeout: longest a hole may hold readers at all; with error, readers give up then")         \
    X(EXECUTORS, "worker", "executors", INT, "auto", "", "auto", 1, 256,                           \
      "threads that run handlers, each with one connection; auto = the number of consumers, at "   \
      "most 8. Connections of the process: 2 + executors")                                         \
    X(EXECUTOR_IDLE, "worker", "executor_idle_timeout", DURATION, "1m", "", "", 1000, 0,           \
      "an executor's connection is closed after being unused this long")                           \
    X(READ_SIZE, "worker", "read_size", INT, "1000", "", "", 1, 100000,                            \
      "most rows one read of the log fetches")                                                     \
    X(CACHE_SIZE, "worker", "cache_size", SIZE, "64MiB", "", "", 1048576, 0,                       \
      "memory for events read and shared by the consumers")                                        \
    X(INLINE_PAYLOAD, "worker", "inline_payload_max", SIZE, "64KiB", "", "", 0, 0,                 \
      "larger payloads stay on the server until their handler runs")                               \
    X(PREPARED, "worker", "prepared_statements", BOOL, "true", "", "", 0, 0,                       \
      "prepare handlers' statements; false for a transaction pooler that cannot")                  \
    X(SHUTDOWN_TIMEOUT, "worker", "shutdown_timeout", DURATION, "30s", "5s", "", 0, 0,             \
      "how long running batches may finish after a stop; then they are cancelled")                 \
    X(LOG_LEVEL, "worker", "log_level", CHOICE, "info", "", "debug,info,warn,error", 0, 0,         \
      "lowest level that is logged")                                                               \
    X(LOG_FORMAT, "worker", "log_format", CHOICE, "logfmt", "", "logfmt,json", 0, 0,               \
      "form of a log line")                                                                        \
    X(ONCE, "worker", "once", BOOL, "false", "", "", 0, 0,                                         \
      "handle everything that is in the log now, then stop")                                       \
    X(T_WORKER_NODES, "worker", "worker_nodes_table", NAME, "worker_nodes", "", "", 0, 0,          \
      "name of that table, with an optional schema of its own")                                    \
    X(T_ASSIGNMENTS, "worker", "consumer_assignments_table", NAME, "consumer_assignments", "", "", \
      0, 0, "name of that table")                                                                  \
    X(T_CHECKPOINTS, "worker", "consumer_checkpoints_table", NAME, "consumer_checkpoints", "", "", \
      0, 0, "name of that table")                                                                  \
    X(T_GAP_SKIPS, "worker", "consumer_gap_skips_table", NAME, "consumer_gap_skips", "", "", 0, 0, \
      "name of that table")                                                                        \
    X(T_DEAD_LETTERS, "worker", "consumer_dead_letters_table", NAME, "consumer_dead_letters", "",  \
      "", 0, 0, "name of that table")                                                              \
    X(T_CONTROLS, "worker", "consumer_controls_table", NAME, "consumer_controls", "", "", 0, 0,    \
      "name of that table")                                                                        \
    X(T_LEADER, "worker", "worker_leader_election_table", NAME, "worker_leader_election", "", "",  \
      0, 0, "name of that table")                                                                  \
    X(T_PUBLISHED, "worker", "log_published_table", NAME, "log_published", "", "", 0, 0,           \
      "name of that table")                                                                        \
    X(T_MIGRATIONS, "worker", "schema_migrations_table", NAME, "schema_migrations", "", "", 0, 0,  \
      "name of that table")                                                                        \
    X(LOG_TABLE, "log", "table", NAME, "events", "", "", 0, 0,                                     \
      "the log's table, with an optional schema")                                                  \
    X(LOG_HEADS, "log", "heads_table", TEXT, "", "", "", 0, 0,                                     \
      "table of stream versions; found by itself when it is aggregate_heads or stream_heads")      \
    X(LOG_NAMING, "log", "naming", CHOICE, "detect", "", "detect,aggregate,stream", 0, 0,          \
      "whether columns are called aggregate_… or stream_…")                                        \
    X(LOG_COLUMNS, "log", "columns", MAP, "", "", "", 0, 0,                                        \
      "columns with other names, Millrace's name to the table's: {global_position: id}")           \
    X(C_NAME, "consumer", "name", NAME, "", "", "", 0, 0,                                          \
      "unique name; the checkpoint is kept under it")                                              \
    X(C_AGGREGATE_TYPES, "consumer", "aggregate_types", LIST, "", "", "", 0, 0,                    \
      "only events of these aggregate (stream) types; none = all")                                 \
    X(C_EVENT_TYPES, "consumer", "event_types", LIST, "", "", "", 0, 0,                            \
      "only events of these types; none = all")                                                    \
    X(C_START_FROM, "consumer", "start_from", TEXT, "beginning", "", "", 0, 0,                     \
      "where a consumer without a checkpoint starts: beginning, now, a position, or a time such "  \
      "as 2026-01-31T12:00:00Z")                                                                   \
    X(C_SQL, "consumer", "sql", TEXT, "", "", "", 0, 0,                                            \
      "handler: a statement for each event, with :data, :aggregate_id, :global_position …")        \
    X(C_SQL_BATCH, "consumer", "sql_batch", TEXT, "", "", "", 0, 0,                                \
      "handler: one statement for each batch, over the relation batch")                            \
    X(C_BATCH_SIZE, "consumer", "batch_size", INT, "worker's", "", "worker's", 1, 100000,          \
      "this consumer's own batch_size")                                                            \
    X(C_BATCH_PAUSE, "consumer", "batch_pause", DURATION, "worker's", "", "worker's", 0, 0,        \
      "this consumer's own batch_pause")                                                           \
    X(C_BATCH_TIMEOUT, "consumer", "batch_timeout", DURATION, "worker's", "", "worker's", 1, 0,    \
      "this consumer's own batch_timeout")                                                         \
    X(C_MAX_FAILURES, "consumer", "max_consecutive_failures", INT, "worker's", "", "worker's", 0,  \
      1000000, "this consumer's own max_consecutive_failures")                                     \
    X(C_ON_FAILURE, "consumer", "on_failure", CHOICE, "worker's", "", "pause,fatal,worker's", 0,   \
      0, "this consumer's own on_failure")

typedef enum mr_opt {
#define MR_OPT_ENUM(symbol, ...) MR_OPT_##symbol,
    MR_OPTIONS(MR_OPT_ENUM)
#undef MR_OPT_ENUM
        MR_OPT_COUNT
} mr_opt;

struct mr_option {
    const char *section, *name;
    mr_type type;
    const char *standard, *reference, *choices;
    int64_t lowest, highest; /* 0 = no bound */
    const char *meaning;
};

/* Values by option; unset ones read as the default. Zero-initialise, then mr__bag_init. */
typedef struct mr_bag {
    char *text[MR_OPT_COUNT];
    int64_t number[MR_OPT_COUNT];
} mr_bag;

mr_error *mr__bag_init(mr_bag *bag) MR_MUST_CHECK;
void mr__bag_free(mr_bag *bag);
mr_error *mr__bag_set(mr_bag *bag, mr_opt option, const char *value) MR_MUST_CHECK;
static inline const char *mr__bag_text(const mr_bag *bag, mr_opt option)
{
    return bag->text[option];
}
static inline int64_t mr__bag_number(const mr_bag *bag, mr_opt option)
{
    return bag->number[option];
}

/* Finds an option by section and name; -1 when there is none. */
int mr__option_find(const char *section, const char *name);
/* MR_E_CONFIG for an unknown name, with the nearest one of the section. */
mr_error *mr__option_unknown(const char *section, const char *name) MR_MUST_CHECK;
const char *mr__option_type_name(mr_type type);

#endif
