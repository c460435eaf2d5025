"""What becomes of jobs that do not go well: retries, snoozes, dead letters, jobs that kill their workers, timeouts."""

import json

import pytest

from harness import wait_until
from jobs import LEFT, assert_in_order, enqueue, fleet, job, job_queue, make_effects, wait_empty

# Fails while the payload says so for this attempt; writes an effect before or after, which must not stay.
FAILING = """
    CREATE FUNCTION may_fail(job bigint, key text, payload jsonb, attempt int) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM work(job, key);
        IF attempt <= (payload->>'fails')::int THEN
            RAISE EXCEPTION 'attempt % failed', attempt;
        END IF;
    END $$
"""
SQL = "SELECT may_fail(:id, :key, :payload, :attempt)"
MODES = pytest.mark.parametrize("mode", ["lease", "transaction"])


def begin(db, **options):
    make_effects(db)
    db.execute(FAILING)
    return fleet(job_queue(sql=SQL, **options))


def in_state(db, number, state, process, timeout=20):
    wait_until(lambda: (job(db, number) or {}).get("state") == state, timeout,
               lambda: f"job {number} to be {state}: {db.rows(LEFT)}\n{process.log()[-3000:]}")
    return job(db, number)


@MODES
def test_the_wait_doubles_and_errors_are_kept(db, worker, mode):
    config = begin(db, mode=mode, retry_base_delay="400ms", max_retries=4)
    number = enqueue(db, '{"fails": 9}', key="a")
    waits = []
    process = worker(db, config)
    for failures in (1, 2, 3):
        wait_until(lambda failures=failures: (job(db, number) or {}).get("num_failures") == failures, 20, process.log)
        waits.append(db.value("SELECT extract(epoch FROM run_at - finished_at)::float8 FROM millrace.jobs WHERE id = %s",
                              [number]))
    row = in_state(db, number, "failed", process)
    for turn, wait in enumerate(waits):
        assert 0.2 * 2 ** turn - 0.001 <= wait <= 0.4 * 2 ** turn + 0.001, waits
    assert (row["num_failures"], row["num_resets"], row["standing"]) == (4, 0, None)
    assert row["failure_message"].startswith("attempt 4 failed")
    assert [(e["attempt"], e["error"].split(":")[0][:16]) for e in row["errors"]] == [
        (n, f"attempt {n} failed") for n in (1, 2, 3, 4)]
    assert all(e["worker"].endswith(row["worker_hostname"][-36:]) and e["at"] for e in row["errors"])
    assert db.value("SELECT count(*) FROM effects") == 0
    if mode == "lease":  # a batch's own transaction does not tell
        wait_until(lambda: len(process.matching(msg="job failed", retry="false")) == 1, 20, process.log)
        assert len(process.matching(msg="job errored", retry="true")) == 3
    process.stop()


@MODES
def test_a_retrying_job_holds_its_key_back(db, worker, mode):
    config = begin(db, mode=mode, retry_base_delay="300ms", max_retries=9)
    ids = [enqueue(db, '{"fails": 3}', key="a"), enqueue(db, '{"fails": 0}', key="a"), enqueue(db, '{"fails": 1}', key="a")]
    other = enqueue(db, '{"fails": 0}', key="b")
    process = worker(db, config)
    wait_until(lambda: db.values("SELECT job FROM effects") == [other], 20, process.log)
    wait_empty(db, 30, [process])
    assert db.values("SELECT job FROM effects WHERE key = 'a' ORDER BY n") == ids
    assert_in_order(db, [*ids, other])
    assert db.values("SELECT num_failures FROM millrace.jobs_archive WHERE queue = 'work' ORDER BY id") == [3, 0, 1, 0]
    process.stop()


@MODES
def test_a_dead_letter_lets_its_key_go(db, worker, mode):
    config = begin(db, mode=mode, retry_base_delay="20ms", max_retries=2)
    dead, next_one = enqueue(db, '{"fails": 9}', key="a"), enqueue(db, '{"fails": 0}', key="a")
    process = worker(db, config)
    in_state(db, dead, "failed", process)
    wait_until(lambda: job(db, next_one) is None, 20, process.log)
    assert db.values("SELECT job FROM effects") == [next_one]
    later = enqueue(db, '{"fails": 0}', key="a")
    wait_until(lambda: job(db, later) is None, 20, process.log)
    process.stop()


@MODES
def test_a_dead_letter_holds_its_key(db, worker, mode):
    config = begin(db, mode=mode, retry_base_delay="20ms", max_retries=1, dead_letter_order="key")
    dead, behind = enqueue(db, '{"fails": 1}', key="a"), enqueue(db, '{"fails": 0}', key="a")
    other = enqueue(db, '{"fails": 0}', key="b")
    process = worker(db, config)
    assert in_state(db, dead, "failed", process)["standing"] == "held"
    wait_until(lambda: job(db, other) is None, 20, process.log)
    more = enqueue(db, '{"fails": 0}', key="a")
    # The sweep of the housekeeping, too, leaves it alone.
    last = enqueue(db, '{"fails": 0}', key="b")
    wait_until(lambda: job(db, last) is None, 20, process.log)
    db.execute("SELECT millrace.keep_house('30 days', '7 days', NULL)")
    assert [job(db, n)["standing"] for n in (dead, behind, more)] == ["held", "blocked", "blocked"]
    db.execute("UPDATE millrace.jobs SET standing = NULL WHERE id = %s", [dead])  # somebody decided
    wait_until(lambda: db.values("SELECT job FROM effects WHERE key = 'a' ORDER BY n") == [behind, more], 20, process.log)
    process.stop()


