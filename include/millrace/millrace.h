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
    X(MR_E_FATAL, "fatal", "a handler says that the process must stop")                            \
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

/* A new error for a handler to return. `retryable` says whether trying again can help: an error
 * that is not goes to on_failure without further retries. MR_E_FATAL stops the worker whatever
 * on_failure says. A result's own error (mr_error_from_result) may be returned as it is.
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

/* How far one consumer (one slot of a partitioned one) is: `lag` positions between its checkpoint
 * and the head of the log, `over` when that is above lag_threshold. */
typedef void (*mr_lag_fn)(void *user, const char *consumer, int64_t lag, int64_t position,
                          int64_t head, bool over);
/* Called every lag_check_interval for each consumer that runs in the worker, from one of its
 * executor threads. */
MR_API void mr_conf_on_lag(mr_conf *conf, mr_lag_fn callback, void *user);

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

/* One call an event, in position order. Runs on one executor thread at a time for a consumer (for a
 * slot of a partitioned one), but not always on the same one. Return NULL to go on, an error to
 * roll the batch back. `tx` is NULL for a detached consumer. */
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

/* An event was given up and its row in consumer_dead_letters is committed: which, why, after how
 * many attempts. From an executor's thread; not called again when the process dies before it. */
typedef void (*mr_dead_letter_fn)(void *user, const char *consumer, const mr_event *event,
                                  const mr_error *error, int attempts);
MR_API void mr_consumer_on_dead_letter(mr_consumer *consumer, mr_dead_letter_fn callback,
                                       void *user);
/* A set-up step in C, in place of or after the `setup` option's statements: run once before the
 * first event, in a transaction under a lock of the consumer's own. */
typedef mr_error *(*mr_setup_fn)(PGconn *conn, void *user);
MR_API void mr_consumer_on_setup(mr_consumer *consumer, mr_setup_fn callback, void *user);

/* The slot, 0 to `partitions` - 1, that a stream belongs to. The same in every version and on every
 * machine. Any thread. */
MR_API int mr_partition_of(const char *aggregate_type, const char *aggregate_id, int partitions);

/* ---- Plugins ------------------------------------------------------------------------------ */

/* What a plugin's entry is given. The shared object defines
 *     mr_error *mr_plugin_v1(mr_plugin *plugin);
 * which sets one handler and returns NULL, or says why it cannot. */
typedef struct mr_plugin mr_plugin;
#define MR_PLUGIN_ENTRY "mr_plugin_v1"
/* The name of the consumer or queue and its plugin_config ("" when none); they live as long as the
 * plugin. */
MR_API const char *mr_plugin_consumer(const mr_plugin *plugin);
MR_API const char *mr_plugin_config(const mr_plugin *plugin);
/* The handler, as mr_consumer_on_event() and mr_consumer_on_batch() take it. */
MR_API void mr_plugin_on_event(mr_plugin *plugin, mr_event_fn handler, void *user,
                               void (*user_free)(void *));
MR_API void mr_plugin_on_batch(mr_plugin *plugin, mr_batch_fn handler, void *user,
                               void (*user_free)(void *));

/* ---- Queues ------------------------------------------------------------------------------- */

/* A queue: rows of a table that are claimed, handled and finished (docs/queues.md). */
typedef struct mr_queue mr_queue;
/* One claimed row while it is handled. Its strings live until the handler returns. */
typedef struct mr_job mr_job;

MR_API mr_queue *mr_queue_new(const char *name); /* NULL only when memory is short */
MR_API void mr_queue_free(mr_queue *queue);      /* only before a conf took it */
/* Options of the table's "queue" section: ("table", "invoices"), ("num_handlers", "8"). */
MR_API mr_error *mr_queue_set(mr_queue *queue, const char *name, const char *value) MR_MUST_CHECK;
/* Adds a queue; the conf owns it from then on (also when this fails). */
MR_API mr_error *mr_conf_take_queue(mr_conf *conf, mr_queue *queue) MR_MUST_CHECK;
MR_API size_t mr_conf_queue_count(const mr_conf *conf);
MR_API const char *mr_conf_queue_name(const mr_conf *conf, size_t index);
/* Whether its jobs are in the built-in table; false for one on a table of its own. */
MR_API bool mr_conf_queue_builtin(const mr_conf *conf, size_t index);

/* The handler in C: up to num_handlers calls at once, each on an executor's thread. NULL completes
 * the job; a retryable error makes it errored (tried again after retry_after, failed at
 * max_retries), another one failed; MR_E_CANCELLED after mr_job_cancelled() canceled, or given back
 * when the worker stops. It holds no connection unless it asks for a transaction. */
