/* Wake-ups of queues, at most one a queue in MR_WAKE_EVERY from this process, whatever the number
 * of its threads and connections. A receiver looks again once that time has passed
 * (mr__lanes_wake), so that jobs whose wake-up was left out are found then and not at the next
 * poll. */
#include "queue/wake.h"

#include "base/clock.h"
#include "base/hash.h"
#include "cluster/template.h"
#include "pg/conn.h"
#include "queue/enqueue.h"

#include <pthread.h>
#include <string.h>

/* The last wake-ups, each in a slot by its hash: two queues in one slot wake a little more often.
 */
enum { SLOTS = 256 };
static struct {
    pthread_mutex_t lock;
    struct {
        uint64_t queue;
        int64_t sent;
        bool used;
    } slot[SLOTS];
} recent = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool mr__wake_due(uint64_t queue, int64_t now)
{
    size_t at = (size_t)(queue % SLOTS);
    (void)pthread_mutex_lock(&recent.lock);
    bool due = !recent.slot[at].used || recent.slot[at].queue != queue ||
               now - recent.slot[at].sent >= MR_WAKE_EVERY || now < recent.slot[at].sent;
    if (due) {
        recent.slot[at].queue = queue;
        recent.slot[at].sent = now;
        recent.slot[at].used = true;
    }
    (void)pthread_mutex_unlock(&recent.lock);
    return due;
}

void mr__wake_undo(uint64_t queue)
{
    size_t at = (size_t)(queue % SLOTS);
    (void)pthread_mutex_lock(&recent.lock);
    if (recent.slot[at].queue == queue)
        recent.slot[at].used = false;
    (void)pthread_mutex_unlock(&recent.lock);
}

const char *mr__wake_queue(const char *payload)
{
    size_t prefix = strlen(MR_WAKE_PREFIX);
    if (payload == NULL || strncmp(payload, MR_WAKE_PREFIX, prefix) != 0)
        return NULL;
    size_t length = strnlen(payload + prefix, MR_QUEUE_NAME_MAX + 1);
    return length == 0 || length > MR_QUEUE_NAME_MAX ? NULL : payload + prefix;
}

/* The same queue of another database, or of another fleet in it, is another queue. */
static mr_error *hash_of(const PGconn *conn, const char *sql, const char *queue, uint64_t *hash)
{
    MR_AUTO_BUF identity = {0};
    const char *const parts[] = {PQhost(conn), PQport(conn), PQdb(conn), sql, queue};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        mr__buf_printf(&identity, "%s\x1f", parts[i] == NULL ? "" : parts[i]);
    if (identity.failed)
        return mr__error_nomem();
    *hash = mr__hash_fnv1a64(identity.data, identity.length);
    return NULL;
}

mr_error *mr__queue_wake(PGconn *conn, const mr_names *names, const char *queue)
{
    MR_TRY(mr__queue_name_check(queue));
    if (PQstatus(conn) != CONNECTION_OK)
        return mr__pg_conn_error(conn);
    if (PQtransactionStatus(conn) != PQTRANS_IDLE || PQpipelineStatus(conn) != PQ_PIPELINE_OFF)
        return mr__error(MR_E_USAGE, "mr_queue_wake() is for after the commit: the connection must "
                                     "be idle and not in pipeline mode");
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT ");
    mr__names_function(names, "wake_queue", &sql);
    mr__buf_puts(&sql, "($1)");
    if (sql.failed)
        return mr__error_nomem();
    uint64_t hash = 0;
    MR_TRY(hash_of(conn, mr__buf_text(&sql), queue, &hash));
    if (!mr__wake_due(hash, mr__clock_now(&mr__clock_system)))
        return NULL;
    mr_error *error = mr__pg_query(conn, NULL, mr__buf_text(&sql), 1, &queue);
    if (error != NULL)
        mr__wake_undo(hash);
    return error;
}
