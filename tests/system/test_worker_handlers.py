"""Handlers that fail, hang or are cancelled: only they suffer. Start positions, filters, stopping, --once, --check."""

import json
import signal
import time

import pytest

from harness import (PATIENCE, all_handled, assert_exactly_once, insert_event, insert_events, millrace, open_transaction,
                     recorder, rolled_back, wait_until)
from writers import assert_holes_audited

QUICK = {"poll_interval": "10ms", "max_poll_interval": "50ms", "retry_base_delay": "10ms", "retry_max_delay": "50ms"}


def assert_others_go_on(db, *names):
    insert_events(db, 20)
    for name in names:
        all_handled(db, name)


# ---- Failing --------------------------------------------------------------------------------------------------------

@pytest.mark.asan
@pytest.mark.parametrize("kind", ["sql", "sql_batch"])
def test_a_failing_handler_stops_only_itself(db, worker, kind):
    db.create_effects()
    bad = {"sql": "SELECT 1 / (:global_position - 7)"} if kind == "sql" else {
        "sql_batch": "SELECT 1 / (global_position - 7) FROM batch"}
    process = worker(db, {"worker": {**QUICK, "executors": 1},
                          "consumers": [recorder("a"), {"name": "bad", **bad}, recorder("b")]})
    insert_events(db, 10)
    line = process.wait_log("consumer paused", consumer="bad")
    assert "division by zero" in line["error"]
    failures = process.matching(msg="batch failed", consumer="bad")
    assert [int(entry["failures"]) for entry in failures] == [1, 2]  # once together, once each by itself
    assert all(entry["sqlstate"] == "22012" for entry in failures)
    assert int(failures[1]["position"]) == int(line["position"]) == 7
    if kind == "sql":  # the event to blame is named, though the whole batch went in one pipeline
        assert int(failures[0]["position"]) == 7
    assert_others_go_on(db, "a", "b")
    assert db.checkpoint("bad") == 6  # the good ones before it are done
    assert process.running()
    process.stop()


def test_fatal_ends_the_process(db, worker):
    db.create_effects()
    process = worker(db, {"worker": {**QUICK, "max_consecutive_failures": 2},
                          "consumers": [recorder("a"), {"name": "bad", "sql": "SELECT 1 / 0, :global_position",
                                                        "on_failure": "fatal"}]})
    insert_events(db, 3)
    assert process.wait_exit() == 1
    assert len(process.matching(msg="batch failed")) == 2
    assert "bad" in process.log() and "division by zero" in process.log()
    # What the others did is done, and goes on in the next process.
    worker(db, {"consumers": [recorder("a")]}, "--once").finish()
    assert_exactly_once(db)


def test_unlimited_means_never_give_up_and_it_recovers(db, worker):
    db.create_effects()
    db.execute("CREATE TABLE switch (divisor int)")
    db.execute("INSERT INTO switch VALUES (0)")
    process = worker(db, {"worker": {**QUICK, "max_retries": "unlimited"}, "consumers": [
        {"name": "a", "sql": "INSERT INTO effects (consumer, pos) SELECT 'a', :global_position / divisor FROM switch"}]})
    insert_events(db, 30)
    wait_until(lambda: len(process.matching(msg="batch failed")) >= 8, what="several failures")
    db.execute("UPDATE switch SET divisor = 1")
    all_handled(db)
    assert process.wait_log("consumer recovered", consumer="a")
    assert not process.matching(msg="consumer paused")


def test_once_with_a_failing_handler_says_so(db, worker):
    db.create_effects()
    insert_events(db, 3)
    process = worker(db, {"worker": QUICK,
                          "consumers": [{"name": "bad", "sql": "SELECT 1 / 0, :global_position"}]}, "--once")
    process.finish(status=1)
    assert "division by zero" in process.log()


@pytest.mark.asan
def test_a_commit_that_fails_commits_nothing(db, worker):
    db.create_effects()
    db.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    db.execute("CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    process = worker(db, {"worker": {**QUICK, "max_retries": 1}, "consumers": [
        recorder("a"), {"name": "bad", "sql": "INSERT INTO child VALUES (:global_position)"}]})
    insert_events(db, 5)
    assert "foreign key" in process.wait_log("consumer paused", consumer="bad")["error"]
    assert db.checkpoint("bad") == 0 and db.value("SELECT count(*) FROM child") == 0
    assert_others_go_on(db, "a")


