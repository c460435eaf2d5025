"""Work that moves between workers: scaling, dead and stopped processes, rolling deploys, slow batches. Whatever
happens, every consumer handles every event once, in order."""

import time

import pytest

from fleet import (Appender, QUICK, fleet_config, leader, names, of_id, owners, progress, registered,
                   wait_balanced, wait_exactly_once, wait_progress, worker_id)
from harness import PATIENCE, insert_events, recorder, wait_until
from pg_server import PgServer


def warm(db):
    """Missing session locks count only once the server is up for ten seconds."""
    wait_until(lambda: db.value("SELECT now() - pg_postmaster_start_time() > interval '10.5 s'"), 15)


@pytest.mark.parametrize("strategy", ["round_robin", "sticky"])
def test_scale_1_2_3_7_1(db, worker, strategy):
    db.create_effects()
    consumers = names(25)
    processes = []

    def scale(count):
        while len(processes) < count:
            processes.append(worker(db, fleet_config(consumers, executors=2, assignment_strategy=strategy)))
        took = wait_balanced(db, registered(*processes))
        print(f"\n{strategy}: balanced over {count} after {took:.2f} s, generations "
              f"{db.value('SELECT sum(generation) FROM millrace.consumer_assignments')}")
        wait_progress(db, consumers)

    with Appender(db.uri, pause=0.02):
        for count in (1, 2, 3, 7):
            scale(count)
        # Down to one: some leave in good order, the leader among them, some do not.
        boss = of_id(processes, leader(db))
        for process in [boss] + [p for p in processes if p is not boss][:3]:
            process.stop()
            processes.remove(process)
        for process in processes[1:]:
            process.kill9()
            processes.remove(process)
        scale(1)
    wait_exactly_once(db, consumers)
    processes[0].stop()


def test_a_killed_workers_work_moves_at_default_settings(db, worker):
    db.create_effects()
    consumers = names(6)
    config = {"consumers": [recorder(c) for c in consumers]}
    processes = [worker(db, config) for _ in range(2)]
    wait_balanced(db, registered(*processes))
    warm(db)
    with Appender(db.uri):
        wait_progress(db, consumers)
        for _ in range(3):
            victim = processes.pop(0)
            theirs = [c for c, owner in owners(db).items() if owner == worker_id(victim)]
            was_leader = leader(db) == worker_id(victim)
            assert len(theirs) == 3
            begin = time.monotonic()
            victim.kill9()
            wait_progress(db, theirs, 30)
            took = time.monotonic() - begin
            print(f"\nkilled ({'leader' if was_leader else 'not leader'}), default settings: "
                  f"its consumers go on after {took:.2f} s")
            assert took < 10 * PATIENCE
            processes.append(worker(db, config))
            wait_balanced(db, registered(*processes))
    wait_exactly_once(db, consumers)


@pytest.mark.parametrize("strategy", ["advisory", "lease"])
def test_zombie_in_the_middle_of_a_batch(db, worker, strategy):
    """Stopped while its transaction is open: the batch is larger than what fits into the socket, so that the server
    is left waiting for the rest of it."""
    db.create_effects()
    handler = ("INSERT INTO effects(consumer, pos) SELECT 'a', :global_position FROM pg_sleep(0.002) "
               "WHERE octet_length(:payload) > 0")
    config = fleet_config([{"name": "a", "sql": handler, "batch_size": 500}], leader_strategy=strategy)
    zombie = worker(db, config)
    registered(zombie)
    other = worker(db, config)
    registered(other)
    wait_until(lambda: owners(db).get("a") == worker_id(zombie), 20, "the first to own it")
    old = worker_id(zombie)
    in_batch = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND query LIKE '%%effects%%'"
    insert_events(db, 1000, payload=b"x" * 4000)
    wait_until(lambda: db.value(in_batch + " AND state = 'active'", [f"millrace {old}"]), 20, "a batch", 0.001)
    zombie.sigstop()
    begin = time.monotonic()
    # A pipeline without its sync is "active" for the server, so idle_in_transaction_session_timeout never ends it.
    wait_until(lambda: db.value(in_batch + " AND state = 'active' AND wait_event = 'ClientRead'", [f"millrace {old}"]),
               10, "the server to wait in the middle of the batch", 0.001)
    wait_until(lambda: owners(db).get("a") == worker_id(other), 20, "the other to own it")
    wait_progress(db, ["a"])
    print(f"\n{strategy}: stopped in a batch (heartbeat_timeout 2 s): goes on elsewhere after "
          f"{time.monotonic() - begin:.2f} s")
    assert time.monotonic() - begin < 8 * PATIENCE
    zombie.sigcont()
    zombie.wait_log(msg="registration lost", timeout=20)
    zombie.wait_log(msg="ownership lost", timeout=20)
    wait_until(lambda: worker_id(zombie) != old, 20, "a new id")
    wait_exactly_once(db, ["a"])
    for process in (zombie, other):
        process.stop()


