/* The public API of Millrace: durable work on PostgreSQL.
 *
 * Rules that hold for every call here:
 *  1. Handles are opaque. What `_new` or an out-parameter gives you, the matching `_free` takes
 * back; every `_free` accepts NULL.
 *  2. A call that can fail returns `mr_error *`: NULL is success, anything else is yours to free
 * with mr_error_free(). Out-parameters are untouched on failure unless the call says otherwise.
 *  3. Strings passed in are copied. Strings returned as `const char *` belong to the handle they
 * came from and live as long as it does; arguments of a callback live until that callback returns.
 *  4. A handle is used by one thread at a time, except where a call says it may come from any
 * thread.
 *  5. The library never exits, never prints and installs no signal handler.
 *  6. A PGconn you pass in stays yours. The library sends nothing on it except what the call
 * promises and never closes it.
 */
#ifndef MILLRACE_MILLRACE_H
#define MILLRACE_MILLRACE_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MR_API __attribute__((visibility("default")))
#define MR_MUST_CHECK __attribute__((warn_unused_result))
#define MR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define MR_API
#define MR_MUST_CHECK
#define MR_PRINTF(fmt, args)
#endif

#define MR_VERSION_MAJOR 0
#define MR_VERSION_MINOR 1
#define MR_VERSION_PATCH 0
#define MR_VERSION "0.1.0"

/* Version of the library that is loaded, which may be newer than MR_VERSION. Any thread. */
MR_API const char *mr_version(void);

/* ---- Errors ------------------------------------------------------------------------------- */

/* One list gives the enum, the names and docs/errors.md: X(symbol, name, meaning). */
#define MR_CODES(X)                                                                                \
    X(MR_E_NOMEM, "no_memory", "memory could not be allocated")                                    \
    X(MR_E_USAGE, "usage", "a call or a command was used in a way it does not allow")              \
    X(MR_E_CONFIG, "config", "the configuration is not valid")                                     \
    X(MR_E_IO, "io", "a file or a process could not be read, written or started")                  \
    X(MR_E_PARSE, "parse", "input could not be parsed")                                            \
    X(MR_E_CONNECT, "connect", "the database could not be reached, or the connection was lost")    \
    X(MR_E_DB, "db", "the database refused a statement; the SQLSTATE says why")                    \
    X(MR_E_SCHEMA, "schema", "Millrace's tables are missing, or older or newer than this program") \
    X(MR_E_LOG, "log", "the event log cannot be read safely as it is")                             \
    X(MR_E_CONFLICT, "conflict", "a stream was not at the expected version")                       \
    X(MR_E_FENCED, "fenced", "the work belongs to another worker now, or moved on meanwhile")      \
    X(MR_E_TIMEOUT, "timeout", "a deadline passed")                                                \
    X(MR_E_CANCELLED, "cancelled", "the work was told to stop")                                    \
    X(MR_E_HANDLER, "handler", "a handler failed")                                                 \
    X(MR_E_STATE, "state", "the object is not in a state that allows this")                        \
    X(MR_E_CHECK, "check", "a check failed: work was lost, doubled or is unhealthy")               \
    X(MR_E_INTERNAL, "internal", "a bug in Millrace; please report it")

typedef enum mr_code {
    MR_OK = 0,
#define MR_CODE_ENUM(symbol, name, meaning) symbol,
    MR_CODES(MR_CODE_ENUM)
#undef MR_CODE_ENUM
} mr_code;

typedef struct mr_error mr_error;

/* A new error for a handler to return. `retryable` says whether trying again can help.
 * Never returns NULL: when memory is short it returns a static error. Any thread. */
MR_API mr_error *mr_error_new(mr_code code, bool retryable, const char *format, ...)
    MR_PRINTF(3, 4) MR_MUST_CHECK;
/* Accessors accept NULL (success): code MR_OK, empty strings, false. Any thread. */
MR_API mr_code mr_error_code(const mr_error *error);
MR_API const char *mr_error_message(const mr_error *error);
MR_API const char *mr_error_sqlstate(const mr_error *error); /* "" when the server gave none */
MR_API bool mr_error_retryable(const mr_error *error);
MR_API void mr_error_free(mr_error *error);
/* Short name of a code, as logged: "conflict". Any thread. */
MR_API const char *mr_code_name(mr_code code);
MR_API const char *mr_code_meaning(mr_code code);