def test_deadlocks_are_tried_again_without_blame(db, worker):
    db.create_effects()
    db.execute("CREATE TABLE hot (id int PRIMARY KEY, n bigint)")
    db.execute("INSERT INTO hot VALUES (1, 0), (2, 0)")
    db.execute(f"ALTER DATABASE {db.name} SET deadlock_timeout = '10ms'")
    # Two consumers lock two rows in opposite order, one row a statement.
    up = "UPDATE hot SET n = n + 1 WHERE id = 1 + (:global_position % 2)"
    down = "UPDATE hot SET n = n + 1 WHERE id = 2 - (:global_position % 2)"
    process = worker(db, {"worker": {"max_retries": 0},
                          "consumers": [{"name": "up", "sql": up}, {"name": "down", "sql": down}, recorder("a")]})
    insert_events(db, 2000)
    wait_until(lambda: db.value("SELECT sum(n) FROM hot") == 4000, 60,
               lambda: f"both to finish:\n{process.log()[-2000:]}")
    assert not process.matching(msg="consumer paused")
    assert db.value("SELECT sum(n) FROM hot") == 4000


# ---- Hanging --------------------------------------------------------------------------------------------------------

@pytest.mark.tsan
@pytest.mark.asan
def test_batch_timeout_cancels_on_the_server(db, worker):
    db.create_effects()
    process = worker(db, {"worker": {**QUICK, "max_retries": 2, "executors": 2}, "consumers": [
        {"name": "slow", "sql": "SELECT pg_sleep(1000), :global_position", "batch_timeout": "200ms"}, recorder("a")]})
    insert_events(db, 3)
    line = process.wait_log("consumer paused", consumer="slow", timeout=20)
    assert "batch_timeout" in line["error"], process.log()
    # Cancelled on the server, not abandoned; and the connection was kept.
    assert db.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%pg_sleep%%' AND state = 'active' "
                    "AND pid <> pg_backend_pid() AND datname = current_database()") == 0
    assert not process.matching(lambda entry: "closed" in entry.get("error", ""))
    assert_others_go_on(db, "a")


def test_a_timed_out_executor_keeps_its_connection(db, worker):
    db.create_effects()
    db.execute("CREATE TABLE nap (seconds float)")
    db.execute("INSERT INTO nap VALUES (1000)")
    process = worker(db, {"worker": {**QUICK, "max_retries": "unlimited", "executors": 1}, "consumers": [
        {"name": "a", "batch_timeout": "200ms",
         "sql": "INSERT INTO effects (consumer, pos) SELECT 'a', :global_position FROM nap, pg_sleep(seconds)"}]})
    insert_events(db, 3)
    pids = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%%pg_sleep(seconds)%%' AND pid <> pg_backend_pid()"
    (before,) = wait_until(lambda: db.values(pids), what="the batch to run")
    wait_until(lambda: len(process.matching(msg="batch failed")) >= 3, what="three timeouts")
    assert wait_until(lambda: db.values(pids), what="the batch to run again") == [before]
    db.execute("UPDATE nap SET seconds = 0")
    all_handled(db)


def test_a_locked_row_delays_only_its_consumer(db, worker):
    db.create_effects()
    process = worker(db, {"worker": QUICK, "consumers": [recorder("a"), recorder("b")]})
    insert_event(db)
    all_handled(db, "a")
    all_handled(db, "b")
    with db.connect(autocommit=False) as connection:
        connection.execute("SELECT * FROM millrace.consumer_checkpoints WHERE consumer_name = 'b' FOR UPDATE")
        assert_others_go_on(db, "a")
        assert db.checkpoint("b") == 1
        connection.rollback()
    all_handled(db, "b")
    process.stop()


def test_a_checkpoint_moved_by_hand_is_noticed(db, worker):
    """Whoever sets a checkpoint while a worker runs: the fence refuses the batch, the worker reads it anew."""
    db.create_effects()
    process = worker(db, {"consumers": [recorder("a")]})
    insert_events(db, 20)
    all_handled(db)
    db.execute("UPDATE millrace.consumer_checkpoints SET last_position = 15")
    insert_event(db)
    wait_until(lambda: db.checkpoint("a") == 21, what="the consumer to go on")
    process.wait_log("batch fenced off", consumer="a")
    assert db.handled("a") == [*range(1, 21), *range(16, 22)]


