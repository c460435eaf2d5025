/* Writers of the demo: concurrent transactions that commit out of the order in which they drew
 * their positions, and that leave holes by rolling back. */
#include "demo.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { SHARED_STREAMS = 64, ROLLBACK_PERCENT = 20, SAVEPOINT_PERCENT = 15, LONG_PERCENT = 2 };

typedef struct writer {
    demo_writers *all;
    pthread_t thread;
    PGconn *conn;
    mr_log *log;
    mr_error *error;
    uint64_t random;
    int number;
    int64_t streams; /* made by this writer alone */
} writer;

struct demo_writers {
    demo_tally *tally;
    atomic_bool stop, failed;
    int count; /* threads started */
    writer each[DEMO_WRITERS];
};

/* xorshift64*: each thread has its own. */
static int pick(writer *w, int low, int high)
{
    w->random ^= w->random >> 12;
    w->random ^= w->random << 25;
    w->random ^= w->random >> 27;
    uint64_t value = (w->random * 2685821657736338717u) >> 33;
    return low + (int)(value % (uint64_t)(high - low + 1));
}

/* Several events on a stream that other writers use too: one round trip. */
static mr_error *append_orders(writer *w, int64_t *events)
{
    char id[32];
    (void)snprintf(id, sizeof(id), "order-%d", pick(w, 1, SHARED_STREAMS));
    mr_draft *draft = mr_draft_new();
    if (draft == NULL)
        return mr_error_new(MR_E_NOMEM, false, "out of memory");
    int count = pick(w, 1, 5);
    mr_error *error = mr_draft_stream(draft, "Order", id, MR_EXPECT_ANY);
    for (int i = 0; i < count && error == NULL; i++) {
        char *payload = cli_format("{\"amount\": %d}", pick(w, 1, 500));
        error = mr_draft_event(draft, "OrderPlaced", payload, strlen(payload));
        free(payload);
    }
    if (error == NULL)
        error = mr_append(w->conn, w->log, draft);
    mr_draft_free(draft);
    *events += error == NULL ? count : 0;
    return error;
}

/* What a program without the library would do: a plain INSERT, on a stream of its own. */
static mr_error *insert_notes(writer *w, int64_t *events)
{
    int count = pick(w, 1, 3);
    char *sql = cli_format(
        "INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, "
        "event_type, payload) SELECT 'Note', 'note-%d-%lld', i, gen_random_uuid(), 'NoteAdded', "
        "convert_to('{\"text\": \"hello\"}', 'UTF8') FROM generate_series(1, %d) AS i",
        w->number, (long long)++w->streams, count);
    mr_error *error = cli_exec(w->conn, sql);
    free(sql);
    *events += error == NULL ? count : 0;
    return error;
}

static mr_error *insert_and_take_back(writer *w)
{
    int64_t events = 0;
    CLI_TRY(cli_exec(w->conn, "SAVEPOINT demo"));
    CLI_TRY(insert_notes(w, &events));
    CLI_TRY(cli_exec(w->conn, "ROLLBACK TO SAVEPOINT demo"));
    w->all->tally->rolled_back += events;
    return NULL;
}

static mr_error *transaction(writer *w)
{
    int64_t events = 0;
    CLI_TRY(cli_exec(w->conn, "BEGIN"));
    if (pick(w, 1, 100) <= 60)
        CLI_TRY(append_orders(w, &events));
    else
        CLI_TRY(insert_notes(w, &events));
    cli_sleep_ms(pick(w, 0, 12));
    if (pick(w, 1, 100) <= SAVEPOINT_PERCENT)
        CLI_TRY(insert_and_take_back(w));
    if (pick(w, 1, 100) <= 30)
        CLI_TRY(insert_notes(w, &events));
    /* Now and then a low position stays open while many higher ones are committed. */
    if (pick(w, 1, 100) <= LONG_PERCENT)
        cli_sleep_ms(pick(w, 200, 900));
    bool rolled_back = pick(w, 1, 100) <= ROLLBACK_PERCENT;
    CLI_TRY(cli_exec(w->conn, rolled_back ? "ROLLBACK" : "COMMIT"));
    *(rolled_back ? &w->all->tally->rolled_back : &w->all->tally->committed) += events;
    w->all->tally->transactions += 1;
    return NULL;
}

static void *write_until_stopped(void *argument)
{
    writer *w = argument;
    while (w->error == NULL && !w->all->stop) {
        w->error = transaction(w);
        cli_sleep_ms(pick(w, 0, 10));
    }
    if (w->error != NULL)
        w->all->failed = true;
    return NULL;
}

mr_error *demo_writers_start(const char *uri, demo_tally *tally, demo_writers **out)
{
    demo_writers *writers = cli_alloc(1, sizeof(*writers));
    writers->tally = tally;
    mr_error *error = NULL;
    for (int i = 0; i < DEMO_WRITERS && error == NULL; i++) {
        writer *w = &writers->each[i];
        w->all = writers;
        w->number = i + 1;
        w->random = (uint64_t)cli_now_ms() * 2654435761u + (uint64_t)i * 7919 + 1;
        error = cli_connect_to(uri, "millrace demo writer", &w->conn);
        if (error == NULL)
            error = mr_log_open(w->conn, NULL, &w->log);
        if (error == NULL && pthread_create(&w->thread, NULL, write_until_stopped, w) != 0)
            error = mr_error_new(MR_E_IO, false, "cannot start a thread");
        if (error == NULL)
            writers->count++;
    }
    if (error != NULL) {
        mr_error_free(demo_writers_stop(writers));
        return error;
    }
    *out = writers;
    return NULL;
}

bool demo_writers_failed(const demo_writers *writers)
{
    return writers->failed;
}

mr_error *demo_writers_stop(demo_writers *writers)
{
    mr_error *first = NULL;
    if (writers == NULL)
        return NULL;
    writers->stop = true;
    for (int i = 0; i < writers->count; i++)
        (void)pthread_join(writers->each[i].thread, NULL);
    for (int i = 0; i < DEMO_WRITERS; i++) {
        writer *w = &writers->each[i];
        mr_log_free(w->log);
        PQfinish(w->conn);
        if (first == NULL)
            first = w->error;
        else
            mr_error_free(w->error);
    }
    free(writers);
    return first;
}
