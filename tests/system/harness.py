"""What the system tests are written with: databases, workers, ways to append, a proxy that misbehaves, and the check
that nothing was lost or doubled.

The program under test is MILLRACE_BIN (build/millrace without it). Nothing here waits for a fixed time: every
wait polls a condition and names it when it gives up.
"""

import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import psycopg
import yaml

ROOT = Path(__file__).resolve().parents[2]
MILLRACE_BIN = os.environ.get("MILLRACE_BIN", str(ROOT / "build" / "millrace"))
# Sanitizers and the large sizes of ./dev soak need longer for the same work.
SANITIZED = any(word in MILLRACE_BIN for word in ("asan", "tsan"))
PATIENCE = 4 if SANITIZED else 1
SCALE = float(os.environ.get("MILLRACE_SCALE", "1"))
SANITIZER_WORDS = ("AddressSanitizer", "LeakSanitizer", "ThreadSanitizer", "runtime error:")


def wait_until(condition, timeout=10, what=None, interval=0.02):
    """Polls `condition` until it gives something true, and returns that."""
    deadline = time.monotonic() + timeout * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            name = what() if callable(what) else what or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"waited {timeout * PATIENCE} s for {name}")
        time.sleep(interval)


def millrace(*arguments, database=None, input=None, check=True, timeout=60, env=None, cwd=None):
    """Runs the program to its end. `check`: an exit status other than 0 fails the test with what it said."""
    command = [MILLRACE_BIN]
    if database is not None:
        command += ["--database", getattr(database, "uri", database)]
    command += [str(argument) for argument in arguments]
    if isinstance(input, str):
        input = input.encode()
    done = subprocess.run(command, input=b"" if input is None else input, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=timeout * PATIENCE, check=False, cwd=cwd,
                          env={**os.environ, **(env or {})})
    done.stdout = done.stdout.decode(errors="replace")
    done.stderr = done.stderr.decode(errors="replace")
    found = [word for word in SANITIZER_WORDS if word in done.stderr]
    assert not found, f"{command}: {done.stderr}"
    assert done.returncode >= 0, f"{command} died of signal {-done.returncode}:\n{done.stderr}"
    if check:
        assert done.returncode == 0, f"{command} exited {done.returncode}:\n{done.stdout}{done.stderr}"
    return done


# ---- Databases ------------------------------------------------------------------------------------------------------

class Database:
    """One database of a test: name, uri, and short ways to ask it things."""

    def __init__(self, server, name):
        self.server = server
        self.name = name
        self.uri = server.uri(name)
        self._connection = None

    def connect(self, **options):
        """A new connection; yours to close. autocommit unless said otherwise."""
        return psycopg.connect(self.uri, **{"autocommit": True, **options})

    def execute(self, sql, parameters=None):
        """Runs a statement on a connection of its own that outlives server restarts."""
        for attempt in (1, 2):
            if self._connection is None or self._connection.closed:
                self._connection = self.connect(application_name="test")
            try:
                return self._connection.execute(sql, parameters)
            except psycopg.OperationalError:
                self._connection.close()
                if attempt == 2:
                    raise
        return None

    def rows(self, sql, parameters=None):
        return self.execute(sql, parameters).fetchall()

    def value(self, sql, parameters=None):
        row = self.execute(sql, parameters).fetchone()
        return row[0] if row else None

    def values(self, sql, parameters=None):
        return [row[0] for row in self.rows(sql, parameters)]

    def close(self):
        if self._connection is not None:
            self._connection.close()

    # The table that handlers of most tests write to; `n` shows the order in which they did.
    def create_effects(self, table="effects"):
        self.execute(f"CREATE TABLE {table} (n bigserial PRIMARY KEY, consumer text NOT NULL, pos bigint NOT NULL)")
        return table

    def committed(self, where="true"):
        """Positions of all committed events, in order."""
        return self.values(f"SELECT global_position FROM events WHERE {where} ORDER BY 1")

    def handled(self, consumer, table="effects"):
        """Positions that a consumer wrote, in the order it wrote them."""
        return self.values(f"SELECT pos FROM {table} WHERE consumer = %s ORDER BY n", [consumer])

    def checkpoint(self, consumer):
        return self.value("SELECT last_position FROM millrace.consumer_checkpoints "
                          "WHERE consumer_name = %s", [consumer])


