"""What goes wrong around queues: outcomes that the server refuses, rows that somebody holds, handlers that cannot run,
stops in the middle of it. One bad job stops only itself, and a stop always ends."""

import time

import pytest

from harness import PATIENCE, insert_events, millrace, recorder, wait_until
from test_queue_load import add_jobs, assert_once, make_table, queue

FLEET = {"heartbeat_interval": "100ms", "heartbeat_timeout": "2s", "rebalance_interval": "50ms"}
STATES = "SELECT state, count(*) FROM work GROUP BY 1 ORDER BY 1"


def exit_within(process, seconds):
    began = time.monotonic()
    status = process.wait_exit(seconds)
    assert time.monotonic() - began < seconds * PATIENCE
    return status


def refuse(db, condition, state="completed"):
    """The application's own trigger does not let some jobs reach a state."""
    db.execute(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.state = '{state}' AND "
               f"{condition} THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$")
    db.execute("CREATE TRIGGER refuse BEFORE UPDATE ON work FOR EACH ROW EXECUTE FUNCTION refuse()")


def test_an_outcome_that_is_refused_fails_its_job_alone(db, worker, tmp_path):
    make_table(db)
    add_jobs(db, 60)
    refuse(db, "NEW.id IN (7, 30)")
    script = tmp_path / "ok.py"
    script.write_text("import sys\nfor line in sys.stdin:\n    print('{\"ok\":true}', flush=True)\n", encoding="utf-8")
    config = queue(exec=["/usr/bin/python3", str(script)], look_ahead=50)
    del config["sql"]
    process = worker(db, {"queues": [config]})
    wait_until(lambda: db.rows(STATES) == [("completed", 58), ("failed", 2)], 30, lambda: f"{db.rows(STATES)}")
    assert "not this one" in db.value("SELECT failure_message FROM work WHERE id = 7")
    assert len(process.matching(msg="outcome refused")) == 2
    process.stop()


def test_a_stop_ends_though_a_row_is_locked(db, worker):
    make_table(db)
    add_jobs(db, 1)
    slow = queue()
    slow["sql"] = "SELECT pg_sleep(1), :id"
    script = {"exec": ["/bin/sh", "-c", "while read -r line; do sleep 0.5; echo '{\"ok\":true}'; done"]}
    config = {**slow, **script}
    del config["sql"]
    process = worker(db, {"worker": {"shutdown_timeout": "1s"}, "queues": [config]})
    wait_until(lambda: db.value("SELECT state FROM work") == "processing", 20, process.log)
    with db.connect(autocommit=False) as other:
        other.execute("SELECT FROM work FOR UPDATE")
        process.signal(15)
        assert exit_within(process, 25) == 0
        other.rollback()


def test_a_program_that_cannot_run_is_told_as_a_problem(db, worker):
    make_table(db)
    add_jobs(db, 3)
    config = {**queue(), "exec": ["/bin/sh", "-c", "exit 3"]}
    del config["sql"]
    process = worker(db, {"worker": FLEET, "queues": [config]})
    wait_until(lambda: process.matching(level="error", msg="job given back"), 40, process.log)
    done = wait_until(lambda: (lambda d: d if "its jobs cannot run" in d.stdout else None)(
        millrace("status", database=db, check=False)), 20, "status to tell")
    assert done.returncode == 5 and "queue work" in done.stdout
    # It rests between attempts, and nothing is spent.
    assert db.value("SELECT max(lease_generation) FROM work") < 100
    assert db.value("SELECT sum(num_failures + num_resets) FROM work") == 0
    process.stop()


@pytest.mark.parametrize("mode", ["lease", "transaction"])
def test_once_ends_though_the_program_cannot_run(db, worker, mode):
    db.execute("SELECT millrace.enqueue('work')")
    process = worker(db, {"queues": [{"name": "work", "mode": mode, "exec": ["/bin/sh", "-c", "exit 3"]}]}, "--once")
    assert exit_within(process, 60) == 1
    failed, = process.matching(msg="worker failed")
    assert "queue 'work': its jobs cannot run" in failed["error"]
    assert db.rows("SELECT state, num_failures + num_resets FROM millrace.jobs") == [("queued", 0)]


