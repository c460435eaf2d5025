"""The other ways to decide a hole: each does what it says, also where that loses an event, and says so in the audit."""

import json
import time

import pytest

from harness import (PATIENCE, all_handled, assert_exactly_once, insert_event, insert_events, millrace,
                     open_transaction, recorder, rolled_back, wait_until)
from writers import assert_holes_audited


def run(db, worker, strategy, *arguments, consumers=("a",), **options):
    db.create_effects()
    process = worker(db, {"worker": {"gap_strategy": strategy, **options},
                          "consumers": [recorder(name) for name in consumers]}, *arguments)
    process.wait_log("worker started")
    return process


def audit(db):
    return json.loads(millrace("--json", "gaps", "list", database=db).stdout)


# ---- harbor ---------------------------------------------------------------------------------------------------------

def test_harbor_waits_for_the_threshold_then_goes_on(db, worker):
    run(db, worker, "harbor", stale_gap_threshold="700ms", stale_gap_harbor_lag=1)
    insert_events(db, 3)
    all_handled(db)
    rolled_back(db, 1)
    began = time.monotonic()
    insert_events(db, 5)
    all_handled(db)
    assert time.monotonic() - began >= 0.6
    assert_holes_audited(db, "a")
    (row,) = audit(db)
    assert row["strategy"] == "harbor" and "may be lost" in row["reason"]


def test_harbor_loses_a_late_commit_and_leaves_a_row(db, worker):
    """The documented risk: this is why it is not the default."""
    run(db, worker, "harbor", stale_gap_threshold="200ms", stale_gap_harbor_lag=0)
    with open_transaction(db) as (connection, held):
        insert_events(db, 5)
        wait_until(lambda: db.handled("a") == [2, 3, 4, 5, 6], what="the events behind the hole")
        connection.commit()
    insert_events(db, 5)
    wait_until(lambda: db.checkpoint("a") == 11, what="the rest")
    assert held == 1 and held not in db.handled("a")
    assert [(int(row["gap_position"]), int(row["gap_end"])) for row in audit(db)] == [(1, 1)]


def test_harbor_takes_a_commit_that_comes_in_time(db, worker):
    run(db, worker, "harbor", stale_gap_threshold="30s")
    with open_transaction(db) as (connection, _):
        insert_events(db, 5)
        connection.commit()
    all_handled(db)
    assert audit(db) == []


def test_harbor_passes_gap_after_gap(db, worker):
    run(db, worker, "harbor", stale_gap_threshold="100ms")
    for _ in range(4):
        rolled_back(db, 2)
        insert_events(db, 3)
    all_handled(db)
    assert_holes_audited(db, "a")


# ---- timeout --------------------------------------------------------------------------------------------------------

def test_timeout_skip(db, worker):
    run(db, worker, "timeout", gap_timeout="500ms", gap_action="skip")
    rolled_back(db, 3)
    began = time.monotonic()
    insert_events(db, 5)
    all_handled(db)
    assert time.monotonic() - began >= 0.4
    assert_holes_audited(db, "a")
    assert {row["strategy"] for row in audit(db)} == {"timeout"}


def test_timeout_error_stays_and_retries(db, worker):
    process = run(db, worker, "timeout", gap_timeout="100ms", gap_action="error", max_gap_wait="1h")
    with open_transaction(db) as (connection, _):
        insert_events(db, 5)
        process.wait_log("waiting for a hole", timeout=15)
        assert db.handled("a") == [] and process.running()
        connection.commit()
    all_handled(db)
    assert audit(db) == []


def test_timeout_error_gives_up_at_the_bound(db, worker):
    process = run(db, worker, "timeout", gap_timeout="100ms", gap_action="error", max_gap_wait="600ms")
    rolled_back(db, 1)
    insert_events(db, 5)
    assert process.wait_exit() == 1
    assert "position 1 is missing" in process.log() and "max_gap_wait" in process.log()
    assert db.handled("a") == [] and audit(db) == []


# ---- snapshot -------------------------------------------------------------------------------------------------------

def test_snapshot_waits_for_those_who_ran(db, worker):
    run(db, worker, "snapshot")
    db.execute("CREATE TABLE other (x int)")
    with db.connect(autocommit=False) as unrelated:
        unrelated.execute("INSERT INTO other VALUES (1)")  # any write transaction of the cluster delays it
        rolled_back(db, 2)
        insert_events(db, 5)
        wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%pg_snapshot_xmin%%' "
                                    "AND pid <> pg_backend_pid()") or db.checkpoint("a") is not None, what="a look")
        assert db.handled("a") == []
        unrelated.rollback()
    all_handled(db)
    assert_holes_audited(db, "a")
    assert {row["strategy"] for row in audit(db)} == {"snapshot"}


