"""The live property test: whatever order writers commit in, every consumer handles what was committed, all of it,
once, in order. Small here, large in ./dev soak (MILLRACE_SCALE)."""

import time

import pytest

from harness import PATIENCE, SCALE, assert_exactly_once, recorder, wait_until
from writers import Writers, assert_holes_audited

BATCH = "INSERT INTO effects (consumer, pos) SELECT '{}', global_position FROM batch ORDER BY global_position"

# Consumers of each kind, and which events are theirs.
KINDS = {
    "each": ({}, "true"),
    "small": ({"batch_size": 40}, "true"),
    "set": ({"sql_batch": BATCH.format("set")}, "true"),
    "orders": ({"aggregate_types": ["Order"]}, "aggregate_type = 'Order'"),
    "set_gone": ({"sql_batch": BATCH.format("set_gone"), "event_types": ["Gone", "Made"],
                  "aggregate_types": ["Order", "User"]},
                 "event_type IN ('Gone', 'Made') AND aggregate_type IN ('Order', 'User')"),
    "nothing": ({"event_types": ["NoSuchThing"]}, "false"),
}


def consumers(names=KINDS):
    made = []
    for name in names:
        options = dict(KINDS[name][0])
        made.append({"name": name, **options} if "sql_batch" in options else recorder(name, **options))
    return made


def assert_all_exactly_once(db, names=KINDS):
    for name in names:
        assert_exactly_once(db, consumer=name, where=KINDS[name][1])
        assert_holes_audited(db, name)


def all_at_head(db, names=KINDS):
    head = db.value("SELECT coalesce(max(global_position), 0) FROM events")
    places = {name: db.checkpoint(name) for name in names}
    return all(place is not None and place >= head for place in places.values())


def wait_all_at_head(db, process, names=KINDS, timeout=60):
    wait_until(lambda: all_at_head(db, names), timeout,
               lambda: f"all consumers at the head: {[(n, db.checkpoint(n)) for n in names]}\n{process.log()[-3000:]}")


@pytest.mark.soak
@pytest.mark.tsan
@pytest.mark.timeout(0)
def test_handled_is_committed(db, worker):
    db.create_effects()
    process = worker(db, {"consumers": consumers(), "worker": {"log_level": "info"}})
    process.wait_log("worker started")
    with Writers(db, count=16) as writers:
        end = time.monotonic() + 6 * SCALE
        # Meanwhile it must keep up: a consumer that only catches up when writers rest would pass at the end.
        while time.monotonic() < end:
            before = db.checkpoint("each")
            wait_until(lambda before=before: db.checkpoint("each") > before, 10,
                       lambda: f"progress beyond {before} under load:\n{process.log()[-3000:]}")
        drawn, committed = writers.stop()
    wait_all_at_head(db, process)
    process.stop()
    assert_all_exactly_once(db)
    assert not process.matching(level="error"), process.log()
    assert writers.killed > 5 / PATIENCE and drawn - committed > 2000 / PATIENCE


@pytest.mark.parametrize("strategy", ["settled", "snapshot"])
def test_two_workers_on_the_same_consumers(db, worker, strategy):
    """Nothing keeps two processes from running the same consumers but the fence, and that is enough."""
    db.create_effects()
    if strategy == "snapshot":
        # Appenders that own a transaction id before they draw a position, as this strategy wants.
        db.execute("CREATE FUNCTION own_xid() RETURNS trigger LANGUAGE plpgsql AS "
                   "$$BEGIN PERFORM pg_current_xact_id(); RETURN NULL; END$$")
        db.execute("CREATE TRIGGER own_xid BEFORE INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION own_xid()")
    config = {"consumers": consumers(), "worker": {"gap_strategy": strategy}}
    processes = [worker(db, config), worker(db, config)]
    with Writers(db, count=8, hold=0.02) as writers:
        wait_until(lambda: db.value("SELECT count(*) FROM events") > 3000 / PATIENCE, 60, "enough events")
        writers.stop()
    wait_all_at_head(db, processes[0])
    for process in processes:
        process.stop()
    assert_all_exactly_once(db)
