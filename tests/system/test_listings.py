"""workers list, consumers list and status: every state they know, made real with real processes."""

import json
import signal

import pytest

from harness import (insert_event, insert_events, millrace, open_transaction, recorder, rolled_back,
                     wait_until)

FLEET = {"heartbeat_interval": "100ms", "heartbeat_timeout": "2s", "rebalance_interval": "50ms",
         "retry_base_delay": "10ms", "retry_max_delay": "50ms"}


@pytest.fixture
def fleet(db, worker, tmp_path):
    """Ways to start workers and to ask; the listings know the fleet's timeout by --config."""
    class Fleet:
        settings = FLEET

        def configure(self, **settings):
            self.settings = {**self.settings, **settings}
            path = tmp_path / "listing.yaml"
            path.write_text(json.dumps({"worker": self.settings}), encoding="utf-8")
            self.config = path
            return self

        def start(self, *names, **worker_settings):
            consumers = [name if isinstance(name, dict) else recorder(name) for name in names]
            return worker(db, {"worker": {**self.settings, **worker_settings}, "consumers": consumers})

        def ask(self, *words, status=0):
            done = millrace("--config", self.config, *words, "--json", database=db, check=False)
            assert done.returncode == status, done.stdout + done.stderr
            return json.loads(done.stdout)

        def workers(self):
            return {row["pid"]: row for row in self.ask("workers", "list")}

        def consumers(self):
            return {row["consumer"]: row for row in self.ask("consumers", "list")}

        def states(self):
            return {name: row["state"] for name, row in self.consumers().items()}

        def until(self, what, **states):
            wait_until(lambda: states.items() <= what().items(), 20, lambda: f"{states}: {what()}")

        def until_states(self, **states):
            self.until(self.states, **states)

        def until_worker(self, pid, state):
            wait_until(lambda: self.workers().get(pid, {}).get("state") == state, 20,
                       lambda: f"{pid} {state}: {self.workers()}")

    db.create_effects()
    return Fleet().configure()


@pytest.mark.asan
def test_nothing_yet(db, fleet):
    assert fleet.ask("workers", "list") == fleet.ask("consumers", "list") == []
    assert millrace("workers", "list", database=db).stdout == "No worker is registered.\n"
    assert "no consumers yet" in millrace("consumers", "list", database=db).stdout
    status = fleet.ask("status")
    assert status["healthy"] and status["problems"] == [] and status["leader"] is None
    assert status["workers"] == status["consumers"] == {} and status["workers_alive"] == 0
    assert status["schema_version"] == json.loads(millrace("schema", "status", "--json", database=db).stdout)["current"]
    assert "health         good" in millrace("status", database=db).stdout


@pytest.mark.parametrize("words", [["workers", "list"], ["consumers", "list"], ["status"]])
def test_without_the_schema(empty_db, words):
    empty_db.execute("CREATE TABLE events (global_position bigserial PRIMARY KEY, aggregate_type text, "
                     "aggregate_id text, event_type text, payload bytea)")
    done = millrace(*words, database=empty_db, check=False)
    assert done.returncode == 1 and "millrace schema apply" in done.stderr


@pytest.mark.parametrize("words", [["workers"], ["consumers"], ["workers", "lst"], ["consumers", "list", "x"],
                                   ["status", "now"]])
def test_words_that_do_not_fit(db, words):
    assert millrace(*words, database=db, check=False).returncode == 2


@pytest.mark.asan
@pytest.mark.parametrize("leader_strategy", ["advisory", "lease"])
def test_a_healthy_fleet(db, fleet, leader_strategy):
    insert_events(db, 7)
    first, second = (fleet.start("a", "b", "c", leader_strategy=leader_strategy) for _ in range(2))
    fleet.until_states(a="idle", b="idle", c="idle")
    wait_until(lambda: sorted(w["owned"] for w in fleet.workers().values()) == [1, 2], 20, fleet.workers)
    wait_until(lambda: sum(w["events"] or 0 for w in fleet.workers().values()) == 21
               and all(w["connections"] >= 1 for w in fleet.workers().values()), 20, fleet.workers)
    workers, consumers = fleet.workers(), fleet.consumers()
    assert set(workers) == {first.pid, second.pid}
    for row in workers.values():
        assert row["state"] == "alive" and row["can_run"] == 3
        assert 0 <= row["heartbeat_age"] < 60 and row["host"] and row["version"] and row["started_at"]
    leader, = (row for row in workers.values() if row["leader"] is True)
    for row in consumers.values():
        assert row["worker_id"] == workers[row["pid"]]["worker_id"] and row["host"] == leader["host"]
        assert (row["checkpoint"], row["head"], row["lag"], row["lag_seconds"]) == (7, 7, 0, 0)
        assert row["last_error"] is None and row["updated_at"]
    status = fleet.ask("status")
    assert status["healthy"] is True and status["leader"] == leader["worker_id"]
    assert status["workers"] == {"alive": 2} and status["consumers"] == {"idle": 3}
    assert (status["head"], status["max_lag"], status["max_lag_seconds"], status["open_holes"]) == (7, 0, 0, 0)


