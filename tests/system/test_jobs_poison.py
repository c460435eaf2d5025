"""mode: transaction: what one job of a batch does wrong, the others do not feel. They commit, exactly once; the one to
blame is errored and tried again."""

import pytest

from harness import wait_until
from jobs import assert_in_order, enqueue, fleet, job, job_queue, make_effects, wait_empty

COUNT = 50
HANDLER = """
    CREATE TABLE parent (id bigint PRIMARY KEY);
    CREATE TABLE child (job bigint, parent bigint REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
    CREATE TABLE locked (id int PRIMARY KEY, n int); INSERT INTO locked VALUES (1, 0);
    CREATE FUNCTION handle(job bigint, key text, payload jsonb, attempt int) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        how text := CASE WHEN attempt <= coalesce((payload->>'times')::int, 1) THEN payload->>'how' END;
    BEGIN
        IF how = 'before' THEN
            RAISE EXCEPTION 'before it wrote';
        END IF;
        PERFORM work(job, key);
        CASE how
            WHEN 'after' THEN RAISE EXCEPTION 'after it wrote';
            WHEN 'deferred' THEN INSERT INTO child VALUES (job, -1);
            WHEN 'division' THEN PERFORM 1 / (attempt - attempt);
            WHEN 'nowait' THEN PERFORM FROM locked FOR UPDATE NOWAIT;
            WHEN 'deadlock' THEN RAISE EXCEPTION 'pretended' USING ERRCODE = '40P01';
            ELSE NULL;
        END CASE;
    END $$
"""


def begin(db, **options):
    make_effects(db)
    db.execute(HANDLER)
    options = {"batch_size": COUNT, **options}
    return fleet(job_queue(sql="SELECT handle(:id, :key, :payload, :attempt)", mode="transaction",
                           **options))


def fill(db, bad, how, times=1, keyed=True):
    """A batch's worth of jobs, of which those at these places go wrong; two of each key."""
    ids = []
    with db.connect(autocommit=False) as connection:
        for n in range(COUNT):
            payload = f'{{"how": "{how}", "times": {times}}}' if n in bad else "{}"
            ids.append(connection.execute("SELECT id FROM millrace.enqueue('work', %s::jsonb, key => %s)",
                                          [payload, f"k{n}" if keyed else None]).fetchone()[0])
        connection.commit()
    return ids


@pytest.mark.parametrize("bad", [{0}, {COUNT - 1}, {3, 4, 20}, set(range(COUNT))], ids=["first", "last", "some", "all"])
@pytest.mark.parametrize("how", ["before", "after", "deferred"])
def test_the_others_of_a_batch_commit_once(db, worker, how, bad):
    config = begin(db)
    ids = fill(db, bad, how)
    process = worker(db, config)
    wait_empty(db, 30, [process])
    assert_in_order(db, ids)
    failed = sorted(db.values("SELECT id FROM millrace.jobs_archive WHERE num_failures = 1"))
    assert failed == [ids[n] for n in sorted(bad)]
    assert db.value("SELECT count(*) FROM millrace.jobs_archive WHERE num_failures > 1 OR num_resets > 0") == 0
    assert db.value("SELECT count(*) FROM child") == 0
    process.stop()


def test_one_that_is_always_refused_at_the_commit_becomes_a_dead_letter(db, worker):
    config = begin(db, max_retries=3)
    ids = fill(db, {7}, "deferred", times=99)
    process = worker(db, config)
    wait_until(lambda: (job(db, ids[7]) or {}).get("state") == "failed", 30, process.log)
    wait_until(lambda: db.value("SELECT count(*) FROM millrace.jobs") == 1, 30, process.log)
    assert "child" in job(db, ids[7])["failure_message"]
    assert_in_order(db, ids[:7] + ids[8:])
    # A constraint that holds at the end of the transaction is none's fault, though it did not hold in between.
    db.execute("INSERT INTO parent VALUES (-1)")
    good = enqueue(db, '{"how": "deferred"}', key="good")
    wait_until(lambda: job(db, good) is None, 20, process.log)
    assert db.values("SELECT job FROM child") == [good]
    process.stop()