typedef mr_error *(*mr_job_fn)(mr_job *job, void *user);
MR_API void mr_queue_on_job(mr_queue *queue, mr_job_fn handler, void *user,
                            void (*user_free)(void *));
/* Before and after the handler, on its thread, also when it failed. An error of `before` is the
 * job's, and its handler is not called; `after` is called in any case, once the outcome is decided.
 * Either may be NULL. */
typedef void (*mr_job_after_fn)(mr_job *job, const mr_error *error, void *user);
MR_API void mr_queue_on_handle(mr_queue *queue, mr_job_fn before, mr_job_after_fn after,
                               void *user);

/* Asked before each claim, on an executor's thread: may refuse it for now, or add conditions. */
typedef struct mr_dequeue mr_dequeue;
typedef mr_error *(*mr_dequeue_fn)(mr_dequeue *ask, void *user);
MR_API void mr_queue_on_dequeue(mr_queue *queue, mr_dequeue_fn hook, void *user);
MR_API void mr_dequeue_refuse(mr_dequeue *ask);
MR_API int mr_dequeue_count(const mr_dequeue *ask); /* jobs that would be claimed at most */
/* Claims fewer. */
MR_API void mr_dequeue_limit(mr_dequeue *ask, int count);
/* A condition over the view's columns with $1, $2 … for `count` text values: SQL of the program's
 * own, never from data. Refused for queues of the built-in table. */
MR_API mr_error *mr_dequeue_where(mr_dequeue *ask, const char *condition, int count,
                                  const char *const *values) MR_MUST_CHECK;

/* The job's id, the queue's name, and a value by its name: NULL when it is SQL NULL or there is no
 * such value. */
MR_API const char *mr_job_id(const mr_job *job);
MR_API const char *mr_job_queue(const mr_job *job);
MR_API const char *mr_job_value(const mr_job *job, const char *name);
MR_API size_t mr_job_value_count(const mr_job *job);
MR_API const char *mr_job_value_name(const mr_job *job, size_t index);
/* True once the handler should give up: somebody canceled the job, it belongs to another worker,
 * max_runtime has passed, or the worker was told to stop at once. Any thread. Statements of the
 * job's transaction are cancelled by then, too. */
MR_API bool mr_job_cancelled(const mr_job *job);
/* A transaction that commits together with the job's outcome, or not at all: effects written
 * through it are exactly once. Begun at the first call; the same one afterwards. */
MR_API mr_error *mr_job_tx(mr_job *job, mr_tx **tx) MR_MUST_CHECK;
/* Instead of completing when the handler returns NULL: the job is queued again, after `delay_ms`,
 * as a new one (requeue) or as it was, without counting anything (snooze). */
MR_API void mr_job_requeue(mr_job *job, int64_t delay_ms);
MR_API void mr_job_snooze(mr_job *job, int64_t delay_ms);
/* Adds an entry (JSON text) to the job's execution log; `*index` (may be NULL) is its place,
 * from 1. Visible at once, or when the job's transaction has ended if one is open, whatever becomes
 * of that. MR_E_FENCED when the job belongs to another worker now. */
MR_API mr_error *mr_job_log(mr_job *job, const char *entry, int *index) MR_MUST_CHECK;
/* Replaces the entry at `index`. */
MR_API mr_error *mr_job_log_update(mr_job *job, int index, const char *entry) MR_MUST_CHECK;

/* How far the job is, 0 to 100, with a text for people (NULL: as it was). Costs no round trip: the
 * worker writes the last one about once a second, while the job runs, where 'millrace jobs' shows
 * it. Only the built-in table has a place for it, and not in mode: transaction; elsewhere it is
 * forgotten. Any thread. */
MR_API mr_error *mr_job_progress(mr_job *job, int percent, const char *text) MR_MUST_CHECK;
/* Calls back once when the handler should give up (see mr_job_cancelled()), at once when that is so
 * already, at the latest 50 ms after it could be known: to close a socket, say, that the handler
 * waits for. From a thread of its own, which lives until the handler has returned: that waits for a
 * callback that runs. The callback may use mr_job_id(), mr_job_cancelled() and the like, and what
 * is yours; no transaction, no log. Another call replaces it, NULL ends it. From the handler's
 * thread, not from the callback. */
typedef void (*mr_job_cancel_fn)(mr_job *job, void *user);
MR_API mr_error *mr_job_on_cancel(mr_job *job, mr_job_cancel_fn callback, void *user) MR_MUST_CHECK;

