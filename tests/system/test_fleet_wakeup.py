"""How new events are noticed: LISTEN and poll. In the notify tests a look without a notification comes once an hour,
so that only the notification can have done it."""

import time

import pytest

from fleet import QUICK, registered, slow_recorder
from harness import Database, all_handled, insert_event, insert_events, recorder, wait_until

NOTIFY = {**QUICK, "dispatcher_strategy": "notify", "notify_channel": "MyChan", "dispatcher_interval": "1h"}


def listening(db, process):
    """Waits until the worker has its sessions."""
    registered(process)
    wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                                "AND application_name LIKE 'millrace%%' AND state = 'idle'") >= 2, 20, "its sessions")


def append_and_notify(db, count=1, payload="", channel='"MyChan"'):
    with db.connect(autocommit=False) as connection:
        insert_events(db, count, connection=connection)
        connection.execute("SELECT pg_notify(%s, %s)", [channel.strip('"'), payload])
        connection.commit()


def timed(db, consumer="a"):
    begin = time.monotonic()
    all_handled(db, consumer, timeout=10)
    return time.monotonic() - begin


@pytest.mark.parametrize("own_connection", [False, True])
def test_notified(db, worker, own_connection):
    db.create_effects()
    options = dict(NOTIFY)
    if own_connection:
        options["notify_connection_string"] = db.uri + "&options=-c%20search_path%3Dpg_catalog"
    process = worker(db, {"consumers": [recorder("a")], "worker": options})
    listening(db, process)
    for _ in range(20):
        append_and_notify(db)
        timed(db)
    # Payloads are hints only, whatever they say.
    junk = ["9223372036854775807", "-1", "999999999999999999999999", "{}", "'; DROP TABLE events; --", "ä€𝄞",
            "x" * 7999, "%s%n%d", "\n\t\\", "0"]
    for payload in junk:
        append_and_notify(db, payload=payload)
        timed(db)
    # Nothing new is harmless, too; a thousand at once are one look.
    with db.connect(autocommit=False) as connection:
        for number in range(1000):
            connection.execute("SELECT pg_notify('MyChan', %s)", [str(number)])
        connection.commit()
    append_and_notify(db)
    timed(db)
    assert process.running()
    process.stop()


@pytest.mark.parametrize("own_connection", [False, True])
def test_the_listening_session_is_terminated(db, worker, own_connection):
    """What was notified while nobody listened is found after the reconnect."""
    db.create_effects()
    options = dict(NOTIFY)
    if own_connection:
        options["notify_connection_string"] = db.uri
    process = worker(db, {"consumers": [recorder("a")], "worker": options})
    listening(db, process)
    for _ in range(5):
        append_and_notify(db)
        timed(db)
        # Only those that listen; the reader goes on and would look by itself after a reconnect.
        with db.connect(autocommit=False) as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name LIKE 'millrace %%' AND query LIKE %s",
                ['LISTEN "MyChan"%' if own_connection else "%control_tick%"]).fetchall()
            insert_event(connection)
            connection.execute("NOTIFY \"MyChan\"")
            connection.commit()
        assert ended or not own_connection
        timed(db)
    process.stop()


def test_a_listener_that_cannot_connect(db, worker):
    """The worker works without it, by looking; and listens once it can."""
    db.create_effects()
    missing = Database(db.server, db.name + "_later")
    options = {**QUICK, "dispatcher_strategy": "notify", "notify_channel": "MyChan",
               "notify_connection_string": missing.uri}
    process = worker(db, {"consumers": [recorder("a")], "worker": options})
    process.wait_log(lambda e: e.get("msg") == "cannot connect" and e.get("connection") == "listener")
    insert_events(db, 10)
    all_handled(db)
    assert process.running()
    process.stop()


def test_a_wake_up_while_busy_is_not_lost(db, worker):
    db.create_effects()
    process = worker(db, {"consumers": [slow_recorder("a", 0.15)], "worker": NOTIFY})
    listening(db, process)
    running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%pg_sleep(0.15)%%' AND state = 'active' " \
              "AND application_name LIKE 'millrace%%' AND datname = current_database()"
    for _ in range(8):
        append_and_notify(db)
        wait_until(lambda: db.value(running), 10, "the consumer to be busy", 0.002)
        append_and_notify(db)
        all_handled(db, timeout=10)
    process.stop()


def test_poll_loses_no_wake_up(db, worker):
    """Events that come at every moment of a batch and of the pause between two looks."""
    db.create_effects()
    process = worker(db, {"consumers": [slow_recorder("a", 0.01), recorder("b")], "worker": QUICK})
    registered(process)
    slowest = 0.0
    for number in range(40):
        begin = time.monotonic()
        insert_event(db)
        if number % 3 == 0:
            insert_event(db)
        all_handled(db, "b" if number % 2 else "a", timeout=5)
        slowest = max(slowest, time.monotonic() - begin)
    all_handled(db, "a")
    all_handled(db, "b")
    print(f"\npoll: slowest of 40 from commit to effect {slowest * 1000:.0f} ms")
    process.stop()


def test_what_came_before_the_ownership(db, worker):
    """An event and its notification arrive while the worker owns nothing yet; the next look by itself is an hour
    away."""
    db.create_effects()
    with db.connect(autocommit=False) as connection:
        connection.execute("LOCK TABLE millrace.consumer_assignments IN SHARE ROW EXCLUSIVE MODE")
        process = worker(db, {"consumers": [recorder("a")], "worker": NOTIFY})
        wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                                    "AND application_name LIKE 'millrace%%' AND (query LIKE '%%register_worker%%' "
                                    "AND wait_event_type = 'Lock' OR query LIKE '%%LIMIT%%' AND state = 'idle')") == 2,
                   20, "the worker to wait for its registration, its reader to be up")
        append_and_notify(db)
        connection.rollback()
    timed(db)
    process.stop()
