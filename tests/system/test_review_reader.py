"""What a review of the reader and of sql_batch found: children of a table, consumers that lag behind at holes, enums."""


import pytest

from harness import all_handled, assert_exactly_once, insert_event, insert_events, open_transaction, recorder, wait_until


def set_checkpoint(db, consumer, position):
    db.execute("INSERT INTO millrace.consumer_checkpoints (consumer_name, last_position) VALUES (%s, %s)",
               [consumer, position])


def wait_looks(db, count=5):
    """Until the reader has been seen looking at the log so often again."""
    seen = set()

    def look():
        seen.update(db.values("SELECT query_start FROM pg_stat_activity WHERE application_name LIKE 'millrace %%'"
                              " AND query LIKE '%%global_position%%' AND datname = current_database()"))
        return len(seen) > count
    wait_until(look)


def test_a_writer_that_inserts_into_an_inheritance_child_is_waited_for(db, worker):
    db.create_effects()
    db.execute("CREATE TABLE events_child () INHERITS (events)")
    worker(db, {"consumers": [recorder("a")]})
    insert_events(db, 3)
    all_handled(db)
    with db.connect(autocommit=False) as connection:
        connection.execute(
            "INSERT INTO events_child (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)"
            " VALUES ('Order', 'child', 1, gen_random_uuid(), 'Happened', '{}')")
        insert_events(db, 5)
        wait_looks(db)
        connection.commit()
    insert_events(db, 1)
    wait_until(lambda: db.checkpoint("a") == db.value("SELECT max(global_position) FROM events"))
    assert_exactly_once(db)


def test_consumers_blocked_at_old_holes_leave_a_reader_to_the_others(db, worker):
    """Five stand before holes that an open transaction keeps undecided; the sixth has rows to read."""
    db.create_effects()
    insert_events(db, 100)
    for hole in (10, 20, 30, 40, 50):
        db.execute("DELETE FROM events WHERE global_position = %s", [hole])
    names = [f"c{i}" for i in range(1, 6)]
    for i, name in enumerate(names):
        set_checkpoint(db, name, (i + 1) * 10 - 1)
    set_checkpoint(db, "free", 60)
    set_checkpoint(db, "head", 100)
    with open_transaction(db) as (connection, _):
        worker(db, {"consumers": [recorder(name) for name in [*names, "free", "head"]]})
        wait_until(lambda: len(db.handled("free")) == 40, 10, "the consumer that is not blocked")
        assert db.handled("c1") == []
        connection.commit()
    wait_until(lambda: all(db.checkpoint(name) == 101 for name in [*names, "free", "head"]), 10)
    assert db.handled("c1") == [pos for pos in db.committed() if pos >= 10]
    assert db.handled("head") == [101]


@pytest.mark.parametrize("column", ["aggregate_type", "event_type"])
def test_sql_batch_over_a_log_with_an_enum(db, worker, column):
    db.create_effects()
    db.execute(f"CREATE TYPE kind AS ENUM ('Order', 'Happened'); DROP INDEX IF EXISTS events_event_type_idx;"
               f"ALTER TABLE events ALTER COLUMN {column} TYPE kind USING {column}::kind")
    db.execute("INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)"
               " VALUES ('Order', 'x', 1, gen_random_uuid(), 'Happened', '{}')")
    worker(db, {"consumers": [{"name": "a", f"{column}s": ["Order", "Happened"], "sql_batch":
                               "INSERT INTO effects (consumer, pos) SELECT 'a', global_position FROM batch"}]})
    all_handled(db)


@pytest.mark.parametrize("options", [
    {"gap_strategy": "timeout", "gap_action": "skip", "gap_timeout": "3s"},
    {"gap_strategy": "timeout", "gap_action": "error", "gap_timeout": "3s"},
    {"gap_strategy": "harbor", "stale_gap_threshold": "3s"}])
def test_strategies_by_time_wait_below_the_tail_too(db, worker, options):
    """A consumer that starts at the head says nothing about holes behind it."""
    db.create_effects()
    insert_events(db, 3)
    with open_transaction(db) as (connection, held):
        insert_events(db, 5)
        set_checkpoint(db, "a", 2)
        worker(db, {"worker": options, "consumers": [recorder("a"), recorder("b", start_from="now")]})
        wait_until(lambda: db.handled("a") == [3])
        wait_looks(db)
        connection.commit()
        wait_until(lambda: db.handled("a") == [3, held, *range(held + 1, held + 6)])
    if options.get("gap_action") != "error":
        # And they go on when their time is up.
        db.execute("DELETE FROM events WHERE global_position = 6")
        set_checkpoint(db, "c", 4)
        worker(db, {"worker": options, "consumers": [recorder("c")]})
        wait_until(lambda: db.handled("c") == [5, 7, 8, 9], 15)
