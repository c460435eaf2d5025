"""Detached consumers: at least once, no transaction and no connection while the handler runs, checkpoints now and
then."""

import json
import signal
import textwrap
import threading

import pytest

from harness import insert_event, insert_events, millrace, wait_until

FLEET = {"heartbeat_interval": "100ms", "heartbeat_timeout": "2s", "rebalance_interval": "50ms",
         "retry_base_delay": "5ms", "retry_max_delay": "50ms"}

SCRIPT = textwrap.dedent("""\
    import json, os, sys, time
    out = open(sys.argv[1], "a", buffering=1)
    for line in sys.stdin:
        event = json.loads(line)
        with open(sys.argv[1] + ".begun", "a") as begun:
            begun.write(str(event["position"]) + "\\n")
        while os.path.exists(sys.argv[1] + ".hold"):
            time.sleep(0.01)
        while os.path.exists(sys.argv[1] + ".gate") and \\
                int(open(sys.argv[1] + ".gate").read() or 0) < event["position"]:
            time.sleep(0.01)
        bad = set(json.load(open(sys.argv[1] + ".bad"))) if os.path.exists(sys.argv[1] + ".bad") else set()
        if event["position"] in bad:
            print(json.dumps({"error": "cannot", "retry": False}), flush=True)
            continue
        out.write(str(event["position"]) + "\\n")
        print(json.dumps({"ok": True, "position": event["position"]}), flush=True)
    """)


@pytest.fixture
def outside(tmp_path):
    script = tmp_path / "deliver.py"
    script.write_text(SCRIPT, encoding="utf-8")
    target = tmp_path / "delivered"

    class Outside:
        hold = tmp_path / "delivered.hold"
        bad = tmp_path / "delivered.bad"
        gate = tmp_path / "delivered.gate"
        command = ["/usr/bin/python3", str(script), str(target)]

        def let(self, position):
            """No event beyond this one is handled; those that wait go on."""
            new = tmp_path / "gate.new"
            new.write_text(str(position), encoding="utf-8")
            new.rename(self.gate)

        def positions(self):
            return [int(line) for line in target.read_text().split()] if target.exists() else []

        def begun(self):
            """Those that the handler was given."""
            path = tmp_path / "delivered.begun"
            return [int(line) for line in path.read_text().split()] if path.exists() else []
    return Outside()


def consumer(outside, **options):
    return {"name": "a", "detached": True, "exec": outside.command, **options}


def test_nothing_is_held_while_the_handler_runs(db, worker, outside):
    outside.hold.touch()
    process = worker(db, {"worker": {**FLEET, "executors": 2}, "consumers": [consumer(outside)]})
    process.wait_log("consumer taken")
    insert_events(db, 5)
    wait_until(lambda: process.matching(msg="handler says") or db.value(
        "SELECT (info->'consumers'->'a'->>'state') FROM millrace.worker_nodes") == "running", 20, process.log)
    mine = ("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'millrace %%' "
            "AND datname = current_database()")
    assert db.value(mine) == 2  # control and reader
    assert db.value(mine + " AND xact_start IS NOT NULL AND state <> 'active'") == 0
    outside.hold.unlink()
    wait_until(lambda: db.checkpoint("a") == 5, 20, process.log)
    assert outside.positions() == [1, 2, 3, 4, 5]
    process.stop()


def test_nothing_is_held_after_a_large_payload_or_in_a_replay(db, worker, outside):
    """Both need a connection first, to read; the handler runs without it."""
    mine = ("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'millrace %%' "
            "AND datname = current_database()")
    outside.bad.write_text("[2]", encoding="utf-8")
    process = worker(db, {"worker": {**FLEET, "executors": 1}, "consumers": [
        consumer(outside, on_failure="dead_letter", checkpoint_every=1)]})
    process.wait_log("consumer taken")
    outside.hold.touch()
    insert_event(db, payload=json.dumps("x" * 200_000).encode())
    wait_until(lambda: outside.begun() == [1], 20, process.log)
    wait_until(lambda: db.value(mine) == 2, 5, lambda: f"{db.value(mine)} connections\n{process.log()}")
    outside.hold.unlink()
    wait_until(lambda: db.checkpoint("a") == 1, 20, process.log)
    insert_event(db)
    wait_until(lambda: db.value("SELECT count(*) FROM millrace.consumer_dead_letters") == 1, 20, process.log)
    outside.bad.unlink()
    outside.hold.touch()
    replay = threading.Thread(target=millrace, args=("dead-letters", "replay", "--all", "--timeout", "60s"),
                              kwargs={"database": db})
    replay.start()
    wait_until(lambda: outside.begun()[-2:] == [2, 2], 20, process.log)
    wait_until(lambda: db.value(mine) == 2, 5, lambda: f"{db.value(mine)} connections\n{process.log()}")
    outside.hold.unlink()
    replay.join()
    assert outside.positions() == [1, 2]
    process.stop()


