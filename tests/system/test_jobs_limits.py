"""What a queue may do: so many at once over the whole fleet, nothing while it is paused, the urgent first, nothing before
its time, keys in order or not."""

import time

import pytest

from harness import PATIENCE, wait_until
from jobs import assert_in_order, enqueue, enqueue_keys, fleet, job, job_queue, make_effects, wait_empty

MODES = pytest.mark.parametrize("mode", ["lease", "transaction"])
AT_ONCE = ("SELECT max(n) FROM (SELECT (SELECT count(*) FROM effects AS o WHERE o.began <= e.began AND o.ended > e.began) "
           "AS n FROM effects AS e) AS x")


@pytest.mark.parametrize("look_ahead", [0, 10])
@pytest.mark.parametrize("most", [1, 4])
def test_max_running_is_exact_over_the_fleet(db, worker, most, look_ahead):
    make_effects(db)
    enqueue_keys(db, 120, 0)
    config = fleet(job_queue(sql="SELECT work(:id, :key, 0.02)", num_handlers=4, look_ahead=look_ahead, max_running=most))
    processes = [worker(db, config) for _ in range(3)]
    running = []

    def look():
        running.append(db.value("SELECT count(*) FROM millrace.jobs WHERE state = 'processing'"))
        return db.value("SELECT count(*) FROM millrace.jobs") == 0
    wait_until(look, 60, processes[0].log)
    assert max(running) <= most
    assert db.value(AT_ONCE) == most
    assert_in_order(db, db.values("SELECT id FROM millrace.jobs_archive"), ordered=False)
    for process in processes:
        process.stop()


def test_max_running_though_jobs_wait_for_their_next_try(db, worker):
    """Those do not count; and a killed worker's do until they are released."""
    make_effects(db)
    config = fleet(job_queue(sql="SELECT work(:id, :key, 3600)", num_handlers=2, max_running=2, reset_interval="100ms"))
    enqueue_keys(db, 6, 0)
    first = worker(db, config)
    wait_until(lambda: db.value("SELECT count(*) FROM millrace.jobs WHERE state = 'processing'") == 2, 20, first.log)
    second = worker(db, fleet(job_queue(num_handlers=2, max_running=2, reset_interval="100ms")))
    second.wait_log("registered")
    first.kill9()
    db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = "
               "current_database()")
    wait_empty(db, 30, [second])
    assert db.value("SELECT sum(num_resets) FROM millrace.jobs_archive") == 2
    second.stop()


@MODES
def test_a_paused_queue_begins_nothing(db, worker, mode):
    make_effects(db)
    enqueue_keys(db, 400, 7)
    process = worker(db, fleet(job_queue(sql="SELECT work(:id, :key, 0.005)", mode=mode, batch_size=10), job_queue(name="b")))
    wait_until(lambda: db.value("SELECT count(*) FROM effects") > 20, 20, process.log)
    db.execute("UPDATE millrace.queue_controls SET paused = true WHERE queue = 'work'")
    paused = db.value("SELECT clock_timestamp()")
    other = enqueue(db, queue="b")
    wait_until(lambda: job(db, other) is None, 20, process.log)  # other queues go on
    last = "SELECT n_live FROM (SELECT count(*) AS n_live FROM millrace.jobs WHERE state = 'processing') AS x"
    wait_until(lambda: db.value(last) == 0, 20, process.log)
    wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%work(%%' AND state <> 'idle' "
                                "AND datname = current_database() AND pid <> pg_backend_pid()") == 0, 20, process.log)
    left = db.value("SELECT count(*) FROM millrace.jobs")
    assert left > 100
    # What had been claimed before may end; nothing is claimed after.
    assert db.value("SELECT count(*) FROM millrace.jobs_archive WHERE queue = 'work' AND started_at > %s", [paused]) == 0
    for _ in range(3):
        other = enqueue(db, queue="b")
        wait_until(lambda other=other: job(db, other) is None, 20, process.log)
    assert db.value("SELECT count(*) FROM millrace.jobs") == left
    db.execute("UPDATE millrace.queue_controls SET paused = false WHERE queue = 'work'")
    wait_empty(db, 60, [process])
    assert_in_order(db, db.values("SELECT id FROM millrace.jobs_archive"))
    process.stop()


@MODES
def test_priorities(db, worker, mode):
    make_effects(db)
    for priority in (9, 5, 0, 7, 0, 9, 1, 5):
        for _ in range(3):
            enqueue(db, priority=priority)
    wanted = db.values("SELECT id FROM millrace.jobs ORDER BY priority, id")
    process = worker(db, fleet(job_queue(mode=mode, batch_size=2)))
    wait_empty(db, 30, [process])
    assert db.values("SELECT job FROM effects ORDER BY n") == wanted
    # Among jobs of one key it changes nothing.
    db.execute("UPDATE millrace.queue_controls SET paused = true")
    ids = [enqueue(db, key="a", priority=9), enqueue(db, key="a", priority=0), enqueue(db, key="a", priority=5)]
    db.execute("UPDATE millrace.queue_controls SET paused = false")
    wait_empty(db, 30, [process])
    assert db.values("SELECT job FROM effects WHERE key = 'a' ORDER BY n") == ids
    process.stop()


