"""Holes in the log under the `settled` strategy: what is waited for, what is not, what the operator sees."""

import json
import time
import uuid

import pytest

from harness import (INSERT, PATIENCE, all_handled, assert_exactly_once, insert_event, insert_events, millrace,
                     open_transaction, recorder, rolled_back, wait_until)
from writers import Writers, assert_holes_audited

# Every threshold that another strategy would act on, as short as it goes.
IMPATIENT = {"stale_gap_threshold": "1ms", "gap_timeout": "1ms", "max_gap_wait": "1ms", "gap_action": "skip",
             "stale_gap_harbor_lag": 0}


def gaps_open(db):
    return json.loads(millrace("--json", "gaps", "open", database=db).stdout)


def blocked_at(db, position, consumer="a"):
    """The consumer has come up to a hole: waits until the checkpoint stands before it, and the reader has had time
    for several looks at it."""
    wait_until(lambda: db.checkpoint(consumer) == position - 1, what=f"checkpoint before the hole at {position}")


def look_again(db, process, steps=5):
    """Waits until the worker has asked for the evidence some more times, seen by its backend's queries."""
    seen = set()

    def asked():
        seen.update(db.values("SELECT query_start FROM pg_stat_activity WHERE application_name LIKE 'millrace%%' "
                              "AND query LIKE '%%FROM%%events%%'"))
        return len(seen) > steps
    wait_until(asked, 20, "more looks of the worker", interval=0.01)
    assert process.running()


@pytest.mark.asan
def test_a_held_position_outlives_every_threshold(db, worker):
    db.create_effects()
    insert_events(db, 3)
    process = worker(db, {"worker": IMPATIENT, "consumers": [
        recorder("a"),
        {"name": "b", "sql_batch": "INSERT INTO effects (consumer, pos) SELECT 'b', global_position FROM batch "
                                   "ORDER BY global_position"}]})
    all_handled(db)
    with open_transaction(db) as (connection, held):
        insert_events(db, 50)
        blocked_at(db, held)
        look_again(db, process, 10)
        assert db.handled("a") == [1, 2, 3] and db.handled("b") == [1, 2, 3]
        connection.commit()
    all_handled(db, "a")
    all_handled(db, "b")
    assert db.value("SELECT count(*) FROM millrace.consumer_gap_skips") == 0


def test_the_warning_names_the_hole(db, worker):
    db.create_effects()
    process = worker(db, {"consumers": [recorder("a")]})
    with open_transaction(db) as (connection, held):
        insert_events(db, 1)
        line = process.wait_log("waiting for a hole", timeout=15)
        assert int(line["position"]) == held and line["level"] == "warn"
        connection.commit()
    all_handled(db)


def test_an_idle_transaction_that_never_touched_the_log_delays_nothing(db, worker):
    db.create_effects()
    db.execute("CREATE TABLE other (x int)")
    with db.connect(autocommit=False) as writer, db.connect(autocommit=False) as reader:
        writer.execute("INSERT INTO other VALUES (1)")  # has a transaction id
        reader.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        reader.execute("SELECT count(*) FROM events")  # holds a snapshot and a lock that cannot insert
        worker(db, {"consumers": [recorder("a")]})
        rolled_back(db, 3)
        insert_events(db, 5)
        all_handled(db)
        assert_holes_audited(db, "a")


