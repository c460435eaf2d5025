"""A worker that was stopped past its lease, or declared dead, changes nothing when it wakes up: the job has been done by
another, its own effects are rolled back, and it says so."""

import pytest

from harness import wait_until
from jobs import assert_in_order, enqueue, fleet, job_queue, make_effects, wait_empty

ASLEEP = ("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%%work(%%' AND wait_event = "
          "'PgSleep' AND datname = current_database() AND pid <> pg_backend_pid()")
QUICK = "SELECT work(:id, :key)"
# The first to come waits for the gate, inside its transaction.
GATED = "SELECT work(:id, :key) FROM passed(:id)"
GATE = """
    CREATE TABLE gate (open boolean); INSERT INTO gate VALUES (false);
    CREATE FUNCTION passed(job bigint) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
        LOOP
            IF (SELECT open FROM gate) THEN RETURN 1; END IF;
            PERFORM pg_sleep(0.01);
        END LOOP;
    END $$
"""


def changes(db):
    """Rows of the tables of jobs that were changed so far, by anybody."""
    db.execute("SELECT pg_stat_force_next_flush()")
    return db.rows("SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relname LIKE 'jobs%%' "
                   "OR relname = 'effects' ORDER BY 1")


def rows(db):
    return db.rows("SELECT to_jsonb(a) FROM millrace.jobs_archive AS a ORDER BY id") + \
        db.rows("SELECT to_jsonb(e) FROM effects AS e ORDER BY n")


# No worker is declared dead here, which would end its sessions: the fence alone must hold.
PATIENT = {"heartbeat_timeout": "10m"}


def test_a_zombie_in_its_transaction_changes_nothing(db, worker):
    make_effects(db)
    db.execute(GATE)
    ids = [enqueue(db, key="a"), enqueue(db, key="a")]
    config = fleet(job_queue(sql=GATED, claim_lease="1s", reset_interval="100ms"), **PATIENT)
    first = worker(db, config)
    wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%passed(%%' AND state = "
                                "'active' AND pid <> pg_backend_pid()") == 1, 20, first.log)
    first.sigstop()
    second = worker(db, fleet(job_queue(claim_lease="1s", reset_interval="100ms"), **PATIENT))
    wait_empty(db, 30, [second])
    assert_in_order(db, ids)
    before = rows(db)
    assert db.value("SELECT num_resets FROM millrace.jobs_archive WHERE id = %s", [ids[0]]) == 1
    db.execute("UPDATE gate SET open = true")
    first.sigcont()
    first.wait_log("outcome came too late", timeout=20)
    assert len(first.matching(msg="outcome came too late")) == 1
    assert rows(db) == before
    # It is of use again.
    third = enqueue(db, key="a")
    second.stop()
    wait_empty(db, 20, [first])
    assert_in_order(db, [*ids, third])
    first.stop()


def test_a_zombie_with_an_outcome_to_write_changes_nothing(db, worker, tmp_path):
    """Its handler is a program, so the outcome is written by the loop, in a batch with others."""
    make_effects(db)
    go = tmp_path / "go"
    ids = [enqueue(db, key="a"), enqueue(db, key="b"), enqueue(db, key="c")]
    script = f"while read -r line; do while [ ! -e {go} ]; do sleep 0.02; done; echo '{{\"ok\":true}}'; done"
    first = worker(db, fleet(job_queue(sql=None, exec=["/bin/sh", "-c", script], claim_lease="1s", num_handlers=3),
                             **PATIENT))
    wait_until(lambda: db.value("SELECT count(*) FROM millrace.jobs WHERE state = 'processing'") == 3, 20, first.log)
    first.sigstop()
    second = worker(db, fleet(job_queue(claim_lease="1s", reset_interval="100ms"), **PATIENT))
    wait_empty(db, 30, [second])
    before = rows(db)
    go.touch()
    first.sigcont()
    wait_until(lambda: len(first.matching(msg="outcome came too late")) == 3, 20, first.log)
    assert rows(db) == before
    assert_in_order(db, ids)
    assert db.value("SELECT sum(num_resets) FROM millrace.jobs_archive") == 3
    first.stop()
    second.stop()


def test_a_batch_of_a_worker_declared_dead_is_rolled_back(db, worker):
    """mode: transaction has no lease: a stopped process holds its rows until it is declared dead and its sessions end."""
    make_effects(db)
    db.execute(GATE)
    ids = [enqueue(db, key=f"k{n}") for n in range(10)]
    first = worker(db, fleet(job_queue(sql=GATED, mode="transaction", batch_size=10)))
    waits = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%passed(%%' AND state = 'active' AND pid <> pg_backend_pid()"
    wait_until(lambda: db.value(waits) == 1, 20, first.log)
    first.sigstop()
    second = worker(db, fleet(job_queue(mode="transaction", batch_size=10)))
    wait_empty(db, 40, [second])
    before = rows(db)
    db.execute("UPDATE gate SET open = true")
    first.sigcont()
    first.wait_log("batch of jobs rolled back", timeout=20)
    assert rows(db) == before
    assert_in_order(db, ids)
    more = [enqueue(db, key="k1") for _ in range(3)]
    second.stop()
    wait_empty(db, 30, [first])
    assert_in_order(db, ids + more)
    first.stop()


@pytest.mark.parametrize("mode", ["lease", "transaction"])
def test_a_killed_workers_jobs_go_on_within_seconds(db, worker, mode):
    """Long before the lease of 90 s, because its session's lock is gone."""
    make_effects(db)
    enqueue(db, key="a")
    ids = db.values("SELECT id FROM millrace.jobs")
    slow = {"sql": "SELECT work(:id, :key, 3600)", "mode": mode, "claim_lease": "90s"}
    times = {"heartbeat_timeout": "60s", "housekeeping_interval": "30s"}
    first = worker(db, fleet(job_queue(**slow), **times))
    wait_until(lambda: db.value(ASLEEP) == 1, 20, first.log)
    second = worker(db, fleet(job_queue(mode=mode, claim_lease="90s"), **times))
    second.wait_log("registered")
    first.kill9()
    db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = "
               "current_database()")  # a statement that runs on does not notice that its client is gone
    wait_empty(db, 20, [second])
    assert_in_order(db, ids)
    second.stop()
