"""A server that was left behind: what was read from it must not be handled on its successor."""

from harness import Database, assert_exactly_once, insert_events, recorder, wait_until


def test_rows_of_the_old_primary_are_not_handled_on_the_new_one(own_server, make_db, worker, proxy):
    """The reader still hangs on a primary that was replaced without it knowing (asynchronous replication, a cut);
    executors connect anew and reach the promoted standby, where the same positions are other events."""
    db = make_db(on=own_server)
    db.create_effects()
    standby = own_server.create_standby()
    way = proxy(on=own_server)
    process = worker(way.uri(db), {"worker": {"executor_idle_timeout": "200ms"}, "consumers": [
        {"name": "a", "sql": "INSERT INTO effects (consumer, pos) VALUES (:event_type, :global_position)"}]})
    insert_events(db, 3, event_type="common")
    wait_until(lambda: db.checkpoint("a") == 3)
    after = Database(standby, db.name)
    wait_until(lambda: after.checkpoint("a") == 3)
    wait_until(lambda: way.connections() == 2, what="the executor's connection to be closed")
    standby.promote()
    way._target = standby.socket_path()
    insert_events(db, 200, event_type="old")  # on the server that was left behind
    fenced = process.wait_log("batch fenced off", timeout=10)
    assert "another server" in fenced["error"]
    insert_events(after, 200, event_type="new")
    way.drop()  # now everybody learns of it
    wait_until(lambda: after.checkpoint("a") == after.value("SELECT max(global_position) FROM events"), 20)
    assert after.values("SELECT DISTINCT consumer FROM effects ORDER BY 1") == ["common", "new"]
    after.execute("UPDATE effects SET consumer = 'a'")
    assert_exactly_once(after)
    after.close()