/* A plugin for a queue sets this one. */
MR_API void mr_plugin_on_job(mr_plugin *plugin, mr_job_fn handler, void *user,
                             void (*user_free)(void *));

/* ---- Enqueueing --------------------------------------------------------------------------- */

/* Jobs for Millrace's own table (docs/jobs.md), on your connection and in your transaction: they
 * exist exactly if it commits. The conf says where the schema is. The connection must not be in
 * pipeline mode. */

/* One job: `payload` is JSON text (NULL: {}), `fields` names and values in turn, ended by NULL, as
 * mr_job_draft_field() takes them (may be NULL):
 *     const char *fields[] = {"key", "order:9182", "run_at", "tomorrow", NULL};
 * `*id` and `*created` (may be NULL) are the job's id and true, or the id of the job that had the
 * idempotency key first and false. MR_E_PARSE or MR_E_USAGE for a value that cannot be; your
 * transaction stays usable. After MR_E_CONNECT outside of one it is not known whether there is a
 * job: with an idempotency key it is safe to try again. One round trip. */
MR_API mr_error *mr_enqueue(PGconn *conn, const mr_conf *conf, const char *queue,
                            const char *payload, const char *const *fields, int64_t *id,
                            bool *created) MR_MUST_CHECK;

/* Jobs gathered for one call. */
typedef struct mr_job_draft mr_job_draft;
MR_API mr_job_draft *mr_job_draft_new(void); /* NULL only when memory is short */
MR_API void mr_job_draft_free(mr_job_draft *draft);
MR_API void mr_job_draft_clear(mr_job_draft *draft); /* for the next call; keeps its memory */
MR_API size_t mr_job_draft_count(const mr_job_draft *draft);
/* Adds a job: JSON text, NULL for {}. MR_E_PARSE says what is wrong with it, and the draft is as it
 * was. */
MR_API mr_error *mr_job_draft_add(mr_job_draft *draft, const char *payload) MR_MUST_CHECK;
/* Sets a field of the job added last: "key" (jobs of a key run one after the other, in the order of
 * their commits), "priority" (0 first to 9 last, 5 otherwise), "run_at" (a time as PostgreSQL reads
 * it; not before then), "idempotency_key" (unique in the queue), "max_attempts" (instead of the
 * queue's), "timeout" (of one attempt: 500ms, 30s, 5m, 1h or an interval such as 1 day), "metadata"
 * (JSON text). */
MR_API mr_error *mr_job_draft_field(mr_job_draft *draft, const char *name,
                                    const char *value) MR_MUST_CHECK;
/* Enqueues the draft's jobs in their order, any number, all or none: in your transaction when one
 * is open (a failure leaves it usable, nothing of the draft in it), else in one of its own. An
 * error names the job, counted from 1, where the server says which. A draft can be enqueued again.
 */
MR_API mr_error *mr_enqueue_many(PGconn *conn, const mr_conf *conf, const char *queue,
                                 mr_job_draft *draft) MR_MUST_CHECK;
/* Of a job by its place: as `*id` and `*created` above; 0 and false before it is enqueued. */
MR_API int64_t mr_job_draft_id(const mr_job_draft *draft, size_t index);
MR_API bool mr_job_draft_created(const mr_job_draft *draft, size_t index);

/* Workers look at the queue now instead of at their next poll. Enqueueing does not do it by itself:
 * a NOTIFY in a transaction makes commits wait for each other. Call it after the commit; calls for
 * one queue within 2 ms of another from this process send nothing, and workers know that. The
 * connection must be outside of a transaction. */
MR_API mr_error *mr_queue_wake(PGconn *conn, const mr_conf *conf, const char *queue) MR_MUST_CHECK;

/* ---- The ring ----------------------------------------------------------------------------- */

/* Which of some workers is at home with a key: keys fall into buckets, and a consistent-hash ring
 * with a load cap spreads the buckets over the workers (docs/ring.md). The outcome depends on
 * nothing but the options and who the workers are; it needs no database. */
typedef struct mr_ring mr_ring;
MR_API mr_ring *mr_ring_new(void); /* without workers; NULL only when memory is short */
MR_API void mr_ring_free(mr_ring *ring);
/* For the next mr_ring_place(): "buckets" (1024), "vnodes" (points of a worker: 150), "cap" (most
 * buckets a worker has, as a multiple of the mean: 1.05, or none), "hash" (strong, or fnv1a without
 * a finaliser, to compare with). MR_E_USAGE for anything else. */
