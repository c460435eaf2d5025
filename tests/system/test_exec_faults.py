"""exec handlers that go wrong: whose fault it is, that no good event is given up for it, and that what they say of it is
written down whatever its bytes."""

import json
import textwrap

import pytest

from harness import insert_events, millrace, wait_until
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


# ---- Words that are not UTF-8 ---------------------------------------------------------------------------------------

LATIN = """
    for line in sys.stdin:
        e = json.loads(line)
        if e["position"] == 2 and not os.path.exists(sys.argv[0] + ".well"):
            os.write(2, b"caf\\xe9 broke\\n")
            os._exit(1)
        out({"ok": True})
"""


def test_a_pause_is_written_down_whatever_the_child_said(db, worker, program):
    insert_events(db, 3)
    process = worker(db, {"worker": {**QUICK, "max_retries": 1}, "consumers": [{"name": "a", "exec": program(LATIN)}]})
    why = wait_until(lambda: db.value("SELECT pause_reason FROM millrace.consumer_controls WHERE paused"), 20, process.log)
    assert "it said last: caf? broke" in why
    assert process.matching(msg="handler says", line="caf? broke")
    process.stop()


@pytest.mark.parametrize("detached", [False, True])
def test_letters_are_written_and_replayed_whatever_the_child_said(db, worker, program, detached):
    insert_events(db, 3)
    command = program(LATIN)
    process = worker(db, {"worker": {**QUICK, "max_retries": 1}, "consumers": [
        {"name": "a", "exec": command, "detached": detached, "on_failure": "dead_letter"}]})
    wait_until(lambda: db.checkpoint("a") == 3, 20, process.log)
    letter = "SELECT error, replay_at IS NULL FROM millrace.consumer_dead_letters"
    wait_until(lambda: db.rows(letter), 20, process.log)
    (error, rests), = db.rows(letter)
    assert "it said last: caf? broke" in error and rests
    db.execute("UPDATE millrace.consumer_dead_letters SET error = 'old'")
    done = millrace("dead-letters", "replay", "--all", "--timeout", "20s", database=db, check=False)
    assert done.returncode != 0, done.stdout
    (error, rests), = db.rows(letter)
    assert "it said last: caf? broke" in error and rests
    with open(command[1] + ".well", "w", encoding="utf-8"):
        millrace("dead-letters", "replay", "--all", "--timeout", "20s", database=db)
    assert letters(db) == []
    process.stop()


def test_a_pause_that_cannot_be_written_is_written_later(db, worker, program):
    insert_events(db, 3)
    db.execute("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$;"
               "CREATE TRIGGER no BEFORE INSERT OR UPDATE ON millrace.consumer_controls FOR EACH ROW EXECUTE FUNCTION no()")
    process = worker(db, {"worker": {**QUICK, "max_retries": 1, "heartbeat_interval": "100ms"}, "consumers": [
        {"name": "a", "exec": program(LATIN)}]})
    wait_until(lambda: len(process.matching(msg="a failure could not be written down")) > 1, 20, process.log)
    db.execute("DROP TRIGGER no ON millrace.consumer_controls")
    wait_until(lambda: db.value("SELECT paused FROM millrace.consumer_controls"), 20, process.log)
    assert len(process.matching(msg="consumer paused")) == 1
    process.stop()


# ---- Whose fault ----------------------------------------------------------------------------------------------------

AHEAD = """
    left = b""
    while True:
        chunk = os.read(0, 1 << 16)
        if not chunk:
            break
        *lines, left = (left + chunk).split(b"\\n")
        events = [json.loads(line) for line in lines]
        for e in events:
            if e["position"] == 4:
                %s
        out(*[good(e) for e in events])
"""


@pytest.mark.parametrize("trouble", ["os._exit(3)", "time.sleep(600)", "out('nonsense')"])
@pytest.mark.parametrize("retries", [0, 1])
def test_only_the_event_that_fells_a_child_that_reads_ahead_is_given_up(db, worker, program, trouble, retries):
    db.create_effects()
    insert_events(db, 1)
    process = worker(db, {"worker": {**QUICK, "max_retries": retries, "batch_timeout": "1s"}, "consumers": [
        {"name": "a", "on_failure": "dead_letter", "exec": program(AHEAD % trouble)}]})
    wait_until(lambda: db.checkpoint("a") == 1, 20, process.log)  # it has worked once
    insert_events(db, 8)
    wait_until(lambda: db.checkpoint("a") == 9, 20, process.log)
    assert letters(db) == [4]
    assert db.handled("a") == [1, 2, 3, 5, 6, 7, 8, 9]
    process.stop()


@pytest.mark.parametrize("detached", [False, True])
def test_a_program_that_hangs_at_its_start_costs_no_event(db, worker, detached):
    insert_events(db, 3)
    process = worker(db, {"worker": {**QUICK, "max_retries": 1}, "consumers": [
        {"name": "a", "detached": detached, "exec": ["sleep", "600"], "batch_timeout": "300ms", "on_failure": "dead_letter"}]})
    process.wait_log("consumer paused", timeout=20, consumer="a")
    assert process.matching(lambda e: "did not answer the event at position 1 within batch_timeout" in e.get("error", ""))
    assert letters(db) == [] and db.checkpoint("a") == 0
    process.stop()
