"""What the tests of the built-in table of jobs have in common: a table of effects that handlers write through the job's
transaction, producers that say what they committed when, and the check that every key was worked off in order."""

import random
import threading
import time
from collections import Counter

import psycopg

from harness import PATIENCE, wait_until

EFFECTS = """
    CREATE TABLE effects (n bigserial PRIMARY KEY, job bigint NOT NULL, key text, worker int NOT NULL,
        began timestamptz NOT NULL, ended timestamptz NOT NULL);
    CREATE FUNCTION work(job bigint, key text, seconds float8 DEFAULT 0) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        began timestamptz := clock_timestamp();
    BEGIN
        IF seconds > 0 THEN
            PERFORM pg_sleep(seconds);
        END IF;
        INSERT INTO effects (job, key, worker, began, ended) VALUES ($1, $2, pg_backend_pid(), began, clock_timestamp());
    END $$
"""
FLEET = {"heartbeat_interval": "200ms", "heartbeat_timeout": "2s", "rebalance_interval": "50ms",
         "housekeeping_interval": "500ms"}
LEFT = "SELECT standing, state, count(*) FROM millrace.jobs GROUP BY 1, 2 ORDER BY 1, 2"


def job_queue(**options):
    """A queue of the built-in table with short times; None takes an option out."""
    config = {"name": "work", "sql": "SELECT work(:id, :key)", "interval": "50ms", "heartbeat_interval": "200ms",
              "claim_lease": "30s", "max_resets": 1000, "retry_base_delay": "50ms", **options}
    return {name: value for name, value in config.items() if value is not None}


def fleet(*queues, **options):
    return {"worker": {**FLEET, **options}, "queues": list(queues) or [job_queue()]}


def make_effects(db):
    db.execute(EFFECTS)


def enqueue(db, payload="{}", queue="work", **fields):
    """One job, committed; gives its id."""
    named = "".join(f", {name} => %s" for name in fields)
    return db.value(f"SELECT id FROM millrace.enqueue(%s, %s::jsonb{named})", [queue, payload, *fields.values()])


def enqueue_keys(db, count, keys, queue="work"):
    """Many jobs, round the keys; `keys` 0: without."""
    db.execute("SELECT count(*) FROM millrace.enqueue_rows(%(queue)s, array_fill('{}'::jsonb, ARRAY[%(count)s]), "
               "ARRAY(SELECT CASE WHEN %(keys)s > 0 THEN 'k' || n %% greatest(%(keys)s, 1) END "
               "FROM generate_series(1, %(count)s) AS n), "
               "'{}', '{}', '{}', '{}', '{}', '{}')", {"queue": queue, "count": count, "keys": keys})


def job(db, number):
    """A job's row as a dictionary, None when it is gone."""
    row = db.value("SELECT to_jsonb(j) FROM millrace.jobs AS j WHERE id = %s", [number])
    return row


def wait_empty(db, timeout=60, processes=()):
    wait_until(lambda: db.value("SELECT count(*) FROM millrace.jobs") == 0, timeout,
               lambda: f"no jobs left: {db.rows(LEFT)}\n" + "\n".join(p.log()[-3000:] for p in processes), interval=0.1)


def assert_in_order(db, expected, ordered=True):
    """Each of these jobs once; those of a key by their ids, the next begun after the one before had ended."""
    done = db.values("SELECT job FROM effects")
    doubled = sorted(number for number, times in Counter(done).items() if times > 1)
    assert not doubled, f"{len(doubled)} effects twice: {doubled[:20]}"
    lost, invented = sorted(set(expected) - set(done)), sorted(set(done) - set(expected))
    assert not lost, f"{len(lost)} of {len(expected)} lost: {lost[:20]}"
    assert not invented, f"{len(invented)} were never committed: {invented[:20]}"
    if not ordered:
        return
    wrong = db.rows("SELECT * FROM (SELECT key, job, began, lag(job) OVER line AS before, lag(ended) OVER line AS until "
                    "FROM effects WHERE key IS NOT NULL WINDOW line AS (PARTITION BY key ORDER BY job)) AS e "
                    "WHERE began < until LIMIT 10")
    assert not wrong, f"not one after the other (key, job, began, job before, its end): {wrong}"


class Producers:
    """Threads that enqueue the same keys, a few jobs a transaction, and stay open for a moment now and then. They write
    down what each transaction committed, and from when to when it held its keys."""

    def __init__(self, db, keys, total, threads=3, queue="work", slow=0.05):
        self.db, self.keys, self.queue, self.slow = db, keys, queue, slow
        self.left = total
        self.ids = []
        self.holds = []  # (key, id, when enqueueing returned, when its commit was sent)
        self.errors = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(random.Random(n),), daemon=True) for n in range(threads)]

    def start(self):
        for thread in self._threads:
            thread.start()
        return self

    def _take(self, count):
        with self._lock:
            count = min(count, self.left)
            self.left -= count
            return count

    def _run(self, rng):
        try:
            while True:
                count = self._take(rng.randint(1, 20))
                if count == 0:
                    return
                self._transaction(rng, [f"k{rng.randrange(self.keys)}" for _ in range(count)])
        except Exception as problem:  # pylint: disable=broad-except
            self.errors.append(problem)

    def _transaction(self, rng, keys):
        while True:
            try:
                with self.db.connect(autocommit=False) as connection:
                    ids = [row[0] for row in connection.execute(
                        "SELECT id FROM millrace.enqueue_rows(%s, array_fill('{}'::jsonb, ARRAY[%s]), %s, '{}', '{}', "
                        "'{}', '{}', '{}', '{}') ORDER BY n", [self.queue, len(keys), keys])]
                    returned = time.monotonic()
                    if rng.random() < 0.2:
                        connection.execute("SELECT pg_sleep(%s)", [rng.random() * self.slow])
                    if rng.random() < 0.1:
                        connection.rollback()  # as if it had not been: its ids never come
                        continue
                    sent = time.monotonic()
                    connection.commit()
                break
            except psycopg.OperationalError:
                time.sleep(0.01)  # a deadlock or a restart; nothing was committed in these tests' cases
        with self._lock:
            self.ids += ids
            self.holds += [(key, number, returned, sent) for key, number in zip(keys, ids)]

    def join(self, timeout=120):
        for thread in self._threads:
            thread.join(timeout * PATIENCE)
            assert not thread.is_alive(), f"a producer hangs; {self.left} jobs to go"
        assert not self.errors, self.errors

    def assert_ordered_by_commit(self):
        """Nobody got a later number for a key while the holder of an earlier one had not begun to commit."""
        last = {}
        for key, number, returned, sent in sorted(self.holds, key=lambda hold: hold[1]):
            before = last.get(key)
            assert before is None or before[2] == returned or before[3] <= returned, (key, number, before)
            last[key] = (key, number, returned, sent)
