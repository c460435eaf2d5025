"""queues list and jobs list|show|retry|cancel|requeue on a table of a user's own, as people and scripts use them: odd
names, wrong input, JSON, exit codes. No worker runs here."""

import json

import pytest
import yaml

from harness import millrace

TABLE = '"Büro {x}"."Wo\'rk; DROP"'
COLUMNS = {"id": "Nr.", "state": "Zu stand", "queued_at": "angelegt, a=m", "cancel": "stopp"}


def make_table(db, table=TABLE, cancel=True):
    db.execute('CREATE SCHEMA IF NOT EXISTS "Büro {x}"')
    db.execute(f"""CREATE TABLE {table} ("Nr." bigint PRIMARY KEY, "Zu stand" text NOT NULL DEFAULT 'queued',
        failure_message text, "angelegt, a=m" timestamptz NOT NULL DEFAULT now(), started_at timestamptz,
        finished_at timestamptz, process_after timestamptz, num_resets int NOT NULL DEFAULT 0,
        num_failures int NOT NULL DEFAULT 0, last_heartbeat_at timestamptz, execution_logs json[],
        worker_hostname text NOT NULL DEFAULT '', {'stopp boolean NOT NULL DEFAULT false,' if cancel else ''}
        "für wen" text)""")


def add(db, number, state="queued", **columns):
    row = {'"Nr."': number, '"Zu stand"': state, **columns}
    db.execute(f"INSERT INTO {TABLE} ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})", list(row.values()))


def state(db, number):
    return db.value(f'SELECT "Zu stand" FROM {TABLE} WHERE "Nr." = %s', [number])