MR_API mr_error *mr_ring_set(mr_ring *ring, const char *name, const char *value) MR_MUST_CHECK;
/* Takes over the number of buckets that this database's jobs have. `conf` as for mr_list(). */
MR_API mr_error *mr_ring_ask(mr_ring *ring, PGconn *conn, const mr_conf *conf) MR_MUST_CHECK;
/* Spreads the buckets over these workers, in place of those before. Their order and duplicates make
 * no difference; there may be none. A failure leaves the ring as it was. */
MR_API mr_error *mr_ring_place(mr_ring *ring, const char *const *workers,
                               size_t count) MR_MUST_CHECK;
/* As of the last mr_ring_place(): the workers, each once, sorted; NULL past the end. */
MR_API size_t mr_ring_worker_count(const mr_ring *ring);
MR_API const char *mr_ring_worker(const mr_ring *ring, size_t index);
MR_API int mr_ring_bucket_count(const mr_ring *ring);
/* Who has a bucket, or the bucket of a key; NULL when there are no workers or no such bucket. Valid
 * until the next mr_ring_place(). */
MR_API const char *mr_ring_bucket_owner(const mr_ring *ring, int bucket);
MR_API const char *mr_ring_owner(const mr_ring *ring, const char *key);
/* The bucket, 0 to `buckets` - 1, of a key in UTF-8: FNV-1a 32 modulo `buckets`. The same in every
 * version, on every machine and in SQL (key_bucket()). Any thread. */
MR_API int mr_key_bucket(const char *key, int buckets);

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

/* ---- Testing your handlers ----------------------------------------------------------------- */

/* A consumer on a log in memory, without a server: batches are gathered, run and judged by the code
 * of a worker, one at a time, when you say so, on a clock that you move. One thread; handlers run
 * on yours. docs/testing-your-handlers.md has a walk through it. */
typedef struct mr_test mr_test;

/* What a run did. */
typedef enum mr_test_outcome {
    MR_TEST_IDLE,      /* nothing: there is no event after the checkpoint */
    MR_TEST_BLOCKED,   /* nothing: the next event lies behind an undecided hole */
    MR_TEST_WAITING,   /* nothing: the time of the next try has not come, see mr_test_wait() */
    MR_TEST_COMMITTED, /* a batch; the checkpoint moved, over events of others too */
    MR_TEST_FAILED,    /* a batch failed, and the consumer goes on: another try, or a dead letter */
    MR_TEST_PAUSED,    /* it failed and the consumer is paused, or was before: nothing ran then */
    MR_TEST_STOPPED,   /* the same, but a worker would end (on_failure: fatal, MR_E_FATAL) */
} mr_test_outcome;
MR_API const char *mr_test_outcome_name(mr_test_outcome outcome); /* "committed" … */

/* Takes the consumer, also when this fails. Its options count as in a worker with the defaults;
 * start_from and setup do not: the log begins empty, the checkpoint at 0. MR_E_USAGE for sql_batch,
 * which reads a log on a server. */
MR_API mr_error *mr_test_new(mr_consumer *consumer, mr_test **test) MR_MUST_CHECK;
MR_API void mr_test_free(mr_test *test); /* not from its handler */
/* Where log lines go, which here are the handler's: what a child process prints. Before the first
 * run. */
MR_API void mr_test_on_log(mr_test *test, mr_log_fn sink, void *user);

/* Appends an event at `position`, 0 for the one after the highest. Positions left out are holes: as
 * behind an open transaction, events beyond one wait until it is filled (a late commit) or decided.
 * MR_E_USAGE for a position that is taken, MR_E_STATE for one that was decided. `*at` (may be NULL)
 * is the position. The event gets the next version of its stream, an id made from its position, and
 * the time of the test's clock. */
MR_API mr_error *mr_test_append(mr_test *test, int64_t position, const char *aggregate_type,
                                const char *aggregate_id, const char *event_type,
                                const void *payload, size_t length, int64_t *at) MR_MUST_CHECK;
/* Sets a field of the event appended last: those of mr_draft_field(), and "aggregate_version". */
MR_API mr_error *mr_test_field(mr_test *test, const char *name, const char *value) MR_MUST_CHECK;
/* Every hole below the highest position is decided: rolled back, it will never be filled. */
MR_API void mr_test_settle(mr_test *test);

/* Gathers one batch and runs it. Errors are misuse, lack of memory and a database out of reach;
 * what the handler did wrong is the outcome's affair (`outcome` may be NULL). */
