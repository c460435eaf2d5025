"""The built-in table of jobs while the database goes away, sessions end and a pooler is in between; how little an idle
queue asks; what the housekeeping keeps and drops."""

import random
import time

import pytest

from harness import PATIENCE, wait_until
from jobs import Producers, assert_in_order, enqueue, enqueue_keys, fleet, job, job_queue, make_effects, wait_empty
from pg_server import PgServer
from test_fleet_network import pgbouncer  # noqa: F401

MODES = pytest.mark.parametrize("mode", ["lease", "transaction"])


def load(mode, **options):
    return job_queue(mode=mode, num_handlers=2, look_ahead=10, batch_size=20, claim_lease="3s", **options)


@pytest.mark.timeout(240)
@MODES
def test_the_server_restarts(own_server, make_db, worker, mode):
    db = make_db(on=own_server)
    make_effects(db)
    enqueue_keys(db, 6000, 300)
    ids = db.values("SELECT id FROM millrace.jobs")
    processes = [worker(db, fleet(load(mode))) for _ in range(3)]
    for turn, how in enumerate(("fast", "immediate", "kill")):
        wait_until(lambda turn=turn: db.value("SELECT count(*) FROM effects") >= 1000 * (turn + 1), 60, processes[0].log)
        if how == "kill":
            own_server.kill9()
            own_server.start()
        else:
            own_server.restart(how)
    wait_empty(db, 90, processes)
    assert_in_order(db, ids)
    assert db.value("SELECT count(*) FROM millrace.jobs_archive") == 6000
    for process in processes:
        process.stop()


@pytest.mark.timeout(240)
@MODES
def test_sessions_are_ended_under_load(db, worker, mode):
    make_effects(db)
    enqueue_keys(db, 3000, 100)
    ids = db.values("SELECT id FROM millrace.jobs")
    processes = [worker(db, fleet(load(mode))) for _ in range(3)]
    rng = random.Random(3)
    for turn in range(20):
        wait_until(lambda turn=turn: db.value("SELECT count(*) FROM effects") >= 100 * (turn + 1), 60, processes[0].log)
        pids = db.values("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'millrace %%' AND datname = "
                         "current_database()")
        db.execute("SELECT pg_terminate_backend(%s)", [rng.choice(pids)])
    wait_empty(db, 90, processes)
    assert_in_order(db, ids)
    assert db.value("SELECT sum(num_failures) FROM millrace.jobs_archive") == 0
    for process in processes:
        process.stop()


@pytest.mark.timeout(240)
@MODES
def test_through_pgbouncer(db, worker, pgbouncer, mode):  # noqa: F811
    make_effects(db)
    enqueue_keys(db, 2000, 100)
    first = db.values("SELECT id FROM millrace.jobs")
    config = fleet(load(mode), leader_strategy="lease", prepared_statements=False)
    uri = pgbouncer.uri(db)
    processes = [worker(uri, config) for _ in range(2)]
    producers = Producers(db, 100, 1000).start()
    wait_until(lambda: db.value("SELECT count(*) FROM effects") > 800, 60, processes[0].log)
    processes.pop(0).kill9()
    processes.append(worker(uri, config))
    wait_until(lambda: db.value("SELECT count(*) FROM effects") > 1600, 60, processes[0].log)
    db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'millrace %%' AND "
               "datname = current_database()")
    producers.join()
    wait_empty(db, 90, processes)
    assert_in_order(db, first + producers.ids)
    # Nothing of a session stays behind.
    wait_until(lambda: db.value("SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
                                "WHERE locktype = 'advisory' AND datname = current_database()") == 0, 20)
    for process in processes:
        process.stop()


# ---- Idle -----------------------------------------------------------------------------------------------------------

@MODES
def test_an_idle_queue_asks_little(make_db, worker, mode):
    """Fewer than three statements a second and process, the leader's included, with the default times."""
    with PgServer({"shared_preload_libraries": "pg_stat_statements"}) as own:
        db = make_db(on=own)
        db.execute("CREATE EXTENSION pg_stat_statements")
        make_effects(db)
        queue = {"name": "work", "sql": "SELECT work(:id, :key)", "mode": mode}
        processes = [worker(db, {"queues": [queue]}) for _ in range(2)]
        for process in processes:
            process.wait_log("registered")
        done = enqueue(db, key="a")
        wait_until(lambda: job(db, done) is None, 20, processes[0].log)
        calls = ("SELECT sum(calls) FROM pg_stat_statements WHERE toplevel AND dbid = (SELECT oid FROM pg_database WHERE "
                 "datname = current_database())")
        before, begin = db.value(calls), time.monotonic()
        wait_until(lambda: time.monotonic() - begin > 12, 20 * PATIENCE)
        rate = (float(db.value(calls)) - float(before)) / (time.monotonic() - begin) / 2
        most = db.rows("SELECT calls, left(query, 80) FROM pg_stat_statements WHERE toplevel ORDER BY 1 DESC LIMIT 12")
        print(f"\n{mode}: {rate:.2f} statements a second and process")
        assert rate < 3, most
        for process in processes:
            process.stop()


