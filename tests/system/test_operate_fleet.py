"""What running workers do when somebody pauses, resets, skips, replays or drops: at once, exactly, and with nothing lost
or doubled."""

import json
import threading
import time

import pytest

from fleet import Appender, fleet_config, registered, slow_recorder, wait_exactly_once
from harness import PATIENCE, all_handled, assert_exactly_once, insert_event, insert_events, millrace, recorder, wait_until

QUICK = {"poll_interval": "10ms", "max_poll_interval": "50ms", "max_retries": 1, "retry_base_delay": "10ms",
         "retry_max_delay": "20ms"}


@pytest.fixture
def ask(db):
    """ask(*words, status=0): the program's JSON, or what it said when it failed."""
    def run(*words, status=0):
        done = millrace(*words, "--json", database=db, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr
    return run


@pytest.fixture
def start(db, worker):
    """start(*consumers): a worker that runs them, registered."""
    db.create_effects()

    def run(*consumers, **options):
        process = worker(db, fleet_config(consumers, **{**QUICK, **options}))
        registered(process)
        return process
    return run


def count(db, consumer="a"):
    return db.value("SELECT count(*) FROM effects WHERE consumer = %s", [consumer])


def handles(db, consumer, more):
    """Waits until a consumer has handled that many more events."""
    before = count(db, consumer)
    wait_until(lambda: count(db, consumer) >= before + more, 30, f"{consumer} to go on")


def fails_at(consumer, position, **options):
    """Records events; fails at one position while the table `broken` has a row."""
    return {"name": consumer, "sql": f"INSERT INTO effects(consumer, pos) SELECT '{consumer}', :global_position + 0 / "
            f"(CASE WHEN :global_position = {position} AND EXISTS (SELECT FROM broken) THEN 0 ELSE 1 END)", **options}


def broken(db):
    db.execute("CREATE TABLE broken (x int); INSERT INTO broken VALUES (1)")


# ---- Pause ----------------------------------------------------------------------------------------------------------


@pytest.mark.asan
@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_commits_once_pause_has_returned(db, start, ask, workers):
    for _ in range(workers):
        start("a", "b")
    with Appender(db.uri, pause=0.002):
        for _ in range(5):
            handles(db, "a", 5)
            ask("consumers", "pause", "a")
            reached, place = count(db), db.checkpoint("a")
            handles(db, "b", 20)  # the rest of the fleet goes on
            assert (count(db), db.checkpoint("a")) == (reached, place)
            ask("consumers", "resume", "a")
    wait_exactly_once(db, ["a", "b"])


@pytest.mark.parametrize("strategy", ["advisory", "lease"])
def test_pause_and_resume_are_obeyed_within_a_second(db, start, ask, strategy):
    for _ in range(2):  # one of them does not lead
        start("a", leader_strategy=strategy, rebalance_interval="500ms", heartbeat_interval="5s",
              heartbeat_timeout="30s")
    insert_events(db, 3)
    all_handled(db)
    ask("consumers", "pause", "a")
    insert_events(db, 3)
    begin = time.monotonic()
    ask("consumers", "resume", "a")
    wait_until(lambda: count(db) == 6, 10, "the paused consumer to go on")
    assert time.monotonic() - begin < 2 * PATIENCE  # with the start of the program


def test_a_pause_lets_a_running_batch_finish(db, start, ask):
    start(slow_recorder("a", 0.3), batch_size=3)
    insert_events(db, 12)
    wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%pg_sleep%%' "
                                "AND state = 'active' AND datname = current_database()") > 1, 20, "a batch")
    row, = ask("consumers", "pause", "a")
    assert count(db) == row["detail"]["position"] == db.checkpoint("a") > 0
    ask("consumers", "resume", "a")
    all_handled(db)


@pytest.mark.asan
def test_a_pause_outlives_workers(db, start, ask):
    first = start("a", "b")
    insert_events(db, 3)
    all_handled(db)
    ask("consumers", "pause", "a")
    first.stop()
    start("a", "b")
    insert_events(db, 5)
    wait_until(lambda: count(db, "b") == 8, 20, "the other consumer")
    assert count(db) == 3
    assert {row["consumer"]: row["state"] for row in ask("consumers", "list")}["a"] == "paused"
    ask("consumers", "resume", "a")
    all_handled(db)


