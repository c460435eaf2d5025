"""Queues on a user's own table under load: many processes, kills, stops, restarts; every job completed, its effects
once."""

import random
import time
from pathlib import Path

import pytest

from harness import PATIENCE, SCALE, wait_until

TABLE = """
    CREATE TABLE work (
        id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'queued', failure_message text,
        queued_at timestamptz NOT NULL DEFAULT now(), started_at timestamptz, finished_at timestamptz,
        process_after timestamptz, num_resets int NOT NULL DEFAULT 0, num_failures int NOT NULL DEFAULT 0,
        last_heartbeat_at timestamptz, execution_logs json[], worker_hostname text NOT NULL DEFAULT '',
        cancel boolean NOT NULL DEFAULT false{generation}, customer text);
    CREATE INDEX ON work (id) WHERE state IN ('queued', 'errored');
    CREATE INDEX ON work (id) WHERE state = 'processing';
    CREATE TABLE effects (n bigserial PRIMARY KEY, job bigint NOT NULL)
"""
GENERATION = ", lease_generation bigint NOT NULL DEFAULT 0"


def make_table(db, generation=True):
    db.execute(TABLE.format(generation=GENERATION if generation else ""))


def add_jobs(db, count):
    db.execute("INSERT INTO work (customer) SELECT 'c' || n %% 100 FROM generate_series(1, %s) AS n", [count])


def queue(**options):
    return {"name": "work", "table": "work", "sql": "INSERT INTO effects (job) VALUES (:id)", "interval": "50ms",
            "heartbeat_interval": "200ms", "reset_interval": "200ms", "stalled_max_age": "2s", "max_resets": 1000,
            **options}


def assert_once(db, count):
    assert db.rows("SELECT state, count(*) FROM work GROUP BY 1") == [("completed", count)]
    doubled = db.values("SELECT job FROM effects GROUP BY 1 HAVING count(*) > 1")
    assert not doubled, doubled[:10]
    assert db.value("SELECT count(DISTINCT job) FROM effects") == count


@pytest.mark.timeout(400)
@pytest.mark.soak
@pytest.mark.parametrize("generation", [True, False])
def test_eight_workers_with_kills_and_stops(db, worker, generation):
    # A hundred thousand and more in ./dev soak.
    full = 100_000 * max(SCALE / 4, 1) if SCALE > 1 else 30_000
    count = int(full if generation else full / 5)
    make_table(db, generation)
    add_jobs(db, count)
    rng = random.Random(5)
    config = {"queues": [queue(num_handlers=2, look_ahead=40)]}
    processes = [worker(db, config) for _ in range(8)]
    stopped = []
    done = "SELECT count(*) FROM work WHERE state = 'completed'"
    step = count // 12
    for turn in range(10):
        target = step * (turn + 1)
        wait_until(lambda target=target: db.value(done) >= target, 120, lambda: processes[0].log()[-2000:], interval=0.1)
        victim = processes.pop(rng.randrange(len(processes)))
        if turn % 2 == 0:
            victim.kill9()
            processes.append(worker(db, config))
        else:
            victim.sigstop()  # past its lease; it wakes up while others have its jobs
            stopped.append((time.monotonic(), victim))
        if stopped and len(stopped) > 2:
            stopped[0][1].sigcont()
            processes.append(stopped.pop(0)[1])
    for since, victim in stopped:
        wait_until(lambda since=since: time.monotonic() - since > 3, 10 * PATIENCE, "a stop past the lease")
        victim.sigcont()
        processes.append(victim)
    wait_until(lambda: db.value(done) == count, 180, lambda: db.rows("SELECT state, count(*) FROM work GROUP BY 1"),
               interval=0.2)
    assert_once(db, count)
    assert db.value("SELECT count(*) FROM work WHERE num_resets > 0") > 0
    assert db.value("SELECT sum(num_failures) FROM work") == 0
    for process in processes:
        process.stop()


def test_no_claim_waits_for_a_locked_row(db, worker):
    make_table(db)
    add_jobs(db, 500)
    with db.connect(autocommit=False) as other:
        other.execute("SELECT FROM work WHERE id <= 100 FOR UPDATE")
        process = worker(db, {"queues": [queue(num_handlers=4, look_ahead=20)]})
        wait_until(lambda: db.value("SELECT count(*) FROM work WHERE state = 'completed'") == 400, 30, process.log)
        assert db.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = "
                        "current_database()") == 0
        other.rollback()
    wait_until(lambda: db.value("SELECT count(*) FROM work WHERE state = 'completed'") == 500, 30, process.log)
    assert_once(db, 500)
    process.stop()


