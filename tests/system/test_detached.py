"""Detached consumers: at least once, no transaction and no connection while the handler runs, checkpoints now and
then."""

import json
import signal
import textwrap

import pytest

from harness import insert_events, wait_until

FLEET = {"heartbeat_interval": "100ms", "heartbeat_timeout": "2s", "rebalance_interval": "50ms",
         "retry_base_delay": "5ms", "retry_max_delay": "50ms"}

SCRIPT = textwrap.dedent("""\
    import json, os, sys, time
    out = open(sys.argv[1], "a", buffering=1)
    for line in sys.stdin:
        event = json.loads(line)
        while os.path.exists(sys.argv[1] + ".hold"):
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
        command = ["/usr/bin/python3", str(script), str(target)]

        def positions(self):
            return [int(line) for line in target.read_text().split()] if target.exists() else []
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
