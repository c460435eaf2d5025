"""consumers pause|resume|reset|skip and dead-letters, as people and scripts use them: words, exit codes, JSON, wrong
input. No worker runs here; what running ones do is in test_operate_fleet.py."""

import base64
import getpass
import json
import re
import socket
import threading

import pytest

from harness import ROOT, insert_event, insert_events, millrace, rolled_back, wait_until

CONTROLS = ("SELECT paused, pause_kind, paused_by, pause_reason, epoch FROM millrace.consumer_controls "
            "WHERE consumer_name = %s")
AUDIT = "SELECT consumer_name, action, actor, reason FROM millrace.consumer_audit ORDER BY id"


@pytest.fixture
def consumer(db):
    """consumer(name, at): its checkpoint."""
    def make(name, at=0):
        db.execute("INSERT INTO millrace.consumer_checkpoints (consumer_name, last_position) VALUES (%s, %s)",
                   [name, at])
    return make


@pytest.fixture
def letter(db):
    """letter(consumer, position, **columns): a dead letter as a worker leaves it."""
    def make(consumer, position, **columns):
        row = {"consumer_name": consumer, "global_position": position, "state": "poison", "aggregate_type": "Order",
               "aggregate_id": f"o-{position}", "event_type": "Placed", "error": "it broke", "attempts": 3, **columns}
        db.execute(f"INSERT INTO millrace.consumer_dead_letters ({', '.join(row)}) "
                   f"VALUES ({', '.join(['%s'] * len(row))})", list(row.values()))
    return make


@pytest.fixture
def ask(db):
    """ask(*words, status=0): runs the program and gives its JSON, or what it said on stderr when that is not 0."""
    def run(*words, status=0):
        done = millrace(*words, "--json", database=db, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout) if status == 0 else done.stderr
    return run


def letters(db):
    return db.rows("SELECT consumer_name, global_position FROM millrace.consumer_dead_letters ORDER BY 2, 1")


# ---- Consumers ------------------------------------------------------------------------------------------------------


@pytest.mark.asan
def test_pause_and_resume(db, consumer):
    consumer("totals", 7)
    me = f"{getpass.getuser()}@{socket.gethostname()}"
    assert millrace("consumers", "pause", "totals", "--reason", "lunch", database=db).stdout == "totals: paused at 7\n"
    assert db.rows(CONTROLS, ["totals"]) == [(True, "command", me, "lunch", 1)]
    again = millrace("consumers", "pause", "totals", "--actor", "bob", database=db).stdout
    assert "totals: was paused already, since " in again and f" by {me}\n" in again
    assert "it was paused, since " in millrace("consumers", "resume", "totals", database=db).stdout
    assert millrace("consumers", "resume", "totals", database=db).stdout == "totals: was not paused\n"
    assert db.rows(CONTROLS, ["totals"]) == [(False, None, None, None, 4)]
    assert db.rows(AUDIT) == [("totals", "pause", me, "lunch"), ("totals", "pause", "bob", None),
                              ("totals", "resume", me, None), ("totals", "resume", me, None)]


def test_a_pause_shows_in_the_listing(db, consumer, ask):
    consumer("totals")
    ask("consumers", "pause", "totals")
    assert [row["state"] for row in ask("consumers", "list")] == ["paused"]


def test_slots_have_a_line_each(db, consumer, ask):
    for slot in range(3):
        consumer(f"mail#{slot}/3", slot)
    assert millrace("consumers", "pause", "mail", database=db).stdout.splitlines() == [
        f"mail#{slot}/3: paused at {slot}" for slot in range(3)]
    row, = ask("consumers", "resume", "mail#1/3", "--reason", "one is enough")
    assert row["consumer"] == "mail#1/3" and row["action"] == "resume" and row["reason"] == "one is enough"
    assert row["detail"]["already"] is False and row["detail"]["was"]["kind"] == "command" and row["created_at"]


@pytest.mark.asan
def test_reset(db, consumer, letter, ask):
    insert_events(db, 10)
    consumer("totals", 6)
    letter("totals", 4)
    letter("totals", 5)
    assert millrace("consumers", "reset", "totals", "--to", "3", database=db).stdout == (
        "totals: reset from 6 to 3; 2 dead letters removed\n")
    assert db.checkpoint("totals") == 3 and letters(db) == []
    assert millrace("consumers", "reset", "totals", "--to=8", database=db).stdout == (
        "totals: reset from 3 to 8; 4 to 8 are passed over without being handled\n")
    row, = ask("consumers", "reset", "totals", "--to", "now")
    assert row["detail"] == {"from": 8, "to": 10, "skipped_from": 9, "skipped_to": 10, "letters": [], "skips": [],
                             "resumed": False}
    row, = ask("consumers", "reset", "totals", "--to", "beginning")
    assert row["detail"]["to"] == 0 and db.checkpoint("totals") == 0
    db.execute("UPDATE events SET created_at = '2026-01-01T00:00:00Z'::timestamptz + global_position * '1 h'::interval")
    row, = ask("consumers", "reset", "totals", "--to", "2026-01-01 06:30:00+00")
    assert row["detail"]["to"] == db.checkpoint("totals") == 6


