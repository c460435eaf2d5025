"""exec handlers: programs in any language, exactly once through their answers' SQL; whatever a child does fails its
batch clearly and nothing else; no child outlives its worker."""

import os
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest
import yaml

from fleet import Appender
from harness import (MILLRACE_BIN, ROOT, SCALE, all_handled, append_lines, assert_exactly_once, insert_event, insert_events,
                     millrace, recorder, wait_until)

# Tried again for ever and soon, by the old names and the new ones.
PATIENT = {"max_consecutive_failures": 0, "max_retries": "unlimited"}
QUICK = {"poll_interval": "50ms", "max_poll_interval": "200ms", "retry_base_delay": "50ms", "retry_max_delay": "200ms",
         **PATIENT}

HEAD = """\
import json, os, signal, sys, time
INSERT = "INSERT INTO effects (consumer, pos) VALUES ($1, $2)"
def out(text):
    sys.stdout.write(text); sys.stdout.flush()
def ok(position, **more):
    out(json.dumps({"ok": True, "position": position, **more}) + "\\n")
def good(e):
    ok(e["position"], sql=[{"text": INSERT, "params": [e["consumer"], e["position"]]}])
def first(name):
    try:
        os.mkdir(os.path.join(os.path.dirname(__file__), name))
        return True
    except FileExistsError:
        return False
for line in sys.stdin:
    e = json.loads(line)
    p = e["position"]
"""


@pytest.fixture
def script(tmp_path):
    """script(body): the command of a handler in Python whose body handles event `e`, at position `p`."""
    def write(body, name="handler"):
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD + textwrap.indent(textwrap.dedent(body), "    ") + "\n", encoding="utf-8")
        return ["python3", str(path)]
    return write


def child_pid(process, consumer="a"):
    """The newest child of a consumer."""
    process.wait_log("handler started", consumer=consumer)
    return process.matching(lambda e: e.get("msg") == "handler started", consumer=consumer)[-1]["pid"]


