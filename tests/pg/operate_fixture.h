/* A log of ten events and a conf: what the tests of pause, reset, skip and dead letters start from.
 */
#ifndef TESTS_PG_OPERATE_FIXTURE_H
#define TESTS_PG_OPERATE_FIXTURE_H

#include "append_fixture.h"

typedef struct operating {
    scratch *scratch;
    PGconn *conn;
    mr_conf *conf;
    fixture log;
} operating;

/* For cmocka: *state is an operating. Ten events: 1 to 5 of Order/o-1, 6 to 10 of Order/o-2. */
int operating_setup(void **state);
int operating_teardown(void **state);
#define OPERATING(name) cmocka_unit_test_setup_teardown(name, operating_setup, operating_teardown)

/* A consumer with its checkpoint. */
void consumer(const operating *o, const char *name, int64_t position);
/* The first column of the first row, with one parameter. */
const char *value_of(PGconn *conn, const char *sql, const char *parameter);
/* The SQLSTATE of a statement, "" when it succeeds. */
const char *sqlstate_of(PGconn *conn, const char *sql);
/* Waits until the query gives `t`, for up to 20 seconds. */
void wait_for(PGconn *conn, const char *sql);
/* Waits until somebody waits for a lock in this database. */
void wait_for_waiter(PGconn *conn);

#endif
