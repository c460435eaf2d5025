"""Processes that die or stop at any moment, on both sides: nothing is lost, nothing doubled, and it comes back."""

import random
import signal
import threading
import time

import psycopg
import pytest

from harness import (PATIENCE, SCALE, all_handled, assert_exactly_once, insert_events, millrace, open_transaction,
                     recorder, wait_until)
from test_log_live import assert_all_exactly_once, consumers, wait_all_at_head
from writers import Writers

KINDS = ("each", "set", "orders", "set_gone")


@pytest.mark.timeout(0)
def test_kill_9_fifty_times(db, worker):
    db.create_effects()
    rng = random.Random(time.time_ns())
    config = {"consumers": consumers(KINDS), "worker": {"batch_size": 50}}
    with Writers(db, count=6, kills=False, hold=0.02) as writers:
        for _ in range(50):
            process = worker(db, config)
            process.wait_log("worker started")
            # Anywhere between its first statement and the middle of its work.
            moved = db.value("SELECT coalesce(sum(last_position), 0) FROM millrace.consumer_checkpoints")
            if rng.random() < 0.7:
                wait_until(lambda moved=moved: db.value(
                    "SELECT sum(last_position) FROM millrace.consumer_checkpoints") > moved, 20, "some progress",
                    interval=0.005)
            threading.Event().wait(rng.random() * 0.03)
            process.kill9()
        writers.stop()
    final = worker(db, config, "--once")
    final.finish()
    wait_all_at_head(db, final, KINDS, 1)
    assert_all_exactly_once(db, KINDS)


def test_a_stopped_worker_is_overtaken_and_changes_nothing(db, worker):
    """SIGSTOP in the middle of batches, another worker goes on; the first wakes up and must notice."""
    db.create_effects()
    config = {"consumers": consumers(KINDS), "worker": {
        "batch_size": 20, "batch_timeout": "1s", "heartbeat_interval": "200ms", "heartbeat_timeout": "1s"}}
    processes = [worker(db, config), worker(db, config)]
    for process in processes:
        process.wait_log("worker started")
    with Writers(db, count=4, kills=False, hold=0.01) as writers:
        for turn in range(4):
            zombie = processes[turn % 2]
            zombie.sigstop()
            before = db.checkpoint("each")
            # A batch that was caught in the middle holds its row until the server ends it, after batch_timeout.
            wait_until(lambda before=before: db.checkpoint("each") > before + 100, 15, "the other one to go on")
            zombie.sigcont()
        writers.stop()
    wait_all_at_head(db, processes[0], KINDS)
    for process in processes:
        process.stop()
    assert_all_exactly_once(db, KINDS)


def load(db, stop):
    """One session that appends and survives whatever happens to the server."""
    connection = None
    while not stop.is_set():
        try:
            connection = connection if connection is not None and not connection.closed else db.connect()
            insert_events(db, 5, connection=connection)
            stop.wait(0.005)
        except psycopg.Error:
            if connection is not None:
                connection.close()
            stop.wait(0.05)


@pytest.mark.timeout(0)
def test_the_server_restarts_under_load(own_server, make_db, worker):
    db = make_db(on=own_server)
    db.create_effects()
    process = worker(db, {"consumers": consumers(KINDS)})
    process.wait_log("worker started")
    stop = threading.Event()
    appenders = [threading.Thread(target=load, args=(db, stop), daemon=True) for _ in range(3)]
    for appender in appenders:
        appender.start()

    def goes_on():
        before = db.checkpoint("each")
        wait_until(lambda: db.checkpoint("each") > before + 200, 30,
                   lambda: f"progress after the restart:\n{process.log()[-3000:]}")
    goes_on()
    for mode in ("fast", "immediate", "fast", "immediate"):
        own_server.restart(mode)
        goes_on()
    own_server.kill9()
    own_server.start()
    goes_on()
    # Away for a while: it keeps trying.
    own_server.stop("fast")
    for connection in ("reader", "control"):
        wait_until(lambda connection=connection: len(process.matching(msg="cannot connect", connection=connection)) > 3,
                   20, "several attempts to connect")
    assert process.running()
    own_server.start()
    goes_on()
    stop.set()
    for appender in appenders:
        appender.join(10)
    wait_all_at_head(db, process, KINDS)
    process.stop()
    assert_all_exactly_once(db, KINDS)
    assert not process.matching(msg="consumer paused")