def test_snapshot_takes_a_late_commit_in_order(db, worker):
    run(db, worker, "snapshot")
    with db.connect(autocommit=False) as connection:
        connection.execute("SELECT pg_current_xact_id()")  # the appender owns its id before it draws a position
        held = insert_event(connection)
        insert_events(db, 20)
        assert held not in db.handled("a")
        connection.commit()
    all_handled(db)


# ---- published ------------------------------------------------------------------------------------------------------

def test_published_reads_up_to_what_was_published(db, worker):
    run(db, worker, "published", consumers=("a", "b"))
    insert_events(db, 5)
    rolled_back(db, 2)
    insert_events(db, 5)
    db.execute("SELECT millrace.publish(3)")
    for name in "ab":
        wait_until(lambda name=name: db.handled(name) == [1, 2, 3], what="what was published")
    assert db.value("SELECT millrace.publish(1)") == 3  # never back
    db.execute("SELECT millrace.publish(10)")
    for name in "ab":
        wait_until(lambda name=name: db.handled(name) == [1, 2, 3, 4, 5, 8, 9, 10], what="what was published")
        assert_holes_audited(db, name)
    assert {row["strategy"] for row in audit(db)} == {"published"}
    db.execute("SELECT millrace.publish(12)")
    all_handled(db, "a")


def test_published_with_once(db, worker):
    db.create_effects()
    insert_events(db, 5)
    db.execute("SELECT millrace.publish(3)")
    worker(db, {"worker": {"gap_strategy": "published"}, "consumers": [recorder("a")]}, "--once").finish()
    assert db.handled("a") == [1, 2, 3]


def test_published_below_a_checkpoint_goes_not_beyond(db, worker):
    """A consumer that another strategy brought further than what is published: nobody passes the published place."""
    db.create_effects()
    insert_events(db, 10)
    worker(db, {"consumers": [recorder("ahead")]}, "--once").finish()
    db.execute("SELECT millrace.publish(4)")
    with open_transaction(db):
        insert_events(db, 5)
        worker(db, {"worker": {"gap_strategy": "published"}, "consumers": [recorder("ahead"), recorder("b")]})
        wait_until(lambda: db.checkpoint("b") == 4, what="b at the published place")
        db.execute("SELECT millrace.publish(6)")
        wait_until(lambda: db.checkpoint("b") == 6, what="b at the published place")
        assert db.handled("b") == [1, 2, 3, 4, 5, 6] and db.checkpoint("ahead") == 10


# ---- single_writer --------------------------------------------------------------------------------------------------

def test_single_writer(db, worker):
    process = run(db, worker, "single_writer")
    insert_events(db, 10)
    all_handled(db)
    rolled_back(db, 1)
    insert_event(db)
    assert process.wait_exit() == 1
    assert "position 11 is missing" in process.log() and "single_writer" in process.log()
    assert db.handled("a") == list(range(1, 11)) and audit(db) == []


# ---- All of them ----------------------------------------------------------------------------------------------------

@pytest.mark.asan
@pytest.mark.parametrize("strategy", ["settled", "harbor", "timeout", "snapshot", "single_writer"])
def test_a_log_without_holes(db, worker, strategy):
    db.create_effects()
    insert_events(db, 1500)
    config = {"worker": {"gap_strategy": strategy, "read_size": 100},
              "consumers": [recorder("a"), recorder("b", start_from=700)]}
    worker(db, config, "--once").finish()
    assert_exactly_once(db)
    assert_exactly_once(db, consumer="b", where="global_position > 700")
    process = worker(db, config)
    insert_events(db, 10)
    wait_until(lambda: db.checkpoint("a") == db.checkpoint("b") == 1510, 10 * PATIENCE, "both at the head")
    process.stop()
    assert_exactly_once(db)


def test_from_harbor_to_settled(db, worker):
    """What one strategy passed over stays passed over; the next one decides what follows."""
    db.create_effects()
    with open_transaction(db) as (connection, held):
        insert_events(db, 5)
        worker(db, {"worker": {"gap_strategy": "harbor", "stale_gap_threshold": "100ms"},
                    "consumers": [recorder("a")]}, "--once").finish()
        connection.commit()
    rolled_back(db, 2)
    insert_events(db, 5)
    worker(db, {"consumers": [recorder("a")]}, "--once").finish()
    assert db.handled("a") == [position for position in db.committed() if position != held]