@MODES
def test_run_at(db, worker, mode):
    make_effects(db)
    at = "SELECT id FROM millrace.enqueue('work', '{}', key => %s, run_at => clock_timestamp() + %s::interval)"
    later = [db.value(at, ["a", "700 ms"]), db.value(at, [None, "900 ms"])]
    far = db.value(at, ["a", "1 day"])
    at_once = [db.value(at, ["a", "-1 day"]), enqueue(db, key="a")]
    process = worker(db, fleet(job_queue(mode=mode)))
    wait_until(lambda: db.value("SELECT count(*) FROM effects") == 4, 30, process.log)
    assert db.values("SELECT job FROM effects WHERE key = 'a' ORDER BY n") == [*at_once, later[0]]
    assert db.value("SELECT bool_and(e.began >= a.run_at) FROM effects AS e JOIN millrace.jobs_archive AS a ON a.id = e.job")
    assert db.value("SELECT max(e.began - a.run_at) FROM effects AS e JOIN millrace.jobs_archive AS a ON a.id = e.job "
                    "WHERE a.id = ANY (%s)", [later]).total_seconds() < 5 * PATIENCE
    assert job(db, far)["standing"] == "later"
    process.stop()


@MODES
def test_a_due_job_whose_key_a_producer_holds_comes_soon(db, worker, mode):
    """It cannot come into line while that producer has not committed; it must not wait for the sweep afterwards."""
    make_effects(db)
    process = worker(db, fleet(job_queue(mode=mode), housekeeping_interval="1h"))
    process.wait_log("registered")
    with db.connect(autocommit=False) as producer:
        due = db.value("SELECT id FROM millrace.enqueue('work', '{}', key => 'a', run_at => clock_timestamp() + interval '500 ms')")
        producer.execute("SELECT id FROM millrace.enqueue('work', '{}', key => 'a')")
        wait_until(lambda: db.value("SELECT run_at < clock_timestamp() - interval '1 s' FROM millrace.jobs WHERE id = %s",
                                    [due]), 20)
        other = enqueue(db)  # others go on meanwhile
        wait_until(lambda: job(db, other) is None, 20, process.log)
        producer.rollback()
    wait_until(lambda: db.values("SELECT job FROM effects WHERE key = 'a'") == [due], 20,
               lambda: f"{db.rows('SELECT id, standing FROM millrace.jobs')}")
    process.stop()


@MODES
def test_order_none_runs_jobs_of_a_key_side_by_side(db, worker, mode):
    make_effects(db)
    config = fleet(job_queue(mode=mode, order="none", sql="SELECT work(:id, :key, 0.3)", num_handlers=4, batch_size=1))
    process = worker(db, config)
    process.wait_log("registered")
    db.execute("UPDATE millrace.queue_controls SET paused = true")
    ids = [enqueue(db, key="a") for _ in range(4)]
    assert db.values("SELECT DISTINCT standing FROM millrace.jobs") == ["ready"]
    db.execute("UPDATE millrace.queue_controls SET paused = false")
    wait_empty(db, 30, [process])
    assert_in_order(db, ids, ordered=False)
    if mode == "lease":
        assert db.value(AT_ONCE) > 1
    process.stop()


def test_the_order_does_not_change_while_jobs_with_keys_are_open(db, worker):
    make_effects(db)
    enqueue(db, key="a")
    refused = worker(db, fleet(job_queue(order="none")))
    assert refused.wait_exit(30) != 0
    assert "has jobs with keys that were enqueued with order: key" in refused.log()
    assert "let them finish" in refused.log(), refused.log()
    first = worker(db, fleet(job_queue()))
    wait_empty(db, 20, [first])
    first.stop()
    second = worker(db, fleet(job_queue(order="none")))
    second.wait_log("registered")
    assert db.value("SELECT ordered FROM millrace.queue_controls WHERE queue = 'work'") is False
    second.stop()


def test_a_producer_that_began_under_the_old_order(db):
    """It has not committed when the order is changed: its job must not be lost between the two."""
    with db.connect(autocommit=False) as producer:
        producer.execute("SELECT millrace.enqueue('work', '{}', key => 'a')")
        producer.execute("SELECT millrace.enqueue('work', '{}', key => 'a')")
        db.execute("SELECT millrace.configure_queue('work', false, NULL)")
        producer.commit()
    assert db.rows("SELECT ordered, standing FROM millrace.jobs ORDER BY id") == [(True, "ready"), (True, "blocked")]
    # Both are still worked off, one after the other.
    db.execute("SELECT * FROM millrace.claim_jobs('work', 10, 'me', NULL, true, 0, NULL, 1000, '1 s', NULL)")
    assert db.rows("SELECT state, standing FROM millrace.jobs ORDER BY id") == [("processing", "ready"), ("queued", "blocked")]


@pytest.mark.parametrize("beat", ["900ms", "400ms"])
def test_a_job_that_runs_well_keeps_its_lease(db, worker, beat):
    """Whatever heartbeat_interval is allowed beside claim_lease."""
    make_effects(db)
    config = fleet(job_queue(sql="SELECT work(:id, :key, 4)", claim_lease="1s", heartbeat_interval=beat,
                             reset_interval="50ms", num_handlers=3))
    process = worker(db, config)
    if process.running():
        try:
            process.wait_log("registered", timeout=10)
        except AssertionError:
            assert "claim_lease" in process.log()
            return  # refused is fine
    for n in range(3):
        enqueue(db, key=f"k{n}")
        began = time.monotonic()
        wait_until(lambda began=began: time.monotonic() - began > 0.3, 5)
    wait_empty(db, 60, [process])
    assert db.value("SELECT sum(num_resets) FROM millrace.jobs_archive") == 0, process.log()[-3000:]
    process.stop()
