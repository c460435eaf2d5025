"""What the fleet's tests share: quick settings, who leads and who owns, a steady appender, and an audit of every
assignment that was written."""

import threading
import time
import uuid
from collections import Counter

import psycopg

from harness import INSERT, StallProxy, assert_exactly_once, recorder, wait_until

QUICK = {"heartbeat_interval": "200ms", "heartbeat_timeout": "2s", "rebalance_interval": "100ms"}


def names(count):
    return [f"c{number:02}" for number in range(count)]


def fleet_config(consumers, **options):
    """A worker's configuration with short intervals; consumers by name, or as dictionaries."""
    made = [recorder(c) if isinstance(c, str) else c for c in consumers]
    return {"consumers": made, "worker": {**QUICK, **options}}


def slow_recorder(consumer, seconds, **options):
    """Records an event after that many seconds on the server."""
    return {"name": consumer, "sql": f"INSERT INTO effects(consumer, pos) SELECT '{consumer}', :global_position "
                                     f"FROM pg_sleep({seconds})", **options}


def worker_id(process, which=-1):
    """The id a process registered under; the newest unless told otherwise."""
    return process.matching(msg="registered")[which]["worker"]


def registered(*processes):
    for process in processes:
        process.wait_log(msg="registered", timeout=30)
    return [worker_id(process) for process in processes]


# ---- Who owns, who leads --------------------------------------------------------------------------------------------

def owners(db):
    return dict(db.rows("SELECT consumer_name, worker_id::text FROM millrace.consumer_assignments"))


def wait_balanced(db, workers, timeout=30):
    """All consumers are with exactly these workers (ids, or processes whatever their ids become), loads within one of
    each other. Gives the seconds it took."""
    begin = time.monotonic()

    def balanced():
        wanted = {w if isinstance(w, str) else worker_id(w) for w in workers}
        load = Counter(owners(db).values())
        return set(load) <= wanted and sum(load.values()) > 0 and (
            max(load.values()) - min(load.get(worker, 0) for worker in wanted) <= 1)
    wait_until(balanced, timeout, lambda: f"balance over {len(workers)} workers: {Counter(owners(db).values())}")
    return time.monotonic() - begin


LEADER_LOCK = """
    SELECT a.pid, substr(a.application_name, 10) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND a.datname = current_database()
        AND a.application_name LIKE 'millrace %%-%%' AND NOT EXISTS (SELECT FROM millrace.worker_nodes n
            WHERE n.session_lock = ((l.classid::bigint << 32) | l.objid::bigint)
                AND a.application_name = 'millrace ' || n.worker_id::text)
"""


def leader(db):
    """Id of the worker whose session holds the leader's lock, None for nobody."""
    rows = db.rows(LEADER_LOCK)
    return rows[0][1] if len(rows) == 1 else None


def leader_pid(db):
    """Process id of that session on the server, None for nobody."""
    rows = db.rows(LEADER_LOCK)
    return rows[0][0] if len(rows) == 1 else None


def lease_leader(db):
    return db.value("SELECT leader_id::text FROM millrace.worker_leader_election "
                    "WHERE expires_at > clock_timestamp()")


def of_id(processes, worker):
    """The process that is registered under an id."""
    return next(p for p in processes if worker_id(p) == worker)


def wait_leader(db, who=leader, other_than=None, timeout=20):
    return wait_until(lambda: (lambda now: now if now != other_than else None)(who(db)), timeout, "a leader")


# ---- The audit of leaders -------------------------------------------------------------------------------------------

def audit_assignments(db):
    """From now on every assignment a leader writes is recorded with who wrote it, on which session."""
    db.execute("""
        CREATE TABLE assignment_audit (n bigserial, consumer text, generation bigint, owner uuid, pid int,
            writer text, at timestamptz DEFAULT clock_timestamp());
        CREATE FUNCTION audit_assignment() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO assignment_audit(consumer, generation, owner, pid, writer)
                VALUES (NEW.consumer_name, NEW.generation, NEW.worker_id, pg_backend_pid(),
                    current_setting('application_name'));
            RETURN NULL; END $$;
        CREATE TRIGGER audit AFTER UPDATE ON millrace.consumer_assignments FOR EACH ROW
            WHEN (NEW.generation <> OLD.generation) EXECUTE FUNCTION audit_assignment()""")