@pytest.mark.asan
def test_skip(db, consumer, ask):
    insert_events(db, 5)
    hole, = rolled_back(db)
    insert_events(db, 1)
    consumer("totals", 2)
    db.execute("SELECT millrace.note_failure('totals', gen_random_uuid(), 'no', 4, true)")
    assert millrace("consumers", "skip", "totals", "4", "--reason", "bad", database=db).stdout == (
        "totals: position 4 will not be handled; goes on\n")
    row, = ask("consumers", "skip", "totals", 5)
    assert row["detail"] == {"position": 5, "checkpoint": 2, "resumed": False}
    assert "asked for it" in ask("consumers", "skip", "totals", 4, status=1)
    assert "handled or passed position 2 already" in ask("consumers", "skip", "totals", 2, status=1)
    for position in (hole, 99):
        assert "millrace gaps open" in ask("consumers", "skip", "totals", position, status=1)
    assert db.value("SELECT jsonb_array_length(skips) FROM millrace.consumer_controls") == 2


@pytest.mark.parametrize("words, hint", [
    (["pause"], "usage: millrace consumers pause NAME"),
    (["resume"], "usage: millrace consumers resume NAME"),
    (["reset", "totals"], "usage: millrace consumers reset NAME --to WHERE"),
    (["reset", "--to", "0"], "usage: millrace consumers reset NAME --to WHERE"),
    (["skip", "totals"], "usage: millrace consumers skip NAME POSITION"),
    (["skip", "totals", "x"], "'x' is not a position"),
    (["skip", "totals", "0"], "'0' is not a position"),
    (["pause", "totals", "now"], "unexpected word 'now'"),
    (["skip", "totals", "4", "5"], "unexpected word '5'"),
    (["pause", "totals", "--to", "4"], "--to does not go with 'consumers pause'"),
    (["list", "--reason", "x"], "--reason does not go with 'consumers list'"),
    (["puase", "totals"], "did you mean pause?"),
    (["pause", "total"], "there is no consumer total; see: millrace consumers list"),
    (["pause", ""], "needs a consumer's name"),
    (["pause", "totals'; DROP TABLE events; --"], "there is no consumer"),
    (["reset", "totals", "--to", "11"], "the log ends at 10"),
    (["reset", "totals", "--to", "-1"], "negative"),
    (["reset", "totals", "--to", "soon"], "is not beginning, now, a position or a time"),
])
def test_wrong_words_change_nothing(db, consumer, words, hint):
    insert_events(db, 10)
    consumer("totals", 3)
    done = millrace("consumers", *words, database=db, check=False)
    assert done.returncode == 2 and hint in done.stderr and done.stdout == "", done.stdout + done.stderr
    assert db.checkpoint("totals") == 3 and db.rows(AUDIT) == []


def test_a_command_waits_for_the_running_batch(db, consumer):
    """It returns after the batch, whose work counts; a later batch that has not heard of it is refused."""
    insert_events(db, 5)
    consumer("totals", 2)
    output = []
    with db.connect(autocommit=False) as batch:
        batch.execute("SELECT millrace.advance_checkpoint('totals', NULL, 2, 3, 0)")
        thread = threading.Thread(target=lambda: output.append(
            millrace("consumers", "pause", "totals", database=db).stdout))
        thread.start()
        wait_until(lambda: db.value("SELECT count(*) FROM pg_locks WHERE NOT granted"), 20, "the command to wait")
        assert not output
        batch.commit()
        thread.join(30)
        assert output == ["totals: paused at 3\n"]
        with pytest.raises(Exception, match="was paused, reset, skipped or replayed meanwhile"):
            batch.execute("SELECT millrace.advance_checkpoint('totals', NULL, 3, 4, 0)")


def test_without_the_schema(empty_db):
    for words in (["consumers", "pause", "x"], ["dead-letters", "list"], ["dead-letters", "drop", "--all"]):
        done = millrace(*words, database=empty_db, check=False)
        assert done.returncode == 1 and "millrace schema apply" in done.stderr


