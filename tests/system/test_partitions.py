"""One consumer over several workers by its streams' hash: order within a stream, one read of the log a process, kills;
ownership by a lock; set-up steps."""

import random
import threading
import time
from collections import defaultdict

import psycopg
import pytest

from harness import PATIENCE, SCALE, all_handled, insert_events, recorder, wait_until

FLEET = {"heartbeat_interval": "100ms", "heartbeat_timeout": "2s", "rebalance_interval": "50ms",
         "retry_base_delay": "5ms", "retry_max_delay": "50ms"}
KEYED = "INSERT INTO keyed (id, version, pos) VALUES (:aggregate_id, :aggregate_version, :global_position)"
KEYED_BATCH = ("INSERT INTO keyed (id, version, pos) SELECT aggregate_id, aggregate_version, global_position FROM batch "
               "ORDER BY global_position")


def make_keyed(db):
    db.execute("CREATE TABLE keyed (n bigserial PRIMARY KEY, id text, version bigint, pos bigint)")


class Writers:
    """Threads that append to streams of their own, some of it rolled back, until stop()."""

    def __init__(self, db, threads=3, streams=40):
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(db.uri, k, streams), daemon=True)
                         for k in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, uri, number, streams):
        rng = random.Random(number)
        versions = defaultdict(int)
        with psycopg.connect(uri) as connection:
            while not self._stop.wait(0.002):
                changed = defaultdict(int)
                for _ in range(rng.randint(1, 4)):
                    stream = f"{number}-{rng.randrange(streams)}"
                    changed[stream] += 1
                    connection.execute(
                        "INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, "
                        "payload) VALUES ('Order', %s, %s, gen_random_uuid(), 'Made', '{}')",
                        [stream, versions[stream] + changed[stream]])
                if rng.random() < 0.1:
                    connection.rollback()
                    continue
                connection.commit()
                for stream, more in changed.items():
                    versions[stream] += more

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(30)


def assert_keyed(db):
    """Every stream complete, once, in order."""
    wrong = db.rows("SELECT id, array_agg(version ORDER BY n) AS got FROM keyed GROUP BY 1 "
                    "HAVING array_agg(version ORDER BY n) <> (SELECT array_agg(aggregate_version ORDER BY 1) FROM "
                    "(SELECT aggregate_version FROM events WHERE aggregate_id = keyed.id ORDER BY 1) AS e)")
    assert not wrong, wrong[:3]
    assert db.value("SELECT count(*) FROM keyed") == db.value("SELECT count(*) FROM events")


@pytest.mark.timeout(240)
@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sql", "sql_batch"])
def test_eight_slots_over_three_workers_with_kills(db, worker, kind):
    make_keyed(db)
    config = {"worker": {**FLEET, "batch_size": 50}, "consumers": [
        {"name": "a", "partitions": 8, kind: KEYED if kind == "sql" else KEYED_BATCH}]}
    writers = Writers(db)
    try:
        processes = [worker(db, config) for _ in range(3)]
        slots = "SELECT count(DISTINCT worker_id), count(worker_id) FROM millrace.consumer_assignments"
        wait_until(lambda: db.rows(slots) == [(3, 8)], 30, "all slots to be spread")
        for _ in range(int(4 * SCALE)):
            before = db.value("SELECT count(*) FROM keyed")
            wait_until(lambda: db.value("SELECT count(*) FROM keyed") > before + 100, 30, "progress")
            processes.pop(0).kill9()
            processes.append(worker(db, config))
        stopped = processes[0]
        stopped.sigstop()
        wait_until(lambda: db.value("SELECT count(*) FROM millrace.worker_nodes WHERE state = 'dead'") > 0, 30,
                   "the stopped one to be declared dead")
        stopped.sigcont()
    finally:
        writers.stop()
    wait_until(lambda: db.value("SELECT count(*) FROM keyed") >= db.value("SELECT count(*) FROM events"), 60,
               "everything to be handled")
    assert_keyed(db)
    for process in processes:
        process.stop()