@MODES
def test_a_jobs_own_max_attempts(db, worker, mode):
    config = begin(db, mode=mode, retry_base_delay="10ms", max_retries=3)
    once, often = enqueue(db, '{"fails": 9}', max_attempts=1), enqueue(db, '{"fails": 9}', max_attempts=6)
    process = worker(db, config)
    assert in_state(db, once, "failed", process)["num_failures"] == 1
    assert in_state(db, often, "failed", process)["num_failures"] == 6
    process.stop()


@MODES
def test_what_cannot_help_is_not_tried_again(db, worker, mode):
    config = begin(db, mode=mode, retry_base_delay="10ms", max_retries=3)
    bad = enqueue(db, '{"fails": "many"}')  # 22P02, which no retry mends
    process = worker(db, config)
    assert in_state(db, bad, "failed", process)["num_failures"] == 1
    process.stop()


PROGRAM = """
import json, sys
for line in sys.stdin:
    payload = json.loads(line)["job"]["payload"]
    answers = payload["answers"]
    count = int(open(payload["file"]).read() or 0) if payload.get("file") else 0
    if payload.get("file"):
        open(payload["file"], "w").write(str(count + 1))
    print(json.dumps(answers[min(count, len(answers) - 1)]), flush=True)
"""


def program(db, tmp_path, **options):
    make_effects(db)
    script = tmp_path / "handler.py"
    script.write_text(PROGRAM, encoding="utf-8")
    return fleet(job_queue(sql=None, exec=["/usr/bin/python3", str(script)], **options))


@MODES
def test_a_snooze_costs_no_attempt_and_keeps_the_key(db, worker, tmp_path, mode):
    config = program(db, tmp_path, mode=mode, max_retries=1)
    (tmp_path / "a").write_text("")
    answers = {"answers": [{"snooze": "200ms"}, {"snooze": "200ms"}, {"snooze": "200ms"}, {"ok": True}],
               "file": str(tmp_path / "a")}
    first, second = enqueue(db, json.dumps(answers), key="a"), enqueue(db, '{"answers": [{"ok": true}]}', key="a")
    process = worker(db, config)
    wait_empty(db, 30, [process])
    assert (tmp_path / "a").read_text() == "4"
    assert db.rows("SELECT id, num_failures, num_resets FROM millrace.jobs_archive ORDER BY finished_at") == [
        (first, 0, 0), (second, 0, 0)]
    assert db.value("SELECT max(finished_at) - min(queued_at) FROM millrace.jobs_archive").total_seconds() > 0.6
    process.stop()


@MODES
def test_a_requeue_lets_the_key_go(db, worker, tmp_path, mode):
    """It comes again as if it had just been enqueued: behind the others of its key."""
    config = program(db, tmp_path, mode=mode)
    (tmp_path / "a").write_text("")
    answers = {"answers": [{"requeue": "100ms"}, {"ok": True}], "file": str(tmp_path / "a")}
    first, second = enqueue(db, json.dumps(answers), key="a"), enqueue(db, '{"answers": [{"ok": true}]}', key="a")
    process = worker(db, config)
    wait_empty(db, 30, [process])
    assert db.values("SELECT id FROM millrace.jobs_archive ORDER BY finished_at") == [second, first]
    process.stop()


@MODES
def test_a_program_says_that_it_is_for_good(db, worker, tmp_path, mode):
    config = program(db, tmp_path, mode=mode, max_retries=5)
    number = enqueue(db, '{"answers": [{"error": "no such customer", "retry": false}]}')
    process = worker(db, config)
    row = in_state(db, number, "failed", process)
    assert (row["num_failures"], "no such customer" in row["failure_message"]) == (1, True)
    process.stop()


def test_a_job_that_kills_its_workers_is_given_up(db, worker):
    """Resets are counted apart from failures; at the last one it fails, with that reason."""
    make_effects(db)
    number = enqueue(db, key="a")
    behind = enqueue(db, key="a")
    killer = fleet(job_queue(sql="SELECT pg_sleep(CASE WHEN :id::bigint = %d THEN 3600 ELSE 0 END), work(:id, :key)" % number,
                             claim_lease="90s", max_resets=2, retry_base_delay="50ms", reset_interval="100ms"))
    for turn in range(3):
        process = worker(db, killer)
        wait_until(lambda: (job(db, number) or {}).get("state") == "processing"
                   and db.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = "
                                "current_database()") == 1, 20,
                   lambda turn=turn, process=process: f"turn {turn}: {job(db, number)}\n{process.log()}")
        assert job(db, number)["num_resets"] == turn
        process.kill9()
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = "
                   "current_database()")
    process = worker(db, killer)
    row = in_state(db, number, "failed", process)
    assert (row["num_resets"], row["num_failures"]) == (3, 0)
    assert "died" in row["failure_message"] or "too many" in row["failure_message"], row["failure_message"]
    assert len(row["errors"]) == 3 and row["errors"][0]["error"] != row["errors"][2]["error"]
    wait_until(lambda: db.values("SELECT job FROM effects") == [behind], 20, process.log)
    assert len(process.matching(msg="job gave up")) == 1
    process.stop()


@MODES
def test_a_jobs_own_timeout(db, worker, mode):
    make_effects(db)
    config = fleet(job_queue(sql="SELECT work(:id, :key, (:payload::jsonb->>'s')::float8)", mode=mode, max_retries=1))
    slow = enqueue(db, '{"s": 3600}', timeout="300ms", key="a")
    good = [enqueue(db, '{"s": 0}', key="a"), enqueue(db, '{"s": 0.6}')]
    process = worker(db, config)
    row = in_state(db, slow, "failed", process)
    assert "maximum runtime of 300ms" in row["failure_message"]
    wait_until(lambda: sorted(db.values("SELECT job FROM effects")) == good, 20, process.log)
    process.stop()