/* ---- Options ------------------------------------------------------------------------------ */

/* The one table of options; `millrace options`, docs/options.md and validation come from it. */
typedef struct mr_option mr_option;
MR_API size_t mr_option_count(void);
MR_API const mr_option *mr_option_at(size_t index);
MR_API const char *mr_option_name(const mr_option *option);
MR_API const char *mr_option_section(const mr_option *option); /* "worker", "log", "consumer" … */
MR_API const char *mr_option_type(const mr_option *option);    /* "duration", "integer", … */
MR_API const char *mr_option_default(const mr_option *option);
MR_API const char *
mr_option_reference(const mr_option *option); /* its default, "" if none or equal */
MR_API const char *mr_option_meaning(const mr_option *option);

/* ---- Configuration ------------------------------------------------------------------------ */

/* What a worker is made from: options, the log's description and the consumers. */
typedef struct mr_conf mr_conf;
typedef struct mr_consumer mr_consumer;

MR_API mr_conf *mr_conf_new(void); /* NULL only when memory is short */
MR_API void mr_conf_free(mr_conf *conf);
/* Sets one option by its name in the table, e.g. ("batch_size", "500"), ("database",
 * "postgresql:///shop"). Fails with MR_E_CONFIG that names the nearest valid option or the accepted
 * values. */
MR_API mr_error *mr_conf_set(mr_conf *conf, const char *name, const char *value) MR_MUST_CHECK;
/* The value in force, or NULL for an unknown name. Valid until the option is set again. */
MR_API const char *mr_conf_get(const mr_conf *conf, const char *name);
/* Reads a YAML file over what is set so far; errors carry file and line. */
MR_API mr_error *mr_conf_load(mr_conf *conf, const char *path) MR_MUST_CHECK;
/* The same from memory; `origin` is the name that errors show. */
MR_API mr_error *mr_conf_parse(mr_conf *conf, const char *text, size_t length,
                               const char *origin) MR_MUST_CHECK;
/* Adds a consumer; the conf owns it from then on (also when this fails). */
MR_API mr_error *mr_conf_take_consumer(mr_conf *conf, mr_consumer *consumer) MR_MUST_CHECK;
MR_API size_t mr_conf_consumer_count(const mr_conf *conf);
MR_API const char *mr_conf_consumer_name(const mr_conf *conf, size_t index);

/* ---- Log lines ---------------------------------------------------------------------------- */

typedef enum mr_level { MR_DEBUG, MR_INFO, MR_WARN, MR_ERROR } mr_level;

/* `line` is one whole line in the configured format (logfmt or JSON), without the newline.
 * Called from any of the worker's threads, one at a time. */
typedef void (*mr_log_fn)(void *user, mr_level level, const char *line);
/* Where log lines go; without it they are dropped. The conf keeps `user` as it is. */
MR_API void mr_conf_on_log(mr_conf *conf, mr_log_fn sink, void *user);

/* ---- Events ------------------------------------------------------------------------------- */

/* One event of the log, immutable. Strings end in NUL; "" stands for SQL NULL except where a call
 * says NULL. Valid until the handler returns. Any thread. */
typedef struct mr_event mr_event;
MR_API int64_t mr_event_position(const mr_event *event);
MR_API const char *mr_event_aggregate_type(const mr_event *event);
MR_API const char *mr_event_aggregate_id(const mr_event *event);
MR_API int64_t mr_event_aggregate_version(const mr_event *event);
MR_API const char *mr_event_id(const mr_event *event);
MR_API const char *mr_event_type(const mr_event *event);
MR_API int mr_event_version(const mr_event *event);
/* The payload's bytes; `length` may be NULL. A NUL byte follows them that `length` does not count.
 */
MR_API const char *mr_event_payload(const mr_event *event, size_t *length);
MR_API const char *mr_event_trace_id(const mr_event *event);       /* NULL when absent */
MR_API const char *mr_event_correlation_id(const mr_event *event); /* NULL when absent */
MR_API const char *mr_event_causation_id(const mr_event *event);   /* NULL when absent */
MR_API const char *mr_event_metadata(const mr_event *event);       /* JSON text, NULL when absent */
MR_API int64_t mr_event_created_at(const mr_event *event); /* microseconds since 1970, UTC */

/* ---- Transactions in a handler ------------------------------------------------------------ */

