"""millrace enqueue as people and scripts use it: fields, defaults, batches, wrong lines, JSON, exit codes; and wake-ups of
a worker that has nothing but queues."""

import json
import time

import pytest

from fleet import QUICK, registered
from harness import millrace, wait_until

JOB = {"payload": {"order": 7}}


def lines(*jobs):
    return b"".join(job if isinstance(job, bytes) else json.dumps(job).encode() + b"\n" for job in jobs)


def enqueue(db, *words, status=0, stdin=b""):
    done = millrace("enqueue", *words, database=db, input=stdin, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stdout + done.stderr


def count(db):
    return db.value("SELECT count(*) FROM millrace.jobs")


@pytest.mark.asan
def test_fields_and_defaults(db):
    job = {"payload": {"n": 1.1, "big": 12345678901234567890123}, "key": "k", "priority": 0, "run_at": "2999-01-01Z",
           "idempotency_key": "i", "max_attempts": 3, "timeout": "90s", "metadata": {"by": "é"}}
    out = enqueue(db, "mail", "--key", "default", "--timeout", "1 day", "--priority", "9",
                  stdin=b"\n" + lines(job, {"payload": None, "key": None}, {}) + b"  \r\n")
    assert out == "enqueued 3 jobs in 1 transaction\n"
    rows = db.rows("SELECT queue, payload::text, partition_key, priority, run_at IS NULL, idempotency_key, max_attempts, "
                   "timeout::text, metadata::text FROM millrace.jobs ORDER BY id")
    assert rows[0] == ("mail", '{"n": 1.1, "big": 12345678901234567890123}', "k", 0, False, "i", 3, "00:01:30",
                       '{"by": "é"}')
    assert rows[1] == rows[2] == ("mail", "{}", "default", 9, True, None, None, "1 day", None)


@pytest.mark.asan
def test_bare_payloads_and_json(db, tmp_path):
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(b'[1, 2]\n\n"text"\n1e400\n{"key": "no field"}')
    out = json.loads(enqueue(db, "mail", "--payload", "--json", file))
    assert out["queue"] == "mail" and out["enqueued"] == 4 and out["existing"] == 0
    assert [job["line"] for job in out["jobs"]] == [1, 3, 4, 5] and all(job["created"] for job in out["jobs"])
    ids = [job["id"] for job in out["jobs"]]
    assert ids == sorted(ids) == db.values("SELECT id FROM millrace.jobs ORDER BY id")
    assert "enqueued 0 jobs" in enqueue(db, "mail", stdin=b"\n\n")
    assert "cannot read" in enqueue(db, "mail", tmp_path / "none", status=1)


def test_idempotency(db):
    first = json.loads(enqueue(db, "mail", "--idempotency-key", "x", "--json", stdin=lines(JOB)))
    again = json.loads(enqueue(db, "mail", "--idempotency-key", "x", "--json", stdin=lines(JOB)))
    assert again["enqueued"] == 0 and again["existing"] == 1
    assert again["jobs"] == [{**first["jobs"][0], "created": False}]
    assert enqueue(db, "mail", stdin=lines({"idempotency_key": "x"}, {"idempotency_key": "y"})) == \
        "enqueued 1 job in 1 transaction; 1 had been enqueued before\n"
    text = enqueue(db, "mail", "--idempotency-key", "z", stdin=lines(JOB, JOB), status=1)
    assert "line 2: --idempotency-key is for one job" in text and "Nothing was enqueued" in text
    assert count(db) == 2


@pytest.mark.parametrize("bad, hint", [
    (b"{nonsense\n", "not valid JSON at byte"),
    (b"[1]\n", "not a JSON object"),
    (b'{"payload": 1} trailing\n', "not valid JSON"),
    (b'{"payload": "\xff"}\n', "not valid UTF-8"),
    (b'{"payload": "\\u0000"}\n', "u0000"),
    (b'{"payload": "\\ud800"}\n', "not valid JSON"),
    (b'{"payload": 1, "payload": 2}\n', "duplicate"),
    (b'{"payload": ' + b"[" * 600 + b"]" * 600 + b"}\n", "nested deeper than 512"),
    (lines({"order": 7}), "unknown key order"),
    (lines({"paylod": 7}), "did you mean payload?"),
    (lines({"key": 7}), "'key' must be a string"),
    (lines({"key": ""}), "key must have 1 to 1000 bytes"),
    (lines({"key": "a\x00b"}), "not valid JSON"),
    (lines({"idempotency_key": "x" * 1001}), "1 to 1000 bytes"),
    (lines({"priority": "high"}), "'priority' must be a whole number"),
    (lines({"priority": 10}), "not a whole number from 0 to 9"),
    (lines({"max_attempts": 0}), "from 1 to"),
    (lines({"max_attempts": 1.5}), "'max_attempts' must be a whole number"),
    (lines({"timeout": 30}), "'timeout' must be a string"),
    (lines({"timeout": "30"}), "no unit"),
    (lines({"timeout": "soon"}), '"soon"'),
    (lines({"run_at": "2026-13-45"}), '"2026-13-45"'),
    (lines({"metadata": [1]}), "'metadata' must be an object"),
])
def test_a_wrong_line_is_named_and_nothing_of_its_batch_is_enqueued(db, bad, hint):
    text = enqueue(db, "mail", "--batch", "2", stdin=lines(JOB, JOB) + b"\n" + bad + lines(JOB, JOB), status=1)
    assert "line 4: " in text and hint in text, text
    assert "Nothing of this batch was enqueued; 2 jobs of earlier batches were" in text
    assert count(db) == 2


def test_a_failure_tells_the_ids_of_earlier_batches(db):
    done = millrace("enqueue", "mail", "--json", "--batch", "2", database=db, check=False,
                    input=lines(JOB, JOB, JOB, {"run_at": "never"}))
    assert done.returncode == 1 and "line 4: " in done.stderr
    out = json.loads(done.stdout)
    assert out["enqueued"] == 2 and [job["line"] for job in out["jobs"]] == [1, 2]
    assert [job["id"] for job in out["jobs"]] == db.values("SELECT id FROM millrace.jobs ORDER BY id")


@pytest.mark.parametrize("words, hint", [
    ((), "which queue?"),
    (("",), "1 to 255 bytes"),
    (("x" * 300,), "1 to 255 bytes"),
    (("mail", "a", "b"), "unexpected word"),
    (("mail", "--batch", "0"), "from 1 to"),
    (("mail", "--priority", "10"), "from 0 to 9"),
    (("mail", "--timeout", "30"), "no unit"),
    (("mail", "--metadata", "{"), "not valid JSON"),
    (("mail", "--priorty", "1"), "did you mean --priority?"),
])
def test_usage(db, words, hint):
    text = enqueue(db, *words, stdin=lines(JOB), status=2)
    assert hint in text
    assert count(db) == 0


def test_no_schema_and_no_server(db):
    db.execute("DROP SCHEMA millrace CASCADE")
    assert "millrace schema apply" in enqueue(db, "mail", stdin=lines(JOB), status=1)
    assert millrace("enqueue", "mail", database="postgresql://127.0.0.1:1/x", input=lines(JOB),
                    check=False).returncode == 3


# ---- Wake-ups -------------------------------------------------------------------------------------------------------

def make_work(db):
    db.execute("""CREATE TABLE work (id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'queued', failure_message text,
        queued_at timestamptz NOT NULL DEFAULT now(), started_at timestamptz, finished_at timestamptz,
        process_after timestamptz, num_resets int NOT NULL DEFAULT 0, num_failures int NOT NULL DEFAULT 0,
        last_heartbeat_at timestamptz, execution_logs json[], worker_hostname text NOT NULL DEFAULT '')""")


def idle(db, process):
    """Registered, listening, and done with the first look at the queue."""
    registered(process)
    wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                                "AND application_name LIKE 'millrace%%' AND state = 'idle'") >= 2, 20, "its sessions")
    time.sleep(0.3)