@pytest.fixture
def work(db, tmp_path):
    """work(*words, status=0): the program with a configuration of two queues; its output, or what it said."""
    make_table(db)
    file = tmp_path / "worker.yaml"
    queue = {"name": "briefe", "table": f"{TABLE} j", "columns": COLUMNS, "sql": "SELECT 1",
             "values": {"für": 'j."für wen"', "doppelt": 'j."Nr." * 2'}, "stalled_max_age": "30s"}
    file.write_text(yaml.safe_dump({"queues": [queue, {"name": "gone", "table": "nowhere", "sql": "SELECT 1"}]},
                                   allow_unicode=True))

    def run(*words, status=0, config=file):
        words = words if config is None else (*words, "--config", config)
        done = millrace(*words, database=db, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout if status == 0 else done.stdout + done.stderr
    run.file = file
    return run


@pytest.mark.asan
def test_queues_list(db, work):
    add(db, 1)
    add(db, 2, "failed", failure_message="no paper")
    add(db, 3, "processing")
    db.execute(f"UPDATE {TABLE} SET last_heartbeat_at = now() - interval '1 min' WHERE \"Nr.\" = 3")
    text = work("queues", "list")
    lines = [line.split() for line in text.splitlines()]
    assert lines[1][:8] == ["briefe", "1", "0", "1", "1", "1", "0", "0"]
    assert lines[2][:3] == ["gone", "-", "-"]
    assert "problems:\nqueue gone: there is no table nowhere" in text
    rows = json.loads(work("queues", "list", "--json"))
    assert [(row["queue"], row["queued"], row["failed"], row["stalled"], row["workers"], row["rough"])
            for row in rows] == [("briefe", 1, 1, 1, 0, {}), ("gone", None, None, None, 0, {})]
    assert rows[0]["table"] == TABLE and rows[0]["problem"] is None and rows[0]["oldest_wait_seconds"] >= 0


def test_dead_letters_of_an_own_table_need_its_name(db, work):
    add(db, 2, "failed", failure_message="no paper")
    for words in (["list"], ["replay", "--all"], ["drop", "--before", "2000-01-01"]):
        done = millrace("dead-letters", *words, "--config", work.file, database=db)
        assert done.stderr == ("millrace: left out, since they are on tables of their own: briefe, gone; ask for one "
                               "with --queue NAME\n")
    assert state(db, 2) == "failed"
    done = millrace("dead-letters", "list", "--queue", "briefe", "--config", work.file, database=db)
    assert "no paper" in done.stdout and done.stderr == ""
    assert millrace("dead-letters", "list", "--consumer", "a", "--config", work.file, database=db,
                    check=False).stderr.count("left out") == 0


def test_large_counts_are_bounded(db, work):
    db.execute(f"INSERT INTO {TABLE} (\"Nr.\", \"Zu stand\") SELECT g, 'completed' FROM generate_series(1, 10500) g")
    assert " 10000+ " in work("queues", "list")
    assert json.loads(work("queues", "list", "--json"))[0]["rough"] == {"completed": "at least"}


def test_workers_that_have_the_queue(db, work):
    db.execute("""INSERT INTO millrace.worker_nodes (worker_id, state, heartbeat_at, queues)
        VALUES (gen_random_uuid(), 'alive', clock_timestamp(), '{briefe,gone}'),
               (gen_random_uuid(), 'alive', clock_timestamp(), '{other}'),
               (gen_random_uuid(), 'alive', clock_timestamp() - interval '1 hour', '{briefe}'),
               (gen_random_uuid(), 'dead', clock_timestamp(), '{briefe}')""")
    rows = json.loads(work("queues", "list", "--json"))
    assert [(row["queue"], row["workers"], row["kind"]) for row in rows] == [
        ("briefe", 1, "table"), ("gone", 1, "table"), ("other", 1, "unknown")]


@pytest.mark.asan
def test_jobs_list_and_filters(db, work):
    assert work("jobs", "list", "briefe") == "The queue has no jobs.\n"
    add(db, 1)
    add(db, 2, "failed", failure_message="no Paper", num_failures=3)
    add(db, 3, "errored", failure_message="50% done", num_failures=1)

    def ids(*words):
        return [row["id"] for row in json.loads(work("jobs", "list", "briefe", *words, "--json"))]
    assert ids() == [3, 2, 1]
    assert ids("--state", "failed,errored") == [3, 2]
    assert ids("--error", "paper") == [2] and ids("--error", "%") == [3]
    assert ids("--limit", "1") == [3] and ids("2", "1") == [2, 1]
    assert ids("--after", "2999-01-01") == [] and ids("--before", "2999-01-01") == [3, 2, 1]
    assert work("jobs", "list", "briefe", "--state", "canceled") == "No job matches.\n"
    text = work("jobs", "list", "briefe")
    assert text.splitlines()[0].split() == ["id", "state", "since", "errors", "resets", "worker", "message"]
    assert "no Paper" in text


def test_jobs_show(db, work):
    add(db, 7, "processing")
    db.execute(f"""UPDATE {TABLE} SET "für wen" = 'Åse', execution_logs = ARRAY['{{"step": 1}}', '"ok"']::json[],
        worker_hostname = 'h:1', started_at = now(), last_heartbeat_at = now() - interval '1 hour', stopp = true""")
    text = work("jobs", "show", "briefe", "7")
    for line in ("stalled            yes: its worker is silent", "cancel             asked for",
                 "  für                 Åse", "  doppelt            14", '  1. {"step":1}', "  2. ok"):
        assert line.split() in [found.split() for found in text.splitlines()], text
    row = json.loads(work("jobs", "show", "briefe", "7", "--json"))
    assert row["values"] == {"für": "Åse", "doppelt": 14} and row["execution_logs"] == [{"step": 1}, "ok"]
    assert row["state"] == "processing" and row["worker"] == "h:1" and row["lease_generation"] is None
    assert "queue briefe has no job 8" in work("jobs", "show", "briefe", "8", status=2)


@pytest.mark.asan
def test_retry_tells_each_job(db, work):
    add(db, 1, "failed", num_failures=5, num_resets=1)
    add(db, 2)
    said = work("jobs", "retry", "briefe", "1", "2", "99", status=1)
    assert said == ("1: queued; it was failed\n2: left alone: it is queued already\n"
                    "99: left alone: the queue has no such job\nmillrace: 2 of 3 jobs were left alone\n")
    assert db.rows(f'SELECT num_failures, num_resets FROM {TABLE} WHERE "Nr." = 1') == [(5, 1)]
    db.execute(f"UPDATE {TABLE} SET \"Zu stand\" = 'failed'")
    done = json.loads(work("jobs", "retry", "briefe", "--all", "--reset-counters", "--json"))
    assert done == [{"id": 1, "was": "failed", "state": "queued", "done": True, "note": None},
                    {"id": 2, "was": "failed", "state": "queued", "done": True, "note": None}]
    assert db.rows(f"SELECT DISTINCT num_failures, num_resets FROM {TABLE}") == [(0, 0)]
    assert work("jobs", "retry", "briefe", "--state", "failed") == "No job matches.\n"


def test_cancel(db, work):
    add(db, 1)
    add(db, 2, "processing")
    assert work("jobs", "cancel", "briefe", "1", "2", "--reason", "wrong address") == (
        "1: canceled; it was queued\n2: its worker is told with its next heartbeat\n")
    assert db.rows(f'SELECT "Zu stand", failure_message, stopp FROM {TABLE} ORDER BY "Nr."') == [
        ("canceled", "wrong address", False), ("processing", None, True)]


def test_cancel_needs_a_column_for_running_jobs(db, work, tmp_path):
    db.execute(f"ALTER TABLE {TABLE} DROP COLUMN stopp")
    add(db, 2, "processing")
    file = tmp_path / "plain.yaml"
    columns = {k: v for k, v in COLUMNS.items() if k != "cancel"}
    file.write_text(yaml.safe_dump({"queues": [{"name": "q", "table": TABLE, "columns": columns, "sql": "SELECT 1"}]},
                                   allow_unicode=True))
    said = work("jobs", "cancel", "q", "2", status=1, config=file)
    assert f"ALTER TABLE {TABLE} ADD COLUMN cancel boolean NOT NULL DEFAULT false" in said


def test_requeue(db, work):
    add(db, 1, "completed")
    add(db, 2, "processing")
    db.execute(f"UPDATE {TABLE} SET last_heartbeat_at = now()")
    said = work("jobs", "requeue", "briefe", "1", "2", "--in", "1h", status=1)
    assert said.startswith("1: queued; it was completed\n2: left alone: it is running; ")
    assert db.value(f"SELECT process_after - now() BETWEEN interval '59 min' AND interval '1 h' FROM {TABLE}"
                    ' WHERE "Nr." = 1')
    assert "not before" in work("jobs", "list", "briefe")
    work("jobs", "requeue", "briefe", "1", "--at", "2030-01-01T00:00:00Z")
    assert db.value(f'SELECT process_after = \'2030-01-01T00:00:00Z\' FROM {TABLE} WHERE "Nr." = 1')
    db.execute(f"UPDATE {TABLE} SET last_heartbeat_at = now() - interval '1 hour'")
    work("jobs", "requeue", "briefe", "2")
    assert state(db, 2) == "queued"


@pytest.mark.parametrize("words,said", [
    (("jobs",), "'millrace jobs' needs one more word"),
    (("jobs", "lst", "briefe"), "did you mean list?"),
    (("jobs", "list"), "usage: millrace jobs list QUEUE [--config FILE]"),
    (("jobs", "show", "briefe"), "usage: millrace jobs show QUEUE ID"),
    (("jobs", "show", "briefe", "1", "2"), "unexpected word '2'"),
    (("jobs", "list", "briefee"), "did you mean 'briefe'?"),
    (("jobs", "list", "gone"), "there is no table nowhere"),
    (("jobs", "list", "briefe", "one"), "that is no id of queue briefe"),
    (("jobs", "list", "briefe", "99999999999999999999"), "type bigint"),
    (("jobs", "list", "briefe", "--state", "done"), "'done' is not one of queued, errored"),
    (("jobs", "list", "briefe", "--before", "yesterdayish"), "a time looks like 2026-01-31T12:00:00Z"),
    (("jobs", "list", "briefe", "--limit", "0"), "limit: '0' is not a whole number from 1"),
    (("jobs", "list", "briefe", "--all"), "'millrace jobs list' has no --all"),
    (("jobs", "show", "briefe", "1", "--state", "queued"), "'millrace jobs show' has no --state"),
    (("jobs", "retry", "briefe"), "say which jobs to retry: their ids, --state and the like, or --all"),
    (("jobs", "retry", "briefe", "--limit", "5"), "say which jobs to retry"),
    (("jobs", "list", "briefe", "--reason", "x"), "'millrace jobs list' has no --reason"),
    (("jobs", "list", "briefe", "--key", "x"), "whose jobs have no keys"),
    (("queues", "pause", "briefe"), "only queues of the built-in table can be paused"),
    (("jobs", "cancel", "briefe", "1", "--in", "5s"), "'millrace jobs cancel' has no --in"),
    (("jobs", "requeue", "briefe", "1", "--in", "5"), "--in"),
    (("jobs", "requeue", "briefe", "1", "--in", "5s", "--at", "2030-01-01"), "exclude each other"),
    (("jobs", "requeue", "briefe", "1", "--at", "later"), "a time looks like"),
    (("jobs", "retry", "briefe", ""), "id: the value is empty"),
    (("queues", "lst"), "did you mean list?"),
    (("queues", "list", "x"), "unexpected word 'x'"),
])
def test_wrong_input(work, words, said):
    text = work(*words, status=2)
    assert said in text, text


@pytest.mark.parametrize("words", [("jobs", "list", "briefe"), ("jobs", "retry", "briefe", "1")])
def test_the_file_is_needed(work, words):
    assert "one on a table of its own is described by a file: --config worker.yaml" in work(
        *words, status=2, config=None)


def test_no_values_become_statements(db, work):
    add(db, 1, "failed", failure_message="x")
    assert work("jobs", "retry", "briefe", "--error", "') OR true; DROP TABLE x; --") == "No job matches.\n"
    work("jobs", "retry", "briefe", "1; DELETE FROM pg_class", status=2)
    assert state(db, 1) == "failed"


def test_control_characters_stay_off_the_terminal(db, work):
    evil = "a\x1b[2Jb\x07c\nd\x7fe\u009bf"
    add(db, 1, "failed", failure_message=evil, worker_hostname=evil)
    db.execute(f"""UPDATE {TABLE} SET "für wen" = %s, execution_logs = ARRAY[to_json(%s::text)]""", [evil, evil])
    for words in (("jobs", "list", "briefe"), ("jobs", "show", "briefe", "1")):
        text = work(*words)
        assert not any(ord(c) < 32 and c != "\n" or 127 <= ord(c) < 160 for c in text), repr(text)
        assert "a?[2Jb?c d?e?f" in text
    assert json.loads(work("jobs", "show", "briefe", "1", "--json"))["failure_message"] == evil