def test_every_event_at_least_once_and_few_checkpoints(db, worker, outside):
    insert_events(db, 1000)
    process = worker(db, {"worker": {**FLEET, "batch_size": 10}, "consumers": [
        consumer(outside, checkpoint_every=250, checkpoint_max_age="1h")]}, "--once")
    process.finish()
    assert outside.positions() == list(range(1, 1001))
    assert db.checkpoint("a") == 1000
    saves = db.value("SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'consumer_checkpoints'")
    assert saves <= 8, saves


def test_a_stop_saves_what_was_done(db, worker, outside):
    insert_events(db, 30)
    process = worker(db, {"worker": FLEET, "consumers": [
        consumer(outside, checkpoint_every=100000, checkpoint_max_age="1h")]})
    wait_until(lambda: len(outside.positions()) == 30, 20, process.log)
    process.stop()
    assert db.checkpoint("a") == 30
    worker(db, {"worker": FLEET, "consumers": [consumer(outside)]}, "--once").finish()
    assert outside.positions() == list(range(1, 31))


def test_the_age_of_a_checkpoint_is_bounded(db, worker, outside):
    process = worker(db, {"worker": FLEET, "consumers": [
        consumer(outside, checkpoint_every=100000, checkpoint_max_age="200ms")]})
    insert_events(db, 30)
    wait_until(lambda: db.checkpoint("a") == 30, 20, process.log)
    process.stop()


def test_a_slow_batch_is_saved_on_its_way(db, worker, outside):
    """checkpoint_max_age and checkpoint_every hold within a batch, too: what is handled is not delivered again because
    the rest of its batch takes long."""
    insert_events(db, 60)
    outside.let(1)
    process = worker(db, {"worker": {**FLEET, "batch_size": 100}, "consumers": [
        consumer(outside, checkpoint_every=100000, checkpoint_max_age="50ms")]})
    for position in range(1, 60):
        outside.let(position)
        wait_until(lambda: len(outside.positions()) == position, 20, process.log)  # noqa: B023
        if db.checkpoint("a") > 0:
            break
    assert 0 < db.checkpoint("a") <= position < 60
    outside.let(60)
    wait_until(lambda: db.checkpoint("a") == 60, 20, process.log)
    assert outside.positions() == list(range(1, 61))
    process.stop()


def test_no_more_than_checkpoint_every_is_unsaved(db, worker, outside):
    insert_events(db, 60)
    outside.let(35)
    process = worker(db, {"worker": {**FLEET, "batch_size": 100}, "consumers": [
        consumer(outside, checkpoint_every=10, checkpoint_max_age="1h")]})
    wait_until(lambda: db.checkpoint("a") == 30, 20, process.log)
    process.kill9()
    outside.let(60)
    process = worker(db, {"worker": FLEET, "consumers": [consumer(outside)]}, "--once")
    process.finish()
    assert sorted(set(outside.positions())) == list(range(1, 61))
    assert len(outside.positions()) <= 65


def test_what_went_well_before_a_failing_event_is_saved(db, worker, outside):
    """However long that one is tried."""
    outside.bad.write_text(json.dumps([10]), encoding="utf-8")
    insert_events(db, 20)
    process = worker(db, {"worker": FLEET, "consumers": [
        consumer(outside, checkpoint_every=100000, checkpoint_max_age="1h", max_retries="unlimited")]})
    wait_until(lambda: db.checkpoint("a") == 9, 20, process.log)
    wait_until(lambda: len(process.matching(msg="batch failed")) > 3, 20, process.log)
    assert outside.positions() == list(range(1, 10))
    outside.bad.unlink()
    wait_until(lambda: len(outside.positions()) == 19 + 1, 20, process.log)
    process.stop()
    assert outside.positions() == list(range(1, 21)) and db.checkpoint("a") == 20


def beats(db):
    """Waits until the worker has looked at its controls, and acted on what it saw."""
    for _ in range(2):
        now = db.value("SELECT clock_timestamp()")
        wait_until(lambda: db.value("SELECT max(heartbeat_at) FROM millrace.worker_nodes") > now, 20,  # noqa: B023
                   "a heartbeat")


def test_a_pause_is_obeyed_within_a_batch(db, worker, outside):
    insert_events(db, 60)
    outside.let(5)
    process = worker(db, {"worker": {**FLEET, "batch_size": 100}, "consumers": [
        consumer(outside, checkpoint_every=100000, checkpoint_max_age="1h")]})
    wait_until(lambda: len(outside.positions()) == 5, 20, process.log)
    millrace("consumers", "pause", "a", database=db)
    beats(db)
    outside.let(60)  # the sixth was begun
    process.wait_log("consumer is paused", consumer="a")
    assert outside.positions() == list(range(1, 7))
    assert db.checkpoint("a") == 6  # what was done is done
    millrace("consumers", "resume", "a", database=db)
    wait_until(lambda: len(outside.positions()) == 60, 20, process.log)
    # One that waits for events writes down what it did, too.
    millrace("consumers", "pause", "a", database=db)
    wait_until(lambda: db.checkpoint("a") == 60, 20, process.log)
    process.stop()
    assert outside.positions() == list(range(1, 61))


