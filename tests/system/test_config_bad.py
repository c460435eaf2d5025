"""Input as bad as it comes: files, handlers, payloads, logs, rights. A clear error and exit code, or correct work."""

import json
import uuid

import pytest
import yaml

from harness import (INSERT, all_handled, append_lines, assert_exactly_once, insert_event, insert_events, millrace,
                     recorder, wait_until)

pytestmark = pytest.mark.asan

GOOD = {"name": "a", "sql": "SELECT :global_position"}
SET = {"name": "a", "sql_batch": "SELECT count(*) FROM batch"}


def attempt(path, text, db=None, *arguments):
    """`millrace run` on a text that should not get far."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return millrace("run", path, *arguments, database=db, check=False, timeout=20)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "w.yaml"


# ---- Files ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("text, line, words", [
    ("a: b: c", 1, "YAML"),
    ("worker: {batch_size: 5", 2, "YAML"),
    ("worker:\n\tbatch_size: 5", 2, "YAML"),
    (b"schema: x\nworker: \xff\xfe", 2, "YAML"),
    ("consumers:\n- *nobody", 2, "YAML"),
    ("worker:\n  batchsize: 5", 2, "did you mean 'batch_size'?"),
    ("worker:\n  batch_size: many", 2, "whole number"),
    ("worker:\n  batch_timeout: 5 parsecs", 2, "duration"),
    ("consumer: []", 1, "unknown key 'consumer'"),
    ("consumers: 7", 1, "must be a list"),
    ("consumers:\n- a", 2, "must be a mapping"),
    ("consumers:\n- {name: a, sql: SELECT 1}\n- {name: a, sql: SELECT 1}", 3, "defined twice"),
    ("consumers:\n- {name: '', sql: SELECT 1}", 2, "name"),
    (f"consumers:\n- {{name: {'x' * 256}, sql: SELECT 1}}", 2, "1 to 255 bytes"),
    ("consumers:\n- {name: a}", 2, "no handler"),
    ("consumers:\n- {name: a, sql: SELECT 1, sql_batch: SELECT 1}", 2, "more than one handler"),
    ("consumers:\n- {name: a, sql: SELECT 1, event_types: {a: b}}", 2, "single value"),
    ("log:\n  columns: {nonsense: x}\nconsumers:\n- {name: a, sql: SELECT 1}", None, "no column 'nonsense'"),
    ("log:\n  table: a.b.c\nconsumers:\n- {name: a, sql: SELECT 1}", None, "log.table"),
])
def test_files(db, file, text, line, words):
    done = attempt(file, text, db)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert line is None or f"w.yaml:{line}:" in done.stderr, done.stderr


def test_no_such_file_a_directory_nothing_in_it(db, tmp_path, file):
    assert millrace("run", tmp_path / "none.yaml", database=db, check=False).returncode == 2
    assert millrace("run", tmp_path, database=db, check=False).returncode == 2
    for text in ("", "# nothing", "consumers: []", "schema: millrace"):
        done = attempt(file, text, db)
        assert done.returncode == 2 and "consumers" in done.stderr, done.stderr
    for text in ("[" * 3000, "&a [*a]", "x: " * 1000, "\0\0\0", "%YAML 9.9\n---\n{}", "- " * 1000):
        assert attempt(file, text, db).returncode == 2
    file.write_bytes(b"#" * (17 << 20))
    assert "16 MiB" in millrace("run", file, database=db, check=False).stderr


def test_a_password_is_never_shown(db, file):
    secret = "hunter2secret"
    for uri in (f"postgresql://u:{secret}@127.0.0.1:1/x", f"host=127.0.0.1 port=1 user=u password={secret}",
                f"postgresql://u:{secret}@127.0.0.1:1:2:3/x", f"postgresql://u:{secret}@[::1/x",
                f"host=127.0.0.1 password={secret} nonsense=1", f"host=127.0.0.1 port=1 password=a {secret}",
                f"host=127.0.0.1 password='{secret}", f"postgresql://u:{secret}@127.0.0.1:1/x?a=b=c",
                f"postgresql://u:{secret}%zz@127.0.0.1:1/x", f"postgresql://u:p@127.0.0.1:1/x?password={secret}&y"):
        done = attempt(file, yaml.safe_dump({"database": uri, "consumers": [GOOD]}))
        assert done.returncode in (2, 3), done.stderr
        assert secret not in done.stderr + done.stdout, done.stderr


# ---- Handlers -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("handler, words", [
    ({"sql": "SELEC 1"}, "syntax error"),
    ({"sql": "SELECT * FROM missing_table"}, "does not exist"),
    ({"sql": "SELECT :dta"}, "did you mean :data?"),
    ({"sql": "COMMIT"}, "not allowed"),
    ({"sql": "/* a /* b */ */ rollback"}, "not allowed"),
    ({"sql": "SELECT 1; SELECT 2"}, "multiple commands"),
    ({"sql": "SELECT 'open"}, "unterminated"),
    ({"sql": "SELECT $$ open"}, "unterminated"),
    ({"sql": "SELECT $2::int, :data"}, "$2 is no parameter"),
    ({"sql_batch": "SELECT $1 FROM batch"}, "$1 is no parameter"),
    ({"sql_batch": "SELECT nonsense FROM batch"}, "nonsense"),
    ({"sql_batch": "SELEC 1"}, "syntax error"),
    ({"sql_batch": "WITH x AS (SELECT 1) SELEC"}, "syntax error"),
    ({"sql_batch": "SELECT :data FROM batch"}, "syntax error"),
])
@pytest.mark.parametrize("arguments", [[], ["--check"]], ids=["run", "check"])
def test_handlers_that_do_not_parse(db, file, handler, words, arguments):
    done = attempt(file, yaml.safe_dump({"consumers": [{"name": "good", "sql": "SELECT 1"},
                                                       {"name": "bad one", **handler}]}), db, *arguments)
    assert done.returncode == 2, done.stderr
    assert "consumer 'bad one'" in done.stderr and words in done.stderr, done.stderr
    assert db.value("SELECT count(*) FROM millrace.consumer_checkpoints") == 0


def test_odd_but_right_handlers(db, worker):
    db.create_effects()
    db.execute('CREATE TABLE "T :data" (x jsonb, note text)')
    insert_event(db, payload=b'{"n": 1, "s": "it\'s :data"}')
    insert_event(db, payload=b'[1, 2]')
    note = "' :data ''x'' -- /* $$ '"
    worker(db, {"consumers": [
        {"name": "a", "sql": f"INSERT INTO \"T :data\" /* :x */ VALUES (:data::jsonb, {note}) -- :nothing\n"},
        {"name": "b \u00fc '\"\\", "sql": "INSERT INTO effects (consumer, pos) SELECT 'b', :global_position "
                                          "WHERE :data ? 'n' AND :created_at::date <= now()::date"},
        {"name": "c", "sql_batch": "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 3), "
                                   "x AS (SELECT global_position, data FROM batch) "
                                   "INSERT INTO effects (consumer, pos) SELECT 'c', global_position FROM x, n "
                                   "WHERE i = 1 ORDER BY 2"}]}, "--once").finish()
    assert [row[0] for row in db.rows('SELECT x FROM "T :data" ORDER BY x::text')] == [[1, 2],
                                                                                   {"n": 1, "s": "it's :data"}]
    assert db.handled("b") == [1] and db.handled("c") == [1, 2]


def test_every_parameter(db, worker):
    db.execute("CREATE TABLE seen (pos bigint, atype text, aid text, aver bigint, eid uuid, etype text, ever int, "
               "payload bytea, trace text, corr text, caus text, meta jsonb, at timestamptz, data jsonb)")
    names = ("global_position aggregate_type aggregate_id aggregate_version event_id event_type event_version payload "
             "trace_id correlation_id causation_id metadata created_at").split()
    insert_event(db, payload=b'{"a": [1]}')
    db.execute(INSERT.replace("payload)", "payload, trace_id, correlation_id, causation_id, metadata, event_version, "
                                          "created_at)").replace("%s)", "%s, 't', 'c', '', '{\"m\": null}', 3, "
                                                                        "'1999-12-31 23:59:59.123456+00')"),
               ["\u00fc", "i d", 9, uuid.uuid4(), "", b"null"])
    columns = ", ".join(":" + name for name in [*names, "data"])
    worker(db, {"consumers": [{"name": "a", "sql": f"INSERT INTO seen VALUES ({columns})"}]}, "--once").finish()
    events = f"SELECT {', '.join(names)}, convert_from(payload, 'UTF8')::jsonb FROM events ORDER BY 1"
    assert db.rows("SELECT * FROM seen ORDER BY 1") == db.rows(events)


# ---- Payloads -------------------------------------------------------------------------------------------------------

NOT_UTF8 = [b"\xff\xfe", b"\xc3", b'{"a": "\xed\xa0\x80"}', b'{"a": "\x00"}']
NOT_JSON = [b"hello", b"", b"{", b'{"a": 1', b'"\\u0000"', b"nan", b"[1,]"]


@pytest.mark.parametrize("payload", NOT_UTF8 + NOT_JSON)
@pytest.mark.parametrize("kind", ["sql", "sql_batch"])
def test_payloads_that_are_no_json(db, worker, payload, kind):
    """Whoever wants `data` cannot have it and stops there, saying why; whoever takes the bytes is served."""
    db.create_effects()
    db.execute("CREATE TABLE bytes (pos bigint, payload bytea)")
    insert_event(db)
    insert_event(db, payload=payload)
    insert_event(db)
    if kind == "sql":
        wants, takes = "SELECT :data", "INSERT INTO bytes VALUES (:global_position, :payload)"
    else:
        wants, takes = "SELECT count(data) FROM batch", "INSERT INTO bytes SELECT global_position, payload FROM batch"
    quick = {"retry_base_delay": "10ms", "max_retries": 1}
    process = worker(db, {"worker": quick, "consumers": [{"name": "bytes", kind: takes}, {"name": "bad", kind: wants},
                                                         recorder("a")]})
    all_handled(db)
    line = process.wait_log("consumer paused", consumer="bad")
    assert line["error"]
    if kind == "sql":
        assert {int(entry["position"]) for entry in process.matching(msg="batch failed", consumer="bad")} == {2}
    wait_until(lambda: db.checkpoint("bytes") == 3, what="the one that takes bytes")
    assert db.value("SELECT payload FROM bytes WHERE pos = 2") == payload
    assert db.checkpoint("bad") == 1
    process.stop()


@pytest.mark.parametrize("kind", ["sql", "sql_batch"])
def test_ten_mebibytes(db, worker, kind):
    db.execute("CREATE TABLE sums (pos bigint, bytes bigint, json bigint, md5 text)")
    text = json.dumps({"x": "\u00fc" * (5 << 20)}, ensure_ascii=False).encode()
    for _ in range(3):
        insert_event(db, payload=b'{"x": "small"}')
        insert_event(db, payload=text)
    handler = ("INSERT INTO sums VALUES (:global_position, length(:payload), length(:data->>'x'), md5(:payload))"
               if kind == "sql" else
               "INSERT INTO sums SELECT global_position, length(payload), length(data->>'x'), md5(payload) FROM batch")
    process = worker(db, {"consumers": [{"name": "a", kind: handler}], "worker": {"cache_size": "1MiB"}}, "--once")
    process.finish()
    assert db.rows("SELECT pos, bytes, json, md5 FROM sums ORDER BY 1") == db.rows(
        "SELECT global_position, length(payload), length(convert_from(payload, 'UTF8')::jsonb->>'x'), md5(payload) "
        "FROM events ORDER BY 1")
    assert db.value("SELECT max(bytes) FROM sums") > 10 << 20


def test_append_takes_a_large_event_and_refuses_nonsense(db, worker):
    db.create_effects()
    event = {"aggregate_type": "Order", "aggregate_id": "1", "event_type": "Big", "data": {"x": "y" * (10 << 20)}}
    append_lines(db, [event])
    done = append_lines(db, [{**event, "data": 1}, "{"], check=False)
    assert done.returncode != 0 and "2" in done.stderr
    assert db.value("SELECT count(*) FROM events") == 1
    worker(db, {"consumers": [recorder("a")]}, "--once").finish()
    assert_exactly_once(db)


# ---- Logs -----------------------------------------------------------------------------------------------------------

def check_log(db, file, **log):
    return attempt(file, yaml.safe_dump({"log": log, "consumers": [GOOD]}), db)


def test_a_cached_sequence_is_refused(db, file):
    db.execute("ALTER SEQUENCE events_global_position_seq CACHE 10")
    done = check_log(db, file)
    assert done.returncode == 1 and "CACHE 10" in done.stderr and "CACHE 1" in done.stderr, done.stderr
    db.execute("ALTER SEQUENCE events_global_position_seq CACHE 1")
    assert attempt(file, yaml.safe_dump({"consumers": [GOOD]}), db, "--once").returncode == 0


def test_positions_that_no_sequence_gives(db, file):
    db.execute("ALTER TABLE events ALTER global_position DROP DEFAULT")
    done = check_log(db, file)
    assert done.returncode == 1 and "do not come from a sequence" in done.stderr, done.stderr


def test_missing_things(db, empty_db, file):
    done = check_log(db, file, table="nowhere.events")
    assert done.returncode == 1 and "there is no table nowhere.events" in done.stderr
    done = check_log(empty_db, file)
    assert done.returncode == 1 and "schema apply" in done.stderr
    db.execute("CREATE VIEW events_view AS SELECT * FROM events")
    assert "is not a table" in check_log(db, file, table="events_view").stderr
    db.execute("DROP VIEW events_view")
    db.execute("ALTER TABLE events DROP CONSTRAINT events_pkey CASCADE")
    assert "no index on its position" in check_log(db, file).stderr
    db.execute("ALTER TABLE events DROP COLUMN event_type")
    assert "event_type" in check_log(db, file).stderr


def test_no_control_plane(empty_db, file):
    millrace("schema", "apply", database=empty_db)
    empty_db.execute("DROP SCHEMA millrace CASCADE")
    done = check_log(empty_db, file)
    assert done.returncode == 1 and "schema apply" in done.stderr


def test_a_standby_is_refused(own_server, make_db, file):
    db = make_db(on=own_server)
    insert_event(db)
    standby = own_server.create_standby()
    done = attempt(file, yaml.safe_dump({"consumers": [GOOD]}), standby.uri(db.name))
    assert done.returncode == 1 and "standby" in done.stderr, done.stderr


STREAMS = """
CREATE SCHEMA shop;
CREATE TABLE shop.events (
    global_position bigserial PRIMARY KEY, stream_type text NOT NULL, stream_id text NOT NULL,
    stream_version bigint NOT NULL, event_id uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(), event_type text NOT NULL,
    event_version int NOT NULL DEFAULT 1, payload {kind} NOT NULL, metadata jsonb,
    created_at timestamptz NOT NULL DEFAULT now());
