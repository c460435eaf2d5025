"""Leaders that die, stop, or lose their session: another one leads soon, and only one of them ever writes."""

import re
import time

import pytest

from fleet import (Appender, assert_one_writer_at_a_time, audit_assignments, fleet_config, leader, leader_pid,
                   lease_leader, names, of_id, owners, registered, wait_balanced, wait_exactly_once, wait_leader,
                   wait_progress, worker_id)
from harness import wait_until

CONSUMERS = names(6)


@pytest.fixture
def three(db, worker):
    """Three workers with a balanced fleet; gives them as a list."""
    db.create_effects()
    audit_assignments(db)

    def start(**options):
        processes = [worker(db, fleet_config(CONSUMERS, **options)) for _ in range(3)]
        wait_balanced(db, registered(*processes))
        return processes
    return start


def finish(db, processes, old=None):
    """Whatever happened, all is handled exactly once and no two leaders wrote at a time."""
    wait_exactly_once(db, CONSUMERS)
    assert_one_writer_at_a_time(db)
    for process in processes:
        if process is not old:
            process.stop()


def warm(db):
    """Missing session locks count only once the server is up for ten seconds."""
    wait_until(lambda: db.value("SELECT now() - pg_postmaster_start_time() > interval '10.5 s'"), 15)


def test_leader_killed(db, three):
    warm(db)
    processes = three()
    with Appender(db.uri):
        old = leader(db)
        begin = time.monotonic()
        of_id(processes, old).kill9()
        new = wait_leader(db, other_than=old)
        elected = time.monotonic() - begin
        wait_balanced(db, [worker_id(p) for p in processes if worker_id(p) != old])
        moved = time.monotonic() - begin
        wait_progress(db, CONSUMERS)
        print(f"\nleader killed: new leader after {elected:.2f} s, its work moved after {moved:.2f} s")
    assert new != old and elected < 5 and moved < 5
    finish(db, processes, of_id(processes, old))


def test_leaders_session_terminated(db, three):
    processes = three()
    with Appender(db.uri):
        for _ in range(3):
            old, pid = wait_leader(db), leader_pid(db)
            of_id(processes, old)
            begin = time.monotonic()
            db.execute("SELECT pg_terminate_backend(%s)", [pid])
            wait_until(lambda pid=pid: leader_pid(db) not in (None, pid), 10, "a leader on another session")
            elected = time.monotonic() - begin
            print(f"\nleader's session ended: a leader again after {elected:.2f} s")
            of_id(processes, old).wait_log(msg="leadership lost")
            wait_balanced(db, processes)
        wait_progress(db, CONSUMERS)
    finish(db, processes)


def test_leader_stopped(db, three):
    processes = three()
    with Appender(db.uri):
        old = leader(db)
        stopped = of_id(processes, old)
        stopped.sigstop()
        begin = time.monotonic()
        wait_leader(db, other_than=old)
        elected = time.monotonic() - begin
        rest = [p for p in processes if p is not stopped]
        wait_balanced(db, [worker_id(p) for p in rest])
        moved = time.monotonic() - begin
        print(f"\nleader stopped (heartbeat_timeout 2 s): new leader after {elected:.2f} s, "
              f"its work moved after {moved:.2f} s")
        assert elected < 6
        wait_progress(db, CONSUMERS)
        stopped.sigcont()
        stopped.wait_log(msg="registering anew", timeout=20)
        wait_until(lambda: len(stopped.matching(msg="registered")) == 2, 20, "it to register again")
        assert worker_id(stopped) != old
        wait_balanced(db, processes)
    assert stopped.matching(msg="leadership lost")
    finish(db, processes)


def test_lease_leader_stopped(db, three):
    processes = three(leader_strategy="lease")
    with Appender(db.uri):
        old = lease_leader(db)
        stopped = of_id(processes, old)
        stopped.sigstop()
        begin = time.monotonic()
        wait_leader(db, lease_leader, other_than=old)
        elected = time.monotonic() - begin
        rest = [p for p in processes if p is not stopped]
        wait_balanced(db, [worker_id(p) for p in rest])
        print(f"\nlease leader stopped (lease 2 s): new leader after {elected:.2f} s, "
              f"its work moved after {time.monotonic() - begin:.2f} s")
        assert elected < 6
        term = db.value("SELECT term FROM millrace.worker_leader_election")
        stopped.sigcont()
        stopped.wait_log(msg="registering anew", timeout=20)
        wait_until(lambda: len(stopped.matching(msg="registered")) == 2, 20, "it to register again")
        wait_balanced(db, processes)
        assert db.value("SELECT term FROM millrace.worker_leader_election") == term, "the new leader stays"
    finish(db, processes)


def test_lease_leader_killed(db, three):
    processes = three(leader_strategy="lease")
    with Appender(db.uri):
        old = lease_leader(db)
        begin = time.monotonic()
        of_id(processes, old).kill9()
        wait_leader(db, lease_leader, other_than=old)
        elected = time.monotonic() - begin
        wait_balanced(db, [worker_id(p) for p in processes if worker_id(p) != old])
        print(f"\nlease leader killed (lease 2 s): new leader after {elected:.2f} s, "
              f"its work moved after {time.monotonic() - begin:.2f} s")
        assert elected < 6
    finish(db, processes, of_id(processes, old))


