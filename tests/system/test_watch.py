"""consumers list, show and wait, and status --health: what a person and a program see of consumers that are in slots,
owned by a lock, paused, or have given up on events. Rows are made by hand where no worker is needed."""

import json
import threading

import pytest

from harness import insert_events, millrace, recorder, wait_until

ANN = "00000000-0000-7000-8000-00000000000a"
BOB = "00000000-0000-7000-8000-00000000000b"
QUICK = {"heartbeat_interval": "100ms", "heartbeat_timeout": "2s", "rebalance_interval": "50ms",
         "poll_interval": "10ms", "max_poll_interval": "50ms"}


class Hand:
    """Makes the rows that workers and people leave behind."""

    def __init__(self, db):
        self.db = db

    def worker(self, worker_id, consumers, info=None):
        self.db.execute("INSERT INTO millrace.worker_nodes (worker_id, host, pid, consumers, info) "
                        "VALUES (%s, 'box', 7, %s, %s)", [worker_id, list(consumers), json.dumps(info or {})])
        self.db.execute("INSERT INTO millrace.worker_leader_election (lease_key, leader_id, expires_at) "
                        "VALUES ('leader', %s, now() + interval '1 h') ON CONFLICT DO NOTHING", [worker_id])

    def consumer(self, name, position, owner=ANN):
        self.db.execute("INSERT INTO millrace.consumer_checkpoints (consumer_name, last_position) VALUES (%s, %s)",
                        [name, position])
        self.db.execute("INSERT INTO millrace.consumer_assignments (consumer_name, worker_id) VALUES (%s, %s)",
                        [name, owner])

    def pause(self, name, by, reason, kind="command"):
        self.db.execute("INSERT INTO millrace.consumer_controls (consumer_name, paused, pause_kind, paused_by, "
                        "paused_at, pause_reason) VALUES (%s, true, %s, %s, now(), %s)", [name, kind, by, reason])

    def letter(self, name, position, error="no such account", state="poison"):
        self.db.execute("INSERT INTO millrace.consumer_dead_letters (consumer_name, global_position, state, "
                        "aggregate_type, aggregate_id, event_type, error, attempts) "
                        "VALUES (%s, %s, %s, 'Order', 'o-1', 'Placed', %s, 5)", [name, position, state, error])

    def audit(self, name, action, actor, reason=None):
        self.db.execute("INSERT INTO millrace.consumer_audit (consumer_name, action, actor, reason) "
                        "VALUES (%s, %s, %s, %s)", [name, action, actor, reason])

    def move(self, name, position):
        self.db.execute("UPDATE millrace.consumer_checkpoints SET last_position = %s, updated_at = now() "
                        "WHERE consumer_name = %s", [position, name])


@pytest.fixture
def hand(db):
    return Hand(db)


@pytest.fixture
def orders(db, hand):
    """Four slots over two workers, and a plain consumer."""
    names = [f"orders#{k}/4" for k in range(4)]
    hand.worker(ANN, [*names, "mailer"])
    hand.worker(BOB, names)
    insert_events(db, 40)
    for k, name in enumerate(names):
        hand.consumer(name, 40 - k, ANN if k < 2 else BOB)
    hand.consumer("mailer", 40)
    return hand


def run(db, *words, status=0, **options):
    done = millrace(*words, database=db, check=False, **options)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def lines(db, *words):
    """Lines of `consumers list` by consumer, as lists of cells (two spaces between them)."""
    text = run(db, "consumers", "list", *words).stdout
    table = [[cell for cell in line.split("  ") if cell.strip()] for line in text.splitlines()[2:] if line]
    return {line[0].strip(): [cell.strip() for cell in line[1:]] for line in table}


# ---- consumers list -------------------------------------------------------------------------------------------------

@pytest.mark.asan
def test_slots_share_a_line(db, orders):
    shown = lines(db)
    assert set(shown) == {"consumer", "orders", "mailer"}
    assert shown["consumer"] == ["state", "owner", "host", "checkpoint", "lag", "seconds"]
    assert shown["orders"][:5] == ["running (3 of 4)", "2 workers", "-", "37", "3"]
    assert shown["mailer"][:5] == ["idle", ANN, "box:7", "40", "0"]
    shown = lines(db, "--slots")
    assert set(shown) == {"consumer", "mailer", *(f"orders#{k}/4" for k in range(4))}
    assert shown["orders#3/4"][:5] == ["running", BOB, "box:7", "37", "3"]