def reads_of(db, worker, partitions, count):
    """Rows that the log's table was read for while a fresh worker drains it."""
    make_keyed(db)
    insert_events(db, count)
    db.execute("SELECT pg_stat_reset()")
    worker(db, {"consumers": [{"name": "a", "partitions": partitions, "sql": KEYED}]}, "--once").finish()
    assert db.value("SELECT count(*) FROM keyed") == count
    return rows_read(db, count)


def rows_read(db, count):
    """Rows of the log read so far, once they are `count` at least: statistics arrive a little later."""
    seen = [0]

    def settled():
        now = db.value("SELECT coalesce(idx_tup_fetch, 0) + coalesce(seq_tup_read, 0) FROM pg_stat_user_tables "
                       "WHERE relname = 'events'")
        steady = now == seen[0] and now >= count
        seen[0] = now
        return steady
    wait_until(settled, 20, "the statistics", interval=0.3)
    return seen[0]


def test_slots_share_one_read_of_the_log(make_db, _template, worker):
    one = reads_of(make_db(template=_template), worker, 1, 5000)
    eight = reads_of(make_db(template=_template), worker, 8, 5000)
    assert eight <= one * 1.25, (one, eight)


def test_each_process_reads_the_log_once(db, worker):
    """As it is written: three processes with eight slots read three times what one consumer reads, whoever has how many."""
    make_keyed(db)
    insert_events(db, 60_000)  # so that the server finds rows by their index
    db.execute("ANALYZE events")
    processes = [worker(db, {"worker": FLEET, "consumers": [
        {"name": "a", "sql": KEYED, "partitions": 8, "start_from": "now"}]}) for _ in range(3)]
    wait_until(lambda: db.rows("SELECT count(DISTINCT worker_id), count(worker_id) FROM millrace.consumer_assignments")
               == [(3, 8)], 30, "all slots to be spread")
    wait_until(lambda: sum(len(process.matching(msg="consumer taken")) for process in processes) >= 8, 20, "all to be taken")
    db.execute("SELECT pg_stat_reset()")
    for _ in range(40):
        insert_events(db, 250)
    wait_until(lambda: db.value("SELECT count(*) FROM keyed") == 10_000, 60, "everything to be handled")
    for process in processes:
        process.stop()
    assert 30_000 <= rows_read(db, 30_000) <= 3 * 10_000 * 1.4


def test_another_number_of_partitions_is_refused(db, worker):
    make_keyed(db)
    insert_events(db, 10)

    def start(partitions):
        options = {} if partitions == 1 else {"partitions": partitions}
        return worker(db, {"consumers": [{"name": "a", "sql": KEYED, **options}]}, "--once")
    start(4).finish()
    for other in (8, 2, 1):
        process = start(other)
        process.finish(status=2)
        assert "has checkpoints for partitions: 4 (at positions 10 to 10)" in process.log()
        assert "start_from" in process.log()
    start(4).finish()
    worker(db, {"consumers": [{"name": "b", "sql": KEYED}]}, "--once").finish()
    process = worker(db, {"consumers": [{"name": "b", "sql": KEYED, "partitions": 2}]}, "--once")
    process.finish(status=2)
    assert "has checkpoints for partitions: 1" in process.log()
    process = worker(db, {"consumers": [{"name": "c#1/2", "sql": KEYED}]})
    process.finish(status=2)
    assert "cannot end like a slot" in process.log()


def test_two_that_start_together_agree_on_the_partitions(db, worker):
    """Both come before there are checkpoints; one makes them, the other finds them and is refused."""
    make_keyed(db)
    with db.connect() as holder:
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE millrace.consumer_checkpoints IN EXCLUSIVE MODE")
        processes = [worker(db, {"worker": FLEET, "consumers": [{"name": "a", "sql": KEYED, "partitions": p}]})
                     for p in (2, 3)]
        wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                                    "AND datname = current_database()") == 2, 20, "both to wait")
        holder.execute("ROLLBACK")
    wait_until(lambda: any(process.process.poll() is not None for process in processes), 20, "one to be refused")
    refused, = [process for process in processes if process.process.poll() is not None]
    assert refused.wait_exit() == 2 and "has checkpoints for partitions" in refused.log()
    assert db.value("SELECT count(DISTINCT split_part(consumer_name, '/', 2)) FROM millrace.consumer_checkpoints") == 1