def assert_one_writer_at_a_time(db):
    """Sessions that wrote assignments followed each other: none wrote again after another had begun, and no
    generation was given twice."""
    rows = db.rows("SELECT consumer, generation, pid FROM assignment_audit ORDER BY n")
    seen, current = set(), None
    for _, _, pid in rows:
        if pid != current:
            assert pid not in seen, f"session {pid} wrote again after another one: {rows}"
            seen.add(pid)
            current = pid
    given = Counter((consumer, generation) for consumer, generation, _ in rows)
    assert not [key for key, times in given.items() if times > 1], rows
    return len(seen)


# ---- Events ---------------------------------------------------------------------------------------------------------

class Appender:
    """Appends a few events all the time until stop(); survives restarts. `acknowledged` are those whose commit was
    confirmed."""

    def __init__(self, uri, pause=0.01):
        self.uri = uri
        self.pause = pause
        self.acknowledged = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.stop()

    def _run(self):
        connection = None
        number = 0
        while not self._stop.wait(self.pause):
            try:
                if connection is None:
                    connection = psycopg.connect(self.uri, application_name="appender", connect_timeout=3)
                drawn = []
                for _ in range(number % 3 + 1):
                    row = connection.execute(INSERT, ["Order", str(uuid.uuid4()), 1, uuid.uuid4(), "Made", b"{}"])
                    drawn.append(row.fetchone()[0])
                number += 1
                if number % 11 == 0:
                    connection.rollback()  # holes, too
                    continue
                connection.commit()
                self.acknowledged += drawn
            except psycopg.Error:
                if connection is not None:
                    connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def stop(self):
        self._stop.set()
        self._thread.join(30)


def progress(db, consumer):
    return db.value("SELECT coalesce(max(pos), 0) FROM effects WHERE consumer = %s", [consumer])


def wait_progress(db, consumers, timeout=30):
    """Each of the consumers handles something that comes after now. Gives the seconds it took."""
    begin = time.monotonic()
    before = {consumer: progress(db, consumer) for consumer in consumers}

    def moved():
        now = dict(db.rows("SELECT consumer, max(pos) FROM effects GROUP BY 1"))
        return all(now.get(consumer, 0) > before[consumer] for consumer in consumers)
    wait_until(moved, timeout, f"{consumers} to go on")
    return time.monotonic() - begin


def wait_exactly_once(db, consumers, timeout=60):
    """All of them have handled all events: once, in order."""
    def counts():
        return db.rows("SELECT (SELECT count(*) FROM effects WHERE consumer = ANY(%s)), (SELECT count(*) FROM events)",
                       [list(consumers)])[0]

    def done():
        handled, committed = counts()
        return handled >= committed * len(consumers)
    wait_until(done, timeout, lambda: f"{len(consumers)} consumers to handle all (handled, committed: {counts()})")
    for consumer in consumers:
        assert_exactly_once(db, consumer=consumer)


# ---- A network that forgets -----------------------------------------------------------------------------------------

class Blackhole(StallProxy):
    """Like a firewall that lost its state: forget() lets nothing of the present connections through any more, in
    either direction and for ever, not even their end; new connections work."""

    def __init__(self, *arguments, **options):
        self._forgotten = set()
        super().__init__(*arguments, **options)

    def forget(self):
        with self._lock:
            self._forgotten |= self._pairs

    def _cut(self, pair):
        if self._closed or pair not in self._forgotten:
            super()._cut(pair)

    def _pump(self, source, target, pair):
        try:
            while not self._closed:
                data = source.recv(65536)
                if pair in self._forgotten:
                    if not data:
                        return
                    continue
                if not data:
                    break
                target.sendall(data)
        except (OSError, ValueError):
            pass
        self._cut(pair)
