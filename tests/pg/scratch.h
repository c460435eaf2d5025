/* A scratch database a test, on the server that MILLRACE_TEST_DATABASE names. */
#ifndef TESTS_PG_SCRATCH_H
#define TESTS_PG_SCRATCH_H

/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "millrace/millrace.h"

typedef struct scratch {
    char name[64];
    char conninfo[1024];
    PGconn *admin; /* to the server's own database */
    PGconn *conn;  /* to the scratch database */
} scratch;

/* For cmocka_unit_test_setup_teardown; *state is the scratch. */
int scratch_setup(void **state);
int scratch_teardown(void **state);
/* Another connection to the scratch database; PQfinish() is the test's. */
PGconn *scratch_connect(const scratch *s);
/* Conninfo of the scratch database; valid until the next call by this thread. */
const char *scratch_conninfo(const scratch *s);
/* Exits with 77 (skipped) when there is no server to test against. */
void scratch_require_server(void);

/* Runs statements and fails the test on error. */
void run(PGconn *conn, const char *sql);
/* First column of the first row, "" for none or NULL; valid until the next call by this thread. */
const char *value(PGconn *conn, const char *sql);
int64_t number(PGconn *conn, const char *sql);

/* Fails with the message when there is an error. */
#define assert_ok(expression)                                                                      \
    do {                                                                                           \
        mr_error *assert_ok_error_ = (expression);                                                 \
        if (assert_ok_error_ != NULL)                                                              \
            fail_msg("%s: %s (%s)", #expression, mr_error_message(assert_ok_error_),               \
                     mr_error_sqlstate(assert_ok_error_));                                         \
    } while (0)
/* Wants this error, with this text somewhere in its message; frees it. */
#define assert_error(expression, wanted, text)                                                     \
    scratch_assert_error((expression), (wanted), (text), #expression, __FILE__, __LINE__)
void scratch_assert_error(mr_error *error, mr_code wanted, const char *text, const char *expression,
                          const char *file, int line);

#endif
