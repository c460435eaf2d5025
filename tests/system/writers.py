"""Writers that do to the log everything an application may do: commit late, roll back, use savepoints, insert many
rows at once, prepare transactions and finish them later, get killed. And the check of the audit of holes.
"""

import json
import random
import threading
import uuid

import psycopg

from harness import INSERT, wait_until

MANY = ("INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload) "
        "SELECT %s, gen_random_uuid()::text, 1, gen_random_uuid(), %s, '{}' FROM generate_series(1, %s)")
TYPES = ("Order", "Invoice", "User")
EVENT_TYPES = ("Made", "Changed", "Gone")


class Writers:
    """`count` sessions that write at random until stop(). The seed is shown when something goes wrong."""

    def __init__(self, db, count=16, seed=None, prepared=True, kills=True, hold=0.05):
        self.db = db
        self.seed = random.randrange(1 << 30) if seed is None else seed
        self.hold = hold
        self.prepared = prepared
        self.errors = []
        self.transactions = 0
        self.killed = 0
        self._gids = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        print(f"writers: seed {self.seed}")
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(count)]
        if kills:
            self._threads.append(threading.Thread(target=self._kill, daemon=True))
        for thread in self._threads:
            thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    # Each action gets a connection without an open transaction and leaves it so.

    def _one(self, connection, rng):
        self._insert(connection, rng)
        if rng.random() < 0.3:
            self._stop.wait(rng.random() * self.hold)
        connection.commit()

    def _many(self, connection, rng):
        connection.execute(MANY, [rng.choice(TYPES), rng.choice(EVENT_TYPES), rng.randint(1, 30)])
        connection.commit()

    def _roll_back(self, connection, rng):
        connection.execute(MANY, [rng.choice(TYPES), "Never", rng.randint(1, 12)])
        if rng.random() < 0.2:
            self._stop.wait(rng.random() * self.hold)
        connection.rollback()

    def _savepoint(self, connection, rng):
        if rng.random() < 0.5:
            self._insert(connection, rng)
        connection.execute("SAVEPOINT s")
        connection.execute(MANY, [rng.choice(TYPES), "Never", rng.randint(1, 5)])
        if rng.random() < 0.3:
            self._stop.wait(rng.random() * self.hold)
        connection.execute("ROLLBACK TO SAVEPOINT s")
        if rng.random() < 0.5:
            self._stop.wait(rng.random() * self.hold)
        if rng.random() < 0.7:
            self._insert(connection, rng)
        connection.commit()

    def _failing(self, connection, rng):
        """An error in the middle, as a unique violation makes: it burns a position."""
        stream = str(uuid.uuid4())
        try:
            for _ in range(2):
                connection.execute(INSERT, [rng.choice(TYPES), stream, 1, uuid.uuid4(), "Never", b"{}"])
        except psycopg.errors.UniqueViolation:
            pass
        connection.rollback()

    def _append(self, connection, rng):
        events = [{"event_type": rng.choice(EVENT_TYPES), "data": {"n": n}} for n in range(rng.randint(1, 6))]
        connection.execute("SELECT count(*) FROM millrace.append(%s, %s, -1, %s::jsonb)",
                           [rng.choice(TYPES), f"s{rng.randint(1, 40)}", json.dumps(events)])
        if rng.random() < 0.2:
            connection.rollback()
        else:
            connection.commit()

    def _prepare(self, connection, rng):
        if not self.prepared or len(self._gids) > 8:
            return
        gid = f"{self.db.name}-{uuid.uuid4().hex}"
        self._insert(connection, rng)
        connection.execute(f"PREPARE TRANSACTION '{gid}'")
        with self._lock:
            self._gids.append(gid)

    def _finish_prepared(self, connection, rng):
        with self._lock:
            gid = self._gids.pop(rng.randrange(len(self._gids))) if self._gids else None
        if not gid:
            return
        try:
            connection.rollback()
            connection.autocommit = True
            connection.execute(f"{rng.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])} PREPARED '{gid}'")
            connection.autocommit = False
        except (psycopg.OperationalError, psycopg.InterfaceError):
            with self._lock:
                self._gids.append(gid)  # killed in between: another one finishes it
            raise

    def _insert(self, connection, rng):
        connection.execute(INSERT, [rng.choice(TYPES), str(uuid.uuid4()), 1, uuid.uuid4(),
                                    rng.choice(EVENT_TYPES), b'{"n": 1}'])

    def _run(self, number):
        rng = random.Random(self.seed * 1000 + number)
        actions = [self._one] * 4 + [self._many] * 2 + [self._roll_back] * 3 + [self._savepoint] * 2 + [
            self._failing, self._append, self._prepare, self._finish_prepared]
        connection = None
        while not self._stop.is_set():
            try:
                if connection is None or connection.closed:
                    connection = self.db.connect(autocommit=False, application_name="writer")
                rng.choice(actions)(connection, rng)
                self.transactions += 1
            except (psycopg.OperationalError, psycopg.InterfaceError):
                # Killed, or the server is away: a session begins anew.
                if connection is not None:
                    connection.close()
                self._stop.wait(0.05)
            except psycopg.errors.UndefinedObject:  # a prepared transaction that was finished before the kill
                connection.close()
            except psycopg.Error as error:
                connection.rollback()
                if error.sqlstate != "MR001" and not str(error.sqlstate).startswith("40"):
                    self.errors.append(repr(error))
        if connection is not None and not connection.closed:
            connection.close()

    def _kill(self):
        rng = random.Random(self.seed)
        while not self._stop.wait(0.1 + rng.random() * 0.3):
            try:
                self.killed += len(self.db.values(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'writer' "
                    "AND datname = current_database() ORDER BY random() LIMIT 1"))
            except psycopg.Error:
                pass

    def stop(self):
        """Ends all of them, finishes what is prepared, and tells how many positions were drawn and committed."""
        self.__exit__()
        assert not self.errors, f"seed {self.seed}: {self.errors[:3]}"
        for gid in self.db.values("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            self.db.execute(f"COMMIT PREPARED '{gid}'")
        wait_until(lambda: self.db.value(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'writer' "
            "AND datname = current_database()") == 0, what="the writers' backends to end")
        drawn = self.db.value("SELECT last_value FROM events_global_position_seq")
        committed = self.db.value("SELECT count(*) FROM events")
        print(f"writers: {self.transactions} transactions, {drawn} positions drawn, {committed} committed, "
              f"{self.killed} backends killed")
        return drawn, committed


def assert_holes_audited(db, consumer, start=0):
    """Every position up to the checkpoint that is not in the log has one row in the audit, no other position has."""
    checkpoint = db.checkpoint(consumer)
    committed = set(db.values("SELECT global_position FROM events WHERE global_position <= %s", [checkpoint]))
    missing = set(range(start + 1, checkpoint + 1)) - committed
    audited = []
    for first, last in db.rows("SELECT gap_position, gap_end FROM millrace.consumer_gap_skips "
                               "WHERE consumer_name = %s", [consumer]):
        audited.extend(range(first, last + 1))
    assert len(audited) == len(set(audited)), f"{consumer}: positions audited twice"
    assert set(audited) == missing, (
        f"{consumer}: {len(missing)} missing, {len(audited)} audited; unaudited {sorted(missing - set(audited))[:10]}, "
        f"wrongly {sorted(set(audited) - missing)[:10]}")