# ---- Where to start, what to take -----------------------------------------------------------------------------------

@pytest.mark.asan
def test_start_from(db, worker):
    db.create_effects()
    for position in range(1, 11):
        insert_event(db)
        db.execute("UPDATE events SET created_at = %s WHERE global_position = %s",
                   [f"2026-01-{position:02d}T12:00:00Z", position])
    rolled_back(db, 2)
    starts = {"beginning": 1, "now": 14, 4: 5, "0": 1, "2026-01-06T12:00:00Z": 6, "2026-01-06T12:00:01Z": 7,
              "2026-01-06 12:00:00+00": 6, "2020-01-01": 1, "2099-01-01": 14, 13: 14}
    db.execute("SELECT setval('events_global_position_seq', 12)")
    insert_event(db)
    db.execute("UPDATE events SET created_at = '2026-02-01' WHERE global_position = 13")
    config = {"consumers": [recorder(f"from {start}", start_from=start) for start in starts]}
    worker(db, config, "--once").finish()
    insert_event(db)
    worker(db, config, "--once").finish()
    committed = db.committed()
    for start, first in starts.items():
        assert db.handled(f"from {start}") == [p for p in committed if p >= first], start
    # A checkpoint that is there counts more than start_from.
    db.execute("DELETE FROM effects")
    worker(db, {"consumers": [recorder("from now", start_from="beginning")]}, "--once").finish()
    assert db.handled("from now") == []


@pytest.mark.asan
@pytest.mark.parametrize("start", ["yesterday-ish", "-1", "12.5", "9223372036854775808", ""])
def test_start_from_nonsense(db, worker, start):
    process = worker(db, {"consumers": [{"name": "a", "sql": "SELECT 1", "start_from": start}]})
    assert process.wait_exit() == 2, process.log()
    assert "start_from" in process.log()


@pytest.mark.asan
def test_filters(db, worker):
    db.create_effects()
    odd = ['a,b', 'c=d', 'e\\f', 'g"h', "i'j", "{k}", "ü ü", "l m", "NULL", "%s"]
    for name in odd + ["plain"]:
        for event in ("One", "Two, three"):
            insert_events(db, 2, aggregate_type=name, event_type=event)
    consumers = [recorder("all"), recorder("odd", aggregate_types=odd), recorder("one", event_types=["One"])]
    for number, name in enumerate(odd):
        consumers.append(recorder(f"t{number}", aggregate_types=[name], event_types=["Two, three"]))
        consumers.append({"name": f"s{number}", "aggregate_types": [name], "event_types": ["Two, three"],
                          "sql_batch": f"INSERT INTO effects (consumer, pos) SELECT 's{number}', global_position "
                                       "FROM batch ORDER BY 2"})
    worker(db, {"consumers": consumers}, "--once").finish()
    assert_exactly_once(db, consumer="all")
    assert_exactly_once(db, consumer="odd", where="aggregate_type <> 'plain'")
    assert_exactly_once(db, consumer="one", where="event_type = 'One'")
    for number, name in enumerate(odd):
        literal = name.replace("'", "''")
        for kind in "ts":
            assert_exactly_once(db, consumer=f"{kind}{number}",
                                where=f"aggregate_type = '{literal}' AND event_type <> 'One'")
    head = db.committed()[-1]
    assert set(db.values("SELECT last_position FROM millrace.consumer_checkpoints")) == {head}


# ---- Stopping -------------------------------------------------------------------------------------------------------

SLOW = ("INSERT INTO effects (consumer, pos) SELECT 'a', :global_position FROM "
        "(SELECT pg_sleep(CASE WHEN :global_position = 1 THEN %s ELSE 0 END)) nap")


def running_nap(db):
    return db.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()")


@pytest.mark.asan
@pytest.mark.tsan
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_the_running_batch_finish(db, worker, number):
    db.create_effects()
    insert_events(db, 10)
    process = worker(db, {"consumers": [{"name": "a", "sql": SLOW % 1}], "worker": {"batch_size": 10}})
    wait_until(lambda: running_nap(db), what="the batch to run")
    process.signal(number)
    assert process.wait_exit() == 0
    assert db.handled("a") == list(range(1, 11))
    assert db.value("SELECT count(*) FROM millrace.worker_nodes") == 0