/* The batch's transaction: what is written through it commits together with the checkpoint.
 * Belongs to the handler's thread until the handler returns. Do not send BEGIN, COMMIT or ROLLBACK;
 * a handler that ends the transaction fails its batch. */
typedef struct mr_tx mr_tx;

/* Queues a statement; parameters are `count` text values, NULL for SQL NULL. Returns at once: it
 * costs no round trip, and its own failure surfaces when the batch ends, attributed to this event.
 * An error returned here is an earlier statement's, or a lost connection; return it from the
 * handler. */
MR_API mr_error *mr_tx_exec(mr_tx *tx, const char *sql, int count,
                            const char *const *values) MR_MUST_CHECK;
/* As mr_tx_exec with the types, lengths and formats of PQexecParams (each array may be NULL). */
MR_API mr_error *mr_tx_exec_params(mr_tx *tx, const char *sql, int count, const Oid *types,
                                   const char *const *values, const int *lengths,
                                   const int *formats) MR_MUST_CHECK;
/* Flushes what is queued, runs a query and gives its rows (text format): one round trip.
 * `*rows` is yours: PQclear(). */
MR_API mr_error *mr_tx_query(mr_tx *tx, const char *sql, int count, const char *const *values,
                             PGresult **rows) MR_MUST_CHECK;
/* True once the worker wants this batch to end (deadline passed or forced stop): return soon. */
MR_API bool mr_tx_cancelled(const mr_tx *tx);

/* ---- Consumers ---------------------------------------------------------------------------- */

/* One call an event, in position order. Runs on one executor thread at a time for a consumer, but
 * not always on the same one. Return NULL to go on, an error to roll the whole batch back. */
typedef mr_error *(*mr_event_fn)(mr_tx *tx, const mr_event *event, void *user);
/* One call a batch; `events` are `count` matching events in position order, never zero. */
typedef mr_error *(*mr_batch_fn)(mr_tx *tx, const mr_event *const *events, size_t count,
                                 void *user);

MR_API mr_consumer *mr_consumer_new(const char *name); /* NULL only when memory is short */
MR_API void mr_consumer_free(mr_consumer *consumer);   /* only before a conf took it */
/* Options of the table's "consumer" section: ("aggregate_types", "Order,Invoice"), ("sql", "INSERT
 * …"). */
MR_API mr_error *mr_consumer_set(mr_consumer *consumer, const char *name,
                                 const char *value) MR_MUST_CHECK;
/* The handler in C; the last one set counts. `user_free` (may be NULL) runs when the consumer goes.
 */
MR_API void mr_consumer_on_event(mr_consumer *consumer, mr_event_fn handler, void *user,
                                 void (*user_free)(void *));
MR_API void mr_consumer_on_batch(mr_consumer *consumer, mr_batch_fn handler, void *user,
                                 void (*user_free)(void *));

/* ---- Workers ------------------------------------------------------------------------------ */

typedef struct mr_worker mr_worker;

/* Makes a worker; on success it owns `conf`, on failure the conf stays yours. Opens no connection.
 */
MR_API mr_error *mr_worker_new(mr_conf *conf, mr_worker **worker) MR_MUST_CHECK;
/* Checks the database, the schema, the log and every handler without handling anything. */
MR_API mr_error *mr_worker_check(mr_worker *worker) MR_MUST_CHECK;
/* Runs until stopped, or drained when `once` is set. Returns NULL after a clean stop, the fatal
 * error otherwise. Handlers run on other threads; this one runs the loop. */
MR_API mr_error *mr_worker_run(mr_worker *worker) MR_MUST_CHECK;
/* Asks it to stop: running batches finish, up to `shutdown_timeout`. A second call forces: running
 * statements are cancelled. From any thread and from a signal handler. */
MR_API void mr_worker_stop(mr_worker *worker);
/* Looks at the log now instead of at the next poll; for a program that has just appended. Any
 * thread. */
MR_API void mr_worker_wake(mr_worker *worker);
/* UUID of this worker as in worker_nodes. It changes when the fleet declared the worker dead and it
 * had to register anew; read it from the thread that runs the loop. */
MR_API const char *mr_worker_id(const mr_worker *worker);
MR_API void mr_worker_free(mr_worker *worker); /* not while it runs */

/* Adds a consumer while the worker runs: its handler and start are checked on a connection of this
 * call's own, then the fleet hears of it. The worker owns the consumer from then on (also when this
 * fails). Any thread. */