def test_rolling_deploy(db, worker):
    """`new` is known to the newer program only; nobody knows `gone` any more."""
    db.create_effects()
    db.execute("INSERT INTO millrace.consumer_assignments(consumer_name) VALUES ('gone')")
    db.execute("INSERT INTO millrace.consumer_checkpoints(consumer_name) VALUES ('gone')")
    warm(db)
    old = worker(db, fleet_config(["a", "b"]))
    registered(old)
    with Appender(db.uri):
        for turn in range(3):
            newer = worker(db, fleet_config(["a", "b", "new"]))
            registered(newer)
            wait_until(lambda newer=newer: owners(db).get("new") == worker_id(newer), 20, "`new` where it can run")
            wait_progress(db, ["a", "b", "new"])
            assert owners(db)["gone"] is None
            assert set(owners(db).values()) == {worker_id(old), worker_id(newer), None}
            if turn % 2 == 0:
                newer.kill9()
            else:
                newer.stop()
            wait_until(lambda: owners(db)["new"] is None, 20, "`new` to be nobody's")
            wait_until(lambda: owners(db)["a"] == owners(db)["b"] == worker_id(old), 20, "the old one to take the rest")
        newer = worker(db, fleet_config(["a", "b", "new"]))
        registered(newer)
        old.stop()
        wait_until(lambda: {owners(db)[c] for c in ("a", "b", "new")} == {worker_id(newer)}, 20)
    wait_exactly_once(db, ["a", "b", "new"])
    assert db.checkpoint("gone") == 0
    newer.stop()


def test_a_slow_batch_delays_only_its_own_hand_over(db, worker):
    """The new owner has one executor, and the slow consumer's old batch still runs elsewhere. It is let go at the very
    moment when the new owner, who has read the checkpoint, waits for its row: the new batch is then based on a
    checkpoint that is not there any more."""
    db.create_effects()
    db.execute("CREATE TABLE gate AS SELECT true AS closed")
    insert_events(db, 1)
    slow = {"name": "c1", "sql": "INSERT INTO effects(consumer, pos) SELECT 'c1', :global_position FROM (SELECT CASE "
                                 "WHEN closed THEN pg_advisory_xact_lock(42)::text END FROM gate) AS g"}
    consumers = ["c0", slow, "c2", "c3"]
    waiting = ("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = %s "
               "AND query LIKE %s")
    with db.connect() as keeper:
        keeper.execute("SELECT pg_advisory_lock(42)")
        first = worker(db, fleet_config(consumers))
        wait_until(lambda: first.matching(msg="registered") and
                   db.value(waiting, [f"millrace {worker_id(first)}", "%gate%"]), 20, "the slow batch to run")
        db.execute("UPDATE gate SET closed = false")  # for those who come later
        begin = time.monotonic()
        with Appender(db.uri):
            second = worker(db, fleet_config(consumers, executors=1))
            ids = registered(first, second)
            wait_until(lambda: owners(db) == {"c0": ids[0], "c1": ids[1], "c2": ids[0], "c3": ids[1]}, 10,
                       "the rebalance, in the middle of the slow batch")
            rebalanced = time.monotonic() - begin
            second.wait_log(lambda e: e.get("consumer") == "c1" and e.get("sqlstate") == "55P03")
            # More than once: each try for the slow one must give the executor back.
            for _ in range(3):
                wait_progress(db, ["c0", "c2", "c3"], 4)
            others = time.monotonic() - begin
            print(f"\nslow batch: rebalanced after {rebalanced:.2f} s, the others went on after {others:.2f} s")
            assert progress(db, "c1") == 0, "the slow batch is over already"
            wait_until(lambda: db.value(waiting, [f"millrace {ids[1]}", "%advance_checkpoint%"]), 10,
                       "the new owner to wait for the row", 0.001)
            keeper.execute("SELECT pg_advisory_unlock(42)")
            over = time.monotonic()
            wait_until(lambda: progress(db, "c1") > 1, 10, "the new owner to go on", 0.005)
            print(f"slow batch: handed over {time.monotonic() - over:.2f} s after its end")
    wait_exactly_once(db, ["c0", "c1", "c2", "c3"])
    for process in (first, second):
        process.stop()