def test_what_is_nobodys_fault_holds_up_only_itself(db, worker):
    """A row that somebody has locked: the job steps back as often as it takes, and spends no attempt."""
    config = begin(db, max_retries=2, batch_size=10)
    with db.connect(autocommit=False) as other:
        other.execute("SELECT FROM locked FOR UPDATE")
        ids = fill(db, {0, 1, 2}, "nowait", times=99)
        process = worker(db, config)
        wait_until(lambda: db.value("SELECT count(*) FROM effects") == COUNT - 3, 30, process.log)
        wait_until(lambda: len(process.matching(msg="job given back")) >= 6, 30, process.log)
        assert db.value("SELECT sum(num_failures + num_resets) FROM millrace.jobs") == 0
        other.rollback()
    wait_empty(db, 30, [process])
    assert_in_order(db, ids)
    process.stop()


def test_deadlocks_between_batches(db, worker):
    """Two workers whose batches lock the same rows in different orders: the server ends one of them now and then."""
    make_effects(db)
    db.execute("CREATE TABLE accounts (id int PRIMARY KEY, n int); INSERT INTO accounts SELECT g, 0 FROM generate_series(1, 4) g")
    db.execute("CREATE FUNCTION pay(job bigint, key text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN "
               "UPDATE accounts SET n = n + 1 WHERE id = job * 7 %% 4 + 1; UPDATE accounts SET n = n + 1 WHERE id = job * 3 %% 4 + 1;"
               "PERFORM work(job, key); END $$".replace("%%", "%"))
    db.execute("ALTER DATABASE " + db.name + " SET deadlock_timeout = '20ms'")
    ids = fill(db, set(), "", keyed=False)
    config = fleet(job_queue(sql="SELECT pay(:id, :key)", mode="transaction", batch_size=5, num_handlers=2))
    processes = [worker(db, config) for _ in range(2)]
    wait_empty(db, 60, processes)
    assert_in_order(db, ids, ordered=False)
    assert db.value("SELECT sum(n) FROM accounts") == 2 * COUNT
    assert db.value("SELECT sum(num_failures) FROM millrace.jobs_archive") == 0
    for process in processes:
        process.stop()


@pytest.mark.parametrize("total", [7, 75, 150])
def test_max_total_jobs_with_full_batches(db, worker, total):
    config = begin(db, max_total_jobs=total, num_handlers=4, batch_size=25)
    for _ in range(5):
        fill(db, set(), "")
    process = worker(db, config)
    process.finish(30)
    assert db.value("SELECT count(*) FROM effects") == total
    assert db.value("SELECT count(*) FROM millrace.jobs") == 5 * COUNT - total


def test_jobs_of_a_batch_enqueue_more(db, worker):
    """Also of the very keys that their batch has taken."""
    make_effects(db)
    db.execute("CREATE FUNCTION go_on(job bigint, key text, priority int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN "
               "PERFORM work(job, key); IF priority > 0 THEN "
               "PERFORM millrace.enqueue('work', '{}', key => $2, priority => $3 - 1); END IF; END $$")
    config = fleet(job_queue(mode="transaction", num_handlers=2, batch_size=20,
                             sql="SELECT go_on(:id, :key, :priority)"))
    for n in range(30):
        enqueue(db, key=f"k{n % 10}", priority=5)
    processes = [worker(db, config) for _ in range(2)]
    wait_until(lambda: db.value("SELECT count(*) FROM effects") == 180, 60,
               lambda: f"{db.value('SELECT count(*) FROM effects')}\n{processes[0].log()[-3000:]}")
    wait_empty(db, 20, processes)
    assert_in_order(db, db.values("SELECT id FROM millrace.jobs_archive"))
    for process in processes:
        process.stop()