def test_streams_wait_behind_a_letter_that_is_not_written_yet(db, worker, outside):
    """Whatever makes the worker read its controls anew meanwhile."""
    outside.bad.write_text("[1]", encoding="utf-8")
    insert_event(db, aggregate_id="x", version=1)
    insert_event(db, aggregate_id="y", version=1)
    process = worker(db, {"worker": FLEET, "consumers": [
        consumer(outside, checkpoint_every=100000, checkpoint_max_age="1h", on_failure="dead_letter",
                 dead_letter_order="key")]})
    wait_until(lambda: outside.positions() == [2], 20, process.log)
    assert db.checkpoint("a") == 0
    db.execute("INSERT INTO millrace.consumer_controls (consumer_name, epoch) VALUES ('a', 1)")
    beats(db)
    insert_event(db, aggregate_id="x", version=2)
    insert_event(db, aggregate_id="y", version=2)
    wait_until(lambda: 4 in outside.positions(), 20, process.log)
    assert outside.positions() == [2, 4]
    # A replay does not wait for checkpoint_max_age, neither with its start nor with the letters.
    outside.bad.unlink()
    millrace("consumers", "pause", "a", database=db)
    wait_until(lambda: db.checkpoint("a") == 4, 20, process.log)
    millrace("consumers", "resume", "a", database=db)
    insert_event(db, aggregate_id="y", version=3)
    wait_until(lambda: 5 in outside.positions(), 20, process.log)
    millrace("dead-letters", "replay", "--all", "--timeout", "20s", database=db)
    assert outside.positions() == [2, 4, 5, 1, 3] and db.checkpoint("a") == 5
    process.stop()


def test_a_zombie_saves_nothing(db, worker, outside):
    """A worker that stood still while another took over finds its checkpoint moved: it is fenced off."""
    config = {"worker": {**FLEET, "heartbeat_timeout": "1s"}, "consumers": [
        consumer(outside, checkpoint_every=100000, checkpoint_max_age="1h")]}
    insert_events(db, 20)
    outside.let(5)
    first = worker(db, config)
    wait_until(lambda: len(outside.positions()) == 5, 20, first.log)
    first.sigstop()
    second = worker(db, {**config, "consumers": [consumer(outside, checkpoint_every=1)]})
    second.wait_log("consumer taken", timeout=30, consumer="a")
    outside.let(20)
    wait_until(lambda: db.checkpoint("a") == 20, 30, second.log)
    first.sigcont()
    first.wait_log("registering anew", timeout=30)
    first.stop()
    assert db.checkpoint("a") == 20
    insert_events(db, 5)
    outside.let(25)
    wait_until(lambda: db.checkpoint("a") == 25, 20, second.log)
    assert sorted(set(outside.positions())) == list(range(1, 26))
    second.stop()


def test_a_stop_does_not_wait_for_the_whole_batch(db, worker, outside):
    insert_events(db, 60)
    outside.let(5)
    process = worker(db, {"worker": {**FLEET, "batch_size": 100}, "consumers": [
        consumer(outside, checkpoint_every=100000, checkpoint_max_age="1h")]})
    wait_until(lambda: len(outside.positions()) == 5, 20, process.log)
    process.signal(signal.SIGTERM)
    wait_until(lambda: db.value("SELECT state FROM millrace.worker_nodes") == "draining", 20, process.log)
    outside.let(6)
    assert process.wait_exit() == 0
    assert outside.positions() == list(range(1, 7)) and db.checkpoint("a") == 6


def test_bad_events_become_dead_letters(db, worker, outside):
    outside.bad.write_text(json.dumps([3, 17]), encoding="utf-8")
    insert_events(db, 20)
    process = worker(db, {"worker": FLEET, "consumers": [consumer(outside, on_failure="dead_letter")]}, "--once")
    process.finish()
    assert outside.positions() == [p for p in range(1, 21) if p not in (3, 17)]
    assert db.values("SELECT global_position FROM millrace.consumer_dead_letters ORDER BY 1") == [3, 17]
    assert db.checkpoint("a") == 20


def test_killed_workers_deliver_again_but_lose_nothing(db, worker, outside):
    config = {"worker": {**FLEET, "batch_size": 20}, "consumers": [consumer(outside, checkpoint_every=50)]}
    processes = [worker(db, config) for _ in range(2)]
    for _ in range(3):
        insert_events(db, 300)
        target = db.value("SELECT max(global_position) FROM events") - 150
        wait_until(lambda: target in outside.positions(), 30, processes[0].log)
        owner = db.value("SELECT w.pid FROM millrace.consumer_assignments a JOIN millrace.worker_nodes w USING "
                         "(worker_id)")
        for process in list(processes):
            if process.pid == owner:
                process.signal(signal.SIGKILL)
                process.wait_exit()
                processes.remove(process)
        processes.append(worker(db, config))
    wait_until(lambda: db.checkpoint("a") == 900, 60, processes[-1].log)
    assert sorted(set(outside.positions())) == list(range(1, 901))
    for process in processes:
        process.stop()


def test_detached_with_sql_is_refused(db, worker):
    process = worker(db, {"consumers": [{"name": "a", "sql": "SELECT :data", "detached": True}]})
    process.finish(status=2)
    assert "detached" in process.log() and "exec or plugin" in process.log()