@pytest.mark.asan
def test_json_has_the_slots(db, orders):
    orders.letter("orders#1/4", 5)
    orders.pause("orders#2/4", "ann", "a deploy")
    rows = {row["consumer"]: row for row in json.loads(run(db, "consumers", "list", "--json").stdout)}
    assert list(rows) == ["mailer", *(f"orders#{k}/4" for k in range(4))]
    slot = rows["orders#2/4"]
    assert (slot["base"], slot["partitions"], slot["ownership"]) == ("orders", 4, "assignment")
    assert (slot["state"], slot["paused_by"], slot["pause_reason"]) == ("paused", "ann", "a deploy")
    assert slot["last_error"] == "a deploy"
    assert rows["orders#1/4"]["dead_letters"] == 1 and rows["mailer"]["dead_letters"] == 0
    assert (rows["mailer"]["base"], rows["mailer"]["partitions"]) == ("mailer", 1)


def test_the_worst_slot_and_dead_letters(db, orders):
    orders.pause("orders#2/4", "worker 1", "division by zero", kind="failure")
    orders.letter("orders#1/4", 5)
    orders.letter("orders#3/4", 6, state="parked")
    shown = lines(db)
    assert shown["consumer"][-1] == "dead letters"
    assert shown["orders"][0] == "paused (1 of 4)" and shown["orders"][-1] == "2" and shown["mailer"][-1] == "0"
    text = run(db, "consumers", "list").stdout
    assert "\nlast errors:\norders#2/4: division by zero\n" in text and "paused:" not in text


def test_why_is_said_once(db, orders):
    for k in range(3):
        orders.pause(f"orders#{k}/4", "ann", "a deploy")
    orders.pause("orders#3/4", "bob", None)
    orders.pause("mailer", "worker 1", "no room", kind="failure")
    assert run(db, "consumers", "list").stdout.endswith(
        "\npaused:\norders (3 slots): by ann: a deploy\norders#3/4: by bob\n\nlast errors:\nmailer: no room\n")


def test_a_consumer_with_a_lock_of_its_own(db, hand):
    hand.worker(ANN, [], {"locks": ["mine"], "consumers": {"mine": {"state": "idle", "failures": 0}}})
    db.execute("INSERT INTO millrace.consumer_checkpoints (consumer_name) VALUES ('mine')")
    row, = json.loads(run(db, "consumers", "list", "--json").stdout)
    assert (row["state"], row["worker_id"], row["ownership"]) == ("idle", ANN, "lock")
    assert "owned by       lock\n" in run(db, "consumers", "show", "mine").stdout
    worker, = json.loads(run(db, "workers", "list", "--json").stdout)
    assert (worker["owned"], worker["can_run"]) == (1, 1)


# ---- consumers show -------------------------------------------------------------------------------------------------

@pytest.mark.asan
def test_show_for_people(db, orders):
    orders.pause("orders#2/4", "ann", "a deploy")
    for position in range(1, 8):
        orders.letter("orders#1/4", position, error=f"refused {position}")
    db.execute("INSERT INTO millrace.consumer_gap_skips (consumer_name, gap_position, gap_end, skip_to_position, "
               "highest_visible_position, first_seen_at, strategy, decided_by, reason) "
               "VALUES ('orders#0/4', 11, 13, 14, 20, now(), 'skip', 'ann', 'test data')")
    orders.audit("orders", "pause", "ann", "a deploy")
    orders.audit("mailer", "reset", "mallory")
    text = run(db, "consumers", "show", "orders").stdout
    assert text.startswith("consumer       orders\nstate          paused (1 of 4)\nwhy            paused by ann since ")
    assert ": a deploy\n" in text and "partitions     4\n" in text and "head           40\n" in text
    for k in range(4):
        assert f"\norders#{k}/4  " in text
    assert "\ndead letters: 7, the newest:\n" in text
    assert "refused 7" in text and "refused 3" in text and "refused 2" not in text
    assert "\npositions passed over: 3, the newest:\n" in text and "test data" in text
    assert "\nwhat was done to it:\n" in text and "mallory" not in text
    slot = run(db, "consumers", "show", "orders#0/4").stdout
    assert slot.startswith("consumer       orders#0/4\nstate          idle\n") and "orders#1/4" not in slot
    plain = run(db, "consumers", "show", "mailer").stdout
    assert "dead letters" not in plain and "passed over" not in plain and "mallory" in plain