@pytest.mark.asan
def test_tables_for_people(db, fleet):
    insert_events(db, 3)
    process = fleet.start("order_totals_v1", {"name": "mailer", "sql": "SELECT 1 / 0 + :global_position"},
                          max_retries=0)
    fleet.until_states(order_totals_v1="idle", mailer="paused")
    worker_id = fleet.workers()[process.pid]["worker_id"]
    for words in (["workers", "list"], ["consumers", "list"], ["status"]):
        done = millrace("--config", fleet.config, *words, database=db, check=False)
        assert worker_id in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 120, done.stdout
    consumers = millrace("--config", fleet.config, "consumers", "list", database=db).stdout
    assert consumers.startswith("head of the log: 3\n")
    assert "\nlast errors:\nmailer: division by zero\n" in consumers


def test_a_killed_worker_is_gone_and_its_consumers_wait_or_move(db, fleet):
    fleet.configure(heartbeat_timeout="60s")
    process = fleet.start("a")
    fleet.until_states(a="idle")
    process.kill9()
    fleet.until_worker(process.pid, "gone")
    fleet.until_states(a="owner gone")
    insert_events(db, 5)
    row = fleet.consumers()["a"]
    assert row["pid"] == process.pid and row["lag"] == 5
    status = fleet.ask("status", status=5)
    assert status["workers_alive"] == 0 and status["leader"] is None and status["workers"] == {"gone": 1}
    assert status["problems"] == ["no worker is alive, and there are consumers", "consumer a: owner gone"]
    survivor = fleet.start("a")
    wait_until(lambda: fleet.consumers()["a"]["pid"] == survivor.pid, 20, fleet.consumers)
    fleet.until_states(a="idle")


def test_a_stopped_worker_is_silent(db, fleet):
    fleet.configure(heartbeat_timeout="500ms")
    process = fleet.start("a")
    fleet.until_states(a="idle")
    process.sigstop()
    fleet.until_worker(process.pid, "silent")
    fleet.until_states(a="owner silent")
    insert_events(db, 2)
    row = fleet.consumers()["a"]
    assert (row["checkpoint"], row["head"], row["lag"]) == (0, 2, 2) and row["lag_seconds"] >= 0
    problems = fleet.ask("status", status=5)["problems"]
    assert "consumer a: owner silent" in problems
    process.sigcont()
    fleet.until_worker(process.pid, "alive")
    fleet.until_states(a="idle")
    wait_until(lambda: fleet.consumers()["a"]["lag"] == 0, 20, fleet.consumers)


def test_a_silent_worker_is_declared_dead_by_the_leader(db, fleet):
    fleet.configure(heartbeat_timeout="700ms")
    first = fleet.start("a", "b")
    second = fleet.start("a", "b")
    wait_until(lambda: len({row["pid"] for row in fleet.consumers().values()} - {None}) == 2, 20, fleet.consumers)
    leader = next(pid for pid, row in fleet.workers().items() if row["leader"])
    victim, other = (second, first) if leader == first.pid else (first, second)
    victim.sigstop()
    fleet.until_worker(victim.pid, "dead")
    wait_until(lambda: {row["pid"] for row in fleet.consumers().values()} == {other.pid}, 20, fleet.consumers)
    assert fleet.ask("status")["workers"] == {"alive": 1, "dead": 1}
    victim.sigcont()


def test_a_leader_that_is_silent_does_not_lead(fleet):
    fleet.configure(heartbeat_timeout="500ms")
    leader = fleet.start("a")
    fleet.until_states(a="idle")
    leader.sigstop()
    fleet.until_worker(leader.pid, "silent")
    other = fleet.start("a", heartbeat_timeout="60s")  # too patient to depose it
    fleet.until_worker(other.pid, "alive")
    workers = fleet.workers()
    assert workers[leader.pid]["leader"] is True and workers[other.pid]["leader"] is False  # who holds the lock
    assert fleet.ask("status", status=5)["problems"] == ["there is no leader", "consumer a: owner silent"]
    leader.sigcont()


