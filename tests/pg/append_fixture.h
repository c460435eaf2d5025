/* A log and a draft to append to it with, as the append tests start from. */
#ifndef TESTS_PG_APPEND_FIXTURE_H
#define TESTS_PG_APPEND_FIXTURE_H

#include "scratch.h"

#include "cluster/schema.h"
#include "log/append.h"

typedef struct fixture {
    mr_names names;
    mr_log_spec spec;
    mr_log *log;
    mr_draft *draft;
} fixture;

/* Default names, nothing opened yet. */
void fixture_init(fixture *f);
/* Applies the schema and opens the log that the fixture describes. */
void open_log(PGconn *conn, fixture *f);
/* Both at once, on the scratch database. */
void begin(void **state, fixture *f);
void end(fixture *f);
/* Appends `count` events "Placed" to Order/`id`. */
mr_error *append(PGconn *conn, fixture *f, const char *id, int64_t expected, int count);
/* The last position drawn from the default log's sequence. */
int64_t drawn(PGconn *conn);

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)

#endif