def alive(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_error(process, *words, consumer="a", timeout=20):
    """A log line about the consumer whose error has all the words."""
    return process.wait_log(lambda e: all(word in e.get("error", "") for word in words), timeout, consumer=consumer)


# ---- Good runs ------------------------------------------------------------------------------------------------------

@pytest.mark.asan
@pytest.mark.tsan
def test_sql_in_answers_is_exactly_once(db, worker, script):
    db.create_effects()
    insert_events(db, 1500)
    process = worker(db, {"consumers": [{"name": "a", "exec": script("good(e)")}], "worker": {"batch_size": 200}})
    all_handled(db)
    insert_events(db, 300)
    all_handled(db)
    assert len(process.matching(msg="handler started")) == 1
    pid = child_pid(process)
    process.stop()
    assert not alive(pid)


@pytest.mark.asan
def test_what_the_child_is_given(db, worker, script):
    db.execute("CREATE TABLE seen (n bigserial, line jsonb)")
    append_lines(db, [{"aggregate_type": "Order", "aggregate_id": "o-1", "event_type": "Placed", "data": {"a": "b\nc"},
                       "metadata": {"actor": "ann"}, "trace_id": "t-1", "event_version": 2},
                      '{"aggregate_type": "Order", "aggregate_id": "o-2", "event_type": "Placed", '
                      '"data": {"n": 123456789012345678901.10}}'])
    insert_event(db.connect(), payload=b"\xff\x00binary")
    worker(db, {"consumers": [{"name": "a", "exec": script("""
        assert os.environ["MILLRACE_CONSUMER"] == "a" and os.environ["MILLRACE_PROTOCOL"] == "1"
        ok(p, sql=[{"text": "INSERT INTO seen (line) VALUES ($1)", "params": [line]}])
    """)}]}, "--once").finish()
    one, two, three = db.values("SELECT line FROM seen ORDER BY n")
    assert one["data"] == {"a": "b\nc"} and one["metadata"] == {"actor": "ann"} and one["trace_id"] == "t-1"
    assert (one["type"], one["consumer"], one["attempt"], one["position"], one["event_version"]) == ("event", "a", 1, 1, 2)
    assert one["correlation_id"] is None and one["created_at"].endswith("Z") and "payload" not in one
    assert db.value("SELECT line -> 'data' ->> 'n' FROM seen WHERE n = 2") == "123456789012345678901.10"
    assert two["aggregate_id"] == "o-2"
    assert three["data"] is None and three["payload"] == "/wBiaW5hcnk="


def test_parameters_arrive_as_they_were_written(db, worker, script):
    db.execute("CREATE TABLE things (a numeric, b numeric, c boolean, d text, e jsonb, f text)")
    insert_events(db, 1)
    worker(db, {"consumers": [{"name": "a", "exec": script("""
        out('{"ok":true,"sql":[{"text":"INSERT INTO things VALUES ($1,$2,$3,$4,$5,$6)",'
            '"params":[12345678901234567890,0.10,true,null,{"x": [1.50]},"it\\'s"]}]}\\n')
    """)}]}, "--once").finish()
    (row,) = db.rows("SELECT a::text, b::text, c, d, e::text, f FROM things")
    assert row == ("12345678901234567890", "0.10", True, None, '{"x": [1.50]}', "it's")


@pytest.mark.asan
def test_large_payloads(db, worker, script):
    db.create_effects()
    with db.connect() as connection:
        for size in (10, 3_000_000, 9_000_000, 20):
            insert_event(connection, payload=b'"' + b"x" * size + b'"')
    worker(db, {"consumers": [{"name": "a", "exec": script("""
        assert len(e["data"]) == {1: 10, 2: 3000000, 3: 9000000, 4: 20}[p]
        good(e)
    """)}]}, "--once").finish()
    assert_exactly_once(db)


def test_stderr_and_log_lines_are_in_the_log(db, worker, script):
    db.create_effects()
    insert_events(db, 2)
    process = worker(db, {"consumers": [{"name": "a", "exec": script("""
        print("reading", p, file=sys.stderr, flush=True)
        out(json.dumps({"log": "noted", "level": "warn"}) + "\\n")
        good(e)
    """)}]}, "--once")
    process.finish()
    assert_exactly_once(db)
    assert process.matching(msg="handler says", consumer="a", line="reading 2", level="info")
    assert len(process.matching(msg="handler says", consumer="a", line="noted", level="warn")) == 2


# ---- Misbehaviour ---------------------------------------------------------------------------------------------------

TRICKS = {
    "crash": ("print('I fall', file=sys.stderr, flush=True); os._exit(3)",
              ["exited with status 3", "position 7", "I fall"]),
    "signal": ("os.kill(os.getpid(), signal.SIGSEGV)", ["killed by signal 11", "position 7"]),
    "hang": ("time.sleep(600)", ["did not answer the event at position 7", "batch_timeout (2s)"]),
    "garbage": ("out('Traceback: \\x1b[31mno\\n')", ["no answer", "position 7", "\\u001b[31mno"]),
    "out of order": ("ok(p + 1)", ["out of order", "position 8 where 7 was due"]),
    "too long": ("out('x' * 100 * 2**20 + '\\n')", ["bytes without a newline", "position 7"]),
    "closed stdout": ("os.close(1); time.sleep(600)", ["closed its standard output", "position 7"]),
    "refusal": ("out(json.dumps({'error': 'no such order'}) + '\\n'); continue", ["no such order"]),
    "bad sql": ("ok(p, sql=[{'text': 'INSERT INTO nowhere VALUES (1)'}]); continue", ["nowhere"]),
    "commits": ("ok(p, sql=[{'text': 'COMMIT'}]); continue", ["commit"]),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_misbehaviour_fails_its_batch_and_nothing_else(db, worker, script, trick):
    code, words = TRICKS[trick]
    db.create_effects()
    insert_events(db, 30)
    process = worker(db, {"worker": QUICK, "consumers": [
        {"name": "a", "batch_timeout": "2s", **PATIENT,
         "exec": script(f"if p == 7 and first('trick'):\n    {code}\ngood(e)\n")},
        recorder("b")]})
    entry = wait_error(process, *words)
    all_handled(db, "b")
    all_handled(db, "a")
    if "position" in entry:
        assert entry["position"] in (0, 7)
    process.stop()


def test_a_broken_program_is_told_and_others_go_on(db, worker, script):
    db.create_effects()
    insert_events(db, 5)
    process = worker(db, {"worker": QUICK, "consumers": [
        {"name": "a", **PATIENT, "exec": ["sh", "-c", "echo no module named mail >&2; exit 1"]}, recorder("b")]})
    wait_error(process, "exited with status 1", "position 1", "no module named mail")
    all_handled(db, "b")
    assert db.handled("a") == []


def test_a_program_that_a_release_breaks_costs_no_event(db, worker, script):
    """It worked, and now it ends before it reads: that is no event's fault, so none becomes a dead letter."""
    db.create_effects()
    insert_events(db, 5)
    command = script("good(e)")
    process = worker(db, {"worker": {"retry_base_delay": "5ms", "retry_max_delay": "20ms", "max_retries": 2}, "consumers": [
        {"name": "a", "on_failure": "dead_letter", "exec": command}]})
    all_handled(db)
    works = Path(command[1]).read_text(encoding="utf-8")
    Path(command[1]).write_text("import a_module_that_is_not_there\n", encoding="utf-8")
    os.kill(child_pid(process), signal.SIGKILL)
    process.wait_log("handler ended between batches")
    insert_events(db, 3)
    process.wait_log("consumer paused", consumer="a")
    wait_error(process, "exited with status 1", "a_module_that_is_not_there")
    assert db.value("SELECT count(*) FROM millrace.consumer_dead_letters") == 0 and db.checkpoint("a") == 5
    Path(command[1]).write_text(works, encoding="utf-8")
    wait_until(lambda: db.value("SELECT paused FROM millrace.consumer_controls"), 20, process.log)
    millrace("consumers", "resume", "a", database=db)
    all_handled(db)
    process.stop()


def test_a_dead_child_is_noticed_behind_its_open_stdout(db, worker, script):
    """What the child had started holds the pipe; nobody waits for batch_timeout."""
    db.create_effects()
    insert_events(db, 10)
    process = worker(db, {"worker": QUICK, "consumers": [{"name": "a", **PATIENT, "batch_timeout": "1h", "exec": script("""
        if p == 7 and first("trick"):
            import subprocess
            subprocess.Popen(["sleep", "600"])
            os._exit(4)
        good(e)
    """)}]})
    wait_error(process, "exited with status 4", "position 7")
    all_handled(db)
    process.stop()


@pytest.mark.asan
def test_a_killed_child_costs_nothing(db, worker, script):
    db.create_effects()
    insert_events(db, 600)
    process = worker(db, {"worker": {"batch_size": 20, **QUICK}, "consumers": [
        {"name": "a", **PATIENT, "exec": script("time.sleep(0.002); good(e)")}]})
    for share in (50, 200, 350):
        wait_until(lambda: len(db.handled("a")) > share, 30, f"{share} events")  # noqa: B023
        os.kill(child_pid(process), signal.SIGKILL)
        wait_until(lambda: len(process.matching(msg="handler started")) > (50, 200, 350).index(share) + 1,  # noqa: B023
                   20, "a new child")
    all_handled(db)
    assert process.matching(lambda e: "killed by signal 9" in e.get("error", e.get("fate", "")))
    process.stop()


@pytest.mark.asan
def test_no_child_outlives_a_killed_worker(db, worker, script):
    db.create_effects()
    insert_events(db, 400)
    config = {"worker": {"batch_size": 20, **QUICK}, "consumers": [
        {"name": "a", **PATIENT, "exec": script("time.sleep(0.002); good(e)")}]}
    process = worker(db, config)
    wait_until(lambda: len(db.handled("a")) > 40, 30, "some events")
    pid = child_pid(process)
    assert alive(pid)
    process.kill9()
    wait_until(lambda: not alive(pid), 10, "the child to be gone")
    worker(db, config)
    all_handled(db, timeout=60)


@pytest.mark.timeout(240)
@pytest.mark.soak
def test_exactly_once_whoever_is_killed(own_server, make_db, worker, script):
    """Child, worker and server are killed in turn under load; what answers asked for is there once."""
    db = make_db(on=own_server)
    db.create_effects()
    config = {"worker": {"batch_size": 20, "heartbeat_interval": "100ms", "heartbeat_timeout": "2s",
                         "rebalance_interval": "50ms", "retry_base_delay": "5ms", "max_retries": "unlimited"},
              "consumers": [{"name": "a", "exec": script("good(e)")}]}
    processes = [worker(db, config) for _ in range(2)]
    with Appender(db.uri, pause=0.002) as appender:
        for victim in ("child", "worker", "server") * int(2 * max(SCALE, 1)):
            before = db.value("SELECT count(*) FROM effects")
            wait_until(lambda: db.value("SELECT count(*) FROM effects") > before + 50, 60, processes[0].log)
            owner = db.value("SELECT w.pid FROM millrace.consumer_assignments a JOIN millrace.worker_nodes w "
                             "USING (worker_id)")
            process = next(p for p in processes if p.pid == owner)
            if victim == "child":
                os.kill(int(child_pid(process)), signal.SIGKILL)
            elif victim == "worker":
                process.kill9()
                processes.remove(process)
                processes.append(worker(db, config))
            else:
                own_server.kill9()
                own_server.start()
    assert appender.acknowledged
    all_handled(db, timeout=60)
    for process in processes:
        process.stop()


def test_a_stop_ends_children_politely(db, worker, script):
    db.create_effects()
    insert_events(db, 3)
    command = script("good(e)")
    path = Path(command[1])
    path.write_text(path.read_text(encoding="utf-8") + "print('bye', file=sys.stderr, flush=True)\n", encoding="utf-8")
    process = worker(db, {"consumers": [{"name": "a", "exec": command}]})
    all_handled(db)
    process.stop()
    assert process.matching(msg="handler says", line="bye")


# ---- Configuration --------------------------------------------------------------------------------------------------

def refused(db, tmp_path, consumer, *words):
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump({"database": db.uri, "consumers": [{"name": "a", **consumer}]}), encoding="utf-8")
    done = millrace("run", path, "--check", check=False)
    assert done.returncode == 2, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def test_configurations_that_cannot_work(db, tmp_path):
    refused(db, tmp_path, {}, "no handler", "exec or plugin")
    refused(db, tmp_path, {"exec": ["cat"], "sql": "SELECT 1"}, "more than one handler")
    refused(db, tmp_path, {"exec": ["cat"], "plugin": "x.so"}, "more than one handler")
    refused(db, tmp_path, {"exec": ["no-such-program"]}, "consumer 'a'", "no-such-program", "PATH")
    refused(db, tmp_path, {"exec": "python3 handler.py"}, "a list: [python3, handler.py]")
    refused(db, tmp_path, {"exec": ["./no/such/file"]}, "./no/such/file", "No such file")
    refused(db, tmp_path, {"sql": "SELECT 1", "detached": True}, "detached", "sql")
    refused(db, tmp_path, {"plugin": str(tmp_path / "none.so")}, "none.so", "No such file")


def test_check_starts_nothing(db, worker, script, tmp_path):
    insert_events(db, 1)
    process = worker(db, {"consumers": [{"name": "a", "exec": ["touch", str(tmp_path / "ran")]}]}, "--check")
    process.finish()
    assert not (tmp_path / "ran").exists()


# ---- Plugins --------------------------------------------------------------------------------------------------------

PLUGIN = Path(MILLRACE_BIN).resolve().parent / "examples" / "example_plugin.so"


@pytest.mark.asan
def test_the_plugin_example(db, worker):
    assert PLUGIN.exists(), f"{PLUGIN} is missing: build with -Dtests=true"
    db.execute("CREATE TABLE event_counts (event_type text PRIMARY KEY, n bigint NOT NULL)")
    insert_events(db, 300, event_type="A")
    insert_events(db, 20, event_type="B")
    config = {"consumers": [{"name": "a", "plugin": str(PLUGIN), "plugin_config": "event_counts"}]}
    worker(db, config, "--once").finish()
    worker(db, config, "--once").finish()
    assert db.rows("SELECT * FROM event_counts ORDER BY 1") == [("A", 300), ("B", 20)]


def build(tmp_path, name, body):
    source = tmp_path / f"{name}.c"
    source.write_text("#include <millrace/millrace.h>\nstatic mr_error *on(mr_tx *t, const mr_event *e, void *u)\n"
                      "{ (void)t; (void)e; (void)u; return 0; }\nmr_event_fn unused = on;\n" + body, encoding="utf-8")
    library = tmp_path / f"{name}.so"
    flags = subprocess.run(["pkg-config", "--cflags", "libpq"], check=True, text=True, capture_output=True).stdout
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{ROOT / 'include'}", *flags.split(), str(source), "-o", str(library)],
                   check=True)
    return str(library)


