"""The way to the server: cut, stalled, silently forgotten; the server restarted or failed over; a transaction pooler.
Work moves, who was cut off recovers, nothing is lost or doubled."""

import os
import pathlib
import pwd
import tempfile
import shutil
import subprocess
import time

import psycopg
import pytest

from fleet import (Appender, Blackhole, fleet_config, leader, lease_leader, names, of_id, owners, registered,
                   wait_balanced, wait_exactly_once, wait_progress, worker_id)
from harness import Database, insert_events, wait_until
from pg_server import PgServer

CONSUMERS = names(6)


def test_stalled_then_back(db, worker, proxy):
    """Nothing goes through any more, connections stay open on both sides."""
    db.create_effects()
    way = proxy(tcp=True)
    cut = worker(way.uri(db), fleet_config(CONSUMERS, batch_timeout="2s"))
    well = worker(db, fleet_config(CONSUMERS))
    wait_balanced(db, registered(cut, well))
    old = worker_id(cut)
    with Appender(db.uri):
        wait_progress(db, CONSUMERS)
        way.stall()
        begin = time.monotonic()
        wait_balanced(db, [worker_id(well)])
        moved = time.monotonic() - begin
        wait_progress(db, CONSUMERS)
        print(f"\nstalled (heartbeat_timeout 2 s): work moved after {moved:.2f} s, all went on after "
              f"{time.monotonic() - begin:.2f} s")
        assert moved < 8
        # It notices by itself, with nothing but silence to go by.
        lost = cut.wait_log(lambda e: e.get("msg") == "connection lost" and e.get("connection") == "control",
                            timeout=20)
        assert "did not answer in time" in lost["error"]
        print(f"the cut worker gave up its connection after {time.monotonic() - begin:.2f} s")
        way.resume()
        back = time.monotonic()
        wait_until(lambda: worker_id(cut) != old, 30, "the cut worker to register anew")
        wait_balanced(db, [cut, well])
        wait_progress(db, CONSUMERS)
        print(f"recovered {time.monotonic() - back:.2f} s after the cut ended")
    wait_exactly_once(db, CONSUMERS)
    for process in (cut, well):
        process.stop()


def test_dropped_again_and_again(db, worker, proxy):
    db.create_effects()
    way = proxy()
    cut = worker(way.uri(db), fleet_config(CONSUMERS))
    well = worker(db, fleet_config(CONSUMERS))
    wait_balanced(db, registered(cut, well))
    with Appender(db.uri):
        for _ in range(10):
            wait_progress(db, CONSUMERS[:1])
            way.drop()
        way.refuse(True)
        way.drop()
        wait_balanced(db, [worker_id(well)])
        wait_progress(db, CONSUMERS)
        way.refuse(False)
        wait_balanced(db, [cut, well])
        wait_progress(db, CONSUMERS)
    wait_exactly_once(db, CONSUMERS)
    for process in (cut, well):
        process.stop()


@pytest.fixture
def blackhole(server):
    made = []

    def make(on=None):
        made.append(Blackhole(on or server))
        return made[-1]
    yield make
    for one in made:
        one.close()


def test_forgotten_connections(db, worker, blackhole):
    """A firewall lost its state: no byte and no end comes through the old connections, new ones work. The server
    believes the old sessions alive, the leader's among them, and one is in the middle of a batch."""
    db.create_effects()
    way = blackhole()
    handler = ("INSERT INTO effects(consumer, pos) SELECT 'c00', :global_position FROM pg_sleep(0.002) "
               "WHERE octet_length(:payload) > 0")
    consumers = [{"name": "c00", "sql": handler, "batch_size": 500}, "c01", "c02", "c03"]
    # As much patience as at default settings, so that only its own deadlines can help.
    patient = {"heartbeat_timeout": "60s", "batch_timeout": "3s"}
    cut = worker(way.uri(db), fleet_config(consumers, **patient))
    registered(cut)
    cut.wait_log(msg="became leader")
    well = worker(db, fleet_config(consumers, **patient))
    wait_balanced(db, registered(cut, well))
    assert leader(db) == worker_id(cut) and owners(db)["c00"] == worker_id(cut)
    in_batch = ("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND query LIKE '%%pg_sleep(0.002)%%' "
                "AND state = 'active'")
    insert_events(db, 1000, payload=b"x" * 4000)
    wait_until(lambda: db.value(in_batch, [f"millrace {worker_id(cut)}"]), 20, "a batch", 0.001)
    way.forget()
    begin = time.monotonic()
    with Appender(db.uri):
        wait_until(lambda: len(cut.matching(msg="reconnected", connection="control")) > 0, 30, "the control connection")
        print(f"\nforgotten: control again after {time.monotonic() - begin:.2f} s")
        wait_progress(db, ["c00", "c01", "c02", "c03"], 60)
        print(f"forgotten: all consumers go on after {time.monotonic() - begin:.2f} s")
        wait_until(lambda: leader(db) is not None, 30, "a leader")
        # It really leads: a third worker gets its share.
        third = worker(db, fleet_config(consumers, **patient))
        wait_balanced(db, registered(cut, well, third), 30)
        print(f"forgotten: rebalanced after {time.monotonic() - begin:.2f} s")
    wait_exactly_once(db, names(4))
    for process in (cut, well, third):
        process.stop()


# ---- The server goes and comes --------------------------------------------------------------------------------------

@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_server_restart(worker, make_db, own_server, mode):
    db = make_db(on=own_server)
    db.create_effects()
    processes = [worker(db, fleet_config(CONSUMERS)) for _ in range(3)]
    wait_balanced(db, registered(*processes))
    with Appender(db.uri):
        for _ in range(2):
            wait_progress(db, CONSUMERS)
            own_server.restart(mode)
            begin = time.monotonic()
            wait_progress(db, CONSUMERS)
            print(f"\nrestart ({mode}): all go on {time.monotonic() - begin:.2f} s after the server is back")
    wait_until(lambda: leader(db), 20, "a leader")
    wait_exactly_once(db, CONSUMERS)
    for process in processes:
        process.stop()