MR_API mr_error *mr_worker_add_consumer(mr_worker *worker, mr_consumer *consumer) MR_MUST_CHECK;
/* Stops running a consumer: its batch finishes, its checkpoint stays, other workers that know it
 * may take it. Any thread. */
MR_API mr_error *mr_worker_remove_consumer(mr_worker *worker, const char *name) MR_MUST_CHECK;
/* How many consumers the worker can run; the first `room` names go to `names`, each yours:
 * mr_free(). Any thread. */
MR_API size_t mr_worker_consumers(mr_worker *worker, char **names, size_t room);

/* To drive a worker from your own main loop instead of mr_worker_run(): start it, then poll the
 * descriptor for reading with the given timeout (milliseconds, -1 = none) and turn it each time
 * either is due. `*running` turns false when it has stopped; the turn that sees that returns the
 * fatal error. */
MR_API mr_error *mr_worker_start(mr_worker *worker) MR_MUST_CHECK;
MR_API int mr_worker_fd(const mr_worker *worker);
MR_API int mr_worker_timeout(const mr_worker *worker);
MR_API mr_error *mr_worker_turn(mr_worker *worker, bool *running) MR_MUST_CHECK;

/* One counter by its name in docs/metrics.md, e.g. "log_rows_read"; -1 for an unknown name. Any
 * thread. */
MR_API int64_t mr_worker_metric(const mr_worker *worker, const char *name);
/* The names of all counters, and what they mean. */
MR_API size_t mr_metric_count(void);
MR_API const char *mr_metric_name(size_t index);
MR_API const char *mr_metric_meaning(size_t index);

/* ---- The log: append and read ------------------------------------------------------------- */

/* The event log as a connection sees it: table, columns, sequence. */
typedef struct mr_log mr_log;

/* Looks the log up by the conf's `log` options (NULL conf: defaults). */
MR_API mr_error *mr_log_open(PGconn *conn, const mr_conf *conf, mr_log **log) MR_MUST_CHECK;
MR_API void mr_log_free(mr_log *log);

/* Expected versions: an exact one is that number, 1 or more. */
enum { MR_EXPECT_ANY = -1, MR_EXPECT_NONE = 0 };

/* Events to append, gathered and then sent in one round trip. */
typedef struct mr_draft mr_draft;
MR_API mr_draft *mr_draft_new(void); /* NULL only when memory is short */
MR_API void mr_draft_free(mr_draft *draft);
MR_API void mr_draft_clear(mr_draft *draft);
MR_API size_t mr_draft_count(const mr_draft *draft);
/* Events added from here on go to this stream. A stream named again continues: its events keep
 * their order and its first expected version counts. */
MR_API mr_error *mr_draft_stream(mr_draft *draft, const char *aggregate_type,
                                 const char *aggregate_id, int64_t expected_version) MR_MUST_CHECK;
/* Adds an event to the current stream; `length` bytes of payload. */
MR_API mr_error *mr_draft_event(mr_draft *draft, const char *event_type, const void *payload,
                                size_t length) MR_MUST_CHECK;
/* Sets a field of the event added last: "event_id" (UUID; a new one otherwise), "event_version",
 * "trace_id", "correlation_id", "causation_id", "metadata" (JSON text). */
MR_API mr_error *mr_draft_field(mr_draft *draft, const char *name, const char *value) MR_MUST_CHECK;

/* Appends the draft on your connection in one round trip: within your transaction when one is open
 * (a conflict leaves it usable, nothing of the draft in it), else in one of its own.
 * Positions are given by mr_draft_position() afterwards. MR_E_CONFLICT when a stream was not at its
 * expected version; no position has been drawn then. */
MR_API mr_error *mr_append(PGconn *conn, const mr_log *log, mr_draft *draft) MR_MUST_CHECK;
MR_API int64_t mr_draft_position(const mr_draft *draft, size_t index); /* 0 before it is appended */
MR_API int64_t mr_draft_version(const mr_draft *draft, size_t index);  /* its aggregate version */

/* Tells listeners on `channel` that the log has grown; the payload is the position. Inside the
 * append's own transaction this serialises commits (see docs/log.md), so call it after commit and
 * seldom. */
MR_API mr_error *mr_log_notify(PGconn *conn, const char *channel, int64_t position) MR_MUST_CHECK;

