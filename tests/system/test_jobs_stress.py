"""The built-in table of jobs under kills and stops: per key strictly in order, no two of a key at once, every effect
exactly once, nothing left behind."""

import random
import time

import pytest

from harness import PATIENCE, SCALE, wait_until
from jobs import Producers, assert_in_order, enqueue_keys, fleet, job_queue, make_effects, wait_empty

LEASE = {"claim_lease": "1s", "num_handlers": 2, "look_ahead": 20}
TRANSACTION = {"mode": "transaction", "num_handlers": 2, "batch_size": 25}


class Trouble:
    """Eight processes, of which one is killed or stopped past its lease whenever the work has come a step further."""

    def __init__(self, db, worker, config, seed=7):
        self.db, self.start = db, lambda: worker(db, config)
        self.rng = random.Random(seed)
        self.running = [self.start() for _ in range(8)]
        self.stopped = []
        self.turn = 0

    def strike(self):
        victim = self.running.pop(self.rng.randrange(len(self.running)))
        if self.turn % 2 == 0:
            victim.kill9()
            self.running.append(self.start())
        else:
            victim.sigstop()
            self.stopped.append((time.monotonic(), victim))
        self.turn += 1
        self.wake(3)

    def wake(self, age):
        """Who was stopped for so long goes on, and finds its jobs with others."""
        for since, victim in list(self.stopped):
            if time.monotonic() - since >= age:
                victim.sigcont()
                self.running.append(victim)
                self.stopped.remove((since, victim))

    def wake_all(self):
        def woken():
            self.wake(3)
            return not self.stopped
        wait_until(woken, 10, "stops past the lease")

    def finish(self):
        for process in self.running:
            process.stop()


@pytest.mark.timeout(900)
@pytest.mark.soak
@pytest.mark.parametrize("keys", [20, 20_000])
@pytest.mark.parametrize("mode", [LEASE, TRANSACTION], ids=["lease", "transaction"])
def test_eight_workers_with_kills_and_stops(db, worker, mode, keys):
    count = int(6000 * max(SCALE, 1)) if SCALE < 4 else 50_000
    make_effects(db)
    enqueue_keys(db, count // 2, keys)
    first = db.values("SELECT id FROM millrace.jobs")
    began = time.monotonic()
    trouble = Trouble(db, worker, fleet(job_queue(**mode)))
    producers = Producers(db, keys, count - len(first)).start()
    done = "SELECT count(*) FROM effects"
    strikes = 12
    for turn in range(strikes):
        target = count * (turn + 1) // (strikes + 2)
        wait_until(lambda target=target: db.value(done) >= target, 200,
                   lambda: f"{db.value(done)}\n{trouble.running[0].log()[-2000:]}", interval=0.05)
        trouble.strike()
    producers.join()
    trouble.wake_all()
    wait_empty(db, 200, trouble.running)
    took = time.monotonic() - began
    assert_in_order(db, first + producers.ids)
    producers.assert_ordered_by_commit()
    assert db.value("SELECT count(*) FROM millrace.jobs_archive WHERE state = 'completed'") == count
    resets = db.value("SELECT sum(num_resets) FROM millrace.jobs_archive")
    assert db.value("SELECT sum(num_failures) FROM millrace.jobs_archive") == 0
    print(f"\n{mode.get('mode', 'lease')}, {keys} keys: {count} jobs in {took:.1f} s, {resets} resets")
    trouble.finish()


@pytest.mark.timeout(300)
def test_keys_of_a_killed_worker_do_not_wait_for_the_housekeeping(db, worker):
    """One that dies between an outcome and the promotion of the key's next job leaves the key with nobody in line."""
    make_effects(db)
    enqueue_keys(db, 9000, 3000)
    ids = db.values("SELECT id FROM millrace.jobs")
    config = fleet(job_queue(num_handlers=2, look_ahead=100), housekeeping_interval="1h")
    processes = [worker(db, config) for _ in range(3)]
    for turn in range(6):
        wait_until(lambda turn=turn: db.value("SELECT count(*) FROM effects") > 1000 * (turn + 1), 60,
                   lambda: processes[-1].log()[-2000:])
        processes.pop(0).kill9()
        processes.append(worker(db, config))
    wait_empty(db, 60, processes)
    assert_in_order(db, ids)
    for process in processes:
        process.stop()