# ---- Housekeeping ---------------------------------------------------------------------------------------------------

def partitions(db):
    return db.values("SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid WHERE i.inhparent = "
                     "'millrace.jobs_archive'::regclass ORDER BY 1")


def test_days_of_the_archive(db, worker):
    make_effects(db)
    process = worker(db, fleet(job_queue()))
    process.wait_log("registered")
    assert len(partitions(db)) == 4 and partitions(db)[-1] == "jobs_archive_rest"
    done = enqueue(db)
    wait_until(lambda: job(db, done) is None, 20, process.log)
    assert db.value("SELECT count(*) FROM ONLY millrace.jobs_archive_rest") == 0
    process.stop()
    # Two old days: one within the retention, one beyond; what has no day of its own stays in the default.
    for age in (3, 5):
        db.execute(f"DO $$ BEGIN EXECUTE format('CREATE TABLE millrace.jobs_archive_%s PARTITION OF millrace.jobs_archive "
                   f"FOR VALUES FROM (%L) TO (%L)', to_char(now() - interval '{age} days', 'YYYYMMDD'), "
                   f"(now() - interval '{age} days')::date, (now() - interval '{age - 1} days')::date); END $$")
    told = db.values("SELECT millrace.archive_days('4 days')")
    assert [name[0] for name in told] == ["-"] and len(partitions(db)) == 5
    assert db.values("SELECT millrace.archive_days('4 days')") == []
    assert db.value("SELECT count(*) FROM millrace.jobs_archive") == 1
    # Small, and negative in effect for all but today and what comes.
    db.execute("SELECT millrace.archive_days('1 hour')")
    assert len(partitions(db)) == 4


def test_an_archive_that_is_read_holds_nobody_up(db):
    """Dropping a day waits for its readers a moment only, and finishing jobs not at all after that."""
    db.execute("DO $$ BEGIN EXECUTE format('CREATE TABLE millrace.jobs_archive_%s PARTITION OF millrace.jobs_archive "
               "FOR VALUES FROM (%L) TO (%L)', to_char(now() - interval '9 days', 'YYYYMMDD'), "
               "(now() - interval '9 days')::date, (now() - interval '8 days')::date); END $$")
    with db.connect(autocommit=False) as reader:
        reader.execute("SELECT count(*) FROM millrace.jobs_archive")
        begin = time.monotonic()
        told = db.values("SELECT millrace.archive_days('4 days')")
        assert not [name for name in told if name[0] == "-"]
        assert time.monotonic() - begin < 20 * PATIENCE
        reader.rollback()
    assert [name for name in db.values("SELECT millrace.archive_days('4 days')") if name[0] == "-"]


def test_the_window_of_idempotency_keys(db, worker):
    make_effects(db)
    house = "SELECT millrace.keep_house('30 days', %s::interval, NULL)->>'forgotten'"
    ask = "SELECT id, created FROM millrace.enqueue('work', '{}', idempotency_key => 'once')"
    first = db.rows(ask)[0]
    assert first[1] and db.rows(ask)[0] == (first[0], False)
    assert db.value(house, ["0 s"]) == "0"  # its job is open
    process = worker(db, fleet(job_queue(), housekeeping_interval="1h"))
    wait_empty(db, 20, [process])
    assert db.rows(ask)[0] == (first[0], False)  # done and archived, and remembered
    assert db.value(house, ["1 h"]) == "0"
    assert db.rows(ask)[0] == (first[0], False)
    assert db.value(house, ["0 s"]) == "1"
    again = db.rows(ask)[0]
    assert again[1] and again[0] != first[0]
    wait_empty(db, 20, [process])
    process.stop()


def test_a_key_whose_head_was_deleted_by_hand(db, worker):
    make_effects(db)
    ids = [enqueue(db, key="a") for _ in range(3)]
    db.execute("DELETE FROM millrace.jobs WHERE id = %s", [ids[0]])
    process = worker(db, fleet(job_queue()))
    wait_empty(db, 20, [process])
    assert_in_order(db, ids[1:])
    assert process.wait_log("keys were promoted by the sweep")
    process.stop()


def test_the_sweep_comes_to_every_key(db, worker):
    """Many stuck keys among many that are not: in pieces, but soon."""
    make_effects(db)
    enqueue_keys(db, 10_000, 5000)
    db.execute("DELETE FROM millrace.jobs WHERE standing = 'ready' AND id % 2 = 0")
    left = db.values("SELECT id FROM millrace.jobs")
    process = worker(db, fleet(job_queue(mode="transaction"), housekeeping_interval="1s"))
    wait_empty(db, 60, [process])
    assert_in_order(db, left)
    process.stop()