@pytest.mark.asan
def test_show_for_programs(db, orders):
    orders.letter("orders#1/4", 9)
    for number in range(12):
        orders.audit("orders", "pause", "ann", f"number {number}")
    shown = json.loads(run(db, "consumers", "show", "orders", "--json").stdout)
    assert shown["consumer"] == "orders" and shown["state"] == "running (3 of 4)"
    assert [slot["consumer"] for slot in shown["slots"]] == [f"orders#{k}/4" for k in range(4)]
    assert shown["dead_letters"]["count"] == 1 and shown["dead_letters"]["newest"][0]["position"] == 9
    assert shown["skipped"] == {"count": 0, "more": False, "newest": []}
    assert [row["reason"] for row in shown["audit"]] == [f"number {number}" for number in range(11, 1, -1)]


def test_show_says_where_it_failed(db, hand):
    hand.worker(ANN, ["a"])
    hand.consumer("a", 0)
    db.execute("INSERT INTO millrace.consumer_controls (consumer_name, last_error, last_error_at, last_error_position) "
               "VALUES ('a', 'division by zero', now(), 17)")
    text = run(db, "consumers", "show", "a").stdout
    assert "last error     at position 17, " in text and ": division by zero\n" in text
    assert "last errors" not in run(db, "consumers", "list").stdout  # it is idle: that is over
    db.execute("UPDATE millrace.consumer_controls SET paused = true, pause_kind = 'failure', paused_by = 'worker 1', "
               "paused_at = now(), pause_reason = last_error")
    text = run(db, "consumers", "show", "a").stdout
    assert "why            paused after failures at position 17 by worker 1 since " in text


def test_unknown_names(db, orders):
    done = run(db, "consumers", "show", "order", status=2)
    assert "unknown consumer order; did you mean orders?" in done.stderr and done.stdout == ""
    done = run(db, "consumers", "wait", "order", 1, status=2)
    assert "there is no consumer order; did you mean orders?" in done.stderr
    assert "see 'millrace consumers list'" in run(db, "consumers", "show", "entirely else", status=2).stderr
    run(db, "consumers", "show", "orders#9/4", status=2)


# ---- consumers wait -------------------------------------------------------------------------------------------------

@pytest.mark.asan
def test_wait_with_a_worker(db, worker):
    """Read your own writes, as docs/operations.md shows it."""
    db.create_effects()
    worker(db, {"worker": QUICK, "consumers": [recorder("a")]})
    wait_until(lambda: db.checkpoint("a") is not None, 20, "a checkpoint")
    for _ in range(5):
        insert_events(db, 20)
        last = db.value("SELECT max(global_position) FROM events")
        done = run(db, "consumers", "wait", "a", last)
        assert done.stdout == f"a has applied position {last}\n"
        assert db.handled("a")[-1] == last
    shown = json.loads(run(db, "consumers", "wait", "a", last, "--json").stdout)
    assert shown.pop("waited_ms") >= 0
    assert shown == {"consumer": "a", "position": last, "reached": True}


def test_wait_wakes(db, orders):
    result = []
    thread = threading.Thread(target=lambda: result.append(
        millrace("consumers", "wait", "orders", 45, "--timeout", "60s", database=db, check=False)))
    thread.start()
    for k in range(4):
        assert result == []
        orders.move(f"orders#{k}/4", 45 + k)
    thread.join()
    assert result[0].returncode == 0, result[0].stderr


@pytest.mark.asan
def test_wait_in_vain(db, orders):
    done = run(db, "consumers", "wait", "orders", 41, "--timeout", "20ms", status=1)
    assert done.stdout == ""
    assert ("consumer orders did not reach position 41 within 20ms: it is at 37, where it was; the head of the log is "
            "only 40; furthest behind is orders#3/4; it is running") in done.stderr
    orders.letter("orders#0/4", 12)
    done = run(db, "consumers", "wait", "orders", 12, status=1)
    assert "position 12 went to the dead letters of orders#0/4: no such account" in done.stderr
    orders.pause("orders#3/4", "ann", "a deploy")
    done = run(db, "consumers", "wait", "orders", 40, status=1)
    assert "consumer orders#3/4 is paused by ann since " in done.stderr
    assert ": a deploy; it is at 37 and will not reach 40" in done.stderr and "resume orders#3/4" in done.stderr
    run(db, "consumers", "wait", "orders", 37)
    run(db, "consumers", "wait", "orders", 0)


