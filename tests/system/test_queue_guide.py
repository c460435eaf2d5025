"""docs/queues.md does what it says: its steps on a real database, with the files of examples/queue and a real worker."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from harness import MILLRACE_BIN, PATIENCE, ROOT, millrace, wait_until

GUIDE = (ROOT / "docs" / "queues.md").read_text(encoding="utf-8")
FILES = ROOT / "examples" / "queue"


@pytest.fixture
def shop(db, monkeypatch):
    """The guide's database; paths in it are relative to the root of the tree."""
    monkeypatch.chdir(ROOT)
    db.execute((FILES / "schema.sql").read_text(encoding="utf-8"))
    db.execute("INSERT INTO customers (name, email) VALUES ('Ada', 'ada@example.org'), ('Bo', NULL), "
               "('Cy', 'cy@slow.example')")
    return db


def jobs(db, *words, status=0):
    done = millrace("jobs", *words, "--config", FILES / "worker.yaml", "--json", database=db, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)


def states(db):
    return dict(db.rows("SELECT id, state FROM invoices ORDER BY id"))


def config():
    return yaml.safe_load((FILES / "worker.yaml").read_text(encoding="utf-8"))


def test_the_guide_shows_the_files_as_they_are():
    """What the guide quotes of the examples is in them, line by line."""
    files = {name: (FILES / name).read_text(encoding="utf-8") for name in
             ("schema.sql", "worker.yaml", "send_invoice.py")}
    quoted = {"sql": "schema.sql", "yaml": "worker.yaml", "python": "send_invoice.py"}
    steps = GUIDE.split("## In six steps", 1)[1].split("\n## ", 1)[0]
    found = set()
    for language, block in re.findall(r"```(\w+)\n(.*?)```", steps, re.S):
        if language in quoted:
            assert block.strip() in files[quoted[language]], block
            found.add(quoted[language])
    assert found == set(files)


def test_six_steps(shop, worker):
    shop.execute("INSERT INTO invoices (customer_id, cents) SELECT 1 + n % 3, 100 * n FROM generate_series(0, 29) n")
    process = worker(shop, config())
    wait_until(lambda: not [s for s in states(shop).values() if s in ("queued", "errored", "processing")], 60,
               lambda: f"all jobs to end: {states(shop)}")
    process.stop()
    rows = shop.rows("SELECT c.name, i.state, count(*), min(i.num_failures), max(i.num_failures) FROM invoices i "
                     "JOIN customers c ON c.id = i.customer_id GROUP BY 1, 2 ORDER BY 1")
    assert rows == [("Ada", "completed", 10, 0, 0), ("Bo", "failed", 10, 1, 1), ("Cy", "completed", 10, 1, 1)]
    assert shop.value("SELECT count(*) FROM sent_invoices") == 20
    failed = jobs(shop, "list", "invoices", "--state", "failed")
    assert len(failed) == 10 and failed[0]["failure_message"] == "Bo has no mail address"
    shown = jobs(shop, "show", "invoices", "1")
    assert {"step": "send", "to": "ada@example.org"} in [
        {key: entry[key] for key in ("step", "to") if key in entry} for entry in shown["execution_logs"]]


def test_mended_and_retried(shop, worker):
    shop.execute("INSERT INTO invoices (customer_id, cents) VALUES (2, 500)")
    process = worker(shop, config())
    wait_until(lambda: states(shop) == {1: "failed"}, 30)
    shop.execute("UPDATE customers SET email = 'bo@example.org' WHERE name = 'Bo'")
    assert [row["done"] for row in jobs(shop, "retry", "invoices", "1")] == [True]
    wait_until(lambda: states(shop) == {1: "completed"}, 30)
    process.stop()
    assert shop.values("SELECT email FROM sent_invoices") == ["bo@example.org"]


def test_a_killed_workers_jobs_are_reset(shop, worker):
    settings = config()
    settings["queues"][0].pop("exec")
    settings["queues"][0].update(sql="SELECT pg_sleep(:cents::bigint / 1000.0)", heartbeat_interval="100ms",
                                 stalled_max_age="1s", reset_interval="200ms")
    shop.execute("INSERT INTO invoices (customer_id, cents) VALUES (1, 600000)")
    first = worker(shop, settings)
    wait_until(lambda: states(shop) == {1: "processing"}, 30)
    first.kill9()
    shop.execute("UPDATE invoices SET cents = 1")
    second = worker(shop, settings)
    wait_until(lambda: states(shop) == {1: "completed"}, 30)
    second.stop()
    assert shop.value("SELECT num_resets FROM invoices") == 1


def test_queues_list_counts_the_workers(shop, worker):
    process = worker(shop, config())

    def listed():
        done = millrace("queues", "list", "--config", FILES / "worker.yaml", "--json", database=shop)
        return json.loads(done.stdout)[0]["workers"] == 1
    wait_until(listed, 30)
    process.stop()


def test_a_budget_is_never_exceeded(empty_db):
    program = Path(MILLRACE_BIN).resolve().parent / "examples" / "example_budget"
    run = [str(program), empty_db.uri]


    def budget(count):
        return subprocess.run([*run, str(count)], text=True, capture_output=True, check=False,
                              timeout=60 * PATIENCE)
    # The first run makes the table; a job that fits lets it end.
    first = subprocess.Popen([*run, "1"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: empty_db.value("SELECT to_regclass('videos_running') IS NOT NULL"), 30)
    empty_db.execute("INSERT INTO videos (units) VALUES (3)")
    out, err = first.communicate(timeout=60 * PATIENCE)
    assert first.returncode == 0, err
    empty_db.execute("INSERT INTO videos (units) SELECT 1 + n % 7 FROM generate_series(1, 40) n")
    empty_db.execute("INSERT INTO videos (units) VALUES (11)")  # more than there is: nobody ever claims it
    done = budget(40)
    assert done.returncode == 0, done.stderr
    highest = int(re.fullmatch(r"never more than (\d+) of 10 units in use\n", done.stdout).group(1))
    assert 0 < highest <= 10
    assert empty_db.rows("SELECT units, state FROM videos WHERE state <> 'completed' ORDER BY units")[-1] == (
        11, "queued")