def test_200_roll_backs_in_a_row_cost_less_than_a_second(db, worker):
    db.create_effects()
    process = worker(db, {"consumers": [recorder("a")]})
    insert_event(db)
    all_handled(db)
    for _ in range(3):
        rolled_back(db, 200)
        began = time.monotonic()
        position = insert_event(db)
        wait_until(lambda position=position: db.checkpoint("a") == position, what="the event after the holes")
        assert time.monotonic() - began < 1 * PATIENCE
    # Each costs one check, also when every one of them is seen alone.
    took = []
    for _ in range(20):
        rolled_back(db, 1)
        began = time.monotonic()
        position = insert_event(db)
        wait_until(lambda position=position: db.checkpoint("a") == position, what="the event after the hole",
                   interval=0.002)
        took.append(time.monotonic() - began)
    assert sorted(took)[len(took) // 2] < 0.1 * PATIENCE, took
    process.stop()
    assert_exactly_once(db)
    assert_holes_audited(db, "a")


def test_busy_writers_do_not_starve_the_proof(db, worker):
    """The proof waits for those who were there when the hole was seen, not for those who came later."""
    db.create_effects()
    worker(db, {"consumers": [recorder("a")]})
    rolled_back(db, 1)
    chain = db.connect(autocommit=False)
    insert_event(chain)
    insert_event(db)
    # There is always one open writer, each opened before the one before it ends.
    for _ in range(300):
        following = db.connect(autocommit=False)
        insert_event(following)
        chain.commit()
        chain.close()
        chain = following
    target = db.value("SELECT max(global_position) FROM events")
    try:
        wait_until(lambda: db.checkpoint("a") >= target - 1, 10, "the consumer while one writer is always open")
    finally:
        chain.rollback()
        chain.close()


@pytest.mark.parametrize("outcome", ["COMMIT", "ROLLBACK"])
def test_a_prepared_transaction_blocks_and_then_releases(db, worker, outcome):
    db.create_effects()
    connection = db.connect(autocommit=False)
    held = insert_event(connection)
    insert_events(db, 10)
    process = worker(db, {"worker": IMPATIENT, "consumers": [recorder("a")]})
    blocked_at(db, held)
    # It is being waited for under one name, and goes on under another.
    look_again(db, process)
    gid = f"{db.name}-held"
    connection.execute(f"PREPARE TRANSACTION '{gid}'")
    connection.close()
    insert_events(db, 10)
    look_again(db, process)
    assert db.handled("a") == []
    rows = gaps_open(db)
    assert [row["state"] for row in rows] == ["prepared"] and gid in rows[0]["query"], rows
    assert rows[0]["user"] == "postgres" and float(rows[0]["age_seconds"]) >= 0
    # A worker that starts now finds it prepared from the start.
    process.stop()
    process = worker(db, {"worker": IMPATIENT, "consumers": [recorder("a")]})
    process.wait_log("worker started")
    look_again(db, process)
    assert db.handled("a") == []
    db.execute(f"{outcome} PREPARED '{gid}'")
    all_handled(db)
    assert (held in db.handled("a")) == (outcome == "COMMIT")
    assert_holes_audited(db, "a")


def test_a_prepared_transaction_that_came_later_is_not_waited_for(db, worker):
    db.create_effects()
    process = worker(db, {"consumers": [recorder("a")]})
    insert_event(db)
    all_handled(db)
    rolled_back(db, 2)
    last = insert_event(db)
    wait_until(lambda: db.checkpoint("a") == last, what="the holes to be settled")
    with db.connect(autocommit=False) as connection:
        later = insert_event(connection)
        connection.execute(f"PREPARE TRANSACTION '{db.name}-later'")
    insert_events(db, 5)
    blocked_at(db, later)
    look_again(db, process)
    assert db.checkpoint("a") == later - 1
    db.execute(f"COMMIT PREPARED '{db.name}-later'")
    all_handled(db)


@pytest.mark.asan
def test_gaps_open_names_the_holder(db, worker):
    db.create_effects()
    insert_event(db)
    worker(db, {"consumers": [recorder("a"), recorder("b")]})
    all_handled(db)
    assert gaps_open(db) == []
    assert "Nothing holds readers back" in millrace("gaps", "open", database=db).stdout
    with db.connect(autocommit=False, application_name="checkout service") as connection:
        held = insert_event(connection)
        later = insert_event(db)
        wait_until(lambda: db.checkpoint("b") == held - 1, what="b at the hole")
        (row,) = gaps_open(db)
        assert int(row["gap_position"]) == held and int(row["gap_end"]) == later - 1
        assert row["consumers"] == "a, b"
        assert int(row["pid"]) == connection.info.backend_pid
        assert row["state"] == "idle in transaction" and row["application"] == "checkout service"
        assert row["user"] == "postgres" and "INSERT INTO events" in row["query"]
        assert 0 <= float(row["age_seconds"]) < 60
        table = millrace("gaps", "open", database=db).stdout
        assert "checkout service" in table and "idle in transaction" in table
        connection.rollback()
    all_handled(db)
    (row,) = [row for row in json.loads(millrace("--json", "gaps", "list", database=db).stdout)
              if row["consumer"] == "a"]
    assert int(row["gap_position"]) == held == int(row["gap_end"]) and int(row["positions"]) == 1
    assert row["strategy"] == "settled" and "no transaction that could fill it is left" in row["reason"]
    assert int(row["highest_visible_position"]) >= later
    uuid.UUID(row["worker_id"])


PARTITIONED = """
CREATE SEQUENCE events_global_position_seq;
CREATE TABLE events (
    global_position bigint NOT NULL DEFAULT nextval('events_global_position_seq'),
    aggregate_type text NOT NULL, aggregate_id text NOT NULL, aggregate_version bigint NOT NULL,
    event_id uuid NOT NULL, event_type text NOT NULL, event_version int NOT NULL DEFAULT 1, payload bytea NOT NULL,
    trace_id text, correlation_id text, causation_id text, metadata jsonb, created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (global_position)) PARTITION BY RANGE (global_position);
CREATE TABLE events_p1 PARTITION OF events FOR VALUES FROM (1) TO (21);
CREATE TABLE events_p2 PARTITION OF events FOR VALUES FROM (21) TO (1000) PARTITION BY RANGE (global_position);
CREATE TABLE events_p2a PARTITION OF events_p2 FOR VALUES FROM (21) TO (41);
CREATE TABLE events_p2b PARTITION OF events_p2 FOR VALUES FROM (41) TO (1000);
ALTER TABLE events_p1 ALTER global_position SET DEFAULT nextval('events_global_position_seq');
"""


@pytest.mark.parametrize("target", ["events", "events_p1"])
def test_partitions_also_by_an_insert_straight_into_a_leaf(make_db, worker, target):
    db = make_db(schema=False)
    for statement in PARTITIONED.strip().rstrip(";").split(";\n"):
        db.execute(statement)
    millrace("schema", "apply", database=db)
    db.create_effects()
    process = worker(db, {"worker": IMPATIENT, "consumers": [recorder("a")]})
    process.wait_log("worker started")
    with db.connect(autocommit=False) as connection:
        held = connection.execute(INSERT.replace("INTO events", f"INTO {target}"),
                                  ["Order", "x", 1, uuid.uuid4(), "Held", b"{}"]).fetchone()[0]
        insert_events(db, 60)
        look_again(db, process, 8)
        assert db.handled("a") == [], "the lock of the leaf was not seen"
        assert gaps_open(db)[0]["pid"] is not None
        connection.commit()
    assert held == 1
    all_handled(db)


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_the_database_defaults_to_a_stronger_isolation(make_db, worker, isolation):
    """A proof and the rows it is for must come from two snapshots: with one for both, a commit between them is proven
    dead."""
    db = make_db()
    db.create_effects()
    db.execute(f"ALTER DATABASE {db.name} SET default_transaction_isolation = '{isolation}'")
    process = worker(db, {"consumers": [recorder("a")]})
    process.wait_log("worker started")
    with Writers(db, count=12, hold=0.01, prepared=False, kills=False) as writers:
        wait_until(lambda: db.value("SELECT count(*) FROM events") > 6000 / PATIENCE, 60, "enough events")
        writers.stop()
    head = db.value("SELECT max(global_position) FROM events")
    wait_until(lambda: db.checkpoint("a") >= head, 30, "the consumer at the head")
    assert_exactly_once(db)