@pytest.mark.tsan
def test_backends_are_terminated_again_and_again(db, worker):
    db.create_effects()
    process = worker(db, {"consumers": consumers(KINDS)})
    process.wait_log("worker started")
    stop = threading.Event()
    appender = threading.Thread(target=load, args=(db, stop), daemon=True)
    appender.start()
    for _ in range(15):
        before = db.checkpoint("each")
        wait_until(lambda: db.value("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                                    "WHERE application_name LIKE 'millrace%%' AND datname = current_database()") > 0,
                   what="backends to terminate")
        wait_until(lambda before=before: db.checkpoint("each") > before, 20,
                   lambda: f"progress after the kill:\n{process.log()[-2000:]}")
    stop.set()
    appender.join(10)
    wait_all_at_head(db, process, KINDS)
    process.stop()
    assert_all_exactly_once(db, KINDS)
    assert not process.matching(msg="consumer paused")


def test_the_connection_is_cut_in_the_middle_of_anything(db, worker, proxy):
    db.create_effects()
    road = proxy()
    process = worker(road.uri(db), {"consumers": consumers(KINDS)})
    process.wait_log("worker started")
    stop = threading.Event()
    appender = threading.Thread(target=load, args=(db, stop), daemon=True)
    appender.start()
    rng = random.Random(time.time_ns())
    for _ in range(15):
        before = db.checkpoint("each")
        threading.Event().wait(rng.random() * 0.05)
        road.drop()
        wait_until(lambda before=before: db.checkpoint("each") > before, 20,
                   lambda: f"progress after the cut:\n{process.log()[-2000:]}")
    stop.set()
    appender.join(10)
    wait_all_at_head(db, process, KINDS)
    process.stop()
    assert_all_exactly_once(db, KINDS)


def test_the_server_is_down_at_the_start(own_server, make_db, tmp_path):
    db = make_db(on=own_server)
    path = tmp_path / "w.yaml"
    path.write_text(f"database: {db.uri}\nconsumers: [{{name: a, sql: SELECT 1}}]\n", encoding="utf-8")
    own_server.stop("fast")
    for arguments in ([], ["--once"], ["--check"]):
        done = millrace("run", path, *arguments, check=False)
        assert done.returncode == 3 and "connect" in done.stderr.lower(), done.stderr
    own_server.start()


def test_a_stop_while_the_server_does_not_answer(db, worker, proxy):
    """A vanished host must not keep a worker from ending."""
    db.create_effects()
    road = proxy()
    process = worker(road.uri(db), {"consumers": [{"name": "a", "sql": "SELECT pg_sleep(60), :global_position"}],
                                    "worker": {"shutdown_timeout": "500ms"}})
    insert_events(db, 3)
    wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%pg_sleep(60)%%' "
                                "AND application_name LIKE 'millrace%%' AND state = 'active'") == 1,
               what="the handler to run")
    road.stall()
    process.signal(signal.SIGTERM)
    process.wait_exit(20)
    road.resume()


def test_a_stop_while_the_server_is_away(own_server, make_db, worker):
    db = make_db(on=own_server)
    db.create_effects()
    process = worker(db, {"consumers": [recorder("a")]})
    insert_events(db, 3)
    all_handled(db)
    own_server.stop("immediate")
    process.wait_log("cannot connect")
    began = time.monotonic()
    process.stop()
    assert time.monotonic() - began < 5 * PATIENCE
    own_server.start()


def test_a_stalled_network_recovers(db, worker, proxy):
    db.create_effects()
    road = proxy()
    process = worker(road.uri(db), {"consumers": [recorder("a")]})
    insert_events(db, 3)
    all_handled(db)
    with open_transaction(db) as (connection, _):
        road.stall()
        insert_events(db, 30)
        connection.commit()
    road.resume()
    all_handled(db)
    process.stop()


@pytest.mark.soak
def test_sessions_that_are_ended_at_any_moment(db, worker):
    """The server ends a stopped worker's sessions, also right after it reconnected: it finds out while it sends, while
    it reads, while it connects. It lives on and goes on."""
    db.create_effects()
    process = worker(db, {"worker": {"heartbeat_interval": "50ms", "rebalance_interval": "20ms", "batch_size": 10},
                          "consumers": [recorder("a")]})
    process.wait_log("consumer taken", consumer="a")
    end = ("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'millrace %%' "
           "AND datname = current_database()")
    for turn in range(int(40 * SCALE)):
        process.sigstop()
        insert_events(db, 3)
        db.execute(end)
        process.sigcont()
        for _ in range(turn % 4):  # those that it opens meanwhile, too
            db.execute(end)
        head = db.value("SELECT max(global_position) FROM events")
        wait_until(lambda head=head: db.checkpoint("a") == head or not process.running(), 30, process.log)
        assert process.running(), process.log()
    assert_exactly_once(db)
    process.stop()
