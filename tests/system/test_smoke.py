"""The shortest way through everything: schema, append, a worker that drains, a worker that lives and stops."""

import pytest

from harness import (all_handled, append_lines, assert_exactly_once, insert_event, insert_events, millrace,
                     open_transaction, recorder, rolled_back)

pytestmark = [pytest.mark.asan, pytest.mark.tsan]


def test_schema_apply_twice_changes_nothing(empty_db):
    tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'millrace'::regnamespace"
    millrace("schema", "apply", database=empty_db)
    before = empty_db.value(tables)
    millrace("schema", "apply", database=empty_db)
    assert before > 0 and empty_db.value(tables) == before


def test_once_drains_and_exits(db, worker):
    db.create_effects()
    insert_events(db, 250)
    rolled_back(db, 5)
    insert_event(db)
    worker(db, {"consumers": [recorder("a"), recorder("b")]}, "--once").finish()
    assert_exactly_once(db, consumer="a")
    assert_exactly_once(db, consumer="b")
    assert db.checkpoint("a") == db.committed()[-1]
    # Again: nothing is left to do, and nothing is done twice.
    worker(db, {"consumers": [recorder("a"), recorder("b")]}, "--once").finish()
    assert_exactly_once(db, consumer="a")


def test_a_running_worker_handles_what_comes_and_stops_on_sigterm(db, worker):
    db.create_effects()
    process = worker(db, {"consumers": [recorder("a")]})
    insert_events(db, 10)
    all_handled(db)
    append_lines(db, [{"aggregate_type": "Order", "aggregate_id": "o1", "event_type": "Placed", "data": {"n": 1}}])
    all_handled(db)
    process.stop()


def test_a_late_commit_is_handled_in_order(db, worker):
    db.create_effects()
    worker(db, {"consumers": [recorder("a")]})
    with open_transaction(db) as (connection, held):
        insert_events(db, 20)
        assert held not in db.handled("a")
        connection.commit()
    all_handled(db)