MR_API mr_error *mr_test_run(mr_test *test, mr_test_outcome *outcome) MR_MUST_CHECK;
/* Of a partitioned consumer: the slot that runs, and that the calls below are about; 0 at first. */
MR_API mr_error *mr_test_slot(mr_test *test, int slot) MR_MUST_CHECK;
/* Events that the last run handled and committed. With MR_TEST_FAILED, those before the bad one. */
MR_API size_t mr_test_handled(const mr_test *test);
MR_API int64_t mr_test_checkpoint(const mr_test *test);
MR_API bool mr_test_paused(const mr_test *test); /* or stopped */
/* Why the last batch failed; NULL when it did not. Valid until the next run. */
MR_API const mr_error *mr_test_error(const mr_test *test);
/* As an operator would: lets a paused consumer go on; has an event passed over. */
MR_API void mr_test_resume(mr_test *test);
MR_API mr_error *mr_test_skip(mr_test *test, int64_t position) MR_MUST_CHECK;

/* The test's clock: microseconds, from 2026-01-01 on; it stands still unless you move it, also from
 * within a handler. Waits have no jitter. */
MR_API int64_t mr_test_now(const mr_test *test);
MR_API void mr_test_advance(mr_test *test, int64_t microseconds);
MR_API int64_t mr_test_wait(const mr_test *test); /* microseconds until the next try, 0 = now */

/* Dead letters in the order they came, of all slots. A parked one was not tried: it waits behind an
 * earlier letter of its stream. Out of range: 0, "", false. */
MR_API size_t mr_test_letter_count(const mr_test *test);
MR_API int64_t mr_test_letter_position(const mr_test *test, size_t index);
MR_API const char *mr_test_letter_error(const mr_test *test, size_t index);
MR_API int mr_test_letter_attempts(const mr_test *test, size_t index);
MR_API bool mr_test_letter_parked(const mr_test *test, size_t index);

/* Without a database the handler's statements are written down: those of committed batches, in
 * order, queries too; nothing of what was rolled back. Texts live until mr_test_forget(). Out of
 * range: 0, NULL. */
MR_API size_t mr_test_statement_count(const mr_test *test);
MR_API const char *mr_test_statement(const mr_test *test, size_t index);
MR_API int mr_test_parameter_count(const mr_test *test, size_t index);
/* A parameter's text (or bytes, NUL after them), NULL for SQL NULL. */
MR_API const char *mr_test_parameter(const mr_test *test, size_t index, int parameter);
MR_API size_t mr_test_parameter_length(const mr_test *test, size_t index, int parameter);
MR_API void mr_test_forget(mr_test *test);
/* Answers mr_tx_query(), which fails without it: sets `*rows` (PQmakeEmptyPGresult, PQsetvalue; the
 * handler's from then on) or returns an error, which fails the transaction as a server's would. */
typedef mr_error *(*mr_test_query_fn)(void *user, const char *sql, int count,
                                      const char *const *values, PGresult **rows);
MR_API void mr_test_on_query(mr_test *test, mr_test_query_fn answer, void *user);

/* From here on the handler's statements run on a server, a transaction a batch that is committed
 * when the batch is; nothing is written down, no table of Millrace's is used. Checks the handler,
 * so its tables must be there. sql handlers need it. Deadlines go by the real clock then. */
