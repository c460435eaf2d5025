"""queues, jobs and dead-letters on the built-in table of jobs, from the database alone: as people and scripts use them.
No worker runs here."""

import json

import pytest

from harness import millrace


@pytest.fixture
def ask(db):
    """ask(*words, status=0): the program without a file; its output, or what it said."""
    def run(*words, status=0):
        done = millrace(*words, database=db, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout if status == 0 else done.stdout + done.stderr
    return run


def enqueue(db, queue="mail", key=None, **more):
    names = "".join(f", {name} => %s" for name in more)
    return db.value(f"SELECT id FROM millrace.enqueue(%s, %s, key => %s{names})",
                    [queue, '{"to": "ann"}', key, *more.values()])


def bury(db, number, text="no paper", standing=None):
    """What a worker would make of it, without one."""
    db.execute("""UPDATE millrace.jobs SET state = 'failed', standing = %s, failure_message = %s, num_failures = 3,
        finished_at = now(), errors = millrace.note_error(errors, 3, %s, 'w1') WHERE id = %s""",
               [standing, text, text, number])
    db.execute("SELECT millrace.promote_keys(queue, ARRAY[partition_key]) FROM millrace.jobs WHERE id = %s", [number])


def audit(db):
    return [tuple(row) for row in db.rows("SELECT queue, action, actor, reason FROM millrace.queue_audit ORDER BY id")]


@pytest.mark.asan
def test_queues_list_pause_resume(db, ask):
    assert ask("queues", "list") == "There are no queues.\n"
    for key in ("a", "a", None):
        enqueue(db, key=key)
    bury(db, enqueue(db, "pay"))
    db.execute("INSERT INTO millrace.worker_nodes (worker_id, state, heartbeat_at, queues)"
               " VALUES (gen_random_uuid(), 'alive', clock_timestamp(), '{mail,theirs}')")
    rows = {row["queue"]: row for row in json.loads(ask("queues", "list", "--json"))}
    assert list(rows) == ["mail", "pay", "theirs"]
    mail = rows["mail"]
    assert (mail["kind"], mail["queued"], mail["ready"], mail["blocked"], mail["workers"], mail["paused"],
            mail["completed"], mail["rough"]) == ("jobs", 3, 2, 1, 1, False, None, {})
    assert (rows["pay"]["failed"], rows["theirs"]["kind"], rows["theirs"]["queued"]) == (1, "unknown", None)
    assert "theirs: only its workers know its table" in ask("queues", "list")

    assert "did you mean 'mail'" in ask("queues", "pause", "mial", status=2)
    assert "usage" in ask("queues", "pause", status=2)
    assert "has no --reason" in ask("queues", "list", "--reason", "x", status=2)
    assert ask("queues", "pause", "mail", "--reason", "deploy", "--actor", "ann").startswith("mail: paused")
    assert "already" in ask("queues", "pause", "mail", "--actor", "bob")
    text = ask("queues", "list")
    assert "mail: paused by ann since 20" in text and text.rstrip().splitlines()[-4].endswith(": deploy")
    assert json.loads(ask("queues", "resume", "mail", "--actor", "ann", "--json"))["detail"]["was"]["reason"] == "deploy"
    assert "is not paused" in ask("queues", "resume", "mail", "--actor", "ann")
    assert audit(db) == [("mail", "pause", "ann", "deploy"), ("mail", "pause", "bob", None),
                         ("mail", "resume", "ann", None), ("mail", "resume", "ann", None)]


def test_a_number_that_is_not_exact_says_so(db, ask):
    db.execute("SELECT count(*) FROM millrace.enqueue_many('mail', (SELECT jsonb_agg('{}'::jsonb)"
               " FROM generate_series(1, 10050)))")
    [mail] = json.loads(ask("queues", "list", "--json"))
    assert (mail["queued"], mail["rough"]["queued"]) == (10000, "at least")
    assert "10000+" in ask("queues", "list")


@pytest.mark.asan
def test_jobs_list_and_show(db, ask):
    first, second = enqueue(db, key="order:9"), enqueue(db, key="order:9")
    late = enqueue(db, run_at="2100-01-01", idempotency_key="once", metadata='{"m": 1}')
    enqueue(db, "pay")
    assert [row["id"] for row in json.loads(ask("jobs", "list", "mail", "--json"))] == [late, second, first]
    assert [row["id"] for row in json.loads(ask("jobs", "list", "mail", "--key", "order:9", "--limit", 1, "--json"))] == [
        second]
    assert "queued, behind its key" in ask("jobs", "list", "mail")
    shown = json.loads(ask("jobs", "show", "mail", second, "--json"))
    assert (shown["place"], shown["key"], shown["values"], shown["errors"]) == (
        f"behind job {first} of key order:9", "order:9", {"payload": {"to": "ann"}}, [])
    assert "not due before 2100-01-01" in ask("jobs", "show", "mail", late)
    assert "idempotency_key    once" in ask("jobs", "show", "mail", late)
    assert "queue mail has no job" in ask("jobs", "show", "mail", 4711, status=2)
    assert "is no id of a job" in ask("jobs", "show", "mail", "x", status=2)
    assert "did you mean 'mail'" in ask("jobs", "list", "mall", status=2)
    assert "--config worker.yaml" in ask("jobs", "list", "something else", status=2)
    bury(db, first, standing="held")
    text = ask("jobs", "show", "mail", first)
    assert "keeps key order:9 until somebody retries or drops it; 1 behind it" in text
    assert "attempt 3, w1: no paper" in text
    # While it runs.
    db.execute("UPDATE millrace.jobs SET state = 'processing', standing = 'ready', last_heartbeat_at = now(),"
               " worker_hostname = 'w1', progress = 40, progress_text = 'half of it' WHERE id = %s", [late])
    assert "40% half of it" in ask("jobs", "list", "mail")
    assert json.loads(ask("jobs", "show", "mail", late, "--json"))["progress"] == 40


@pytest.mark.asan
def test_retry_cancel_requeue(db, ask):
    first, second, third = (enqueue(db, key="k") for _ in range(3))
    bury(db, first)
    assert f"{first}: queued; it was failed" in ask("jobs", "retry", "mail", first, "--reason", "fixed", "--actor", "ann")
    assert f"behind job {second} and 1 more of key k" in ask("jobs", "show", "mail", first)
    said = ask("jobs", "cancel", "mail", second, third, 99, "--reason", "not needed", "--actor", "ann", status=1)
    assert f"{third}: canceled; it was queued" in said and "99: left alone: the queue has no such job" in said
    assert "in line, first of key k" in ask("jobs", "show", "mail", first)
    [row] = json.loads(ask("jobs", "list", "mail", "--state", "canceled", "--limit", 1, "--json"))
    assert (row["id"], row["failure_message"]) == (third, "not needed")
    alone = ask("jobs", "retry", "mail", second, status=1)
    assert "left alone: it has ended: canceled" in alone and alone.endswith(f"job {second} was left alone\n")
    assert "it is in the archive; queued once more as job" in ask("jobs", "requeue", "mail", second, "--in", "1h",
                                                                  "--actor", "ann")
    assert "say which jobs" in ask("jobs", "requeue", "mail", status=2)
    assert "say which jobs" in ask("jobs", "cancel", "mail", "--limit", 2, status=2)
    assert "time looks like" in ask("jobs", "requeue", "mail", first, "--at", "soonish", status=2)
    assert ask("jobs", "cancel", "mail", "--all", "--actor", "ann").count("canceled; it was queued") == 2
    assert db.value("SELECT count(*) FROM millrace.jobs") == 0
    assert audit(db) == [("mail", "retry", "ann", "fixed"), ("mail", "cancel", "ann", "not needed"),
                         ("mail", "requeue", "ann", None), ("mail", "cancel", "ann", None)]


def test_what_others_hold_is_left_alone(db, ask):
    number = enqueue(db)
    with db.connect(autocommit=False) as other:
        other.execute("SELECT FROM millrace.jobs FOR UPDATE")
        assert "another session has its row locked" in ask("jobs", "cancel", "mail", number, status=1)
        other.rollback()


def test_more_than_one_transaction_takes(db, ask):
    db.execute("SELECT count(*) FROM millrace.enqueue_many('mail', (SELECT jsonb_agg(jsonb_build_object('key', 'k' || n))"
               " FROM generate_series(1, 1300) AS n))")
    assert len(json.loads(ask("jobs", "cancel", "mail", "--all", "--limit", 1100, "--json"))) == 1100
    ids = [str(row["id"]) for row in json.loads(ask("jobs", "list", "mail", "--json", "--limit", 1000, "--state", "queued"))]
    assert len(ids) == 200
    done = json.loads(ask("jobs", "cancel", "mail", *ids, *[str(n) for n in range(5000, 5600)], "--json", status=1)
                      .split("millrace:")[0])
    assert sum(row["done"] for row in done) == 200 and len(done) == 800
    assert db.value("SELECT sum((detail->>'jobs')::int) FROM millrace.queue_audit") == 1300


@pytest.mark.asan
def test_dead_letters_of_queues(db, ask):
    first, second, other = enqueue(db, key="k"), enqueue(db), enqueue(db, "pay")
    for number in (first, second, other):
        bury(db, number, "no paper" if number != second else "no ink")
    assert "did you mean 'mail'" in ask("dead-letters", "list", "--queue", "mial", status=2)
    text = ask("dead-letters", "list")
    assert [line.split()[:3] for line in text.splitlines()[1:]] == [
        ["job", "pay", str(other)], ["job", "mail", str(second)], ["job", "mail", str(first)]]
    rows = json.loads(ask("dead-letters", "list", "--queue", "mail", "--error", "PAPER", "--json"))
    assert [(row["kind"], row["queue"], row["id"]) for row in rows] == [("job", "mail", first)]
    assert "attempt 3, w1: no paper" in ask("dead-letters", "show", first, "--queue", "mail")
    assert "say of which queue" in ask("dead-letters", "show", "--job", first, status=2)
    assert "is of events and" in ask("dead-letters", "list", "--queue", "mail", "--consumer", "a", status=2)
    for word in ("replay", "drop"):
        assert "or --all" in ask("dead-letters", word, status=2)
    said = json.loads(ask("dead-letters", "replay", "--queue", "mail", "--key", "k", "--json", "--actor", "ann"))
    assert [(row["id"], row["state"]) for row in said["jobs"]] == [(first, "queued")]
    assert "is no dead letter: it is queued" in ask("dead-letters", "show", first, "--queue", "mail", status=1)
    assert ask("dead-letters", "drop", "--before", "2100-01-01", "--reason", "old", "--actor", "ann").endswith(
        "dropped 2 dead letters\n")
    assert ask("dead-letters", "list") == "No dead letter matches.\n"
    assert [row[1] for row in audit(db)] == ["retry", "drop", "drop"]
    [row] = json.loads(ask("jobs", "list", "pay", "--json"))
    assert (row["state"], row["archived"]) == ("failed", True)
    assert "failed, dropped" in ask("jobs", "list", "pay")


def test_without_a_schema(empty_db):
    for words in (["queues", "list"], ["jobs", "list", "x"], ["dead-letters", "list", "--queue", "x"]):
        done = millrace(*words, database=empty_db, check=False)
        assert done.returncode == 1 and "schema apply" in done.stderr, done
