"""People retry, cancel, requeue and drop jobs of keys while workers run them, fail them and others are enqueued: no two
jobs of a key run at once, none is forgotten behind another."""

import random
import threading
import time

import pytest

from harness import SCALE, wait_until

KEYS = 6
# What runs a key has its lock; whoever finds it taken says so, and the word stays in the job's errors.
HANDLER = """
INSERT INTO effects (job, key) SELECT :id::bigint, :key::text FROM alone(:key::text) AS a, brittle() AS b
"""
FUNCTIONS = """
CREATE TABLE effects (n bigserial, job bigint, key text);
CREATE FUNCTION alone(key text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    IF key IS NOT NULL AND NOT pg_try_advisory_xact_lock(hashtext(key)) THEN RAISE EXCEPTION 'overlap of %', key; END IF;
    PERFORM pg_sleep(random() * 0.01);
END $$;
CREATE FUNCTION brittle() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    IF random() < 0.3 THEN RAISE EXCEPTION 'it broke'; END IF;
END $$;
"""


def config(order):
    return {"queues": [{"name": "mail", "sql": HANDLER, "num_handlers": 3, "max_retries": 2, "retry_base_delay": "5ms",
                        "retry_max_delay": "20ms", "dead_letter_order": order, "interval": "20ms"}]}


class Storm:
    def __init__(self, db, seed):
        self.db, self.random, self.over, self.problems = db, random.Random(seed), False, []
        self.threads = [threading.Thread(target=self.guarded, args=(step, n)) for n, step in
                        enumerate([self.produce, self.produce, self.meddle, self.meddle])]
        for thread in self.threads:
            thread.start()

    def guarded(self, step, number):
        dice = random.Random(self.random.random() + number)
        try:
            with self.db.connect(autocommit=False) as conn:
                while not self.over:
                    step(conn, dice)
        except Exception as problem:  # pylint: disable=broad-except
            self.problems.append(problem)

    @staticmethod
    def produce(conn, dice):
        key = None if dice.random() < 0.1 else f"k{dice.randrange(KEYS)}"
        for _ in range(dice.randint(1, 3)):
            conn.execute("SELECT millrace.enqueue('mail', '{}', key => %s)", [key])
            time.sleep(dice.random() * 0.01)  # with the key's lock
        conn.rollback() if dice.random() < 0.1 else conn.commit()
        time.sleep(dice.random() * 0.03)

    @staticmethod
    def meddle(conn, dice):
        action = dice.choice(["retry", "retry", "retry", "cancel", "requeue", "drop"])
        filters = ['{"all": true, "limit": 3}', '{"state": "failed"}', '{"state": ["queued", "errored"], "limit": 2}',
                   f'{{"key": "k{dice.randrange(KEYS)}", "limit": 4}}']
        conn.execute(f"SELECT * FROM millrace.{action}_jobs('mail', %s, 'ann')", [dice.choice(filters)])
        conn.commit()
        time.sleep(dice.random() * 0.05)

    def stop(self):
        self.over = True
        for thread in self.threads:
            thread.join(60)
        assert not self.problems, self.problems


@pytest.mark.soak
@pytest.mark.parametrize("order", ["none", "key"])
def test_keys_stay_in_order_whatever_people_do(db, worker, order):
    db.execute(FUNCTIONS)
    workers = [worker(db, config(order)) for _ in range(2)]
    storm = Storm(db, f"{order} 1")
    log = workers[0].log
    # It lasts until people have decided so often, and so many jobs are over meanwhile.
    wait_until(lambda: storm.problems or (
        db.value("SELECT count(*) FROM millrace.queue_audit") >= 60 * SCALE
        and db.value("SELECT count(*) FROM millrace.jobs_archive WHERE state = 'completed'") >= 100 * SCALE), 120, log)
    storm.stop()
    db.execute("CREATE OR REPLACE FUNCTION brittle() RETURNS void LANGUAGE sql AS ''")

    def rest():
        db.execute("SELECT * FROM millrace.retry_jobs('mail', '{\"state\": \"failed\"}', 'ann')")
        return db.value("SELECT count(*) FROM millrace.jobs") == 0
    wait_until(rest, 60, log)
    assert db.value("SELECT count(*) FROM (SELECT id FROM millrace.jobs_archive GROUP BY id HAVING count(*) > 1) AS d") == 0
    assert db.value("SELECT count(*) FROM millrace.jobs_archive WHERE errors::text LIKE '%overlap%'") == 0
    # Each effect once, of the jobs that were completed and of no other.
    assert db.value("SELECT count(*) FROM (SELECT job FROM effects EXCEPT ALL SELECT id FROM millrace.jobs_archive"
                    " WHERE state = 'completed') AS more") == 0
    assert db.value("SELECT count(*) FROM millrace.jobs_archive WHERE state = 'completed'") > 50
    # Those that nobody touched ran in their key's order.
    assert db.rows("""WITH touched AS (SELECT jsonb_array_elements(detail->'ids')::bigint AS id FROM millrace.queue_audit),
        plain AS (SELECT e.n, e.job, e.key, lag(e.job) OVER (PARTITION BY e.key ORDER BY e.n) AS before FROM effects AS e
            JOIN millrace.jobs_archive AS a ON a.id = e.job WHERE a.num_failures = 0 AND a.errors IS NULL AND e.key IS NOT NULL
            AND e.job NOT IN (SELECT id FROM touched))
        SELECT key, before, job FROM plain WHERE before > job""") == []