@pytest.mark.tsan
def test_a_second_signal_forces(db, worker):
    db.create_effects()
    insert_events(db, 10)
    process = worker(db, {"consumers": [{"name": "a", "sql": SLOW % 600}], "worker": {"batch_timeout": "10m"}})
    wait_until(lambda: running_nap(db), what="the batch to run")
    process.signal(signal.SIGTERM)
    process.wait_log("worker stopping")
    began = time.monotonic()
    process.signal(signal.SIGTERM)
    process.wait_exit()
    assert time.monotonic() - began < 5 * PATIENCE
    assert db.handled("a") == [] and db.checkpoint("a") == 0
    wait_until(lambda: not running_nap(db), what="the statement to be cancelled")


def test_shutdown_timeout_cancels(db, worker):
    db.create_effects()
    insert_events(db, 10)
    process = worker(db, {"consumers": [{"name": "a", "sql": SLOW % 600}],
                          "worker": {"batch_timeout": "10m", "shutdown_timeout": "300ms"}})
    wait_until(lambda: running_nap(db), what="the batch to run")
    process.stop()
    assert db.handled("a") == []
    wait_until(lambda: not running_nap(db), what="the statement to be cancelled")


def test_once_waits_for_what_is_still_open(db, worker):
    db.create_effects()
    with open_transaction(db) as (connection, held):
        insert_events(db, 5)
        process = worker(db, {"consumers": [recorder("a")]}, "--once")
        wait_until(lambda: db.checkpoint("a") == held - 1, what="the consumer at the hole")
        assert process.running()
        connection.commit()
    process.finish()
    assert_exactly_once(db)


def test_once_many_times(db, worker):
    """It must drain each time, whatever comes first when it starts."""
    db.create_effects()
    insert_events(db, 500)
    for number in range(12):
        names = [f"c{number}-{n}" for n in range(3)]
        worker(db, {"consumers": [recorder(name) for name in names]}, "--once").finish()
        for name in names:
            assert_exactly_once(db, consumer=name)


@pytest.mark.asan
def test_an_empty_log(db, worker):
    db.create_effects()
    worker(db, {"consumers": [recorder("a")]}, "--once").finish()
    process = worker(db, {"consumers": [recorder("a"), recorder("b", start_from="now")]})
    process.wait_log("worker started")
    wait_until(lambda: db.checkpoint("b") == 0, what="b's checkpoint")
    insert_events(db, 3)
    all_handled(db, "a")
    all_handled(db, "b")


@pytest.mark.asan
def test_a_log_that_begins_at_four_billion(db, worker):
    db.create_effects()
    first = 4_000_000_000
    db.execute(f"ALTER SEQUENCE events_global_position_seq RESTART WITH {first}")
    insert_events(db, 300)
    worker(db, {"consumers": [recorder("a"), {
        "name": "b", "sql_batch": "INSERT INTO effects (consumer, pos) SELECT 'b', global_position FROM batch "
                                  "ORDER BY 2"}]}, "--once").finish()
    assert_exactly_once(db)
    assert_exactly_once(db, consumer="b")
    (row,) = [row for row in json.loads(millrace("--json", "gaps", "list", database=db).stdout) if row["consumer"] == "a"]
    assert (int(row["gap_position"]), int(row["gap_end"])) == (1, first - 1)


def test_increments_of_ten(db, worker):
    db.create_effects()
    db.execute("ALTER SEQUENCE events_global_position_seq INCREMENT 10")
    process = worker(db, {"consumers": [recorder("a")]})
    insert_events(db, 1200)
    all_handled(db)
    assert_holes_audited(db, "a")
    process.stop()


@pytest.mark.asan
def test_check_handles_nothing(db, worker):
    db.create_effects()
    insert_events(db, 3)
    process = worker(db, {"consumers": [recorder("a")]}, "--check")
    process.finish()
    assert b"ok, 1 consumer" in process.stdout
    assert db.handled("a") == [] and db.checkpoint("a") is None
    assert db.value("SELECT count(*) FROM millrace.worker_nodes") == 0