def test_wait_knows_what_was_skipped(db, worker):
    """The checkpoint is beyond it, but nobody has applied it."""
    db.create_effects()
    worker(db, {"worker": QUICK, "consumers": [recorder("a")]})
    wait_until(lambda: db.checkpoint("a") is not None, 20, "a checkpoint")
    run(db, "consumers", "pause", "a")
    insert_events(db, 5)
    run(db, "consumers", "skip", "a", 3, "--reason", "a test order", "--actor", "ann")
    run(db, "consumers", "resume", "a")
    run(db, "consumers", "wait", "a", 5)
    done = run(db, "consumers", "wait", "a", 3, status=1)
    assert "consumer a is beyond position 3 without having applied it: it was skipped by ann at " in done.stderr
    assert ": a test order" in done.stderr
    run(db, "consumers", "reset", "a", "--to", "beginning")
    run(db, "consumers", "wait", "a", 5)
    run(db, "consumers", "wait", "a", 3)
    assert db.handled("a") == [1, 2, 4, 5, 1, 2, 3, 4, 5]


def test_wait_tells_how_fast(db, orders):
    stop = threading.Event()

    def move():
        position = 0
        with db.connect() as connection:
            while not stop.is_set():
                position += 1
                connection.execute("UPDATE millrace.consumer_checkpoints SET last_position = %s "
                                   "WHERE consumer_name = 'mailer'", [position])
    orders.move("mailer", 0)
    thread = threading.Thread(target=move)
    thread.start()
    done = run(db, "consumers", "wait", "mailer", 10 ** 15, "--timeout", "300ms", status=1)
    stop.set()
    thread.join()
    assert " further than before (" in done.stderr and " positions/s)" in done.stderr


@pytest.mark.parametrize("words", [
    ["wait"], ["wait", "mailer"], ["wait", "mailer", "soon"], ["wait", "mailer", "1.5"], ["wait", "mailer", ""],
    ["wait", "mailer", "-1"], ["wait", "--", "mailer", "-1"], ["wait", "mailer", "9223372036854775808"],
    ["wait", "mailer", "1", "2"], ["wait", "mailer", "1", "--timeout", "5"], ["wait", "mailer", "1", "--timeout", "s"],
    ["wait", "mailer", "1", "--timeout", "-1s"], ["wait", "mailer", "1", "--timeout", "5 s"],
    ["wait", "mailer", "1", "--timeout", "9999999999h"], ["wait", "mailer", "1", "--timeout"],
    ["wait", "mailer", "1", "--slots"], ["show"], ["show", "mailer", "x"], ["show", "mailer", "--timeout", "5s"],
    ["list", "--timeout", "5s"], ["list", "mailer"], ["lst"]])
def test_words_that_do_not_fit(db, orders, words):
    done = run(db, "consumers", *words, status=2)
    assert done.stdout == "" and done.stderr.startswith("millrace: ")


# ---- Health ---------------------------------------------------------------------------------------------------------

@pytest.mark.asan
def test_health(db, orders, tmp_path):
    report = json.loads(run(db, "status", "--health").stdout)
    assert report["status"] == "healthy" and report["reasons"] == [] and report["head"] == 40
    assert report["workers_alive"] == 2 and len(report["consumers"]) == 5
    config = tmp_path / "lag.yaml"
    config.write_text(json.dumps({"worker": {"lag_threshold": 2}}), encoding="utf-8")
    report = json.loads(run(db, "--config", config, "status", "--health", status=5).stdout)
    assert report["reasons"] == [{"consumer": "orders#3/4", "reason": "lag",
                                  "detail": "3 positions behind the head, above lag_threshold 2"}]
    done = run(db, "--config", config, "status", status=5)
    assert "- consumer orders: lag 3 is above lag_threshold 2\n" in done.stdout
    orders.letter("mailer", 3)
    orders.pause("mailer", "ann", "a deploy")
    done = run(db, "status", "--health", "--json", status=5)
    assert "degraded: 2 reasons" in done.stderr
    reasons = {row["reason"]: row for row in json.loads(done.stdout)["reasons"]}
    assert set(reasons) == {"paused", "dead_letters"}
    assert reasons["paused"]["detail"].startswith("paused by ann since ")
    done = run(db, "status", status=5)
    assert "- consumer mailer: paused by ann: a deploy\n" in done.stdout
    assert "- consumer mailer: 1 dead letter; see millrace dead-letters list\n" in done.stdout


