/* Rows as workers and people leave them, made by hand: states that running fleets pass through only
 * for a moment. */
#ifndef TESTS_PG_WATCH_FIXTURE_H
#define TESTS_PG_WATCH_FIXTURE_H

#include "append_fixture.h"

#define A "'00000000-0000-7000-8000-00000000000a'"
#define B "'00000000-0000-7000-8000-00000000000b'"

extern mr_conf *conf; /* of the running test, all defaults */

int watch_setup(void **state);
int watch_teardown(void **state);
PGconn *conn_of(void **state);

/* A worker that leads, as its row looks between two heartbeats. */
void add_worker(PGconn *conn, const char *id, const char *consumers, const char *info);
void assign(PGconn *conn, const char *consumer, const char *owner);
/* Its checkpoint, made or moved. */
void move_to(PGconn *conn, const char *consumer, int position);
/* `reason` is SQL: a literal or NULL. */
void pause_consumer(PGconn *conn, const char *consumer, const char *kind, const char *by,
                    const char *reason);
/* `letter` is poison or parked. */
void add_letter(PGconn *conn, const char *consumer, int position, const char *letter);
void add_events(PGconn *conn, int count);

#define WATCH(name) cmocka_unit_test_setup_teardown(name, watch_setup, watch_teardown)

#endif
