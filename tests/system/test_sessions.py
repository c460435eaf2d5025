"""What a handler's SQL changes of its session is nobody else's affair, though they share a connection."""

import sys

import pytest

from harness import assert_exactly_once, insert_events, recorder, wait_until
from jobs import enqueue, fleet, job_queue

SETS = """
import json, sys
for line in sys.stdin:
    e = json.loads(line)
    print(json.dumps({"ok": True, "sql": [{"text": "SET search_path = nowhere"}]}), flush=True)
"""
CHILD = [sys.executable, "-c", SETS]


@pytest.mark.parametrize("rude", [{"sql": "SET search_path = nowhere"}, {"exec": CHILD}], ids=["sql", "exec"])
def test_a_setting_goes_with_its_transaction(db, worker, rude):
    db.create_effects()
    process = worker(db, {"worker": {"executors": 1, "batch_size": 5}, "consumers": [
        {"name": "rude", "event_types": ["Happened"], **rude}, recorder("a")]})
    for _ in range(4):
        insert_events(db, 10)
        target = db.value("SELECT max(global_position) FROM events")
        wait_until(lambda: db.checkpoint("a") == db.checkpoint("rude") == target, 20, process.log)  # noqa: B023
    assert_exactly_once(db)
    assert not process.matching(msg="batch failed")
    process.stop()


def test_a_jobs_setting_goes_with_its_transaction(db, worker):
    db.create_effects()
    config = fleet(job_queue(sql=None, exec=CHILD), executors=1)
    config["consumers"] = [recorder("a")]
    process = worker(db, config)
    for position in range(1, 5):
        enqueue(db)
        wait_until(lambda: db.value("SELECT count(*) FROM millrace.jobs") == 0, 20, process.log)
        insert_events(db, 1)
        wait_until(lambda: db.checkpoint("a") == position, 20, process.log)  # noqa: B023
    assert_exactly_once(db)
    assert not process.matching(msg="batch failed")
    process.stop()


def test_a_local_setting_costs_no_connection(db, worker):
    insert_events(db, 40)
    db.execute("CREATE TABLE pids (pid int)")
    local = "import json, sys\nfor line in sys.stdin: print(json.dumps({'ok': True, 'sql': [" \
            "{'text': \"SET LOCAL work_mem = '1MB'\"}, {'text': 'INSERT INTO pids SELECT pg_backend_pid()'}]}), flush=True)"
    worker(db, {"worker": {"executors": 1, "batch_size": 5}, "consumers": [
        {"name": "a", "exec": [sys.executable, "-c", local]}]}, "--once").finish()
    assert db.rows("SELECT count(*), count(DISTINCT pid) FROM pids") == [(40, 1)]