def test_paused_and_failing_consumers(db, fleet):
    bad = "SELECT 1 / 0 + :global_position"
    fleet.start("good", {"name": "pauses", "sql": bad, "max_retries": 1},
                {"name": "retries", "sql": bad, "max_retries": "unlimited"})
    insert_events(db, 4)
    fleet.until_states(good="idle", pauses="paused", retries="failing")
    rows = fleet.consumers()
    for name in ("pauses", "retries"):
        assert rows[name]["last_error"] == "division by zero"
        assert rows[name]["lag"] == 4 and rows[name]["checkpoint"] == 0 and rows[name]["lag_seconds"] >= 0
    status = fleet.ask("status", status=5)
    assert status["consumers"] == {"idle": 1, "paused": 1, "failing": 1} and status["max_lag"] == 4
    assert status["problems"] == ["consumer pauses: paused: division by zero",
                                  "consumer retries: failing: division by zero"]


def test_a_hole_blocks_and_lag_still_grows(db, fleet):
    fleet.start("a")
    insert_events(db, 3)
    fleet.until_states(a="idle")
    with open_transaction(db) as (connection, held):
        insert_events(db, 10)
        fleet.until_states(a="blocked")
        row = fleet.consumers()["a"]
        assert (row["checkpoint"], row["head"], row["lag"]) == (held - 1, held + 10, 11) and row["lag_seconds"] >= 1
        insert_events(db, 5)
        assert fleet.consumers()["a"]["lag"] == 16
        status = fleet.ask("status")  # waiting is no failure
        assert status["open_holes"] == 1 and status["consumers"] == {"blocked": 1} and status["max_lag"] == 16
        connection.commit()
    fleet.until_states(a="idle")
    assert fleet.consumers()["a"]["lag"] == 0 and fleet.ask("status")["open_holes"] == 0


def test_a_rolled_back_position_at_the_head_is_no_lag(db, fleet):
    fleet.start("a")
    insert_events(db, 3)
    fleet.until_states(a="idle")
    rolled_back(db, 5)
    row = fleet.consumers()["a"]
    assert (row["state"], row["lag"], row["lag_seconds"]) == ("idle", 0, 0)


def test_running_while_a_batch_takes_its_time(db, fleet):
    gate = db.connect()
    gate.execute("SELECT pg_advisory_lock(42)")
    fleet.start({"name": "slow", "sql": "SELECT pg_advisory_xact_lock(42), :global_position"})
    insert_events(db, 3)
    fleet.until_states(slow="running")
    assert fleet.consumers()["slow"]["lag"] == 3
    gate.close()
    fleet.until_states(slow="idle")


def test_a_consumer_nobody_can_run(db, fleet):
    process = fleet.start("old", "kept")
    fleet.until_states(old="idle", kept="idle")
    process.stop()
    assert fleet.states() == {"old": "unassigned", "kept": "unassigned"}
    assert fleet.ask("status", status=5)["problems"] == ["no worker is alive, and there are consumers"]
    insert_events(db, 2)
    fleet.start("kept")
    fleet.until_states(kept="idle", old="no worker can run it")
    row = fleet.consumers()["old"]
    assert row["worker_id"] is None and row["pid"] is None and row["lag"] == 2
    assert fleet.ask("status", status=5)["problems"] == ["consumer old: no worker can run it"]
    # As docs/cluster.md says: a consumer that was removed for good is forgotten by its two rows.
    db.execute("DELETE FROM millrace.consumer_assignments WHERE consumer_name = 'old'")
    db.execute("DELETE FROM millrace.consumer_checkpoints WHERE consumer_name = 'old'")
    assert set(fleet.states()) == {"kept"} and fleet.ask("status")["healthy"]


def test_a_draining_worker(db, fleet):
    gate = db.connect()
    gate.execute("SELECT pg_advisory_lock(42)")
    process = fleet.start({"name": "slow", "sql": "SELECT pg_advisory_xact_lock(42), :global_position"})
    insert_event(db)
    fleet.until_states(slow="running")
    process.signal(signal.SIGTERM)
    fleet.until_worker(process.pid, "draining")
    gate.close()
    assert process.wait_exit() == 0
    assert fleet.workers() == {}


def test_dead_letters_are_counted(db, fleet):
    db.execute("INSERT INTO millrace.consumer_dead_letters (consumer_name, global_position) VALUES ('a', 1), ('a', 2)")
    status = fleet.ask("status", status=5)  # a person has to look at them
    assert status["dead_letters"] == 2
    assert status["problems"] == ["consumer a: 2 dead letters; see millrace dead-letters list"]
    assert "dead letters   2\n" in millrace("status", database=db, check=False).stdout