@pytest.mark.asan
@pytest.mark.parametrize("options", [{}, {"leader_strategy": "lease", "dispatcher_strategy": "notify"}])
def test_a_worker_of_queues_alone_is_woken(db, worker, options):
    """A look without a wake-up would come in an hour."""
    make_work(db)
    process = worker(db, {"worker": {**QUICK, **options}, "queues": [
        {"name": "büro: 1", "table": "work", "sql": "SELECT 1", "interval": "1h"}]})
    idle(db, process)
    for number in range(1, 11):
        db.execute("INSERT INTO work DEFAULT VALUES")
        db.execute("SELECT millrace.wake_queue('büro: 1')")
        wait_until(lambda: db.value("SELECT count(*) FROM work WHERE state = 'completed'") == number, 10, "the job")
    # Anybody may notify anything.
    channel = db.value("SELECT substring(prosrc FROM 'millrace_[0-9a-f]{16}') FROM pg_proc WHERE proname = 'wake_queue'")
    for payload in ("queue:", "queue:other", "queue:" + "x" * 7000, "queue:%s%n", "Queue:büro: 1", "queue:büro: 1\n", "\n"):
        db.execute("SELECT pg_notify(%s, %s)", [channel, payload])
    for _ in range(300):
        db.execute("SELECT millrace.wake_queue('büro: 1')")
    db.execute("INSERT INTO work DEFAULT VALUES")
    db.execute("SELECT millrace.wake_queue('büro: 1')")
    wait_until(lambda: db.value("SELECT count(*) FROM work WHERE state = 'completed'") == 11, 10, "the job")
    process.stop()


