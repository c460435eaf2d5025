"""The harness itself, where it could fool the tests: the proxy, and the check for lost and doubled work."""

import psycopg
import pytest

from harness import Database, assert_exactly_once, insert_event, insert_events, open_transaction, wait_until


@pytest.fixture
def log_db(empty_db):
    """A log without Millrace: what the harness needs of it."""
    empty_db.execute("CREATE TABLE events (global_position bigserial PRIMARY KEY, aggregate_type text, "
                     "aggregate_id text, aggregate_version bigint, event_id uuid, event_type text, payload bytea)")
    empty_db.create_effects()
    return empty_db


def record(db, *positions):
    for position in positions:
        db.execute("INSERT INTO effects(consumer, pos) VALUES ('a', %s)", [position])


def test_exactly_once_accepts_what_is_right(log_db):
    insert_events(log_db, 3)
    record(log_db, 1, 2, 3)
    assert_exactly_once(log_db)


@pytest.mark.parametrize("handled, complaint", [
    ((1, 2), "lost"), ((1, 2, 3, 3), "twice"), ((1, 3, 2), "order"), ((1, 2, 3, 4), "never committed")])
def test_exactly_once_finds_what_is_wrong(log_db, handled, complaint):
    insert_events(log_db, 3)
    record(log_db, *handled)
    with pytest.raises(AssertionError, match=complaint):
        assert_exactly_once(log_db)


def test_open_transaction_holds_its_position(log_db):
    with open_transaction(log_db) as (connection, held):
        later = insert_event(log_db)
        assert log_db.committed() == [later]
        connection.commit()
    assert log_db.committed() == [held, later]


@pytest.mark.parametrize("tcp", [False, True])
def test_proxy_forwards_stalls_and_drops(log_db, proxy, tcp):
    between = proxy(tcp=tcp)
    connection = psycopg.connect(between.uri(log_db), autocommit=True)
    assert connection.execute("SELECT 1").fetchone() == (1,)
    between.stall()
    raw = connection.pgconn
    raw.send_query(b"SELECT 2")
    raw.flush()

    def answered():
        raw.consume_input()
        return not raw.is_busy()
    assert not answered()
    between.resume()
    wait_until(answered, 5, "the stalled answer")
    between.drop()
    connection.close()
    assert between.connections() == 0
    between.refuse()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(between.uri(log_db), connect_timeout=3)


def test_server_comes_back_after_each_kind_of_end(own_server):
    database = Database(own_server, "postgres")
    database.execute("CREATE TABLE kept AS SELECT 1 AS n")
    for mode in ("fast", "immediate"):
        own_server.restart(mode)
        assert database.value("SELECT n FROM kept") == 1
    own_server.kill9()
    own_server.start()
    assert database.value("SELECT n FROM kept") == 1


def test_standby_follows_and_takes_over(own_server):
    primary = Database(own_server, "postgres")
    primary.execute("CREATE TABLE kept AS SELECT 1 AS n")
    standby_server = own_server.create_standby()
    standby = Database(standby_server, "postgres")
    wait_until(lambda: standby.value("SELECT to_regclass('kept')"), 10, "the standby to follow")
    own_server.kill9()
    standby_server.promote()
    standby.execute("INSERT INTO kept VALUES (2)")
    assert standby.values("SELECT n FROM kept ORDER BY n") == [1, 2]