def test_now_is_one_place_for_all_slots(db, worker):
    make_keyed(db)
    insert_events(db, 7)
    worker(db, {"consumers": [{"name": "a", "sql": KEYED, "partitions": 5, "start_from": "now"}]}, "--once").finish()
    assert db.values("SELECT DISTINCT last_position FROM millrace.consumer_checkpoints") == [7]
    assert db.value("SELECT count(*) FROM keyed") == 0


# ---- Ownership by a lock --------------------------------------------------------------------------------------------

@pytest.mark.tsan
def test_the_lock_goes_to_the_next_when_its_holder_is_killed(db, worker):
    db.create_effects()
    config = {"worker": FLEET, "consumers": [recorder("a", ownership="lock")]}
    first = worker(db, config)
    first.wait_log("consumer taken", consumer="a")
    second = worker(db, config)
    second.wait_log("registered")
    insert_events(db, 50)
    all_handled(db)
    assert not second.matching(msg="consumer taken")
    assert db.value("SELECT count(*) FROM millrace.consumer_assignments") == 0
    began = time.monotonic()
    first.kill9()
    second.wait_log("consumer taken", consumer="a")
    assert time.monotonic() - began < 10 * PATIENCE
    insert_events(db, 50)
    all_handled(db)
    second.stop()


def test_a_holder_that_is_stopped_cannot_write_when_it_wakes(db, worker):
    db.create_effects()
    config = {"worker": FLEET, "consumers": [recorder("a", ownership="lock")]}
    first = worker(db, config)
    first.wait_log("consumer taken", consumer="a")
    insert_events(db, 20)
    all_handled(db)
    first.sigstop()
    second = worker(db, config)
    # Its session is ended, and the lock goes with it; a moment later it is declared dead. Woken between the two, it
    # would rightly go on under its old id, without the lock.
    second.wait_log("consumer taken", timeout=30, consumer="a")
    second.wait_log("workers declared dead", timeout=30)
    insert_events(db, 100)
    all_handled(db)
    first.sigcont()
    first.wait_log("registering anew", timeout=30)
    insert_events(db, 100)
    all_handled(db)
    first.stop()
    second.stop()


def test_a_lock_needs_sessions(db, worker):
    process = worker(db, {"worker": {"leader_strategy": "lease"}, "consumers": [
        {"name": "a", "sql": "SELECT :data", "ownership": "lock"}]})
    process.finish(status=2)
    assert "ownership: lock needs a session" in process.log()


# ---- Set-up ---------------------------------------------------------------------------------------------------------

def test_setup_runs_once_however_many_start(db, worker):
    insert_events(db, 20)
    consumer = recorder("a", setup="CREATE TABLE effects (n bigserial PRIMARY KEY, consumer text, pos bigint);"
                                   " CREATE TABLE once (x int)")
    processes = [worker(db, {"worker": FLEET, "consumers": [consumer]}) for _ in range(3)]
    wait_until(lambda: db.checkpoint("a") == 20, 20, lambda: processes[0].log())
    all_handled(db)
    assert sum(len(process.matching(msg="consumer set up")) for process in processes) == 1
    for process in processes:
        process.stop()
    # Its table is dropped later: the step is not run again behind anybody's back.
    db.execute("DROP TABLE once")
    worker(db, {"consumers": [consumer]}, "--once").finish()
    assert db.value("SELECT to_regclass('once')") is None


def test_setup_that_fails_leaves_nothing(db, worker):
    for script, message in (("CREATE TABLE x (a int); SELECT 1 / 0", "setup: division by zero"),
                            ("CREATE TABLE x (a int); COMMIT", "must not end its transaction")):
        for argument in ("--check", "--once"):
            process = worker(db, {"consumers": [{"name": "a", "sql": "SELECT :data", "setup": script}]}, argument)
            assert process.wait_exit() != 0
            assert message in process.log()
            assert db.value("SELECT to_regclass('x')") is None
    # --check tries it and takes it back.
    process = worker(db, {"consumers": [recorder("a", setup="CREATE TABLE effects (consumer text, pos bigint)")]},
                     "--check")
    process.finish()
    assert db.value("SELECT to_regclass('effects')") is None