def test_a_worker_declared_dead_registers_anew_while_its_queue_is_busy(db, worker):
    make_table(db)
    db.execute("CREATE TABLE seen (n bigserial, consumer text, pos bigint)")
    add_jobs(db, 3000)
    process = worker(db, {"worker": FLEET, "consumers": [recorder("a", "seen")], "queues": [
        queue(sql="INSERT INTO effects (job) SELECT :id::bigint FROM pg_sleep(0.01)", num_handlers=2)]})
    process.wait_log("consumer taken", consumer="a")
    wait_until(lambda: db.value("SELECT count(*) FROM effects") > 20, 20, process.log)
    db.execute("UPDATE millrace.worker_nodes SET state = 'dead'")
    process.wait_log("registering anew", timeout=20)
    insert_events(db, 10)
    wait_until(lambda: db.value("SELECT count(*) FROM seen") == 10, 20, process.log)
    assert db.value("SELECT count(*) FROM work WHERE state = 'queued'") > 0  # it was busy all the time
    process.stop()


GATE = """
    CREATE TABLE gate (open boolean); INSERT INTO gate VALUES (false);
    CREATE FUNCTION passed(last bigint, job bigint) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
        WHILE job <= last AND NOT (SELECT open FROM gate) LOOP PERFORM pg_sleep(0.01); END LOOP;
        RETURN 1;
    END $$
"""


@pytest.mark.parametrize("generation", [True, False])
def test_jobs_outlive_their_workers_registration(db, worker, generation):
    """Their rows name the worker as it was called before. Without generations that is half of the fence."""
    make_table(db, generation)
    db.execute(GATE)
    add_jobs(db, 2)
    process = worker(db, {"worker": FLEET, "queues": [
        queue(sql="INSERT INTO effects (job) SELECT :id::bigint FROM passed(2, :id)", num_handlers=2)]})
    wait_until(lambda: db.value("SELECT count(*) FROM work WHERE state = 'processing'") == 2, 20, process.log)
    db.execute("UPDATE millrace.worker_nodes SET state = 'dead'")
    process.wait_log("registering anew", timeout=20)
    wait_until(lambda: len(process.matching(msg="registered")) == 2, 20, process.log)
    stamped = "SELECT min(last_heartbeat_at) > %s FROM work"
    wait_until(lambda at=db.value("SELECT clock_timestamp()"): db.value(stamped, [at]), 20, process.log)
    db.execute("UPDATE gate SET open = true")
    wait_until(lambda: db.rows(STATES) == [("completed", 2)], 20, process.log)
    assert_once(db, 2)
    assert db.value("SELECT sum(num_resets) FROM work") == 0
    assert not process.matching(msg="job lost")
    process.stop()


def test_no_handler_is_idle_beside_look_ahead(db, worker):
    make_table(db)
    db.execute(GATE)
    add_jobs(db, 20)
    process = worker(db, {"worker": {**FLEET, "executors": 4}, "queues": [
        queue(sql="INSERT INTO effects (job) SELECT :id::bigint FROM passed(3, :id)", num_handlers=4, look_ahead=1)]})
    wait_until(lambda: db.value("SELECT count(*) FROM effects") == 17, 20, process.log)
    db.execute("UPDATE gate SET open = true")
    wait_until(lambda: db.rows(STATES) == [("completed", 20)], 20, process.log)
    process.stop()