def test_plugins_that_cannot_work(db, tmp_path):
    refused(db, tmp_path, {"plugin": build(tmp_path, "none", "")}, "none.so", "mr_plugin_v1")
    refused(db, tmp_path, {"plugin": build(tmp_path, "silent", "mr_error *mr_plugin_v1(mr_plugin *p)"
                                           "{ (void)p; return 0; }")}, "silent.so", "set no handler")
    twice = "mr_plugin_on_event(p, on, 0, 0);"
    refused(db, tmp_path, {"plugin": build(tmp_path, "twice", "mr_error *mr_plugin_v1(mr_plugin *p)"
                                           f"{{ {twice} {twice} return 0; }}")}, "twice.so", "2 times")
    refused(db, tmp_path, {"plugin": build(tmp_path, "unwilling", 'mr_error *mr_plugin_v1(mr_plugin *p)'
                                           '{ return mr_error_new(MR_E_CONFIG, false, "not for %s",'
                                           ' mr_plugin_consumer(p)); }')}, "unwilling.so", "not for a")
    refused(db, tmp_path, {"plugin": build(tmp_path, "alien", "void no_such_function(void);\nmr_error *mr_plugin_v1("
                                           "mr_plugin *p) { (void)p; no_such_function(); return 0; }")},
            "alien.so", "no_such_function")


