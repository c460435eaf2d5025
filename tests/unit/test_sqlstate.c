/* What the server's SQLSTATEs say: whether a statement may be tried again, whose fault it is, and
 * whether the connection is lost. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "pg/conn.h"

typedef struct row {
    const char *sqlstate;
    bool retryable, connection, permanent;
} row;

static const row table[] = {
    {"08000", true, true, false},   /* connection exception */
    {"08006", true, true, false},   /* connection failure */
    {"08P01", false, false, false}, /* protocol violation: a wrong number of parameters */
    {"57P01", true, true, false},   /* shutdown */
    {"57P02", true, true, false},   /* crash */
    {"57P03", true, true, false},   /* cannot connect now */
    {"57P05", true, true, false},   /* idle session */
    {"57014", false, false, false}, /* canceled */
    {"25P03", true, true, false},   /* idle in transaction too long */
    {"25P02", false, false, false}, /* transaction is aborted */
    {"25006", true, false, false},  /* read-only */
    {"40001", true, false, false},  /* serialization failure */
    {"40P01", true, false, false},  /* deadlock */
    {"40002", false, false, false}, /* integrity constraint violation at the commit */
    {"53100", true, false, false},  /* disk full */
    {"53200", true, false, false},  /* out of memory */
    {"53300", true, false, false},  /* too many connections */
    {"55P03", true, false, false},  /* lock not available */
    {"55006", false, false, false}, /* object in use */
    {"22012", false, false, true},  /* division by zero */
    {"22P02", false, false, true},  /* not a number */
    {"23502", false, false, true},  /* NOT NULL */
    {"23514", false, false, true},  /* CHECK */
    {"23503", false, false, false}, /* foreign key: its row may still come */
    {"23505", false, false, false}, /* unique */
    {"42P01", false, false, false}, /* no such table */
    {"P0001", false, false, false}, /* raise exception */
};

static void every_state(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const row *r = &table[i];
        bool right = mr__pg_sqlstate_retryable(r->sqlstate) == r->retryable &&
                     mr__pg_sqlstate_connection(r->sqlstate) == r->connection &&
                     mr__pg_sqlstate_permanent(r->sqlstate) == r->permanent;
        if (!right)
            fail_msg("%s is judged wrongly", r->sqlstate);
    }
    assert_true(mr__pg_sqlstate_retryable("")); /* the server did not say anything */
}

/* What may be tried again is nobody's fault, and so is a fence; an error without a state is not the
 * server's. */
static void whose_fault(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const row *r = &table[i];
        mr_error *error =
            mr__error_db(MR_E_DB, r->sqlstate, mr__pg_sqlstate_retryable(r->sqlstate), "x");
        if (mr__pg_nobodys_fault(error) != r->retryable)
            fail_msg("%s is held against the wrong one", r->sqlstate);
        mr_error_free(error);
    }
    mr_error *fenced = mr__error_db(MR_E_FENCED, "MR002", false, "x");
    assert_true(mr__pg_nobodys_fault(fenced));
    mr_error_free(fenced);
    mr_error *own = mr_error_new(MR_E_HANDLER, true, "x");
    assert_false(mr__pg_nobodys_fault(own));
    mr_error_free(own);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_state),
        cmocka_unit_test(whose_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