def test_a_finished_row_that_is_locked_holds_up_nobody(db, worker):
    """Its outcome is waited for once, for a moment; then it is left alone until it is free."""
    make_table(db)
    add_jobs(db, 1)
    process = worker(db, {"worker": FLEET, "queues": [
        {**queue(exec=["/bin/sh", "-c", "while read -r line; do sleep 0.3; echo '{\"ok\":true}'; done"]), "sql": ""},
        {"name": "other", "sql": "INSERT INTO effects (job) VALUES (:id)", "interval": "10ms"}]})
    waiting = ("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE 'millrace %%' "
               "AND datname = current_database()")
    wait_until(lambda: db.value("SELECT state FROM work") == "processing", 20, process.log)
    with db.connect(autocommit=False) as other:
        other.execute("SELECT FROM work FOR UPDATE")
        wait_until(lambda: db.value(waiting) == 1, 20, process.log, interval=0.005)
        wait_until(lambda: db.value(waiting) == 0, 20, process.log, interval=0.005)
        for turn in range(40):
            db.execute("SELECT millrace.enqueue('other')")
            wait_until(lambda turn=turn: db.value("SELECT count(*) FROM effects") == turn + 1, 20, process.log, interval=0.005)
            assert db.value(waiting) == 0
        other.rollback()
    wait_until(lambda: db.value("SELECT state FROM work") == "completed", 20, process.log)
    process.stop()


def test_what_is_done_does_not_pile_up(db, worker, tmp_path):
    """Handlers that are quicker than the table takes outcomes: what is claimed and not written yet stays bounded."""
    make_table(db)
    add_jobs(db, 6000)
    db.execute("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.0003); RETURN NEW; END $$;"
               "CREATE TRIGGER slow BEFORE UPDATE ON work FOR EACH ROW WHEN (NEW.state = 'completed') EXECUTE FUNCTION slow()")
    script = tmp_path / "ok.py"
    script.write_text("import sys\nfor line in sys.stdin:\n    print('{\"ok\":true}', flush=True)\n", encoding="utf-8")
    process = worker(db, {"queues": [{**queue(exec=["/usr/bin/python3", str(script)], look_ahead=500), "sql": ""}]})
    running = []

    def look():
        running.append(db.value("SELECT count(*) FROM work WHERE state = 'processing'"))
        return db.rows(STATES) == [("completed", 6000)]
    wait_until(look, 60, process.log)
    assert max(running) < 4000
    process.stop()


def test_once_does_not_wait_for_the_interval(db, worker):
    make_table(db)
    add_jobs(db, 7)
    db.execute("SELECT millrace.enqueue('lease'), millrace.enqueue('transaction')")
    built_in = [{"name": mode, "mode": mode, "sql": "INSERT INTO effects (job) VALUES (:id)", "interval": "1h"}
                for mode in ("lease", "transaction")]
    process = worker(db, {"queues": [queue(interval="1h"), *built_in]}, "--once")
    assert exit_within(process, 30) == 0
    assert db.value("SELECT count(*) FROM effects") == 9


def test_a_stop_that_meets_an_empty_claim_is_quick(db, worker):
    make_table(db)
    process = worker(db, {"worker": {"shutdown_timeout": "60s"}, "queues": [
        queue(condition="(SELECT true FROM pg_sleep(1))", interval="10ms")]})
    wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE "
                                "'%%mr_picked%%' AND pid <> pg_backend_pid()") > 0, 20, process.log)
    process.signal(15)
    assert exit_within(process, 20) == 0


def test_a_detached_consumer_stops_though_the_server_is_away(own_server, make_db, worker, tmp_path):
    db = make_db(on=own_server)
    delivered = tmp_path / "delivered"
    shell = f"while read -r line; do echo x >> {delivered}; echo '{{\"ok\":true}}'; done"
    process = worker(db, {"worker": {**FLEET, "shutdown_timeout": "2s"}, "consumers": [
        {"name": "a", "detached": True, "exec": ["/bin/sh", "-c", shell], "checkpoint_every": 100000,
         "checkpoint_max_age": "1h"}]})
    insert_events(db, 5)
    wait_until(lambda: delivered.exists() and len(delivered.read_text().split()) == 5, 20, process.log)
    own_server.stop("fast")
    process.signal(15)
    exit_within(process, 30)
    assert len(process.log().splitlines()) < 2000
    own_server.start()


