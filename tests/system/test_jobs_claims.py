"""The rows of job_claims: by them others find what a worker runs, so none may be missing while a job runs, and none may
stay behind. A claim whose answer was lost is given back."""

import re

import pytest

from harness import ROOT, millrace, wait_until
from jobs import assert_in_order, enqueue, enqueue_keys, fleet, job, job_queue, make_effects, wait_empty

LATER = 2 ** 62
CLAIM = "SELECT job::bigint, fence FROM millrace.claim_jobs('work', %s, %s, NULL, true, 0, NULL, 1000, '1 s', NULL)"
TEND = ("SELECT t.id, t.state FROM millrace.tend_claims('work', %s, %s::bigint[], %s, 0, %s::bigint[], 5, '1 s', '1 s', false, "
        "true) AS t")
# Every running job is told by exactly one claim.
UNTOLD = ("SELECT count(*) FROM millrace.jobs AS j WHERE j.state = 'processing' AND (SELECT count(*) FROM millrace.job_claims "
          "AS c WHERE c.fence = j.lease_generation AND c.queue = j.queue AND j.id = ANY (c.ids) AND c.worker = "
          "j.worker_hostname) <> 1")


def claim(db, count=1, worker="me"):
    """Claims as a worker would; gives the ids and the fence."""
    rows = db.rows(CLAIM, [count, worker])
    assert len({fence for _, fence in rows}) == 1
    return [number for number, _ in rows], rows[0][1]


def claims(db):
    return db.values("SELECT fence FROM millrace.job_claims ORDER BY 1")


def test_a_claim_changes_no_index(db):
    """What it costs rests on that: every row's new version beside the old one."""
    enqueue_keys(db, 2000, 2000)
    enqueue_keys(db, 2000, 0)
    with db.connect(autocommit=False) as conn:
        for _ in range(4):
            assert len(conn.execute(CLAIM, [1000, "me"]).fetchall()) == 1000
        updated, hot = conn.execute(
            "SELECT pg_stat_get_xact_tuples_updated(c), pg_stat_get_xact_tuples_hot_updated(c) FROM "
            "CAST('millrace.jobs' AS regclass) AS c").fetchone()
        assert (updated, hot) == (4000, 4000)
        conn.rollback()


def test_a_worker_looks_after_its_own_claims(db):
    enqueue_keys(db, 8, 0)
    mine, known = claim(db, 2)
    lost, unheard = claim(db, 2)
    others, _ = claim(db, 2, "you")
    under_way, newest = claim(db, 2)
    db.execute("UPDATE millrace.jobs SET cancel = true WHERE id = %s", [lost[1]])
    assert db.value(UNTOLD) == 0
    # Whatever is not below `below` may be an answer that is still to come.
    assert db.rows(TEND, ["me", [known], unheard, []]) == []
    assert db.rows(TEND, ["me", [known], newest, []]) == [(lost[0], "queued"), (lost[1], "canceled")]
    assert db.rows(TEND, ["me", [known], newest, []]) == []
    row = job(db, lost[0])
    assert (row["state"], row["standing"], row["num_resets"], row["num_failures"]) == ("queued", "ready", 0, 0)
    assert db.value("SELECT state FROM millrace.jobs_archive WHERE id = %s", [lost[1]]) == "canceled"
    for number in mine + others + under_way:
        assert job(db, number)["state"] == "processing"
    assert unheard not in claims(db) and db.value(UNTOLD) == 0
    # It has its place in line, and the fence of the lost claim is of no use.
    assert claim(db, 1)[0] == [lost[0]]
    assert db.rows("SELECT * FROM millrace.finish_jobs('work', ARRAY[%s]::bigint[], ARRAY[%s]::bigint[], NULL, NULL, NULL, NULL,"
                   " false, 5, '1 s', '1 s', false, true)", [lost[0], unheard]) == []


def test_a_row_that_somebody_has_locked_keeps_its_claim(db):
    enqueue_keys(db, 2, 0)
    lost, unheard = claim(db, 2)
    with db.connect(autocommit=False) as other:
        other.execute("SELECT FROM millrace.jobs WHERE id = %s FOR UPDATE", [lost[0]])
        assert db.rows(TEND, ["me", [], LATER, []]) == [(lost[1], "queued")]
        assert claims(db) == [unheard] and db.value(UNTOLD) == 0
        other.rollback()
    assert db.rows(TEND, ["me", [], LATER, []]) == [(lost[0], "queued")]
    assert claims(db) == []