# ---- The examples ---------------------------------------------------------------------------------------------------

def example(name):
    """An example's configuration, to be run from anywhere."""
    config = yaml.safe_load((ROOT / "examples" / "handlers" / f"{name}.yaml").read_text(encoding="utf-8"))
    (consumer,) = config["consumers"]
    consumer["exec"][-1] = str(ROOT / consumer["exec"][-1])
    return config


ORDERS = [{"aggregate_type": "Order", "aggregate_id": "o-1", "event_type": "OrderPlaced", "data": {"mail": "a@b.org"},
           "metadata": {"actor": "ann"}},
          {"aggregate_type": "Order", "aggregate_id": "o-1", "event_type": "ItemAdded", "data": {"cents": 1250}},
          {"aggregate_type": "Order", "aggregate_id": "o-2", "event_type": "ItemAdded", "data": {"cents": 99}},
          {"aggregate_type": "Order", "aggregate_id": "o-1", "event_type": "ItemAdded", "data": {"cents": 800}}]


def test_example_projection(db, worker):
    db.execute("CREATE TABLE order_items (order_id text PRIMARY KEY, items bigint NOT NULL, cents numeric NOT NULL)")
    append_lines(db, ORDERS)
    for _ in range(2):
        worker(db, example("projection"), "--once").finish()
    assert db.rows("SELECT order_id, items, cents::int FROM order_items ORDER BY 1") == [("o-1", 2, 2050), ("o-2", 1, 99)]