def test_a_row_deleted_by_hand(db, worker):
    db.create_effects()
    process = worker(db, fleet_config(["a", "b"]))
    registered(process)
    with Appender(db.uri):
        wait_progress(db, ["a", "b"])
        for turn in range(3):
            old = worker_id(process)
            db.execute("DELETE FROM millrace.worker_nodes")
            wait_until(lambda turn=turn: len(process.matching(msg="registered")) == turn + 2, 20, "a new registration")
            assert worker_id(process) != old
            lost = process.matching(msg="registration lost", worker=old)
            assert lost and "row is gone" in lost[0]["why"]
            wait_progress(db, ["a", "b"])
        assert db.values("SELECT worker_id::text FROM millrace.worker_nodes") == [worker_id(process)]
    assert len(process.matching(msg="ownership lost")) >= 2
    wait_exactly_once(db, ["a", "b"])
    process.stop()


def test_a_row_and_the_session_gone_together(db, worker):
    """The row is deleted and the connection cut before the worker can look."""
    db.create_effects()
    process = worker(db, fleet_config(["a"]))
    registered(process)
    with Appender(db.uri):
        wait_progress(db, ["a"])
        old = worker_id(process)
        process.sigstop()
        db.execute("DELETE FROM millrace.worker_nodes")
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
                   [f"millrace {old}"])
        process.sigcont()
        wait_until(lambda: worker_id(process) != old, 20, lambda: f"a new id: {process.log()}")
        process.wait_log(msg="registration lost")
        wait_progress(db, ["a"])
    wait_exactly_once(db, ["a"])
    process.stop()


# ---- What it costs --------------------------------------------------------------------------------------------------

def test_idle_cost_of_leader_and_others(worker, make_db):
    """Fewer than five statements a second a process, with fifty consumers, at default settings."""
    with PgServer({"shared_preload_libraries": "pg_stat_statements"}) as server:
        db = make_db(on=server)
        db.create_effects()
        db.execute("CREATE EXTENSION pg_stat_statements; CREATE ROLE second SUPERUSER LOGIN")
        consumers = names(50)
        config = {"consumers": [recorder(c) for c in consumers]}
        first = worker(db, config)
        registered(first)
        first.wait_log(msg="became leader")
        second = worker(server.uri(db.name, user="second"), config)
        wait_balanced(db, registered(first, second))
        insert_events(db, 10)
        wait_exactly_once(db, consumers)

        def rates(seconds):
            db.execute("SELECT pg_stat_statements_reset()")
            db.execute("SELECT pg_sleep(%s)", [seconds])
            rows = dict(db.rows("SELECT rolname, sum(calls)::int FROM pg_stat_statements s JOIN pg_roles r "
                                "ON r.oid = s.userid WHERE query NOT LIKE '%%pg_s%%' GROUP BY 1"))
            return {"leader": rows.get("postgres", 0) / seconds, "other": rows.get("second", 0) / seconds}
        wait_until(lambda: max(rates(1).values()) < 6, 20, "the workers to become quiet")
        quiet = rates(5)
        print(f"\nidle, 50 consumers: {quiet} statements a second")
        assert 0.5 < quiet["leader"] < 5 and 0.5 < quiet["other"] < 5, quiet
        for process in (first, second):
            process.stop()


def test_a_standby_worker_costs_little(db, worker):
    """More workers than consumers: the extra ones own nothing, and take over when needed."""
    db.create_effects()
    warm(db)
    processes = [worker(db, fleet_config(["a"])) for _ in range(3)]
    registered(*processes)
    with Appender(db.uri):
        for _ in range(2):
            wait_progress(db, ["a"])
            owner = of_id(processes, owners(db)["a"])
            owner.kill9()
            processes.remove(owner)
        wait_progress(db, ["a"])
    wait_exactly_once(db, ["a"])
    assert QUICK["heartbeat_timeout"] == "2s"