def effect_sql(consumer, table="effects"):
    """The `sql` handler that records an event in an effects table."""
    return f"INSERT INTO {table}(consumer, pos) VALUES ('{consumer}', :global_position)"


def recorder(consumer, table="effects", **options):
    """A consumer for a worker's YAML that records each event it handles."""
    return {"name": consumer, "sql": effect_sql(consumer, table), **options}


def assert_exactly_once(db, effects_table="effects", consumer="a", where="true"):
    """What the consumer handled is what was committed: all of it, once, in increasing order."""
    committed = db.committed(where)
    handled = db.handled(consumer, effects_table)
    doubled = sorted(pos for pos, times in Counter(handled).items() if times > 1)
    lost = sorted(set(committed) - set(handled))
    invented = sorted(set(handled) - set(committed))
    assert not lost, f"{consumer}: {len(lost)} of {len(committed)} lost: {lost[:20]}"
    assert not doubled, f"{consumer}: {len(doubled)} handled twice: {doubled[:20]}"
    assert not invented, f"{consumer}: {len(invented)} handled but never committed: {invented[:20]}"
    unordered = [pair for pair in zip(handled, handled[1:]) if pair[0] >= pair[1]]
    assert not unordered, f"{consumer}: out of order: {unordered[:20]}"


def all_handled(db, consumer="a", effects_table="effects", timeout=30):
    """Waits until a consumer has handled as many events as are committed, then checks that it is exactly those."""
    def counts():
        return db.rows(f"SELECT (SELECT count(*) FROM {effects_table} WHERE consumer = %s), "
                       "(SELECT count(*) FROM events)", [consumer])[0]

    def done():
        handled, committed = counts()
        return handled >= committed
    wait_until(done, timeout, lambda: f"{consumer} to handle all events (handled, committed: {counts()})")
    assert_exactly_once(db, effects_table, consumer)


# ---- Appending ------------------------------------------------------------------------------------------------------

INSERT = ("INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload) "
          "VALUES (%s, %s, %s, %s, %s, %s) RETURNING global_position")


def insert_event(connection, aggregate_type="Order", aggregate_id=None, version=1, event_type="Happened",
                 payload=b"{}"):
    """One plain INSERT, as any application may do it; gives the position. A new stream unless one is named."""
    aggregate_id = aggregate_id or str(uuid.uuid4())
    row = connection.execute(INSERT, [aggregate_type, aggregate_id, version, uuid.uuid4(), event_type, payload])
    return row.fetchone()[0]


def insert_events(db, count, aggregate_type="Order", event_type="Happened", payload=b"{}", connection=None):
    """Many events by one INSERT … SELECT, each in a new stream."""
    (connection or db).execute(
        "INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload) "
        "SELECT %s, gen_random_uuid()::text, 1, gen_random_uuid(), %s, %s FROM generate_series(1, %s)",
        [aggregate_type, event_type, payload, count])


def rolled_back(db, count=1):
    """Draws `count` positions and rolls them back, one transaction each; gives them."""
    positions = []
    with db.connect(autocommit=False) as connection:
        for _ in range(count):
            positions.append(insert_event(connection))
            connection.rollback()
    return positions


@contextmanager
def open_transaction(db, **event):
    """A transaction that has drawn a position and stays open inside the `with`: (connection, position).
    The test commits or rolls back; otherwise it is rolled back at the end."""
    connection = db.connect(autocommit=False, application_name="open transaction")
    try:
        yield connection, insert_event(connection, **event)
    finally:
        if not connection.closed:
            connection.rollback()
            connection.close()


