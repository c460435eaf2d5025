"""Jobs of the built-in table with a child process: what it says of its progress, and that it hears when somebody
cancels its job."""

import json
import textwrap

import pytest

from harness import millrace, wait_until

CHILD = textwrap.dedent("""
    import json, sys, threading, queue
    lines = queue.Queue()
    def read():
        for line in sys.stdin:
            lines.put(json.loads(line))
    threading.Thread(target=read, daemon=True).start()
    def say(**answer):
        print(json.dumps(answer), flush=True)
    deaf = "deaf" in sys.argv
    while True:
        job = lines.get()
        if job["type"] != "job":
            continue
        for n in range(1, 200):          # many in a second; the last one counts
            say(progress=n % 50, text=f"step {n}")
        say(progress=40.7, text="half")
        if job["job"]["payload"].get("quick"):
            say(ok=True)
            continue
        while True:
            line = lines.get()
            if deaf:
                continue
            print("heard " + json.dumps(line), file=sys.stderr, flush=True)
            if line["type"] == "cancel" and line["id"] == job["id"]:
                say(error="gave up: " + line["reason"])
                break
""")


@pytest.fixture
def child(tmp_path):
    script = tmp_path / "child.py"
    script.write_text(CHILD)

    def queue(*words):
        return {"queues": [{"name": "mail", "exec": ["/usr/bin/python3", str(script), *words],
                            "heartbeat_interval": "200ms"}]}
    return queue


def enqueue(db, **payload):
    return db.value("SELECT id FROM millrace.enqueue('mail', %s, key => 'k')", [json.dumps(payload)])


@pytest.mark.asan
@pytest.mark.tsan
def test_progress_and_cancel(db, worker, child):
    process = worker(db, child())
    first, second = enqueue(db), enqueue(db, quick=True)
    shown = wait_until(lambda: [row for row in json.loads(millrace("jobs", "list", "mail", "--json", database=db).stdout)
                                if row["progress_text"] == "half"], 20, process.log)
    assert [(row["id"], row["state"], row["progress"]) for row in shown] == [(first, "processing", 40)]
    assert "40% half" in millrace("jobs", "list", "mail", database=db).stdout
    assert "behind job" in millrace("jobs", "show", "mail", second, database=db).stdout
    writes = db.value("SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'jobs'")
    assert writes < 100  # 200 lines did not become 200 writes

    said = millrace("jobs", "cancel", "mail", first, "--reason", "wrong address", database=db).stdout
    assert "its worker is told with its next heartbeat" in said
    wait_until(lambda: db.rows("SELECT id, state, failure_message FROM millrace.jobs_archive ORDER BY id") == [
        (first, "canceled", "gave up: canceled"), (second, "completed", None)], 20, process.log)
    assert "heard" in process.log()
    assert db.value("SELECT count(*) FROM millrace.jobs") == 0


def test_a_child_that_does_not_listen_is_killed(db, worker, child):
    process = worker(db, child("deaf"))
    number = enqueue(db)
    wait_until(lambda: db.value("SELECT progress_text FROM millrace.jobs") == "half", 20, process.log)
    millrace("jobs", "cancel", "mail", number, database=db)
    wait_until(lambda: db.rows("SELECT state FROM millrace.jobs_archive") == [("canceled",)], 20, process.log)
    assert "did not answer" in db.value("SELECT failure_message FROM millrace.jobs_archive")
    # The next one has a child of its own.
    assert enqueue(db, quick=True)
    wait_until(lambda: db.value("SELECT count(*) FROM millrace.jobs_archive WHERE state = 'completed'") == 1, 20,
               process.log)


def test_a_paused_queue_rests(db, worker, child):
    db.execute("SELECT millrace.configure_queue('mail', true, NULL)")
    millrace("queues", "pause", "mail", "--reason", "deploy", database=db)
    process = worker(db, child())
    number = enqueue(db, quick=True)
    wait_until(lambda: db.value("SELECT count(*) FROM millrace.worker_nodes WHERE 'mail' = ANY (queues)") == 1, 20,
               process.log)
    assert db.value("SELECT state FROM millrace.jobs WHERE id = %s", [number]) == "queued"
    millrace("queues", "resume", "mail", database=db)
    wait_until(lambda: db.value("SELECT count(*) FROM millrace.jobs_archive") == 1, 20, process.log)
