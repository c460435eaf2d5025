"""The program's commands as people and scripts use them: words, exit codes, JSON, bad input."""

import base64
import json
import os
import re
import shutil
import signal

import pytest

from cli_helpers import Home, open_directory, wait_for

COMMANDS = ("demo", "dev", "schema", "run", "append", "enqueue", "consumers", "dead-letters", "gaps", "queues", "jobs",
            "options")


@pytest.fixture(scope="module")
def home():
    directory = open_directory()
    home = Home(directory / "home", cwd=directory)
    home.ok("schema", "apply")
    yield home
    home.remove()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def database(home):
    """The URI of a new database with the schema in it."""
    name = f"db_{os.urandom(6).hex()}"
    home.sql(f"CREATE DATABASE {name}")
    uri = home.ok("dev", "url").strip().replace("/millrace?", f"/{name}?")
    home.ok("--database", uri, "schema", "apply")
    yield uri
    home.sql(f"DROP DATABASE {name} WITH (FORCE)")


def query(home, uri, text):
    import subprocess
    return subprocess.run(["psql", uri, "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text], capture_output=True,
                          text=True, check=True).stdout.strip()


def event(stream="1", **fields):
    line = {"aggregate_type": "Order", "aggregate_id": stream, "event_type": "Placed", "data": {"n": 1}}
    line.update(fields)
    return json.dumps({k: v for k, v in line.items() if v is not ...}) + "\n"


# ---- Words ------------------------------------------------------------------------------------


def test_help_and_version(home):
    assert re.fullmatch(r"millrace \d+\.\d+\.\d+\n", home.ok("--version"))
    overview = home.ok("--help")
    assert overview == home.ok("help")
    for command in COMMANDS:
        assert f"\n  {command} " in overview
        text = home.ok(command, "--help")
        assert text.startswith(f"usage: millrace {command} ")
        assert text == home.ok("help", command) == home.ok("--help", command)
    assert "demo-worker" not in overview


@pytest.mark.parametrize("words, hint", [
    ([], "no command"),
    (["gasp"], "did you mean gaps?"),
    (["xyzzyx"], "unknown command xyzzyx"),
    (["dev"], "needs one more word"),
    (["dev", "strat"], "did you mean start?"),
    (["dev", "start", "now"], "unexpected word 'now'"),
    (["schema", "aply"], "did you mean apply?"),
    (["schema", "print", "--worker-node-table", "x"], "did you mean --worker-nodes-table?"),
    (["schema", "print", "--force"], "schema generate"),
    (["schema", "print", "--log-naming", "odd"], "naming"),
    (["--databse", "x", "gaps", "list"], "did you mean --database?"),
    (["gaps", "list", "--json=1"], "takes no value"),
    (["append", "--batch"], "needs a value"),
    (["append", "--batch", "0"], "from 1 to"),
    (["append", "--batch", "ten"], "'ten' is not a whole number"),
    (["append", "--expected", "-1"], "is not any, none or a version"),
    (["append", "--notify-mode", "after"], "needs --notify"),
    (["append", "--notify", "c", "--notify-mode", "later"], "not after or transaction"),
    (["run"], "usage: millrace run FILE"),
    (["demo", "--database", "x"], "embedded"),
])
def test_wrong_usage(home, words, hint):
    done = home.run(*words)
    assert done.returncode == 2, done.stderr
    assert hint in done.stderr
    assert done.stdout == ""
    assert re.search(r"^millrace: ", done.stderr, re.MULTILINE)


def test_options(home):
    rows = json.loads(home.ok("options", "--json"))
    names = [row["name"] for row in rows]
    assert "batch_size" in names and "gap_strategy" in names
    assert all(row["meaning"] and row["type"] for row in rows)
    text, page = home.ok("options"), home.ok("options", "--markdown")
    assert page.startswith("# Options\n")
    for name in names:
        assert name in text and f"`{name}`" in page


# ---- Which database ---------------------------------------------------------------------------


def test_embedded_is_announced_once_on_stderr(home):
    done = home.run("schema", "status", "--json")
    assert done.stderr.count("embedded PostgreSQL") == 1
    assert json.loads(done.stdout)["current"] >= 1


def test_order_of_the_places_that_name_a_database(home, database, tmp_path):
    dead = "postgresql://127.0.0.1:1/none"
    config = tmp_path / "c.yaml"
    config.write_text(f"database: '{dead}'\n")
    good = {"MILLRACE_DATABASE": database}
    assert home.run("schema", "status", "--config", config).returncode == 3
    assert home.run("schema", "status", env={"DATABASE_URL": dead}).returncode == 3
    assert home.run("schema", "status", env={"DATABASE_URL": dead, **good}).returncode == 0
    assert home.run("schema", "status", "--config", config, env=good).returncode == 0
    assert home.run("schema", "status", "--database", dead, env=good).returncode == 3
    assert "embedded" not in home.run("schema", "status", env=good).stderr


def test_passwords_never_appear(home):
    for uri in ("postgresql://joe:s3cretpw@127.0.0.1:1/shop", "host=127.0.0.1 port=1 password=s3cretpw",
                "postgresql://joe:s3cretpw@127.0.0.1:notaport/shop"):
        for command in (["schema", "status"], ["gaps", "open", "-v"]):
            done = home.run("--database", uri, *command)
            assert done.returncode != 0
            assert "s3cretpw" not in done.stdout + done.stderr


# ---- Schema -----------------------------------------------------------------------------------


def test_schema_apply_is_idempotent(home, database):
    assert "up to date" in home.ok("--database", database, "schema", "apply")
    status = json.loads(home.ok("--database", database, "schema", "status", "--json"))
    assert status["current"] == status["latest"]


def test_schema_generate(home, tmp_path):
    target = tmp_path / "a" / "b"
    out = home.ok("schema", "generate", "-output", target, "-filename", "init.sql",
                  "--worker-nodes-table=infra.worker_nodes").strip()
    assert out == str(target / "init.sql")
    text = (target / "init.sql").read_text()
    assert "CREATE SCHEMA IF NOT EXISTS" in text and "infra" in text
    again = home.run("schema", "generate", "--output", target, "--filename", "init.sql")
    assert again.returncode == 2 and "--force" in again.stderr
    assert (target / "init.sql").read_text() == text
    home.ok("schema", "generate", "--output", target, "--filename", "init.sql", "--force")
    assert "infra" not in (target / "init.sql").read_text()
    named = home.ok("schema", "generate", "--output", target).strip()
    assert re.fullmatch(r"\d{14}_init_millrace\.sql", os.path.basename(named))
    assert sorted(os.listdir(target)) == sorted(["init.sql", os.path.basename(named)])
    assert home.run("schema", "generate", "--filename", "../x.sql").returncode == 2


def test_schema_print_without_log(home):
    assert "aggregate_heads" in home.ok("schema", "print")
    assert "aggregate_heads" not in home.ok("schema", "print", "--no-log")


# ---- Append -----------------------------------------------------------------------------------


def test_append(home, database):
    lines = (event("1", data={"a": 1.10, "big": 10**30}) + "\n" +
             event("2", data=..., payload="plain \u00e9", metadata={"k": [1, {"x": "}"}]}, event_version=3) +
             event("3", data=..., payload_base64=base64.b64encode(b"\x00\xff").decode(), trace_id="t") +
             event("1", expected_version=1, event_id="11111111-2222-4333-8444-555555555555"))
    out = json.loads(home.ok("--database", database, "append", "--json", stdin=lines))
    assert out["appended"] == 4 and out["last_position"] >= 4
    rows = query(home, database, "SELECT aggregate_id, aggregate_version, encode(payload, 'escape'), event_version,"
                 " coalesce(trace_id, '-') FROM events ORDER BY global_position").splitlines()
    assert rows[0].startswith('1|1|{"a": 1.1, "big": 1000000000000000000000000000000}|1|-')
    assert rows[1].startswith("2|1|plain \\303\\251|3|-")
    assert rows[2].startswith("3|1|\\000\\377|1|t")
    assert rows[3].startswith("1|2|")
    assert query(home, database, "SELECT metadata->'k'->1->>'x' FROM events WHERE aggregate_id = '2'") == "}"


def test_append_keeps_numbers_as_written(home, database):
    line = '{"aggregate_type":"A","aggregate_id":"1","event_type":"E","data":{"b":1.10,"a":1e2,"b2":"\\"}"}}\n'
    home.ok("--database", database, "append", stdin=line)
    assert query(home, database, "SELECT convert_from(payload, 'UTF8') FROM events") == \
        '{"b":1.10,"a":1e2,"b2":"\\"}"}'


@pytest.mark.parametrize("bad, hint", [
    (b"{nonsense\n", "not valid JSON"),
    (b"[1]\n", "not a JSON object"),
    (b'"x"\n', "not a JSON object"),
    (event(agregate_type="x").encode(), "did you mean aggregate_type?"),
    (event(event_type=...).encode(), "'event_type' is missing"),
    (event(aggregate_id="").encode(), "'aggregate_id' is missing or empty"),
    (event(aggregate_id=7).encode(), "'aggregate_id' must be a string"),
    (event(stream_id="2").encode(), "give one"),
    (event(data=...).encode(), "one of 'data'"),
    (event(payload="x").encode(), "one of 'data'"),
    (event(data=..., payload_base64="@@@=").encode(), "base64"),
    (event(metadata=[1]).encode(), "'metadata' must be an object"),
    (event(event_version="1").encode(), "'event_version'"),
    (event(event_version=1.5).encode(), "'event_version'"),
    (event(expected_version=0).encode(), "'expected_version'"),
    (event(expected_version="some").encode(), "'expected_version'"),
    (event(event_id="no-uuid").encode(), "UUID"),
    (event().encode()[:-2] + b', "data": 2}\n', "duplicate"),
    (event().replace("Placed", "Pl@ced").encode().replace(b"@", b"\xff"), "UTF-8"),
    (event(data=...).encode()[:-2] + b', "data": ' + b"[" * 5000 + b"]" * 5000 + b"}\n", "depth"),
    (event(data="a\u0000b").encode(), "u0000"),
])
def test_append_names_the_bad_line_and_writes_nothing_of_its_batch(home, database, bad, hint):
    good = event().encode()
    done = home.run("--database", database, "append", "--batch", "2", stdin=good * 3 + bad + good)
    assert done.returncode == 1
    assert "line 4: " in done.stderr and hint in done.stderr, done.stderr
    assert "2 events of earlier batches were" in done.stderr
    assert query(home, database, "SELECT count(*) FROM events") == "2"


def test_append_conflicts(home, database):
    args = ("--database", database, "append")
    home.ok(*args, "--expected", "none", "--batch", "2", stdin=event() * 5)
    again = home.run(*args, "--expected", "none", stdin=event())
    assert again.returncode == 4 and "Order/1" in again.stderr
    assert home.run(*args, "--expected", "4", stdin=event()).returncode == 4
    home.ok(*args, "--expected", "5", stdin=event())
    # A line further down that states a wrong version takes the whole batch with it.
    late = home.run(*args, stdin=event() + event(expected_version=6))
    assert late.returncode == 4
    assert query(home, database, "SELECT count(*) FROM events") == "6"


def test_append_defaults_file_and_empty_input(home, database, tmp_path):
    args = ("--database", database, "append", "--stream-type", "T", "--stream-id", "9")
    file = tmp_path / "e.jsonl"
    file.write_text('{"event_type":"E","data":null}\n\n{"event_type":"E","data":"x","stream_id":"8"}')
    assert home.ok(*args, file).startswith("appended 2 events in 1 transaction, last position ")
    assert query(home, database, "SELECT string_agg(aggregate_type || aggregate_id, ',' ORDER BY "
                 "global_position) FROM events") == "T9,T8"
    assert home.ok(*args, stdin="") == "appended 0 events\n"
    assert home.run(*args, tmp_path / "none.jsonl").returncode == 1


def test_append_large_payload(home, database):
    line = event(data=..., payload="x" * (10 << 20))
    home.ok("--database", database, "append", stdin=line)
    assert query(home, database, "SELECT length(payload) FROM events") == str(10 << 20)


def test_append_without_schema(home):
    home.sql("CREATE DATABASE empty_one")
    uri = home.ok("dev", "url").strip().replace("/millrace?", "/empty_one?")
    done = home.run("--database", uri, "append", stdin=event())
    assert done.returncode == 1 and "millrace schema apply" in done.stderr


# ---- Gaps -------------------------------------------------------------------------------------


def test_gaps(home, database):
    for what in ("list", "open"):
        assert json.loads(home.ok("--database", database, "gaps", what, "--json")) == []
        assert home.ok("--database", database, "gaps", what).endswith(".\n")


# ---- Run --------------------------------------------------------------------------------------

YAML = """\
database: '{uri}'
consumers:
  - name: copy_v1
    sql: INSERT INTO copies VALUES (:global_position)
"""


@pytest.fixture
def worker_file(home, database, tmp_path):
    query(home, database, "CREATE TABLE copies (position bigint)")
    path = tmp_path / "worker.yaml"
    path.write_text(YAML.format(uri=database))
    return path


def test_run_check_and_once(home, database, worker_file):
    assert home.ok("run", "--check", worker_file) == f"{worker_file}: ok, 1 consumer\n"
    home.ok("--database", database, "append", stdin=event() * 10)
    home.ok("run", worker_file, "--once")
    home.ok("run", worker_file, "--once")
    assert query(home, database, "SELECT count(*) || ' ' || count(DISTINCT position) FROM copies") == "10 10"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_stops_on_a_signal(home, database, worker_file, number):
    worker = home.start("run", worker_file, "--log-format", "json")
    home.ok("--database", database, "append", stdin=event() * 3)
    wait_for(lambda: query(home, database, "SELECT count(*) FROM copies") == "3", "the events to be handled")
    worker.send_signal(number)
    _, log = worker.communicate(timeout=60)
    assert worker.returncode == 0, log
    for line in log.splitlines():
        assert isinstance(json.loads(line), dict)


@pytest.mark.parametrize("text, hint", [
    ("consumers: [\n", "bad.yaml:2:"),
    ("wrong_key: 1\n", "wrong_key"),
    ("database: x\n", "consumers"),
    ("consumers:\n  - name: a\n", "a"),
    ("worker: {batch_size: many}\nconsumers:\n  - {name: a, sql: SELECT 1}\n", "batch_size"),
])
def test_run_bad_file(home, tmp_path, text, hint):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    done = home.run("run", "--check", path, env={"MILLRACE_DATABASE": "postgresql:///none"})
    assert done.returncode == 2, done.stderr
    assert hint in done.stderr and "bad.yaml" in done.stderr


def test_run_missing_file(home):
    done = home.run("run", "no-such.yaml")
    assert done.returncode in (1, 2) and "no-such.yaml" in done.stderr


def test_run_without_schema_on_ones_own_database(home, tmp_path):
    home.sql("CREATE DATABASE bare")
    uri = home.ok("dev", "url").strip().replace("/millrace?", "/bare?")
    path = tmp_path / "w.yaml"
    path.write_text(f"database: '{uri}'\nconsumers:\n  - {{name: a, sql: SELECT 1}}\n")
    done = home.run("run", "--once", path)
    assert done.returncode == 1 and "millrace schema apply" in done.stderr


def test_run_on_the_embedded_database_installs_the_schema(tmp_path):
    directory = open_directory()
    fresh = Home(directory / "home")
    try:
        path = directory / "w.yaml"
        path.write_text("consumers:\n  - {name: a, sql: SELECT 1}\n")
        done = fresh.run("run", "--once", path)
        assert done.returncode == 0, done.stderr
        assert "installed Millrace's schema" in done.stderr
    finally:
        fresh.remove()
        shutil.rmtree(directory, ignore_errors=True)


# ---- Demo -------------------------------------------------------------------------------------


def test_demo(home):
    done = home.run("demo", "--seconds", "3", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    match = re.fullmatch(r"demo: (\d+) committed, (\d+) handled by each of (\d+) consumers, (\d+) rolled back, "
                         r"0 lost, 0 doubled", last)
    assert match, last
    committed, handled, consumers, rolled_back = map(int, match.groups())
    assert committed == handled > 100 and consumers >= 3 and rolled_back > 10
    uri = home.ok("dev", "url").strip().replace("/millrace?", "/millrace_demo?")
    assert query(home, uri, "SELECT count(*) FROM events") == str(committed)
    assert "\033" not in done.stdout


def test_demo_interrupted_leaves_no_children(home):
    demo = home.start("demo", "--seconds", "60")
    uri = home.ok("dev", "url").strip().replace("/millrace?", "/millrace_demo?")
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'millrace_demo'"

    def writing():
        import subprocess
        out = subprocess.run(["psql", uri, "-XAtqc", "SELECT count(*) > 50 FROM events"], capture_output=True,
                             text=True, check=False)
        return out.stdout.strip() == "t"

    wait_for(writing, "the demo to write")
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 1 and "interrupted" in err
    wait_for(lambda: home.sql(sessions) == "0", "the demo's sessions to end")