MR_API mr_error *mr_test_database(mr_test *test, const char *conninfo) MR_MUST_CHECK;

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
 *                (seconds), owned (consumers and slots it has), can_run (those it knows);
 *                connections and events (handled), both as of its last heartbeat; queues (those
 *                it has, a JSON list)
 *   "consumers"  one row a consumer, or a slot of a partitioned one: consumer, state (running,
 *                idle, paused, failing, blocked = waits before a hole, unassigned, no worker can
 *                run it, owner silent, owner gone), worker_id, host and pid of its owner,
 *                checkpoint, head (highest visible position), lag (positions between them,
 *                whatever the state), lag_seconds (age of the first event after the checkpoint; 0
 *                = caught up, NULL when the log has no created_at), last_error (of a paused one:
 *                why), updated_at (when the checkpoint moved last), paused_by, pause_reason,
 *                dead_letters (count), partitions (P of a slot, else 1), base (the name without
 *                "#k/P"), ownership (lock, assignment), pause_kind (command, failure), paused_at,
 *                last_error_at, last_error_position. failing, and who holds a consumer with
 *                ownership lock, are as of the owner's last heartbeat
 *   "status"     one row: healthy, workers_alive, workers (count by state, JSON), leader
 *                (worker_id or NULL), consumers (count by state, JSON), head, max_lag,
 *                max_lag_seconds, open_holes (that consumers wait before), dead_letters,
 *                schema_version, problems (JSON list of sentences, empty when healthy). Unhealthy
 *                is: a consumer neither running, idle nor blocked; lag above the conf's
 *                lag_threshold; dead letters; no leader while workers are alive; consumers but no
 *                worker alive
 *   "queues"     one row a queue, of the conf, of the built-in table, or that a worker alone knows:
 *                queue, table, the jobs by state (queued, errored =
 *                waits for its retry, processing, completed, failed, canceled), stalled (running,
 *                but silent for stalled_max_age), oldest_wait_seconds (of the job that could be
 *                claimed and waits longest), workers (alive ones that have it), rough (JSON: which
 *                of the numbers are not exact: "at least" = 10000 were counted, "estimate" = the
 *                planner's, because no index serves and the table is large, "unknown"), problem
 *                (why the queue cannot be looked at, else NULL), kind (table, jobs = the built-in
 *                one, unknown = only its workers know its table), paused, paused_by, paused_at,
 *                pause_reason; of the built-in table the jobs by standing: ready, blocked (behind
 *                another of its key), later (not due), waiting (for its next try), held (failed,
 * and keeps its key), and NULL for completed and canceled, which are in the archive "gaps.open"
 * what holds readers back now: consumer, position, and who can still fill it and what happened, the
 * newest 1000 rows first; with ":NAME" only that consumer's: "gaps.list"     the audit of skipped
 * positions "audit"         what was done to consumers: id, consumer, action, actor, reason, detail
 * (JSON), created_at "dead_letters"  id, consumer, position, state, aggregate_type, aggregate_id,
 * event_type, error, sqlstate, attempts, created_at */
MR_API mr_error *mr_list(PGconn *conn, const mr_conf *conf, const char *what,
                         PGresult **rows) MR_MUST_CHECK;

/* The state of the fleet's consumers as JSON; `*json` is yours: mr_free(). `status` is "healthy"
 * or "degraded", `reasons` a list of {consumer, reason, detail} with reason one of lag (above the
 * conf's lag_threshold), paused, failing, blocked (by a hole), no_owner, dead_letters, no_leader,
 * queue (its jobs cannot run), no_worker (consumer is null for the last two); `consumers` has name,
 * state, lag, checkpoint, head, dead_letters each, for a partitioned one each slot; `head` and
 * `workers_alive` are numbers. */
MR_API mr_error *mr_health(PGconn *conn, const mr_conf *conf, char **json) MR_MUST_CHECK;

/* Consumers are named as in the configuration; a partitioned one means all its slots, and
 * "name#3/8" one of them. `actor` and `reason` (may be NULL) go into consumer_audit. A running
 * fleet obeys within a second; once the call has returned no batch of the old state commits any
 * more. MR_E_USAGE for a name that nobody has. The connection must be outside of a transaction. */
MR_API mr_error *mr_consumer_pause(PGconn *conn, const mr_conf *conf, const char *name,
                                   const char *actor, const char *reason) MR_MUST_CHECK;
MR_API mr_error *mr_consumer_resume(PGconn *conn, const mr_conf *conf, const char *name,
                                    const char *actor, const char *reason) MR_MUST_CHECK;
/* Moves the checkpoint: `to` is beginning, now, a position (the last one that counts as handled) or
 * a time. Dead letters above the new position go: their events are handled again. `*position` (may
 * be NULL) is where it stands now. */
MR_API mr_error *mr_consumer_reset(PGconn *conn, const mr_conf *conf, const char *name,
                                   const char *to, const char *actor, const char *reason,
                                   int64_t *position) MR_MUST_CHECK;
/* The event at `position` will not be handled by this consumer. Refused when it was handled
 * already, or when there is no such event. A consumer that is paused for it goes on. */
MR_API mr_error *mr_consumer_skip(PGconn *conn, const mr_conf *conf, const char *name,
                                  int64_t position, const char *actor,
                                  const char *reason) MR_MUST_CHECK;
/* Any of the four by its name: `action` is pause, resume, reset (`argument`: where to) or skip
 * (`argument`: the position). `*rows` (may be NULL) is what was done, as in consumer_audit, one row
 * for each slot: id, consumer, action, actor, reason, detail (JSON: from, to, position, already,
 * …), created_at. It is yours: PQclear(). */
MR_API mr_error *mr_consumer_control(PGconn *conn, const mr_conf *conf, const char *name,
                                     const char *action, const char *argument, const char *actor,
                                     const char *reason, PGresult **rows) MR_MUST_CHECK;
/* Returns once `position` is applied: read your own writes. Of a partitioned consumer every slot
 * must be that far. MR_E_TIMEOUT after `timeout_ms` (0: one look) says how far it is and why (no
 * owner, blocked, head not that far); MR_E_STATE at once when the consumer is paused before it, or
 * when it is not applied although the checkpoint is beyond it (dead letters, skipped, dropped, gone
 * over by a reset); MR_E_USAGE for a negative position or timeout. Looks every
 * 2 to 100 ms. */
MR_API mr_error *mr_consumer_wait(PGconn *conn, const mr_conf *conf, const char *name,
                                  int64_t position, int64_t timeout_ms) MR_MUST_CHECK;

/* Which dead letters a call means. Unset (NULL, 0) fields do not restrict. */
typedef struct mr_letters mr_letters;
MR_API mr_letters *mr_letters_new(void); /* NULL only when memory is short */
MR_API void mr_letters_free(mr_letters *letters);
/* Restricts: "consumer", "position" (one), "from", "to" (positions), "aggregate_type",
 * "aggregate_id", "event_type", "state" (poison, parked), "error" (part of the text), "before",
 * "after" (times of failure). */
MR_API mr_error *mr_letters_filter(mr_letters *letters, const char *field,
                                   const char *value) MR_MUST_CHECK;
/* They are listed by position: id, consumer, position, state, aggregate_type, aggregate_id,
 * event_type, error, sqlstate, attempts, created_at, replay (requested); with `whole` also
 * event_id, worker_id, first_failed_at, updated_at, replay_at, replay_by and data, the event's
 * payload in its column's own type. `*rows` is yours: PQclear(). */
MR_API mr_error *mr_letters_list(PGconn *conn, const mr_conf *conf, const mr_letters *letters,
                                 bool whole, PGresult **rows) MR_MUST_CHECK;
/* Asks the consumers' own workers to run their handlers on the letters again, in position order,
 * each once, and to remove those that succeed. Returns when all are decided or `timeout_ms` has
 * passed (MR_E_TIMEOUT; what is left stays requested). `*replayed` and `*failed` (may be NULL)
 * count. Without any filter it refuses unless `all`. */
MR_API mr_error *mr_letters_replay(PGconn *conn, const mr_conf *conf, const mr_letters *letters,
                                   bool all, const char *actor, int64_t timeout_ms,
                                   int64_t *replayed, int64_t *failed) MR_MUST_CHECK;
/* Removes letters for good: their events will not be handled. Leaves a row in consumer_audit each.
 * Without any filter it refuses unless `all`. */
MR_API mr_error *mr_letters_drop(PGconn *conn, const mr_conf *conf, const mr_letters *letters,
                                 bool all, const char *actor, const char *reason,
                                 int64_t *dropped) MR_MUST_CHECK;

/* Which jobs of a queue a call means. An empty one means none in particular. */
typedef struct mr_job_filter mr_job_filter;
MR_API mr_job_filter *mr_job_filter_new(void); /* NULL only when memory is short */
MR_API void mr_job_filter_free(mr_job_filter *filter);
/* Restricts: "id" and "state" (may be added several times: any of them; states also in one text,
 * with commas), "error" (part of the failure message, in any case), "before" and "after" (times:
 * when it ended or, when it has not, when it was queued), "limit" (so many rows at most); of
 * the built-in table also "key" (its partition key) and "archived" (false: not those that are
 * over).
 */
MR_API mr_error *mr_job_filter_add(mr_job_filter *filter, const char *field,
                                   const char *value) MR_MUST_CHECK;

/* The calls below work on the table of a queue that the conf has, and for a name that it has not,
 * or has without a table, on Millrace's own. MR_E_USAGE for a name that neither knows, MR_E_CONFIG
 * when the table does not fit the conf. `*rows` is yours: PQclear(). */

/* Jobs by descending id, 50 unless the filter has a limit: id, state, queued_at, started_at,
 * finished_at, process_after, num_failures, num_resets, worker, last_heartbeat_at, failure_message,
 * stalled (running, but silent for stalled_max_age), cancel (asked for; NULL when the table has no
 * such column). `filter` may be NULL. Of the built-in table, whose archive is listed too, also:
 * queue, key, priority, standing, progress, progress_text, archived; with `queue` NULL jobs of all
 * its queues.
 */
MR_API mr_error *mr_queue_jobs(PGconn *conn, const mr_conf *conf, const char *queue,
                               const mr_job_filter *filter, PGresult **rows) MR_MUST_CHECK;
/* One job: the same and lease_generation (NULL without), execution_logs (a JSON list) and values (a
 * JSON object: what the handler would get now). MR_E_USAGE when the queue has no such job. Of the
 * built-in table also place (where it stands, in words), bucket, idempotency_key, max_attempts,
 * timeout, metadata and errors (a JSON list: at, attempt, error, worker). */
MR_API mr_error *mr_queue_job(PGconn *conn, const mr_conf *conf, const char *queue, const char *id,
                              PGresult **rows) MR_MUST_CHECK;

/* How many jobs are in one of `states`, a list such as "queued,errored"; MR_E_USAGE for an empty
 * one or an unknown state. */
MR_API mr_error *mr_queue_count(PGconn *conn, const mr_conf *conf, const char *queue,
                                const char *states, int64_t *count) MR_MUST_CHECK;
/* Whether there is one at all, which is cheaper. */
MR_API mr_error *mr_queue_exists(PGconn *conn, const mr_conf *conf, const char *queue,
                                 const char *states, bool *exists) MR_MUST_CHECK;
/* How long the oldest job that could be claimed now has been waiting, in microseconds; 0 = there is
 * none. */
MR_API mr_error *mr_queue_wait(PGconn *conn, const mr_conf *conf, const char *queue,
                               int64_t *wait) MR_MUST_CHECK;

/* Each of the following changes the jobs that the filter means, in one statement, and gives a row
 * for every one of them: id, was (its state), state (now), done, note (why not, or what is still to
 * come). Without ids and states those in a state that the call is for are meant; an empty filter is
 * refused unless `all`. A row that another session has locked is not waited for: its note says so.
 */

/* Failed, errored and canceled jobs are queued, due at once. Failures and resets stay counted, so
 * that a job that was at max_retries gets one more try, unless `reset_counters`. */
MR_API mr_error *mr_queue_retry(PGconn *conn, const mr_conf *conf, const char *queue,
                                const mr_job_filter *filter, bool all, bool reset_counters,
                                PGresult **rows) MR_MUST_CHECK;
/* Queued and errored jobs become canceled, with `reason` (may be NULL) as their failure message. A
 * running one's worker is asked to stop it, which needs the column `cancel`. */
MR_API mr_error *mr_queue_cancel(PGconn *conn, const mr_conf *conf, const char *queue,
                                 const mr_job_filter *filter, bool all, const char *reason,
                                 PGresult **rows) MR_MUST_CHECK;
/* Jobs in any state are queued as if they had just come, due at the time `at` or, when that is
 * NULL, `delay_ms` from now. A running one is refused unless it is stalled; completed ones are
 * meant only when their ids or state are named. */
MR_API mr_error *mr_queue_requeue(PGconn *conn, const mr_conf *conf, const char *queue,
                                  const mr_job_filter *filter, bool all, const char *at,
                                  int64_t delay_ms, bool reset_counters,
                                  PGresult **rows) MR_MUST_CHECK;

/* Who decided something, why, and what else belongs to it. */
typedef struct mr_decision mr_decision;
MR_API mr_decision *mr_decision_new(void); /* NULL only when memory is short */
MR_API void mr_decision_free(mr_decision *decision);
/* Who and why (either may be NULL): for queue_audit and, of cancel, the jobs' failure message. */
MR_API mr_error *mr_decision_by(mr_decision *decision, const char *actor,
                                const char *reason) MR_MUST_CHECK;
/* Of requeue: when the jobs are due, as mr_queue_requeue() has it. */
MR_API mr_error *mr_decision_due(mr_decision *decision, const char *at,
                                 int64_t delay_ms) MR_MUST_CHECK;
MR_API void mr_decision_all(mr_decision *decision); /* an empty filter is meant */
/* Of retry and requeue. A failed job of the built-in table always gets all its attempts again. */
MR_API void mr_decision_reset_counters(mr_decision *decision);

/* Any of the above by its name, and more of the built-in table: retry, cancel, requeue; drop (dead
 * letters go to the archive as failed, other jobs that do not run as canceled; without ids and
 * states the failed ones are meant), pause and resume (the whole queue; the row is that of
 * queue_audit: id, queue, action, actor, reason, detail, created_at). What was done to jobs of the
 * built-in table leaves a row of queue_audit for some hundred of them at a time, each in a
 * transaction of its own unless the connection is in one. One that is over is requeued as a new
 * job: its note says which. `filter` and `decision` may be NULL. */
MR_API mr_error *mr_queue_control(PGconn *conn, const mr_conf *conf, const char *queue,
                                  const char *action, const mr_job_filter *filter,
                                  const mr_decision *decision, PGresult **rows) MR_MUST_CHECK;

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