def append_lines(db, events, *arguments, check=True):
    """Appends through the program: dictionaries, one JSON line each (a string or bytes goes as it is)."""
    lines = []
    for event in events:
        line = event if isinstance(event, (bytes, str)) else json.dumps(event)
        lines.append(line.encode() if isinstance(line, str) else line)
    return millrace("append", *arguments, database=db, input=b"\n".join(lines) + b"\n", check=check)


# ---- Workers --------------------------------------------------------------------------------------------------------

class Worker:
    """`millrace run` as a process of its own, its log lines read as they come."""

    def __init__(self, config, *arguments, database=None, directory=None, env=None):
        config = dict(config)
        if database is not None:
            config.setdefault("database", getattr(database, "uri", database))
        self._own = None if directory else tempfile.TemporaryDirectory(prefix="mr-run-")  # goes with this object
        self.directory = Path(directory or self._own.name)
        self.path = self.directory / f"worker-{uuid.uuid4().hex[:8]}.yaml"
        self.path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
        self.entries = []  # one dictionary a line; a line that is no JSON is {"raw": line}
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            [MILLRACE_BIN, "run", str(self.path), "--log-format", "json", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})}, start_new_session=True)
        self.stdout = b""
        self._threads = [threading.Thread(target=self._read_log, daemon=True),
                         threading.Thread(target=self._read_output, daemon=True)]
        for thread in self._threads:
            thread.start()

    def _read_log(self):
        for line in self.process.stderr:
            text = line.decode(errors="replace").rstrip("\n")
            try:
                entry = json.loads(text)
            except ValueError:
                entry = None
            with self._news:
                self.entries.append(entry if isinstance(entry, dict) else {"raw": text})
                self._news.notify_all()

    def _read_output(self):
        self.stdout = self.process.stdout.read()

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        """All log lines so far as text, for messages."""
        with self._news:
            return "\n".join(e["raw"] if "raw" in e else json.dumps(e, ensure_ascii=False) for e in self.entries)

    def matching(self, predicate=None, **fields):
        """Log entries so far for which the predicate holds and all the fields are equal."""
        def fits(entry):
            return (predicate is None or predicate(entry)) and all(
                entry.get(name) == value for name, value in fields.items())
        with self._news:
            return [entry for entry in self.entries if fits(entry)]

    def wait_log(self, predicate=None, timeout=10, **fields):
        """The first matching entry, waited for. A string as predicate is looked for in `msg`."""
        wanted = predicate
        if isinstance(predicate, str):
            wanted = lambda entry: predicate in entry.get("msg", entry.get("raw", ""))  # noqa: E731
        deadline = time.monotonic() + timeout * PATIENCE
        while True:
            found = self.matching(wanted, **fields)
            if found:
                return found[0]
            left = deadline - time.monotonic()
            if left <= 0 or (self.process.poll() is not None and not self._threads[0].is_alive()):
                found = self.matching(wanted, **fields)
                if found:
                    return found[0]
                raise AssertionError(f"no log line with {predicate} {fields} in {timeout * PATIENCE} s:\n{self.log()}")
            with self._news:
                self._news.wait(min(left, 0.1))

    def running(self):
        return self.process.poll() is None

    def signal(self, number):
        if self.running():
            self.process.send_signal(number)

    def sigstop(self):
        self.signal(signal.SIGSTOP)

    def sigcont(self):
        self.signal(signal.SIGCONT)

    def kill9(self):
        self.signal(signal.SIGKILL)
        self.process.wait()
        for thread in self._threads:
            thread.join(5)

    def wait_exit(self, timeout=30):
        """The exit status, waited for."""
        try:
            status = self.process.wait(timeout * PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker still runs after {timeout * PATIENCE} s:\n{self.log()}") from None
        for thread in self._threads:
            thread.join(5)
        self.check_sanitizers()
        return status

    def stop(self, timeout=30):
        """SIGTERM, and the exit status, which must be 0."""
        self.sigcont()
        self.signal(signal.SIGTERM)
        status = self.wait_exit(timeout)
        assert status == 0, f"the worker exited {status} on SIGTERM:\n{self.log()}"
        return status

    def finish(self, timeout=60, status=0):
        """For `--once`: waits for its end and checks the status."""
        found = self.wait_exit(timeout)
        assert found == status, f"the worker exited {found}, not {status}:\n{self.log()}"

    def check_sanitizers(self):
        text = self.log()
        assert not [word for word in SANITIZER_WORDS if word in text], text

    def discard(self):
        """For the end of a test, whatever state it is in."""
        if self.running():
            self.sigcont()
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(10 * PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill9()
                raise AssertionError(f"the worker did not stop at the end of the test:\n{self.log()}") from None
        for thread in self._threads:
            thread.join(5)
        self.process.stdout.close()
        self.process.stderr.close()
        self.check_sanitizers()

    def rss_kib(self):
        """Resident memory now."""
        text = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return int(text.split("VmRSS:")[1].split()[0])


# ---- A network that misbehaves --------------------------------------------------------------------------------------

class StallProxy:
    """Stands between a worker and the server, on a unix socket and on a TCP port of its own.

    stall() lets nothing through but keeps connections open (a host that vanished), resume() goes on, drop() cuts all
    connections, refuse(True) also takes no new ones, delay(seconds) holds each chunk back in both directions."""

    def __init__(self, server, tcp=False):
        self._target = server.socket_path()
        self._flowing = threading.Event()
        self._flowing.set()
        self._refusing = False
        self._delay = 0.0
        self._pairs = set()
        self._lock = threading.Lock()
        self._closed = False
        self.accepted = 0
        self.directory = tempfile.mkdtemp(prefix="mr-px-", dir="/tmp")
        if tcp:
            self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._listener.bind(("127.0.0.1", 0))
            self.host, self.port = "127.0.0.1", self._listener.getsockname()[1]
        else:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(os.path.join(self.directory, ".s.PGSQL.5432"))
            self.host, self.port = self.directory, 5432
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def uri(self, db):
        """URI of a database through this proxy."""
        return db.server.uri(db.name, host=self.host, port=self.port)

    def _accept(self):
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing or self._closed:
                client.close()
                continue
            upstream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                upstream.connect(self._target)
            except OSError:  # the server is down: as if nothing listened
                client.close()
                upstream.close()
                continue
            pair = (client, upstream)
            with self._lock:
                self._pairs.add(pair)
                self.accepted += 1
            for ends in (pair, pair[::-1]):
                threading.Thread(target=self._pump, args=(*ends, pair), daemon=True).start()

    def _pump(self, source, target, pair):
        try:
            while True:
                readable, _, _ = select.select([source], [], [], 0.5)
                if not readable:
                    continue
                data = source.recv(65536)
                if self._delay:
                    time.sleep(self._delay)
                self._flowing.wait()
                if not data:
                    break
                target.sendall(data)
        except (OSError, ValueError):
            pass
        self._cut(pair)

    def _cut(self, pair):
        with self._lock:
            self._pairs.discard(pair)
        for end in pair:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def connections(self):
        with self._lock:
            return len(self._pairs)

    def stall(self):
        self._flowing.clear()

    def resume(self):
        self._flowing.set()

    def delay(self, seconds):
        self._delay = seconds

    def refuse(self, on=True):
        self._refusing = on

    def drop(self):
        """Cuts every connection at once, in the middle of whatever it carries."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._cut(pair)

    def close(self):
        self._closed = True
        # A plain close() would leave the accepting thread inside accept().
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        self._flowing.set()
        self.drop()
        for name in os.listdir(self.directory):
            os.unlink(os.path.join(self.directory, name))
        os.rmdir(self.directory)
