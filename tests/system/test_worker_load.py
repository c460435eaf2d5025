"""What a worker costs the server: statements when idle or waiting, connections, reads shared by consumers."""

import pytest

from harness import (all_handled, insert_event, insert_events, millrace, open_transaction, recorder,
                     rolled_back, wait_until)
from pg_server import PgServer


@pytest.fixture(scope="module")
def counting_server():
    with PgServer({"shared_preload_libraries": "pg_stat_statements"}) as instance:
        yield instance


@pytest.fixture
def counted(counting_server, make_db):
    db = make_db(on=counting_server)
    db.execute("CREATE EXTENSION pg_stat_statements")
    db.create_effects()
    return db


def calls(db):
    """Statements of workers so far, by what they are about."""
    rows = db.rows("SELECT query, calls, rows FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid "
                   "WHERE datname = current_database()")
    found = {"reads": 0, "rows": 0, "evidence": 0, "all": 0}
    for query, times, fetched in rows:
        if "pg_stat_statements" in query or "pg_sleep" in query:
            continue
        found["all"] += times
        if 'e."global_position"' in query and "LIMIT" in query:
            found["reads"] += times
            found["rows"] += fetched
        if "pg_locks" in query:
            found["evidence"] += times
    return found


def over(db, seconds):
    """How many statements ran while the server slept that long."""
    db.execute("SELECT pg_stat_statements_reset()")
    db.execute("SELECT pg_sleep(%s)", [seconds])
    return calls(db)


def settle(db, consumers=("a",)):
    for consumer in consumers:
        all_handled(db, consumer)


def test_an_idle_worker_asks_little(counted, worker):
    names = [f"c{n}" for n in range(20)]
    worker(counted, {"consumers": [recorder(name) for name in names], "worker": {"heartbeat_interval": "1h"}})
    insert_event(counted)
    settle(counted, names)
    # Polls grow to one in half a second, whatever the number of consumers.
    wait_until(lambda: over(counted, 1)["all"] <= 4, 15, "the worker to become quiet")
    quiet = over(counted, 2)
    assert quiet["reads"] <= 6 and quiet["evidence"] == 0 and quiet["all"] <= 8, quiet


def test_a_fixed_dispatcher_interval_is_kept(counted, worker):
    worker(counted, {"consumers": [recorder("a")],
                     "worker": {"heartbeat_interval": "1h", "dispatcher_interval": "100ms"}})
    insert_event(counted)
    settle(counted)
    assert 10 <= over(counted, 2)["reads"] <= 25


def test_waiting_for_a_hole_is_cheap(counted, worker):
    worker(counted, {"consumers": [recorder("a")]})
    with open_transaction(counted) as (connection, held):
        insert_events(counted, 5)
        wait_until(lambda: over(counted, 1)["evidence"] <= 15, 15, "looks at the evidence to become rare")
        assert counted.handled("a") == []
        connection.commit()
    settle(counted)


def test_a_consumer_behind_a_hole_below_the_tail(counted, worker):
    """A restart forgets what was proven. The consumer that is behind waits for the new proof, without hammering the
    server, and goes on as soon as it is there."""
    insert_events(counted, 10)
    rolled_back(counted, 3)
    last = 20 + 3
    insert_events(counted, 10)
    worker(counted, {"consumers": [recorder("a")]}, "--once").finish()
    with open_transaction(counted) as (connection, _):
        worker(counted, {"consumers": [recorder("a"), recorder("b")]})
        wait_until(lambda: counted.checkpoint("b") == 10, what="b at the hole")
        waiting = over(counted, 1)
        assert waiting["reads"] < 50, f"{waiting} while a consumer waits"
        assert counted.checkpoint("b") == 10
        connection.rollback()
    wait_until(lambda: counted.checkpoint("b") == last, what="b after the proof")
    settle(counted, ["b"])


def test_consumers_at_the_head_share_one_read(counted, worker):
    names = [f"c{n}" for n in range(16)]
    worker(counted, {"consumers": [recorder(name) for name in names], "worker": {"executors": 4}})
    insert_event(counted)
    settle(counted, names)
    counted.execute("SELECT pg_stat_statements_reset()")
    for _ in range(20):
        insert_events(counted, 100)
        settle(counted, names[:1])
    settle(counted, names)
    read = calls(counted)
    assert read["rows"] <= 1.5 * 2000, read


def test_connections_are_two_and_one_an_executor(counted, worker):
    names = [f"c{n}" for n in range(12)]
    most = 0

    def watch():
        nonlocal most
        most = max(most, counted.value("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'millrace%%'"))
        return counted.value("SELECT count(*) FROM effects") == 12 * 3000
    process = worker(counted, {"consumers": [recorder(name, batch_size=100) for name in names],
                               "worker": {"executors": 3, "executor_idle_timeout": "200ms"}})
    insert_events(counted, 3000)
    wait_until(watch, 60, "all to be handled", interval=0.001)
    assert 3 <= most <= 2 + 3
    settle(counted, names)
    # Executors that are not needed let go of their connections; the two of the loop stay.
    wait_until(lambda: counted.value("SELECT count(*) FROM pg_stat_activity "
                                     "WHERE application_name LIKE 'millrace%%'") == 2, what="idle connections to close")
    assert process.running()


def test_a_consumer_ahead_of_the_log_does_not_hold_the_others(counted, worker):
    insert_events(counted, 3)
    process = worker(counted, {"consumers": [recorder("ahead", start_from=50), recorder("a")]})
    settle(counted)
    rolled_back(counted, 2)
    insert_events(counted, 5)
    settle(counted)
    assert counted.checkpoint("ahead") == 50
    insert_events(counted, 60)
    settle(counted)
    wait_until(lambda: counted.checkpoint("ahead") == 70, what="the other one")
    assert counted.handled("ahead") == list(range(51, 71))
    process.stop()


@pytest.mark.parametrize("kind", ["sql", "sql_batch"])
def test_the_checkpoint_follows_over_foreign_events_also_when_nothing_more_comes(db, worker, kind):
    db.create_effects()
    handler = {"sql": "SELECT :global_position"} if kind == "sql" else {"sql_batch": "SELECT count(*) FROM batch"}
    worker(db, {"consumers": [{"name": "a", "event_types": ["Mine"], **handler}]})
    for _ in range(12):
        insert_events(db, 3)
        head = db.value("SELECT max(global_position) FROM events")
        wait_until(lambda head=head: db.checkpoint("a") == head, 3, "the checkpoint over foreign events")


def test_memory_with_100_idle_consumers(db, worker):
    db.create_effects()
    names = [f"c{n}" for n in range(100)]
    process = worker(db, {"consumers": [recorder(name) for name in names]})
    insert_events(db, 2000)
    wait_until(lambda: db.value("SELECT count(*) FROM effects") == 100 * 2000, 60, "all to be handled")
    wait_until(lambda: process.rss_kib() < 60 * 1024, 10, lambda: f"at most 60 MiB, not {process.rss_kib()} KiB")
    assert millrace("--json", "gaps", "list", database=db).stdout.strip() == "[]"