def test_enqueue_wakes_once_after_its_commits(db):
    channel = db.value("SELECT substring(prosrc FROM 'millrace_[0-9a-f]{16}') FROM pg_proc WHERE proname = 'wake_queue'")
    with db.connect() as listener:
        notes = []
        listener.add_notify_handler(lambda note: notes.append(note.payload))
        listener.execute(f"LISTEN {channel}")

        def heard():
            listener.execute("SELECT 1")
            return notes
        enqueue(db, "mail", "--batch", "1", stdin=lines(*[JOB] * 5))
        assert heard() == ["queue:mail"]
        enqueue(db, "mail", "--no-wake", stdin=lines(JOB))
        enqueue(db, "mail", stdin=b"")
        assert heard() == ["queue:mail"]


def test_a_queue_that_nobody_knows_is_noted(db):
    def told(*words, stdin=lines(JOB)):
        return millrace("enqueue", *words, database=db, input=stdin).stderr
    assert told("mail", stdin=b"") == ""
    assert told("mail") == "millrace: queue mail is new: no worker has had it, nor has it had a job\n"
    assert told("mail", "--batch", "1", stdin=lines(JOB, JOB)) == ""
    assert told("mial", "--batch", "1", stdin=lines(JOB, JOB)) == (
        "millrace: queue mial is new: no worker has had it, nor has it had a job; did you mean 'mail'?\n")
    db.execute("SELECT millrace.configure_queue('prints', true, NULL)")  # as a worker does at its start
    assert told("prints") == ""


@pytest.mark.parametrize("mode", ["lease", "transaction"])
def test_an_enqueued_job_is_begun_at_once(db, worker, mode):
    """A look without a wake-up would come in an hour."""
    db.execute("CREATE TABLE done (id bigint)")
    process = worker(db, {"worker": QUICK, "queues": [
        {"name": "mail", "sql": "INSERT INTO done SELECT :id", "interval": "1h", "mode": mode}]})
    idle(db, process)
    for number in range(1, 6):
        enqueue(db, "mail", stdin=lines(JOB))
        wait_until(lambda: db.value("SELECT count(*) FROM done") == number, 10, "the job")
    process.stop()