def test_example_mailer(db, worker, tmp_path):
    append_lines(db, ORDERS)
    worker(db, example("mailer"), "--once", env={"MAILER_OUTBOX": str(tmp_path / "outbox")}).finish()
    (mail,) = (tmp_path / "outbox").iterdir()
    assert "To: a@b.org" in mail.read_text(encoding="utf-8")
    assert mail.stem == str(db.value("SELECT event_id FROM events WHERE global_position = 1"))


def test_example_audit(db, worker):
    db.execute("CREATE TABLE audit (position bigint PRIMARY KEY, at timestamptz, stream text, event text, actor text)")
    append_lines(db, ORDERS)
    for _ in range(2):
        worker(db, example("audit"), "--once").finish()
    assert db.rows("SELECT position, stream, event, actor FROM audit ORDER BY 1")[:2] == [
        (1, "Order/o-1", "OrderPlaced", "ann"), (2, "Order/o-1", "ItemAdded", None)]
    assert db.value("SELECT count(*) FROM audit a JOIN events e ON e.global_position = a.position "
                    "AND e.created_at = a.at") == 4


def test_example_notify(db, worker, tmp_path):
    append_lines(db, ORDERS)
    worker(db, example("notify"), "--once", env={"NOTIFY_FILE": str(tmp_path / "file")}).finish()
    lines = (tmp_path / "file").read_text(encoding="utf-8").splitlines()
    assert [yaml.safe_load(line)["position"] for line in lines] == [1, 2, 3, 4]


def test_errors_of_a_projection_are_clear(db, worker):
    db.execute("CREATE TABLE order_items (order_id text PRIMARY KEY, items bigint NOT NULL, cents numeric NOT NULL)")
    append_lines(db, [{**ORDERS[1], "data": {}}])
    process = worker(db, example("projection"))
    wait_error(process, "an ItemAdded without cents", consumer="order_items_v1")