def test_a_lease_lost_in_the_middle_refuses_the_write(db, worker):
    """Not by luck: the leader has decided, its write is on the server, and the lease goes to another one before it
    is checked."""
    db.create_effects()
    audit_assignments(db)
    config = fleet_config(CONSUMERS, leader_strategy="lease", heartbeat_interval="4s", heartbeat_timeout="6s")
    processes = [worker(db, config) for _ in range(2)]
    ids = registered(*processes)
    wait_balanced(db, ids)
    old = lease_leader(db)
    new = next(i for i in ids if i != old)
    deposed = of_id(processes, old)
    written = db.value("SELECT max(n) FROM assignment_audit")
    with db.connect(autocommit=False) as robber:
        robber.execute("SELECT FROM millrace.worker_leader_election FOR UPDATE")
        db.execute("UPDATE millrace.consumer_assignments SET worker_id = NULL WHERE consumer_name = 'c03'")
        wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                                    "AND query LIKE '%%assign_consumers%%' AND application_name LIKE %s",
                                    [f"%{old}"]), 10, "the leader's write to wait at its fence")
        robber.execute("UPDATE millrace.worker_leader_election SET leader_id = %s, term = term + 1, "
                       "expires_at = clock_timestamp() + interval '6 s'", [new])
        robber.commit()
    refused = deposed.wait_log(msg="rebalance refused")
    assert refused["sqlstate"] == "MR006"
    deposed.wait_log(msg="leadership lost")
    of_id(processes, new).wait_log(msg="became leader")
    wait_balanced(db, ids)
    assert db.values("SELECT DISTINCT writer FROM assignment_audit WHERE n > %s", [written]) == [
        f"millrace {new}"], "only the new leader wrote"
    with Appender(db.uri):
        wait_progress(db, CONSUMERS)
    finish(db, processes)


def test_a_write_of_a_lost_session_never_commits(db, worker):
    """The leader's write waits inside the server; its session ends there; another one leads and writes."""
    db.create_effects()
    audit_assignments(db)
    processes = [worker(db, fleet_config(CONSUMERS)) for _ in range(2)]
    wait_balanced(db, registered(*processes))
    pid = leader_pid(db)
    with db.connect(autocommit=False) as holder:
        holder.execute("SELECT FROM millrace.consumer_assignments FOR UPDATE")
        processes.append(worker(db, fleet_config(CONSUMERS)))
        ids = registered(*processes)
        wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                                    "AND query LIKE '%%assign_consumers%%' AND pid = %s", [pid]), 10,
                   "the leader's write to wait")
        db.execute("SELECT pg_terminate_backend(%s)", [pid])
        wait_until(lambda: leader_pid(db) not in (None, pid), 10, "another session to lead")
        holder.commit()
    wait_balanced(db, ids)
    with Appender(db.uri):
        wait_progress(db, CONSUMERS)
    assert_one_writer_at_a_time(db)
    assert None not in owners(db).values()
    finish(db, processes)


def test_a_leader_leaves_in_good_order(db, three):
    """SIGTERM gives the leadership away at once; nobody waits for a timeout."""
    processes = three(heartbeat_timeout="30s")
    with Appender(db.uri):
        old = leader(db)
        begin = time.monotonic()
        of_id(processes, old).stop()
        wait_leader(db, other_than=old)
        wait_balanced(db, [worker_id(p) for p in processes if worker_id(p) != old])
        print(f"\nleader stopped in good order: work moved after {time.monotonic() - begin:.2f} s")
        assert time.monotonic() - begin < 5
    finish(db, processes, of_id(processes, old))


def test_two_fleets_in_one_database(db, worker):
    """Each has its own leader and its own consumers of the same names."""
    from harness import millrace
    db.create_effects()
    db.create_effects("effects2")
    millrace("--schema", "second", "schema", "apply", database=db)
    first = worker(db, fleet_config(["a"]))
    second_config = fleet_config([{"name": "a", "sql": "INSERT INTO effects2(consumer, pos) "
                                                       "VALUES ('a', :global_position)"}])
    second = worker(db, {**second_config, "schema": "second"})
    ids = registered(first, second)
    for process in (first, second):
        process.wait_log(msg="became leader")
    with Appender(db.uri):
        wait_progress(db, ["a"])
    wait_exactly_once(db, ["a"])
    wait_until(lambda: db.value("SELECT count(*) FROM effects2") == db.value("SELECT count(*) FROM events"), 20)
    assert db.values("SELECT worker_id::text FROM millrace.worker_nodes") == [ids[0]]
    assert db.values("SELECT worker_id::text FROM second.worker_nodes") == [ids[1]]
    keys = db.values("SELECT DISTINCT (classid, objid)::text FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
                     "WHERE locktype = 'advisory' AND a.datname = current_database()")
    assert len(keys) == 4 and all(re.fullmatch(r"\(\d+,\d+\)", key) for key in keys), "two workers, two leaders"
    first.kill9()
    second.stop()