INSERT INTO shop.events (stream_type, stream_id, stream_version, event_type, payload)
SELECT 'Order', n::text, 1, 'Made', '{{"n": 5}}' FROM generate_series(1, 20) n
"""


@pytest.mark.parametrize("kind", ["bytea", "jsonb", "json", "text"])
def test_stream_naming_in_another_schema_with_any_payload(db, worker, kind):
    for statement in STREAMS.format(kind=kind).split(";\n"):
        db.execute(statement)
    db.create_effects()
    handler = ("INSERT INTO effects (consumer, pos) SELECT 'a', :global_position WHERE :data = '{\"n\": 5}' "
               "AND :stream_type = 'Order' AND :aggregate_id = :stream_id AND :payload IS NOT NULL")
    batch = ("INSERT INTO effects (consumer, pos) SELECT 'b', global_position FROM batch WHERE data->>'n' = '5' "
             "AND stream_type = 'Order' AND aggregate_id = stream_id ORDER BY 2")
    worker(db, {"log": {"table": "shop.events"}, "consumers": [
        {"name": "a", "sql": handler}, {"name": "b", "sql_batch": batch, "aggregate_types": ["Order"]}]},
        "--once").finish()
    assert db.handled("a") == db.handled("b") == list(range(1, 21))


def test_a_column_map(db, worker):
    db.execute('CREATE TABLE "My Log" (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, "Kind" text, "Key" text, '
               'what text, body jsonb)')
    db.execute("""INSERT INTO "My Log" ("Kind", "Key", what, body) SELECT 'K', n::text, 'W', '{"n": 1}'
                  FROM generate_series(1, 30) n""")
    db.create_effects()
    worker(db, {"log": {"table": '"My Log"', "columns": {
        "global_position": "id", "aggregate_type": "Kind", "aggregate_id": "Key", "event_type": "what",
        "payload": "body"}}, "consumers": [
            recorder("a", aggregate_types=["K"]),
            {"name": "b", "sql_batch": "INSERT INTO effects (consumer, pos) SELECT 'b', id FROM batch "
                                       "WHERE \"Kind\" = aggregate_type AND data->>'n' = '1' ORDER BY 2"}]},
           "--once").finish()
    assert db.handled("a") == db.handled("b") == list(range(1, 31))


def test_a_column_map_that_names_nothing(db, file):
    done = check_log(db, file, columns={"payload": "nowhere"})
    assert done.returncode == 1 and "nowhere" in done.stderr, done.stderr


# ---- Rights ---------------------------------------------------------------------------------------------------------

def test_a_role_with_too_few_rights_is_told_each_one(db, server, file, worker):
    """Following the advice of each refusal must lead to a worker that works, holes included."""
    role = f"poor_{db.name}"
    db.execute(f"CREATE ROLE {role} LOGIN")
    try:
        uri = server.uri(db.name, user=role)
        db.execute("CREATE TABLE effects (n bigserial, consumer text, pos bigint)")
        db.execute(f"GRANT ALL ON effects, effects_n_seq TO {role}")
        config = yaml.safe_dump({"consumers": [recorder("a")]})
        insert_events(db, 5)
        for _ in range(30):
            done = attempt(file, config, uri, "--once")
            if done.returncode == 0:
                break
            assert "run: GRANT" in done.stderr, done.stderr
            db.execute(done.stderr.split("run: ")[1].split(";")[0].strip())
        assert done.returncode == 0, done.stderr
        with db.connect(autocommit=False) as connection:
            insert_event(connection)
            connection.rollback()
        insert_event(db)
        done = attempt(file, config, uri, "--once")
        assert done.returncode == 0, done.stderr
        assert_exactly_once(db)
        assert db.value("SELECT count(*) FROM millrace.consumer_gap_skips") == 1
    finally:
        db.execute(f"DROP OWNED BY {role}")
        db.execute(f"DROP ROLE {role}")
