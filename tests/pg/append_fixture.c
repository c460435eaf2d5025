/* A log and a draft to append to it with, as the append tests start from. */
#include "append_fixture.h"

void open_log(PGconn *conn, fixture *f)
{
    const mr_schema_input input = {.names = &f->names, .log = &f->spec};
    assert_ok(mr__schema_apply(conn, &input, NULL));
    assert_ok(mr__log_open(conn, &f->spec, f->names.schema, &f->log));
    f->draft = mr_draft_new();
    assert_non_null(f->draft);
}

void fixture_init(fixture *f)
{
    *f = (fixture){0};
    assert_ok(mr__names_init(&f->names, "millrace"));
    mr__log_spec_init(&f->spec);
}

void begin(void **state, fixture *f)
{
    fixture_init(f);
    open_log(((scratch *)*state)->conn, f);
}

void end(fixture *f)
{
    mr_draft_free(f->draft);
    mr_log_free(f->log);
}

/* Appends `count` events to a stream. */
mr_error *append(PGconn *conn, fixture *f, const char *id, int64_t expected, int count)
{
    mr_draft_clear(f->draft);
    assert_ok(mr_draft_stream(f->draft, "Order", id, expected));
    for (int i = 0; i < count; i++)
        assert_ok(mr_draft_event(f->draft, "Placed", "{}", 2));
    return mr_append(conn, f->log, f->draft);
}

int64_t drawn(PGconn *conn)
{
    return number(conn, "SELECT CASE WHEN is_called THEN last_value ELSE 0 END"
                        " FROM events_global_position_seq");
}