def test_a_failing_consumer_goes_on_when_resumed(db, start, ask):
    broken(db)
    start(fails_at("a", 3))
    insert_events(db, 5)
    wait_until(lambda: db.value("SELECT paused FROM millrace.consumer_controls"), 20, "the pause")
    assert db.handled("a") == [1, 2]
    db.execute("DELETE FROM broken")
    ask("consumers", "resume", "a")
    all_handled(db)


# ---- Reset and skip -------------------------------------------------------------------------------------------------


def test_rebuild_by_pause_reset_resume(db, start, ask):
    start("a", "b")
    with Appender(db.uri, pause=0.002):
        handles(db, "a", 20)
        ask("consumers", "pause", "a")
        db.execute("DELETE FROM effects WHERE consumer = 'a'")
        ask("consumers", "reset", "a", "--to", "beginning")
        ask("consumers", "resume", "a")
        handles(db, "a", 30)
    wait_exactly_once(db, ["a", "b"])


def test_reset_of_a_running_consumer(db, start, ask):
    """Back: from the new position on once more, in order. Forward: what is between was passed over."""
    start("a")
    insert_events(db, 10)
    all_handled(db)
    ask("consumers", "reset", "a", "--to", 6)
    wait_until(lambda: count(db) == 14, 20, "four events once more")
    assert db.handled("a") == [*range(1, 11), 7, 8, 9, 10]
    ask("consumers", "pause", "a")
    insert_events(db, 10)
    row, = ask("consumers", "reset", "a", "--to", 18)
    assert (row["detail"]["skipped_from"], row["detail"]["skipped_to"]) == (11, 18)
    ask("consumers", "resume", "a")
    wait_until(lambda: count(db) == 16, 20, "the last two")
    assert db.handled("a")[14:] == [19, 20]


@pytest.mark.asan
def test_skip_of_the_event_it_is_paused_for(db, start, ask):
    broken(db)
    start(fails_at("a", 3))
    insert_events(db, 5)
    wait_until(lambda: db.value("SELECT paused FROM millrace.consumer_controls"), 20, "the pause")
    row, = ask("consumers", "skip", "a", 3, "--reason", "bad", "--actor", "ann")
    assert row["detail"]["resumed"] is True
    wait_until(lambda: db.checkpoint("a") == 5, 20, "the rest")
    assert db.handled("a") == [1, 2, 4, 5]
    assert db.rows("SELECT consumer_name, gap_position, gap_end, strategy, decided_by, reason "
                   "FROM millrace.consumer_gap_skips") == [("a", 3, 3, "skip", "ann", "bad")]
    assert db.value("SELECT skips::text FROM millrace.consumer_controls") == "[]"


def test_skip_of_an_event_to_come(db, start, ask):
    start(recorder("a"))
    insert_events(db, 2)
    all_handled(db)
    ask("consumers", "pause", "a")
    insert_events(db, 3)
    ask("consumers", "skip", "a", 4)
    ask("consumers", "resume", "a")
    wait_until(lambda: db.checkpoint("a") == 5, 20, "the rest")
    assert db.handled("a") == [1, 2, 3, 5]


@pytest.mark.asan
def test_slots(db, start, ask):
    start(recorder("a", partitions=4))
    with Appender(db.uri, pause=0.002):
        handles(db, "a", 20)
        assert len(ask("consumers", "pause", "a")) == 4
        reached = count(db)
        position = insert_event(db)
        row, = ask("consumers", "skip", "a", position)
        assert row["consumer"].startswith("a#") and count(db) == reached
        ask("consumers", "resume", "a")
        handles(db, "a", 20)
    wait_until(lambda: count(db) == len(db.committed()) - 1, 30, "all but one")
    assert sorted(db.handled("a")) == [p for p in db.committed() if p != position]


