"""exec handlers that go wrong: whose fault it is, that no good event is given up for it, and that what they say of it is
written down whatever its bytes."""

import json
import textwrap

import pytest

from harness import insert_events, wait_until
from jobs import enqueue, fleet, job, job_queue

QUICK = {"retry_base_delay": "5ms", "retry_max_delay": "20ms"}
LETTERS = "SELECT global_position FROM millrace.consumer_dead_letters ORDER BY 1"

HEAD = """\
import json, os, sys, time
def out(*answers):
    sys.stdout.write("".join(json.dumps(answer) + "\\n" for answer in answers)); sys.stdout.flush()
def good(e):
    return {"ok": True, "sql": [{"text": "INSERT INTO effects (consumer, pos) VALUES ($1, $2)",
                                 "params": [e["consumer"], e["position"]]}]}
"""


@pytest.fixture
def program(tmp_path):
    """program(text): the command of a handler in Python."""
    def write(text):
        path = tmp_path / "handler.py"
        path.write_text(HEAD + textwrap.dedent(text), encoding="utf-8")
        return ["/usr/bin/python3", str(path)]
    return write


def letters(db):
    return db.values(LETTERS)


# ---- SQL that does not fit its parameters ---------------------------------------------------------------------------

WRONG = {"text": "SELECT $1::int", "params": [1, 2]}


def test_a_wrong_number_of_parameters_is_the_events_affair(db, worker, program):
    db.create_effects()
    insert_events(db, 5)
    process = worker(db, {"worker": {**QUICK, "max_retries": 1}, "consumers": [
        {"name": "a", "on_failure": "dead_letter", "exec": program(f"""
            for line in sys.stdin:
                e = json.loads(line)
                out({{"ok": True, "sql": [{WRONG!r}]}} if e["position"] == 3 else good(e))
        """)}]}, "--once")
    process.finish()
    assert db.rows("SELECT global_position, sqlstate FROM millrace.consumer_dead_letters") == [(3, "08P01")]
    assert db.handled("a") == [1, 2, 4, 5]


@pytest.mark.parametrize("mode", ["lease", "transaction"])
def test_a_wrong_number_of_parameters_is_the_jobs_affair(db, worker, program, mode):
    config = fleet(job_queue(sql=None, mode=mode, max_retries=2, retry_base_delay="10ms", exec=program(f"""
        for line in sys.stdin:
            out({{"ok": True, "sql": [{WRONG!r}]}})
    """)))
    number = enqueue(db)
    process = worker(db, config)
    wait_until(lambda: (job(db, number) or {}).get("state") == "failed", 20, process.log)
    row = job(db, number)
    assert (row["num_failures"], "2 parameters" in row["failure_message"]) == (2, True), row
    process.stop()