def test_a_claim_that_is_over_is_removed_unless_somebody_has_it(db):
    enqueue_keys(db, 2, 0)
    (_, first), (_, second) = claim(db), claim(db)
    with db.connect(autocommit=False) as other:
        other.execute("SELECT FROM millrace.job_claims WHERE fence = %s FOR UPDATE", [first])
        db.execute("SELECT millrace.drop_claims('work', %s)", [[first, second]])
        assert claims(db) == [first]
        other.rollback()


@pytest.mark.asan
@pytest.mark.parametrize("keys", [0, 3])
def test_a_claim_whose_answer_was_lost(db, worker, keys):
    """Claimed in the name of a worker that lives and has never heard of it: it goes on within seconds, not when the lease of
    a minute and a half is over, and nothing is counted against it."""
    make_effects(db)
    process = worker(db, fleet(job_queue(claim_lease="90s")))
    first = enqueue(db)
    wait_until(lambda: job(db, first) is None, 20, process.log)
    name = db.value("SELECT worker_hostname FROM millrace.jobs_archive")
    db.execute("SELECT millrace.pause_queue('work')")
    enqueue_keys(db, 9, keys)
    ids = db.values("SELECT id FROM millrace.jobs ORDER BY id")
    with db.connect(autocommit=False) as lost:  # the pause goes with the commit: nobody else comes first
        lost.execute("SELECT millrace.resume_queue('work')")
        claimed = lost.execute(CLAIM, [5, name]).fetchall()
        lost.commit()
    assert len(claimed) == (keys or 5)
    wait_empty(db, 30, [process])
    assert_in_order(db, [first, *ids])
    assert db.rows("SELECT sum(num_resets), sum(num_failures) FROM millrace.jobs_archive") == [(0, 0)]
    assert process.wait_log("job given back")["why"] == "the answer to its claim was lost"
    wait_until(lambda: claims(db) == [], 20, process.log)
    process.stop()


def test_claims_under_load_tell_what_runs(db, worker):
    """At every moment each running job is told by one claim; in the end nothing stays behind, whoever died meanwhile."""
    make_effects(db)
    enqueue_keys(db, 3000, 200)
    ids = db.values("SELECT id FROM millrace.jobs")
    config = fleet(job_queue(sql="SELECT work(:id, :key, 0.001)", num_handlers=2, look_ahead=20, claim_lease="3s"))
    processes = [worker(db, config) for _ in range(3)]
    for turn in range(4):
        wait_until(lambda turn=turn: db.value("SELECT count(*) FROM effects") >= 500 * (turn + 1), 60, processes[0].log)
        processes.pop(0).kill9()
        processes.append(worker(db, config))
        assert db.value(UNTOLD) == 0
    wait_empty(db, 60, processes)
    assert_in_order(db, ids)
    wait_until(lambda: claims(db) == [], 30, processes[0].log)
    for process in processes:
        process.stop()


def test_claims_of_workers_that_have_left_are_removed(db, worker):
    make_effects(db)
    enqueue_keys(db, 500, 0)
    process = worker(db, fleet(job_queue()))
    wait_empty(db, 20, [process])
    process.stop()
    enqueue_keys(db, 1, 0)
    db.rows(CLAIM, [1, "host:11111111-1111-1111-1111-111111111111"])  # nobody of that name lives
    process = worker(db, fleet(job_queue()))
    wait_empty(db, 20, [process])
    wait_until(lambda: claims(db) == [], 20, process.log)
    assert db.value("SELECT sum(num_resets) FROM millrace.jobs_archive") == 1
    process.stop()


