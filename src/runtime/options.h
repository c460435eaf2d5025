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

/* The default of a consumer's option that is the worker's unless it is given. Nobody writes it. */
#define MR_INHERITED "worker's"

/* X(symbol, section, name, type, default, reference default or "", choices/alias or "", lowest,
 * highest, meaning). For INT, DURATION and SIZE `choices` may name words that stand for -1, -2 … */
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
    X(MAX_RETRIES, "worker", "max_retries", INT, "5", "", "unlimited", 0, 1000000,                 \
      "how often an event whose handler failed is tried again before on_failure applies")          \
    X(RETRY_BASE, "worker", "retry_base_delay", DURATION, "100ms", "", "", 1000, 0,                \
      "wait before the first retry; doubles with each, with jitter")                               \
    X(RETRY_MOST, "worker", "retry_max_delay", DURATION, "10s", "", "", 1000, 0,                   \
      "longest such wait")                                                                         \
    X(ON_FAILURE, "worker", "on_failure", CHOICE, "pause", "fatal", "pause,fatal,dead_letter", 0,  \
      0,                                                                                           \
      "what becomes of an event that keeps failing: pause = its consumer alone stops until it is " \
      "resumed; dead_letter = the event goes to consumer_dead_letters and the rest goes on; "      \
      "fatal = the process exits")                                                                 \
    X(LETTER_ORDER, "worker", "dead_letter_order", CHOICE, "none", "", "none,key", 0, 0,           \
      "dead_letter: key = later events of the same stream wait behind it and are replayed in "     \
      "order; none = they go on")                                                                  \
    X(MAX_FAILURES, "worker", "max_consecutive_failures", INT, "5", "", "", 0, 1000000,            \
      "on_failure: fatal: failures in a row before the process exits; 0 = never, keep retrying")   \
    X(POLL_INTERVAL, "worker", "poll_interval", DURATION, "1s", "", "", 1000, 0,                   \
      "on_failure: fatal: first wait after a failed batch; doubles, with jitter")                  \
    X(MAX_POLL_INTERVAL, "worker", "max_poll_interval", DURATION, "30s", "", "", 1000, 0,          \
      "on_failure: fatal: longest such wait")                                                      \
    X(LAG_INTERVAL, "worker", "lag_check_interval", DURATION, "10s", "", "", 100000, 0,            \
      "how often the lag of each consumer that runs here is looked at and told to the program's "  \
      "callback")                                                                                  \
    X(LAG_THRESHOLD, "worker", "lag_threshold", INT, "off", "", "off", 0, 0,                       \
      "lag, in positions, above which a consumer counts as degraded and a warning is logged")      \
    X(DISPATCHER_INTERVAL, "worker", "dispatcher_interval", DURATION, "adaptive", "200ms",         \
      "adaptive", 1000, 0,                                                                         \
      "how often the process looks at the head of the log; adaptive = 5ms while events arrive, "   \
      "growing to 500ms when idle: quicker when it matters, fewer queries when not")               \
    X(HEARTBEAT_INTERVAL, "worker", "heartbeat_interval", DURATION, "5s", "", "", 10000, 0,        \
      "how often the worker stamps its row in worker_nodes")                                       \
    X(HEARTBEAT_TIMEOUT, "worker", "heartbeat_timeout", DURATION, "30s", "", "", 100000, 0,        \
      "a worker silent for this long is dead; also the length of a leader's lease")                \
    X(REBALANCE_INTERVAL, "worker", "rebalance_interval", DURATION, "500ms", "5s", "", 10000, 0,   \
      "how often the leader looks at the fleet; others look half as often, with a lease as "       \
      "often. Shorter because a killed worker is seen at once and a look is one statement")        \
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
    X(HOUSE_INTERVAL, "worker", "housekeeping_interval", DURATION, "30s", "", "", 100000, 0,       \
      "how often the built-in table of jobs is tidied, by whichever worker gets the lock")         \
    X(RETENTION, "worker", "archive_retention", DURATION, "720h", "", "", 3600000000, 0,           \
      "how long finished jobs stay in jobs_archive; whole days are dropped")                       \
    X(IDEMPOTENCY, "worker", "idempotency_window", DURATION, "168h", "", "", 1000000, 0,           \
      "how long an idempotency key is remembered, at least; while its job is open in any case")    \
    X(EXECUTORS, "worker", "executors", INT, "auto", "", "auto", 1, 256,                           \
      "threads that run handlers, each with one connection; auto = the number of consumers, at "   \
      "most 8, plus num_handlers of each queue, and one. Connections of the process: 2 + "         \
      "executors")                                                                                 \
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
      "handle everything that is in the log now and all jobs that are due, then stop")             \
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
    X(T_AUDIT, "worker", "consumer_audit_table", NAME, "consumer_audit", "", "", 0, 0,             \
      "name of that table")                                                                        \
    X(T_LEADER, "worker", "worker_leader_election_table", NAME, "worker_leader_election", "", "",  \
      0, 0, "name of that table")                                                                  \
    X(T_PUBLISHED, "worker", "log_published_table", NAME, "log_published", "", "", 0, 0,           \
      "name of that table")                                                                        \
    X(T_JOBS, "worker", "jobs_table", NAME, "jobs", "", "", 0, 0, "name of that table")            \
    X(T_JOB_CLAIMS, "worker", "job_claims_table", NAME, "job_claims", "", "", 0, 0,                \
      "name of that table")                                                                        \
    X(T_JOBS_ARCHIVE, "worker", "jobs_archive_table", NAME, "jobs_archive", "", "", 0, 0,          \
      "name of that table")                                                                        \
    X(T_JOB_IDEMPOTENCY, "worker", "job_idempotency_table", NAME, "job_idempotency", "", "", 0, 0, \
      "name of that table")                                                                        \
    X(T_JOB_SETTINGS, "worker", "job_settings_table", NAME, "job_settings", "", "", 0, 0,          \
      "name of that table")                                                                        \
    X(T_QUEUE_CONTROLS, "worker", "queue_controls_table", NAME, "queue_controls", "", "", 0, 0,    \
      "name of that table")                                                                        \
    X(T_QUEUE_AUDIT, "worker", "queue_audit_table", NAME, "queue_audit", "", "", 0, 0,             \
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
    X(C_EXEC, "consumer", "exec", LIST, "", "", "", 0, 0,                                          \
      "handler: a program and its arguments, which reads a JSON line an event and answers with "   \
      "one (docs/handlers.md)")                                                                    \
    X(C_PLUGIN, "consumer", "plugin", TEXT, "", "", "", 0, 0,                                      \
      "handler: a shared object with the entry mr_plugin_v1 (docs/handlers.md)")                   \
    X(C_PLUGIN_CONFIG, "consumer", "plugin_config", TEXT, "", "", "", 0, 0,                        \
      "plugin: a text for the plugin")                                                             \
    X(C_SETUP, "consumer", "setup", TEXT, "", "", "", 0, 0,                                        \
      "statements that are run once before the consumer's first event, under a lock: its tables")  \
    X(C_PARTITIONS, "consumer", "partitions", INT, "1", "", "", 1, 1024,                           \
      "streams are hashed to so many slots, each with a checkpoint and an owner of its own; "      \
      "order is kept within a stream")                                                             \
    X(C_OWNERSHIP, "consumer", "ownership", CHOICE, "assignment", "", "assignment,lock", 0, 0,     \
      "who may run it: assignment = the leader spreads consumers over the fleet; lock = whoever "  \
      "holds the consumer's own session lock, the others wait")                                    \
    X(C_DETACHED, "consumer", "detached", BOOL, "false", "", "", 0, 0,                             \
      "its effects are outside the database: no transaction is held while the handler runs; at "   \
      "least once (exec, plugin, C)")                                                              \
    X(C_CHECKPOINT_EVERY, "consumer", "checkpoint_every", INT, "100", "", "", 1, 1000000,          \
      "detached: the checkpoint is saved after so many events")                                    \
    X(C_CHECKPOINT_AGE, "consumer", "checkpoint_max_age", DURATION, "1s", "", "", 1000, 0,         \
      "detached: and at the latest this long after an event was handled")                          \
    X(C_BATCH_SIZE, "consumer", "batch_size", INT, "worker's", "", "", 1, 100000,                  \
      "this consumer's own batch_size")                                                            \
    X(C_BATCH_PAUSE, "consumer", "batch_pause", DURATION, "worker's", "", "", 0, 0,                \
      "this consumer's own batch_pause")                                                           \
    X(C_BATCH_TIMEOUT, "consumer", "batch_timeout", DURATION, "worker's", "", "", 1, 0,            \
      "this consumer's own batch_timeout")                                                         \
    X(C_MAX_RETRIES, "consumer", "max_retries", INT, "worker's", "", "unlimited", 0, 1000000,      \
      "this consumer's own max_retries")                                                           \
    X(C_RETRY_BASE, "consumer", "retry_base_delay", DURATION, "worker's", "", "", 1000, 0,         \
      "this consumer's own retry_base_delay")                                                      \
    X(C_RETRY_MOST, "consumer", "retry_max_delay", DURATION, "worker's", "", "", 1000, 0,          \
      "this consumer's own retry_max_delay")                                                       \
    X(C_MAX_FAILURES, "consumer", "max_consecutive_failures", INT, "worker's", "", "", 0, 1000000, \
      "this consumer's own max_consecutive_failures")                                              \
    X(C_ON_FAILURE, "consumer", "on_failure", CHOICE, "worker's", "", "pause,fatal,dead_letter",   \
      0, 0, "this consumer's own on_failure")                                                      \
    X(C_LETTER_ORDER, "consumer", "dead_letter_order", CHOICE, "worker's", "", "none,key", 0, 0,   \
      "this consumer's own dead_letter_order")                                                     \
    X(Q_NAME, "queue", "name", NAME, "", "", "", 0, 0, "unique name of the queue")                 \
    X(Q_TABLE, "queue", "table", TEXT, "", "", "", 0, 0,                                           \
      "the table that is locked and updated, with an optional schema and alias; none = the "       \
      "built-in "                                                                                  \
      "table of jobs")                                                                             \
    X(Q_VIEW, "queue", "view", TEXT, "", "", "", 0, 0,                                             \
      "where candidates, counts and values are read, when it is not the table")                    \
    X(Q_COLUMNS, "queue", "columns", MAP, "", "", "", 0, 0,                                        \
      "columns with other names, Millrace's name to the table's: {queued_at: created_at}")         \
    X(Q_VALUES, "queue", "values", MAP, "", "", "", 0, 0,                                          \
      "what the handler gets, name to SQL expression; none = every column of the view")            \
    X(Q_ORDER, "queue", "order", TEXT, "", "", "", 0, 0,                                           \
      "SQL order of the jobs; none = by id. Built-in table: key = jobs of one key run one after "  \
      "the "                                                                                       \
      "other (the default), none = keys mean no order")                                            \
    X(Q_CONDITION, "queue", "condition", TEXT, "", "", "", 0, 0,                                   \
      "SQL condition that makes a row this queue's")                                               \
    X(Q_SQL, "queue", "sql", TEXT, "", "", "", 0, 0,                                               \
      "handler: a statement for each job, with its values as :name; its effects commit with the "  \
      "outcome")                                                                                   \
    X(Q_EXEC, "queue", "exec", LIST, "", "", "", 0, 0,                                             \
      "handler: a program and its arguments, which reads a JSON line a job and answers with one "  \
      "(docs/handlers.md)")                                                                        \
    X(Q_PLUGIN, "queue", "plugin", TEXT, "", "", "", 0, 0,                                         \
      "handler: a shared object with the entry mr_plugin_v1")                                      \
    X(Q_PLUGIN_CONFIG, "queue", "plugin_config", TEXT, "", "", "", 0, 0,                           \
      "plugin: a text for the plugin")                                                             \
    X(Q_NUM_HANDLERS, "queue", "num_handlers", INT, "1", "", "", 1, 256,                           \
      "jobs that run at once in this process")                                                     \
    X(Q_LOOK_AHEAD, "queue", "look_ahead", INT, "auto", "", "auto", 0, 10000,                      \
      "jobs claimed beyond those that run, to be begun without a round trip; given back at a "     \
      "stop. "                                                                                     \
      "auto = with the built-in table as many as take 50ms, by how long they took so far; else "   \
      "none")                                                                                      \
    X(Q_INTERVAL, "queue", "interval", DURATION, "1s", "", "", 1000, 0,                            \
      "wait before the next look when there was nothing to claim")                                 \
    X(Q_HEARTBEAT, "queue", "heartbeat_interval", DURATION, "5s", "", "", 10000, 0,                \
      "how often running jobs are stamped, all in one statement")                                  \
    X(Q_MAX_RUNTIME, "queue", "max_runtime", DURATION, "unlimited", "", "unlimited", 1000, 0,      \
      "longest a job may run; then its handler is told to give up and the job is errored")         \
    X(Q_MAX_TOTAL, "queue", "max_total_jobs", INT, "unlimited", "", "unlimited", 1, 0,             \
      "stop after so many jobs")                                                                   \
    X(Q_MAX_ACTIVE, "queue", "max_active_time", DURATION, "unlimited", "", "unlimited", 1000, 0,   \
      "stop claiming after so long")                                                               \
    X(Q_RETRY_AFTER, "queue", "retry_after", DURATION, "10s", "0", "", 0, 0,                       \
      "an errored job is tried again so long after it ended; 0 = never")                           \
    X(Q_MAX_RETRIES, "queue", "max_retries", INT, "5", "0", "", 0, 1000000,                        \
      "a job fails for good at its so many-th error; 0 = at the first")                            \
    X(Q_STALLED, "queue", "stalled_max_age", DURATION, "30s", "", "", 100000, 0,                   \
      "a running job without a heartbeat for so long is queued again")                             \
    X(Q_MAX_RESETS, "queue", "max_resets", INT, "3", "", "", 0, 1000000,                           \
      "a job that was reset so often fails instead")                                               \
    X(Q_RESET_INTERVAL, "queue", "reset_interval", DURATION, "5s", "", "", 10000, 0,               \
      "how often stalled jobs are looked for, by whichever worker gets the lock")                  \
    X(Q_MODE, "queue", "mode", CHOICE, "lease", "", "lease,transaction", 0, 0,                     \
      "built-in table: lease = a job is claimed, run and finished, each by itself; transaction = " \
      "a "                                                                                         \
      "batch of short jobs is taken, run and finished in one transaction: fastest, and a crash "   \
      "undoes it")                                                                                 \
    X(Q_BATCH_SIZE, "queue", "batch_size", INT, "100", "", "", 1, 10000,                           \
      "mode: transaction: jobs of one transaction")                                                \
    X(Q_LEASE, "queue", "claim_lease", DURATION, "90s", "", "", 100000, 0,                         \
      "built-in table: a claim that is not renewed for so long is over; renewed after a third. A " \
      "worker "                                                                                    \
      "whose session is gone loses its claims at once")                                            \
    X(Q_RETRY_BASE, "queue", "retry_base_delay", DURATION, "1s", "", "", 1000, 0,                  \
      "built-in table: wait before the first retry; doubles with each, with jitter")               \
    X(Q_RETRY_MOST, "queue", "retry_max_delay", DURATION, "1h", "", "", 1000, 0,                   \
      "built-in table: longest such wait")                                                         \
    X(Q_MAX_RUNNING, "queue", "max_running", INT, "unlimited", "", "unlimited", 1, 1000000,        \
      "built-in table: jobs of the queue that run at once over the whole fleet, exactly")          \
    X(Q_LETTER_ORDER, "queue", "dead_letter_order", CHOICE, "none", "", "none,key", 0, 0,          \
      "built-in table: key = later jobs of a dead letter's key wait until it is replayed or "      \
      "dropped; "                                                                                  \
      "none = they go on")                                                                         \
    X(Q_ARCHIVE, "queue", "archive", BOOL, "true", "", "", 0, 0,                                   \
      "built-in table: finished jobs go to jobs_archive; false = they are deleted")                \
    X(Q_AFFINITY, "queue", "affinity", CHOICE, "ring", "", "ring,none", 0, 0,                      \
      "built-in table: ring = jobs with a key go to the worker that owns its bucket, if it comes " \
      "for "                                                                                       \
      "them; none = to anybody")                                                                   \
    X(Q_RESET_MESSAGE, "queue", "reset_failure_message", TEXT, "", "", "", 0, 0,                   \
      "what is stored then; none = a text that says why")

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
    bool given[MR_OPT_COUNT]; /* somebody set it, perhaps to the default */
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
static inline bool mr__bag_given(const mr_bag *bag, mr_opt option)
{
    return bag->given[option];
}

/* Finds an option by section and name; -1 when there is none. */
int mr__option_find(const char *section, const char *name);
/* MR_E_CONFIG for an unknown name, with the nearest one of the section. */
mr_error *mr__option_unknown(const char *section, const char *name) MR_MUST_CHECK;
const char *mr__option_type_name(mr_type type);

#endif