def test_without_the_schema(empty_db):
    empty_db.execute("CREATE TABLE events (global_position bigserial PRIMARY KEY, aggregate_type text, "
                     "aggregate_id text, event_type text, payload bytea)")
    for words in (["consumers", "show", "a"], ["consumers", "wait", "a", "1"], ["status", "--health"]):
        done = millrace(*words, database=empty_db, check=False)
        assert done.returncode == 1 and "millrace schema apply" in done.stderr


def test_a_role_that_may_only_read(db, orders):
    db.execute("DROP ROLE IF EXISTS watcher")
    db.execute("CREATE ROLE watcher")
    try:
        db.execute("GRANT USAGE ON SCHEMA millrace, public TO watcher")
        db.execute("GRANT SELECT ON ALL TABLES IN SCHEMA millrace, public TO watcher")
        as_watcher = {"PGOPTIONS": "-c role=watcher"}
        run(db, "consumers", "list", env=as_watcher)
        run(db, "consumers", "show", "orders", env=as_watcher)
        run(db, "consumers", "wait", "orders", 37, env=as_watcher)
        run(db, "consumers", "wait", "orders", 50, "--timeout", "0", env=as_watcher, status=1)
        run(db, "status", "--health", env=as_watcher)
    finally:
        db.execute("DROP OWNED BY watcher; DROP ROLE watcher")


# ---- Safety and cost ------------------------------------------------------------------------------------------------

@pytest.mark.asan
def test_data_cannot_drive_the_terminal(db, hand):
    evil = "a\x1b[31m\x07\x9b2J\n"
    hand.worker(ANN, [evil])
    hand.consumer(evil, 5)
    hand.pause(evil, f"by {evil}", f"why {evil}")
    hand.letter(evil, 3, error=f"error {evil}", state=f"{evil}")
    hand.audit(evil, f"did {evil}", evil, evil)
    outputs = [run(db, "consumers", "list"), run(db, "consumers", "list", "--slots"), run(db, "status", status=5),
               run(db, "consumers", "show", evil), run(db, "consumers", "wait", evil, 9, status=1),
               run(db, "consumers", "wait", evil, 3, status=1), run(db, "consumers", "wait", evil, 4),
               run(db, "consumers", "show", f"{evil}x", status=2), run(db, "consumers", "wait", "a\x1b", 1, status=2)]
    for done in outputs:
        for text in (done.stdout, done.stderr):
            assert not set(text) & set("\x1b\x07\x9b\x7f"), repr(text)
    shown = json.loads(run(db, "consumers", "show", evil, "--json").stdout)
    assert shown["slots"][0]["consumer"] == evil  # programs get the data as it is


def test_many_slots_cost_no_more_of_the_log(db, hand):
    """A listing touches a few index entries a slot, and a wait none at all."""
    insert_events(db, 20000)
    names = [f"p#{k}/64" for k in range(64)]
    hand.worker(ANN, names)
    for k, name in enumerate(names):
        hand.consumer(name, k * 200)
    db.execute("ANALYZE")
    counts = ("SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0), coalesce(idx_scan, 0) "
              "FROM pg_stat_user_tables WHERE relname = 'events'")

    def flushed():
        db.execute("SELECT pg_stat_force_next_flush()")
        db.execute("SELECT pg_stat_clear_snapshot()")
        return db.rows(counts)[0]
    before = flushed()
    run(db, "consumers", "list")
    run(db, "status", "--health")
    after = wait_until(lambda: (lambda now: now if now[1] >= before[1] + 128 else None)(flushed()), 10, "statistics")
    assert after[0] - before[0] <= 2 * (64 + 10), (before, after)