def test_a_long_outage(worker, make_db, own_server):
    """Longer than the heartbeat timeout: everybody looks dead when the server comes back, and nobody is."""
    db = make_db(on=own_server)
    db.create_effects()
    processes = [worker(db, fleet_config(CONSUMERS, heartbeat_timeout="1s")) for _ in range(3)]
    wait_balanced(db, registered(*processes))
    with Appender(db.uri):
        wait_progress(db, CONSUMERS)
        own_server.stop("immediate")
        down = time.monotonic()
        wait_until(lambda: time.monotonic() - down > 2.5, what="the outage to last")
        own_server.start()
        wait_progress(db, CONSUMERS)
        wait_balanced(db, processes)
    wait_exactly_once(db, CONSUMERS)
    for process in processes:
        process.stop()


def test_fail_over_to_a_standby(worker, make_db):
    """Several hosts in the URI, synchronous replication: what was acknowledged is there and handled once."""
    with PgServer() as primary:
        db = make_db(on=primary)
        db.create_effects()
        standby = primary.create_standby()
        db.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        db.execute("SELECT pg_reload_conf()")
        wait_until(lambda: db.value("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"), 20,
                   "synchronous replication")
        uri = primary.uri(db.name, host=f"{primary.base},{standby.base}", target_session_attrs="read-write")
        processes = [worker(uri, fleet_config(CONSUMERS)) for _ in range(3)]
        wait_balanced(db, registered(*processes))
        with Appender(uri) as appender:
            wait_progress(db, CONSUMERS)
            primary.kill9()
            standby.promote()
            begin = time.monotonic()
            survivor = Database(standby, db.name)
            wait_progress(survivor, CONSUMERS, 60)
            print(f"\nfail-over: all go on {time.monotonic() - begin:.2f} s after the standby is promoted")
        wait_exactly_once(survivor, CONSUMERS)
        lost = set(appender.acknowledged) - set(survivor.committed())
        assert not lost, f"{len(lost)} acknowledged events are not there: {sorted(lost)[:10]}"
        wait_balanced(survivor, processes)
        for process in processes:
            process.stop()
        survivor.close()


# ---- Through a transaction pooler -----------------------------------------------------------------------------------

class PgBouncer:
    """In transaction mode, on a socket in a directory of its own."""

    def __init__(self, server, directory):
        self.directory = str(directory)
        account = pwd.getpwnam("postgres") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        os.chown(self.directory, account.pw_uid, account.pw_gid)
        path = directory / "pgbouncer.ini"
        path.write_text(f"""
[databases]
* = host={server.base} port={server.port} user=postgres
[pgbouncer]
unix_socket_dir = {self.directory}
listen_addr =
listen_port = 6432
auth_type = any
pool_mode = transaction
default_pool_size = 6
server_round_robin = 1
max_client_conn = 200
logfile = {self.directory}/log
pidfile = {self.directory}/pid
""", encoding="ascii")
        os.chmod(path, 0o644)
        as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        self.process = subprocess.Popen(["/usr/sbin/pgbouncer", str(path)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **as_user)
        wait_until(lambda: os.path.exists(f"{self.directory}/.s.PGSQL.6432"), 10,
                   lambda: f"PgBouncer: {(directory / 'log').read_text() if (directory / 'log').exists() else ''}")

    def uri(self, db):
        return db.server.uri(db.name, host=self.directory, port=6432)

    def close(self):
        self.process.terminate()
        self.process.wait(10)


@pytest.fixture
def pgbouncer(server):
    # Not below tmp_path: that is root's alone, and PgBouncer refuses to run as root.
    directory = pathlib.Path(tempfile.mkdtemp(prefix="mr-pgbouncer-"))
    instance = PgBouncer(server, directory)
    yield instance
    instance.close()
    shutil.rmtree(directory, ignore_errors=True)


def test_through_pgbouncer(db, worker, pgbouncer):
    """lease + poll without prepared statements: nothing in the process needs a session."""
    db.create_effects()
    uri = pgbouncer.uri(db)
    config = fleet_config(CONSUMERS, leader_strategy="lease", prepared_statements=False)
    processes = [worker(uri, config) for _ in range(2)]
    wait_balanced(db, registered(*processes))
    with Appender(uri):
        wait_progress(db, CONSUMERS)
        assert db.value("SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
                        "WHERE locktype = 'advisory' AND datname = current_database()") == 0
        assert db.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' "
                        "AND datname = current_database()") == 0
        begin = time.monotonic()
        victim = of_id(processes, lease_leader(db))
        victim.kill9()
        rest = next(p for p in processes if p is not victim)
        wait_balanced(db, [worker_id(rest)])
        wait_progress(db, CONSUMERS)
        print(f"\nthrough PgBouncer: killed lease leader's work goes on after {time.monotonic() - begin:.2f} s "
              "(heartbeat_timeout 2 s)")
        again = worker(uri, config)
        wait_balanced(db, registered(rest, again))
        # The pooler's sessions end under everybody's feet.
        for _ in range(5):
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                       "AND datname = current_database()")
            wait_progress(db, CONSUMERS)
    wait_exactly_once(db, CONSUMERS)
    for process in (rest, again):
        process.stop()
    with psycopg.connect(uri, autocommit=True, prepare_threshold=None) as connection:
        assert connection.execute("SELECT count(*) FROM millrace.worker_nodes WHERE state = 'alive'").fetchone()[0] <= 1