/* Rows of a read: events owned by it. */
typedef struct mr_events mr_events;
MR_API void mr_events_free(mr_events *events);
MR_API size_t mr_events_count(const mr_events *events);
MR_API const mr_event *mr_events_at(const mr_events *events, size_t index);
/* Up to `limit` events with a position above `after`. What one read shows is no safe checkpoint: a
 * lower position may still become visible. Workers settle that; a plain read does not. */
MR_API mr_error *mr_log_read(PGconn *conn, const mr_log *log, int64_t after, int limit,
                             mr_events **events) MR_MUST_CHECK;
/* Events of one stream with versions from `from` up to and including `to` (0 = no bound). */
MR_API mr_error *mr_log_read_stream(PGconn *conn, const mr_log *log, const char *aggregate_type,
                                    const char *aggregate_id, int64_t from, int64_t to,
                                    mr_events **events) MR_MUST_CHECK;
/* The highest visible position, 0 for an empty log. */
MR_API mr_error *mr_log_latest(PGconn *conn, const mr_log *log, int64_t *position) MR_MUST_CHECK;

/* ---- Schema ------------------------------------------------------------------------------- */

/* Applies the migrations and functions that are missing, under an advisory lock, each in its own
 * transaction. Table names and the log's description come from the conf. `*applied` (may be NULL)
 * is how many migrations were applied. MR_E_SCHEMA when the database is newer than this library. */
MR_API mr_error *mr_schema_apply(PGconn *conn, const mr_conf *conf, int *applied) MR_MUST_CHECK;
/* The whole schema as one SQL script; `*script` is yours: mr_free(). Needs no connection. */
MR_API mr_error *mr_schema_script(const mr_conf *conf, char **script) MR_MUST_CHECK;
/* `*current` is 0 when nothing is installed; `*latest` is what this library brings. */
MR_API mr_error *mr_schema_status(PGconn *conn, const mr_conf *conf, int *current,
                                  int *latest) MR_MUST_CHECK;

/* ---- Operating ---------------------------------------------------------------------------- */

/* Listings for people and scripts; each gives rows whose column names are stable. `*rows` is yours:
 * PQclear(). Cheap: none reads more of the log than its head and some events after checkpoints.
 *   "workers"    one row a worker: worker_id, state (alive, draining, dead = declared so by the
 *                leader, gone = its session lock is missing, silent = no heartbeat for the conf's
 *                heartbeat_timeout), leader, host, pid, version, started_at, heartbeat_age
 *                (seconds), owned (consumers assigned to it), can_run (consumers it knows);
 *                connections and events (handled), both as of its last heartbeat
 *   "consumers"  one row a consumer: consumer, state (running, idle, paused, failing, blocked =
 *                waits before a hole, unassigned, no worker can run it, owner silent, owner gone),
 *                worker_id, host and pid of its owner, checkpoint, head (highest visible
 *                position), lag (positions between them, whatever the state), lag_seconds (age of
 *                the first event after the checkpoint; 0 = caught up, NULL when the log has no
 *                created_at), last_error, updated_at (when the checkpoint moved last). paused,
 *                failing and last_error are as of the owner's last heartbeat
 *   "status"     one row: healthy, workers_alive, workers (count by state, JSON), leader
 *                (worker_id or NULL), consumers (count by state, JSON), head, max_lag,
 *                max_lag_seconds, open_holes (that consumers wait before), dead_letters,
 *                schema_version, problems (JSON list of sentences, empty when healthy). Unhealthy
 *                is: a consumer neither running, idle nor blocked; no leader while workers are
 *                alive; consumers but no worker alive
 *   "gaps.open"  what holds readers back now: consumer, position, and who can still fill it
 *   "gaps.list"  the audit of skipped positions, newest first */
MR_API mr_error *mr_list(PGconn *conn, const mr_conf *conf, const char *what,
                         PGresult **rows) MR_MUST_CHECK;

/* Opens a connection as workers do: application name, keepalives, deadlines. `*conn` is yours. The
 * message of a failure never holds the password. */
MR_API mr_error *mr_connect(const char *conninfo, const char *application,
                            PGconn **conn) MR_MUST_CHECK;
/* An error from a result or a connection, with SQLSTATE and retryable filled in; NULL when it is
 * fine. */
MR_API mr_error *mr_error_from_result(PGconn *conn, const PGresult *result) MR_MUST_CHECK;
/* Frees memory that a call handed over as plain bytes. */
MR_API void mr_free(void *memory);

#ifdef __cplusplus
}
#endif

#endif