def test_the_server_restarts(own_server, make_db, worker):
    db = make_db(on=own_server)
    make_table(db)
    add_jobs(db, 6000)
    processes = [worker(db, {"queues": [queue(num_handlers=2, look_ahead=10)]}) for _ in range(2)]
    done = "SELECT count(*) FROM work WHERE state = 'completed'"
    for turn, how in enumerate(("fast", "immediate", "kill")):
        wait_until(lambda turn=turn: db.value(done) >= 1000 * (turn + 1), 60, processes[0].log)
        if how == "kill":
            own_server.kill9()
            own_server.start()
        else:
            own_server.restart(how)
    wait_until(lambda: db.value(done) == 6000, 60, processes[0].log)
    assert_once(db, 6000)
    for process in processes:
        process.stop()


def test_consumers_and_queues_in_one_process(db, worker):
    make_table(db)
    add_jobs(db, 300)
    db.execute("CREATE TABLE seen (pos bigint)")
    db.execute("INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload) "
               "SELECT 'T', n::text, 1, gen_random_uuid(), 'E', '{}' FROM generate_series(1, 300) AS n")
    process = worker(db, {"worker": {"executors": 4}, "queues": [queue(num_handlers=2)], "consumers": [
        {"name": "a", "sql": "INSERT INTO seen VALUES (:global_position)"}]}, "--once")
    process.finish()
    assert_once(db, 300)
    assert db.value("SELECT count(*) FROM seen") == 300
    line = process.wait_log("worker started")
    assert int(line["queues"]) == 1 and int(line["consumers"]) == 1


@pytest.mark.parametrize("consumers", [0, 3])
def test_connections_are_two_and_one_an_executor(db, worker, consumers):
    """Whatever runs in the process: queues alone, or several with consumers beside them."""
    make_table(db)
    add_jobs(db, 2000)
    db.execute("CREATE TABLE seen (pos bigint)")
    db.execute("INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload) "
               "SELECT 'T', n::text, 1, gen_random_uuid(), 'E', '{}' FROM generate_series(1, 300) AS n")
    slow = queue(num_handlers=3, sql="INSERT INTO effects (job) SELECT :id::bigint FROM pg_sleep(0.01)")
    process = worker(db, {
        "worker": {"executors": 3, "batch_size": 20},
        "queues": [{**slow, "name": "odd", "condition": "id % 2 = 1"},
                   {**slow, "name": "even", "condition": "id % 2 = 0"}],
        "consumers": [{"name": f"c{n}", "sql": "INSERT INTO seen VALUES (:global_position)"}
                      for n in range(consumers)]})
    seen = set()

    def look():
        seen.add(db.value("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'millrace %%' AND "
                          "datname = current_database()"))
        done = db.value("SELECT min(n) FROM (SELECT count(*) FILTER (WHERE state = 'completed') AS n FROM work "
                        "GROUP BY id % 2) AS queues")
        return done > 100 and db.value("SELECT count(*) FROM seen") == 300 * consumers
    wait_until(look, 60, process.log)
    assert max(seen) == 2 + 3, seen
    process.stop()


@pytest.mark.parametrize("shift", ["+1h", "-1h"])
def test_a_clock_that_is_an_hour_off(db, worker, shift):
    """Every time is the server's: a worker whose clock is wrong neither claims early nor resets what others run."""
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    wrong = {"LD_PRELOAD": str(library), "FAKETIME": shift, "DONT_FAKE_MONOTONIC": "1"}
    make_table(db)
    add_jobs(db, 50)
    db.execute("UPDATE work SET process_after = now() + interval '30 minutes' WHERE id <= 10")
    db.execute("UPDATE work SET process_after = now() - interval '30 minutes' WHERE id > 40")
    busy = worker(db, {"queues": [queue(sql="INSERT INTO effects (job) SELECT :id::bigint FROM pg_sleep(4)",
                                        condition="id = 11")]})
    wait_until(lambda: db.value("SELECT state FROM work WHERE id = 11") == "processing", 20, busy.log)
    process = worker(db, {"queues": [queue(name="rest", condition="id <> 11"),
                                     queue(name="resets", condition="id = 11")]}, env=wrong)
    done = "SELECT count(*) FROM work WHERE state = 'completed'"
    wait_until(lambda: db.value(done) == 40, 30, process.log)
    assert db.value("SELECT count(*) FROM work WHERE id <= 10 AND state = 'queued'") == 10
    assert db.value("SELECT count(*) FROM work WHERE num_resets > 0") == 0
    assert db.value("SELECT count(*) FROM work WHERE finished_at > now() + interval '1 minute' "
                    "OR finished_at < now() - interval '10 minutes'") == 0
    assert db.value("SELECT count(*) FROM effects") == 40
    busy.stop()
    process.stop()