def test_many_operators_at_once(db, start, ask):
    """Commands on the same slots, while batches run and letters are replayed, wait for each other and never deadlock."""
    broken(db)
    start(fails_at("a", 2, on_failure="dead_letter", partitions=4))
    start(fails_at("a", 2, on_failure="dead_letter", partitions=4))
    problems = []

    def operate(number):
        for turn in range(6):
            words = [["consumers", "pause", "a"], ["consumers", "resume", "a"], ["consumers", "pause", f"a#{number}/4"],
                     ["dead-letters", "replay", "--all", "--timeout", "0"], ["consumers", "resume", "a"]]
            done = millrace(*words[(turn + number) % len(words)], database=db, check=False)
            if done.returncode != 0 and "failed again" not in done.stderr and "stay requested" not in done.stderr:
                problems.append(done.stderr)
    with Appender(db.uri, pause=0.005):
        wait_until(lambda: ask("dead-letters", "list"), 20, "a letter")
        threads = [threading.Thread(target=operate, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert not problems
    db.execute("DELETE FROM broken")
    ask("consumers", "resume", "a")
    assert ask("dead-letters", "replay", "--all")["failed"] == 0
    wait_until(lambda: count(db) >= len(db.committed()), 30, "all events")
    assert sorted(db.handled("a")) == db.committed()


# ---- Dead letters ---------------------------------------------------------------------------------------------------


@pytest.mark.asan
def test_replay(db, start, ask):
    broken(db)
    start(fails_at("a", 3, on_failure="dead_letter"))
    insert_events(db, 5)
    wait_until(lambda: db.checkpoint("a") == 5, 20, "the rest")
    assert db.handled("a") == [1, 2, 4, 5]
    done = millrace("dead-letters", "replay", "--consumer", "a", "--json", database=db, check=False)
    assert done.returncode == 1 and json.loads(done.stdout)["failures"][0]["position"] == 3
    assert "division by zero" in json.loads(done.stdout)["failures"][0]["error"]
    db.execute("DELETE FROM broken")
    assert ask("dead-letters", "replay", "--consumer", "a") == {"replayed": 1, "failed": 0, "failures": []}
    assert db.handled("a") == [1, 2, 4, 5, 3] and ask("dead-letters", "list") == []


def test_a_replay_in_vain_knows_who_holds_a_lock(db, start, ask):
    """A consumer with a lock of its own is no worker's by assignment; that does not mean that none can run it."""
    broken(db)
    start(fails_at("a", 1, on_failure="dead_letter", ownership="lock"))
    insert_events(db, 2)
    wait_until(lambda: db.checkpoint("a") == 2, 20, "the letter")
    ask("consumers", "pause", "a")
    done = millrace("dead-letters", "replay", "--all", "--timeout", "10ms", database=db, check=False)
    assert done.returncode == 1 and "consumer a is paused" in done.stderr and "no worker" not in done.stderr
    db.execute("DELETE FROM broken")
    ask("consumers", "resume", "a")
    wait_until(lambda: db.handled("a") == [2, 1], 20, "the letter that stayed requested")


def test_replay_keeps_the_order_of_a_stream(db, start, ask):
    broken(db)
    start(fails_at("a", 2, on_failure="dead_letter", dead_letter_order="key"))
    for version in range(1, 5):
        insert_event(db, aggregate_id="x", version=version)
        insert_event(db, aggregate_id="y", version=version)
    wait_until(lambda: db.checkpoint("a") == 8, 20, "the rest")
    assert db.handled("a") == [1, 3, 5, 7]
    assert [(row["position"], row["state"]) for row in ask("dead-letters", "list")] == [
        (2, "poison"), (4, "parked"), (6, "parked"), (8, "parked")]
    db.execute("DELETE FROM broken")
    assert ask("dead-letters", "replay", "--id", "y")["replayed"] == 4
    assert db.handled("a") == [1, 3, 5, 7, 2, 4, 6, 8]
    insert_event(db, aggregate_id="y", version=5)
    wait_until(lambda: count(db) == 9, 20, "the stream to go on by itself")


def test_drop_frees_the_stream(db, start, ask):
    broken(db)
    start(fails_at("a", 1, on_failure="dead_letter", dead_letter_order="key"))
    insert_event(db, aggregate_id="x", version=1)
    wait_until(lambda: db.checkpoint("a") == 1, 20, "the letter")
    assert ask("dead-letters", "drop", "--position", 1, "--reason", "bad") == {"dropped": 1}
    insert_event(db, aggregate_id="x", version=2)
    wait_until(lambda: db.checkpoint("a") == 2, 20, "the next event")
    assert db.handled("a") == [2]


def test_reset_below_a_letter_handles_it_again(db, start, ask):
    broken(db)
    start(fails_at("a", 3, on_failure="dead_letter"))
    insert_events(db, 5)
    wait_until(lambda: db.checkpoint("a") == 5, 20, "the letter")
    db.execute("DELETE FROM broken; DELETE FROM effects")
    row, = ask("consumers", "reset", "a", "--to", "beginning")
    assert row["detail"]["letters"] == [3]
    wait_until(lambda: count(db) == 5, 20, "all once more")
    assert_exactly_once(db)