def test_a_log_without_created_at(db, fleet):
    db.execute("ALTER TABLE events DROP COLUMN created_at")
    fleet.start("a")
    insert_events(db, 2)
    fleet.until_states(a="idle")
    assert fleet.consumers()["a"]["lag_seconds"] is None
    assert fleet.ask("status")["max_lag_seconds"] is None


def test_other_names_and_two_fleets(db, tmp_path, worker):
    """A fleet with names that need quotes, beside one with the default names: neither sees the other."""
    odd = {"worker_nodes_table": 'ops."Worker Nodes"', "consumer_assignments_table": 'ops."as""signments"'}
    config = {"worker": {**FLEET, **odd}, "schema": "mr2"}
    path = tmp_path / "odd.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    millrace("--config", path, "schema", "apply", database=db)
    db.create_effects()
    worker(db, {**config, "consumers": [{"name": "odd 'name\"", "sql": "SELECT :global_position"}]})
    worker(db, {"worker": FLEET, "consumers": [recorder("plain")]})

    def seen(*arguments):
        rows = json.loads(millrace(*arguments, "consumers", "list", "--json", database=db).stdout)
        leaders = json.loads(millrace(*arguments, "workers", "list", "--json", database=db).stdout)
        return [(row["consumer"], row["state"]) for row in rows], [row["leader"] for row in leaders]
    wait_until(lambda: seen("--config", path) == ([("odd 'name\"", "idle")], [True]), 20,
               lambda: str(seen("--config", path)))
    wait_until(lambda: seen() == ([("plain", "idle")], [True]), 20, seen)


def test_data_cannot_drive_the_terminal(db, fleet):
    fleet.start({"name": "a\u001b[31m", "sql": "SELECT 1 / 0 + :global_position"}, max_retries=0)
    insert_event(db)
    wait_until(lambda: "paused" in fleet.states().values(), 20, fleet.states)
    for words in (["consumers", "list"], ["status"]):
        done = millrace("--config", fleet.config, *words, database=db, check=False)
        assert "\033" not in done.stdout and "division by zero" in done.stdout


@pytest.mark.parametrize("partitioned", [False, True])
def test_listings_do_not_read_the_log(make_db, fleet, partitioned, tmp_path):
    """What they touch of a large log is a few index entries a consumer."""
    db = make_db(schema=not partitioned)
    if partitioned:
        db.execute("CREATE TABLE events (global_position bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, "
                   "aggregate_type text NOT NULL, aggregate_id text NOT NULL, aggregate_version bigint NOT NULL, "
                   "event_id uuid NOT NULL, event_type text NOT NULL, payload bytea, created_at timestamptz DEFAULT "
                   "now()) PARTITION BY RANGE (global_position)")
        for low in range(0, 60000, 20000):
            db.execute(f"CREATE TABLE events_{low} PARTITION OF events FOR VALUES FROM ({low}) TO ({low + 20000})")
        millrace("schema", "apply", database=db)
    insert_events(db, 50000)
    db.execute("ANALYZE")
    db.execute("INSERT INTO millrace.consumer_checkpoints (consumer_name, last_position) "
               "SELECT 'c' || i, i * 400 FROM generate_series(1, 100) AS i")
    db.execute("INSERT INTO millrace.consumer_assignments (consumer_name) "
               "SELECT consumer_name FROM millrace.consumer_checkpoints")
    counts = ("SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), sum(coalesce(idx_scan, 0)) "
              "FROM pg_stat_user_tables WHERE relname LIKE 'events%%'")
    before = wait_until(lambda: flushed(db, counts), 10, "statistics")
    rows = json.loads(millrace("consumers", "list", "--json", database=db).stdout)
    assert len(rows) == 100 and rows[0]["head"] == 50000
    millrace("status", database=db, check=False)
    after = wait_until(lambda: (lambda now: now if now[1] > before[1] else None)(flushed(db, counts)), 10, "statistics")
    # Two listings of 100 consumers, each a step in up to three partitions' indexes, and the head.
    assert after[0] - before[0] <= 2 * (100 * 3 + 10), (before, after)


def flushed(db, sql):
    db.execute("SELECT pg_stat_force_next_flush()")
    db.execute("SELECT pg_stat_clear_snapshot()")
    return db.rows(sql, [])[0]


def test_help(db):
    for command in ("workers", "consumers", "status"):
        text = millrace(command, "--help").stdout
        assert text.startswith(f"usage: millrace {command} ") and "--json" in text
    assert "exit code 5" in millrace("status", "--help").stdout