def test_without_the_rights(db, consumer):
    consumer("totals")
    db.execute("CREATE ROLE looker LOGIN; GRANT USAGE ON SCHEMA millrace TO looker; "
               "GRANT SELECT ON ALL TABLES IN SCHEMA millrace TO looker")
    try:
        done = millrace("consumers", "pause", "totals", database=db, check=False, env={"PGOPTIONS": "-c role=looker"})
        assert done.returncode == 1 and "permission denied" in done.stderr
        assert db.rows(AUDIT) == []
    finally:
        db.execute("DROP OWNED BY looker; DROP ROLE looker")


def test_the_rights_of_the_guide_are_enough(db, consumer, letter):
    """The statements of docs/operations.md for a role that operates, taken from there."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    grants, = re.findall(r"```sql\n(GRANT USAGE ON SCHEMA millrace, public TO ops;.*?)```", text, re.S)
    insert_events(db, 10)
    consumer("totals", 3)
    letter("totals", 2)
    letter("totals", 3)
    db.execute("REVOKE ALL ON SCHEMA public FROM public; CREATE ROLE ops")
    try:
        db.execute(grants)
        for words in (["consumers", "pause", "totals"], ["consumers", "skip", "totals", "5"],
                      ["consumers", "reset", "totals", "--to", "2"], ["consumers", "resume", "totals"],
                      ["dead-letters", "list"], ["dead-letters", "show", "2"], ["dead-letters", "drop", "--all"]):
            millrace(*words, database=db, env={"PGOPTIONS": "-c role=ops"})
        letter("totals", 2)
        done = millrace("dead-letters", "replay", "--all", "--timeout", "0", database=db, check=False,
                        env={"PGOPTIONS": "-c role=ops"})
        assert "no worker that is alive" in done.stderr
        assert len(db.rows(AUDIT)) == 6
        for key in ("a", "a", "b"):
            number = db.value("SELECT id FROM millrace.enqueue('mail', key => %s)", [key])
        for words in (["queues", "list"], ["queues", "pause", "mail"], ["queues", "resume", "mail"], ["jobs", "list", "mail"],
                      ["jobs", "cancel", "mail", number], ["jobs", "show", "mail", number], ["jobs", "requeue", "mail", number],
                      ["jobs", "requeue", "mail", "--all"], ["dead-letters", "drop", "--queue", "mail"]):
            millrace(*words, database=db, env={"PGOPTIONS": "-c role=ops"})
    finally:
        db.execute("DROP OWNED BY ops; DROP ROLE ops")


# ---- Dead letters ---------------------------------------------------------------------------------------------------


@pytest.mark.asan
def test_list(db, letter, ask):
    assert millrace("dead-letters", "list", database=db).stdout == "No dead letter matches.\n"
    assert ask("dead-letters", "list") == []
    letter("totals", 4)
    letter("totals", 7, state="parked", error=None, attempts=0)
    letter("mail", 5, error="é" * 300 + "\x1b[31m", event_type="Paid")
    rows = ask("dead-letters", "list")
    assert [(row["consumer"], row["position"], row["replay"]) for row in rows] == [
        ("totals", 4, False), ("mail", 5, False), ("totals", 7, False)]
    assert rows[1]["error"].startswith("é" * 300) and "data" not in rows[0]
    assert [row["position"] for row in ask("dead-letters", "list", "--consumer", "totals", "--state", "parked")] == [7]
    text = millrace("dead-letters", "list", database=db).stdout
    assert "\x1b" not in text and text.splitlines()[0].split() == [
        "position", "consumer", "event", "stream", "state", "attempts", "error"]
    assert "é…" in text and "Order/o-4" in text


@pytest.mark.parametrize("options, positions", [
    (["--consumer", "a"], [2, 4, 6]), (["--consumer", "p"], [8, 8]), (["--consumer", "p#1/2"], [8]),
    (["--position", "4"], [4]), (["--from", "6"], [6, 8, 8]), (["--to", "4"], [2, 4]),
    (["--from", "4", "--to", "6"], [4, 6]), (["--type", "Invoice"], [6]), (["--id", "o-2"], [2]),
    (["--event-type", "Paid"], [4]), (["--state", "parked"], [4]), (["--error", "ZERO"], [2]),
    (["--before", "2026-01-01T03:00:00Z"], [2]), (["--after", "2026-01-01T05:00:00Z"], [6, 8, 8]),
    (["--id", "' OR '1'='1"], []), (["--error", "%"], []), (["--type", "Order", "--event-type", "Paid"], [4]),
])
def test_filters(letter, ask, options, positions):
    at = "2026-01-01T0{}:00:00Z"
    letter("a", 2, created_at=at.format(2), error="division by zero")
    letter("a", 4, created_at=at.format(4), event_type="Paid", state="parked", error=None)
    letter("a", 6, created_at=at.format(6), aggregate_type="Invoice")
    letter("p#0/2", 8, created_at=at.format(8))
    letter("p#1/2", 8, created_at=at.format(8))
    assert [row["position"] for row in ask("dead-letters", "list", *options)] == positions


@pytest.mark.asan
@pytest.mark.parametrize("payload, key, value", [
    (b'{"n": [1, 2]}', "data", {"n": [1, 2]}), (b"plain \xc3\xbc", "payload", "plain ü"),
    (b"\xff\x00\x01", "payload_base64", base64.b64encode(b"\xff\x00\x01").decode()), (b"", "payload", ""),
    (b"ab\xfe", "payload_base64", "YWL+"),
])
def test_show(db, letter, ask, payload, key, value):
    position = insert_event(db, payload=payload)
    letter("totals", position, sqlstate="22012")
    shown = ask("dead-letters", "show", position)
    assert shown[key] == value and len({"data", "payload", "payload_base64"} & set(shown)) == 1
    assert shown["error"] == "it broke" and shown["sqlstate"] == "22012" and shown["attempts"] == 3
    text = millrace("dead-letters", "show", position, "--consumer", "totals", database=db).stdout
    assert "\nerror            it broke\n" in text and text.count("payload") == 1 and "\0" not in text


def test_another_log(empty_db, tmp_path):
    """Odd names, jsonb payloads, ids that are uuids, nothing but what is required."""
    db = empty_db
    db.execute('CREATE TABLE "My Log" (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, "Kind" text, '
               '"Key" uuid, what text, body jsonb)')
    db.execute('INSERT INTO "My Log" ("Kind", "Key", what, body) '
               "SELECT 'K', gen_random_uuid(), 'E', '{\"n\": 1}' FROM generate_series(1, 8)")
    config = tmp_path / "log.yaml"
    config.write_text(json.dumps({"log": {"table": '"My Log"', "columns": {
        "global_position": "id", "aggregate_type": "Kind", "aggregate_id": "Key", "event_type": "what",
        "payload": "body"}}}), encoding="utf-8")
    millrace("--config", config, "schema", "apply", database=db)
    for slot in range(2):
        db.execute("INSERT INTO millrace.consumer_checkpoints (consumer_name) VALUES (%s)", [f"c#{slot}/2"])
    db.execute("INSERT INTO millrace.consumer_dead_letters (consumer_name, global_position) VALUES ('c#0/2', 3)")

    def ask(*words):
        return millrace("--config", config, *words, "--json", database=db, check=False)
    assert json.loads(ask("dead-letters", "show", "3").stdout)["data"] == {"n": 1}
    for position in range(1, 9):
        assert ask("consumers", "skip", "c", position).returncode == 0
    assert db.value("SELECT sum(jsonb_array_length(skips)) FROM millrace.consumer_controls") == 8
    assert ask("consumers", "reset", "c", "--to", "9").returncode == 2
    assert len(json.loads(ask("consumers", "reset", "c", "--to", "now").stdout)) == 2
    done = ask("consumers", "reset", "c", "--to", "2026-01-01")
    assert done.returncode == 2 and "no created_at column" in done.stderr


def test_show_needs_to_know_which(db, letter, ask):
    letter("totals", 4)
    assert "payload          none" in millrace("dead-letters", "show", "--position", "4", database=db).stdout
    said = ask("dead-letters", "show", 5, status=1)
    assert "there is no such dead letter at 5" in said and "a job needs --queue NAME" in said
    letter("mail", 4)
    assert "--consumer NAME" in ask("dead-letters", "show", 4, status=2)
    assert ask("dead-letters", "show", 4, "--consumer", "mail")["consumer"] == "mail"


@pytest.mark.asan
def test_drop(db, letter, ask):
    for position in (2, 4, 6):
        letter("totals", position)
    letter("mail", 4)
    assert millrace("dead-letters", "drop", "--position", "4", "--reason", "old", "--actor", "ann",
                    database=db).stdout == "dropped 2 dead letters\n"
    assert letters(db) == [("totals", 2), ("totals", 6)]
    assert db.rows(AUDIT) == [("mail", "drop", "ann", "old"), ("totals", "drop", "ann", "old")]
    assert ask("dead-letters", "drop", "--position", 4) == {"dropped": 0}
    assert ask("dead-letters", "drop", "--all") == {"dropped": 2} and letters(db) == []


@pytest.mark.asan
def test_replay_without_a_worker(db, letter, consumer, ask):
    consumer("totals")
    letter("totals", 4)
    said = ask("dead-letters", "replay", "--consumer", "totals", "--timeout", "50ms", status=1)
    assert "1 of 1 dead letters are not replayed after 50 ms: no worker that is alive can run consumer totals" in said
    assert ask("dead-letters", "list")[0]["replay"] is True
    assert "poison, replay asked" in millrace("dead-letters", "list", database=db).stdout
    consumer("mail")
    assert ask("dead-letters", "replay", "--consumer", "mail") == {"replayed": 0, "failed": 0, "failures": []}
    # A name that nobody has is no empty answer.
    for words in (["replay"], ["list"], ["drop"]):
        assert "did you mean mail" in ask("dead-letters", *words, "--consumer", "mial", status=2)


def stand_in(db, stop, fails):
    """What a worker does with requests, in the order of positions; some fail again, with another error."""
    with db.connect() as connection:
        while not stop.is_set():
            connection.execute(
                "WITH next AS (SELECT id, global_position = ANY(%s) AS fails FROM millrace.consumer_dead_letters "
                "WHERE replay_at IS NOT NULL ORDER BY global_position LIMIT 1), failed AS (UPDATE "
                "millrace.consumer_dead_letters l SET replay_at = NULL, error = 'new trouble' FROM next "
                "WHERE l.id = next.id AND fails) DELETE FROM millrace.consumer_dead_letters l USING next "
                "WHERE l.id = next.id AND NOT fails", [fails])
            stop.wait(0.005)


@pytest.mark.asan
def test_replay(db, letter, ask):
    stop = threading.Event()
    for position in (2, 4, 6):
        letter("totals", position, error="old trouble")
    letter("mail", 4)
    thread = threading.Thread(target=stand_in, args=(db, stop, [4, 6]))
    thread.start()
    try:
        done = millrace("dead-letters", "replay", "--error", "old", database=db, check=False)
        assert done.returncode == 1 and "2 of 3 dead letters failed again" in done.stderr
        assert done.stdout.splitlines() == ["failed again: totals at 4: new trouble",
                                            "failed again: totals at 6: new trouble", "replayed 1, failed again 2"]
        done = millrace("dead-letters", "replay", "--from", "6", "--json", database=db, check=False)
        assert done.returncode == 1
        told = json.loads(done.stdout)
        assert (told["replayed"], told["failed"]) == (0, 1) and told["failures"][0]["position"] == 6
        assert told["failures"][0]["error"] == "new trouble" and told["failures"][0]["consumer"] == "totals"
    finally:
        stop.set()
        thread.join(30)
    stop.clear()
    thread = threading.Thread(target=stand_in, args=(db, stop, []))
    thread.start()
    try:
        assert ask("dead-letters", "replay", "--all") == {"replayed": 3, "failed": 0, "failures": []}
    finally:
        stop.set()
        thread.join(30)
    assert letters(db) == []
    assert db.rows("SELECT DISTINCT action FROM millrace.consumer_audit") == [("replay",)]


@pytest.mark.parametrize("words, hint", [
    ([], "needs one more word"),
    (["drop"], "--all"),
    (["replay"], "--all"),
    (["drop", "--reason", "x"], "say which dead letters to drop"),
    (["drop", "4"], "say which"),
    (["drop", "--all", "4"], "unexpected word '4'"),
    (["drop", "--consumer", ""], "the value is empty"),
    (["drop", "--error", ""], "the value is empty"),
    (["drop", "--position", "x"], "'x' is not a position"),
    (["drop", "--state", "bad"], "not poison or parked"),
    (["drop", "--before", "teatime"], "a time looks like"),
    (["drop", "--all", "--timeout", "5s"], "has no --timeout"),
    (["replay", "--all", "--timeout", "soon"], "is not a time"),
    (["replay", "--all", "--timeout", "-1"], "is not a time"),
    (["list", "--all"], "has no --all"),
    (["show"], "usage: millrace dead-letters show POSITION"),
    (["show", "4", "--position", "5"], "usage: millrace dead-letters show POSITION"),
    (["show", "four"], "'four' is not a position"),
    (["lsit"], "did you mean list?"),
    (["list", "--eror", "x"], "did you mean --error?"),
])
def test_wrong_words_touch_no_letter(db, letter, words, hint):
    letter("totals", 4)
    done = millrace("dead-letters", *words, database=db, check=False)
    assert done.returncode == 2 and hint in done.stderr and done.stdout == "", done.stdout + done.stderr
    assert db.rows("SELECT global_position, replay_at FROM millrace.consumer_dead_letters") == [(4, None)]