def test_the_rights_of_the_guide_are_enough_for_jobs(db, worker):
    """The statements of docs/operations.md for the roles of workers and producers, taken from there."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    make_effects(db)
    db.execute("REVOKE ALL ON SCHEMA public FROM public; CREATE ROLE worker; CREATE ROLE producer")
    try:
        for role in ("millrace, public TO worker", "millrace TO producer"):
            grants, = re.findall(rf"```sql\n(GRANT USAGE ON SCHEMA {role};.*?)```", text, re.S)
            db.execute(grants)
        db.execute("GRANT INSERT ON effects TO worker; GRANT USAGE ON SEQUENCE effects_n_seq TO worker")
        told = millrace("enqueue", "work", database=db, env={"PGOPTIONS": "-c role=producer"},
                        input='{"key":"a","idempotency_key":"x"}\n{"key":"a"}\n{"run_at":"2020-01-01"}\n')
        assert "3 jobs" in told.stdout + told.stderr
        ids = db.values("SELECT id FROM millrace.jobs")
        process = worker(db, fleet(job_queue(max_running=2)), env={"PGOPTIONS": "-c role=worker"})
        wait_empty(db, 20, [process])
        wait_until(lambda: claims(db) == [], 20, process.log)
        assert_in_order(db, ids)
        assert not [line for line in process.matching() if "permission denied" in str(line)]
        process.stop()
    finally:
        db.execute("DROP OWNED BY worker; DROP OWNED BY producer; DROP ROLE worker; DROP ROLE producer")


def test_a_claim_that_took_very_long_to_commit(db, worker):
    """Of somebody who is gone by then, when ten thousand claims have come after it: it is found all the same."""
    make_effects(db)
    first = enqueue(db)
    with db.connect(autocommit=False) as slow:
        slow.execute(CLAIM, [1, "gone:11111111-1111-1111-1111-111111111111"])
        db.execute("SELECT count(nextval('millrace.jobs_generations')) FROM generate_series(1, 30000)")
        process = worker(db, fleet(job_queue(claim_lease="1s", reset_interval="50ms")))
        done = [enqueue(db)]
        wait_until(lambda: job(db, done[0]) is None, 20, process.log)
        # The resetter has seen claims that are far beyond: it need not look so far back all the time.
        for _ in range(20):
            done.append(enqueue(db))
            wait_until(lambda: job(db, done[-1]) is None, 20, process.log)
        slow.commit()
    wait_empty(db, 30, [process])
    assert_in_order(db, [first, *done])
    process.stop()


def test_the_next_of_a_key_is_locked(db, worker):
    """Nobody waits for it, and it comes once it is free."""
    make_effects(db)
    ids = [enqueue(db, key="a") for _ in range(3)]
    with db.connect(autocommit=False) as other:
        other.execute("SELECT FROM millrace.jobs WHERE id = %s FOR UPDATE", [ids[1]])
        process = worker(db, fleet(job_queue(), {"name": "calm", "sql": "SELECT work(:id, :key)", "interval": "10ms"}))
        wait_until(lambda: job(db, ids[0]) is None, 20, process.log)
        free = [enqueue(db, queue="calm") for _ in range(20)]
        waiting = ("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE "
                   "'millrace %%' AND datname = current_database()")
        seen = []
        wait_until(lambda: seen.append(db.value(waiting)) or db.value("SELECT count(*) FROM effects") == 21, 20, process.log,
                   interval=0.005)
        with db.connect(autocommit=False) as asks:
            asks.execute("SET LOCAL lock_timeout = '1ms'")
            assert asks.execute("SELECT millrace.promote_keys('work', ARRAY['a'])").fetchall() == [("a",)]
            asks.rollback()
        assert sum(seen) == 0
        other.rollback()
    wait_empty(db, 30, [process])
    assert_in_order(db, ids + free)
    process.stop()


def test_a_database_that_defaults_to_repeatable_read(db, worker):
    """Claims under a limit count what runs once it is their turn, promotion looks once it has the key."""
    make_effects(db)
    db.execute(f"ALTER DATABASE {db.name} SET default_transaction_isolation = 'repeatable read'")
    config = fleet(job_queue(sql="SELECT work(:id, :key, 0.01)", num_handlers=4, max_running=3))
    with db.connect() as producer:
        producer.execute("SET default_transaction_isolation = 'read committed'")
        producer.execute("SELECT millrace.enqueue('work', '{}', key => 'k' || n % 20) FROM generate_series(1, 300) AS n")
    ids = db.values("SELECT id FROM millrace.jobs")
    processes = [worker(db, config) for _ in range(3)]
    running = []

    def look():
        running.append(db.value("SELECT count(*) FROM millrace.jobs WHERE state = 'processing'"))
        return db.value("SELECT count(*) FROM millrace.jobs") == 0
    wait_until(look, 60, processes[0].log)
    assert max(running) <= 3
    assert_in_order(db, ids)
    for process in processes:
        assert not process.matching(lambda entry: "40001" in str(entry)), process.log()[-3000:]
        process.stop()
    # Through a pooler it cannot be set for a session, so the start says what to do.
    refused = worker(db, fleet(job_queue(), leader_strategy="lease"))
    assert refused.wait_exit(20) == 1
    assert "SET default_transaction_isolation = 'read committed'" in refused.log()