ASLEEP = ("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%%pg_sleep(3600)%%' AND "
          "datname = current_database() AND pid <> pg_backend_pid()")


def test_a_lost_job_is_told_once_and_its_statement_ends(db, worker):
    make_table(db)
    add_jobs(db, 2)
    process = worker(db, {"queues": [queue(num_handlers=2, heartbeat_interval="50ms",
                                           sql="INSERT INTO effects (job) SELECT :id::bigint FROM pg_sleep(3600)")]})
    wait_until(lambda: db.value(ASLEEP) == 2, 20, process.log)
    db.execute("DELETE FROM work WHERE id = 1")
    db.execute("UPDATE work SET cancel = true WHERE id = 2")
    wait_until(lambda: db.value(ASLEEP) == 0, 20, process.log)
    wait_until(lambda: db.rows(STATES) == [("canceled", 1)], 20, process.log)
    process.stop()
    assert [line["job"] for line in process.matching(msg="job lost")] == [1]
    assert [line["job"] for line in process.matching(msg="outcome came too late")] == [1]
    assert db.value("SELECT count(*) FROM effects") == 0


def test_a_job_that_ends_is_not_told_as_lost(db, worker):
    """Its handler commits the outcome itself, and the heartbeat may find that before the loop hears of it."""
    make_table(db)
    add_jobs(db, 3000)
    process = worker(db, {"queues": [queue(num_handlers=4, look_ahead=20, heartbeat_interval="10ms")]}, "--once")
    process.finish(90)
    assert_once(db, 3000)
    assert not process.matching(msg="job lost") and not process.matching(msg="outcome came too late")


def test_a_stopped_process_keeps_nobody_from_resetting(db, worker):
    """The resetter's lock is held while it works only: a process that is stopped does not keep it."""
    make_table(db)
    # No worker is declared dead here, which would end the stopped one's sessions.
    config = {"worker": {"heartbeat_timeout": "10m"}, "queues": [queue(reset_interval="50ms")]}
    first = worker(db, config)
    first.wait_log("registered")
    add_jobs(db, 5)
    wait_until(lambda: db.value("SELECT count(*) FROM effects") == 5, 20, first.log)

    def stopped_between():
        first.sigstop()
        holders = "SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid "\
                  "FROM pg_database WHERE datname = current_database())"
        if db.value(holders) <= 1:  # the control connection's own locks only
            return True
        first.sigcont()  # it had just won it
        return False
    wait_until(stopped_between, 20, first.log)
    second = worker(db, config)
    db.execute("INSERT INTO work (state, started_at, last_heartbeat_at) SELECT 'processing', now() - interval '1 h', "
               "now() - interval '1 h'")
    wait_until(lambda: db.value("SELECT count(*) FROM work WHERE state = 'completed' AND num_resets = 1") == 1, 20,
               second.log)
    first.sigcont()
    first.stop()
    second.stop()


def test_a_crash_between_claim_and_handling(db, worker):
    make_table(db)
    add_jobs(db, 21)
    slow = queue(num_handlers=1, look_ahead=20, sql="INSERT INTO effects (job) SELECT :id::bigint FROM pg_sleep(3600)")
    first = worker(db, {"queues": [slow]})
    wait_until(lambda: db.rows(STATES) == [("processing", 21)] and db.value(ASLEEP) == 1, 20, first.log)
    first.kill9()
    second = worker(db, {"queues": [queue(num_handlers=2)]})
    wait_until(lambda: db.rows(STATES) == [("completed", 21)], 30, second.log)
    assert_once(db, 21)
    assert db.rows("SELECT DISTINCT num_resets, num_failures, lease_generation FROM work") == [(1, 0, 2)]
    second.stop()
