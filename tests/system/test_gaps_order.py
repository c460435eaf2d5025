"""The id of a transaction and the position it draws need not be in the same order; no proof may rely on that."""
import pytest
from harness import all_handled, insert_event, recorder, wait_until


@pytest.mark.parametrize("strategy", ["snapshot", "settled"])
def test_lower_position_held_by_the_newer_transaction(db, worker, strategy):
    """B owns the newer transaction id and the lower position. After A's commit B lies at or above the snapshot's xmax,
    where a proof that waits for xmax would not look."""
    db.create_effects()
    process = worker(db, {"consumers": [recorder("a")],
                          "worker": {"gap_strategy": strategy, "log_level": "debug", "heartbeat_interval": "25s"}})
    first = insert_event(db)
    wait_until(lambda: db.handled("a") == [first], 10)
    a, b = db.connect(autocommit=False), db.connect(autocommit=False)
    a.execute("SELECT pg_current_xact_id()")
    b.execute("SELECT pg_current_xact_id()")
    low = insert_event(b)
    high = insert_event(a)
    assert low < high
    a.commit()
    # Another event after it gives the reader something new to look at, and time to go wrong.
    last = insert_event(db)
    process.wait_log(lambda line: "waiting for a hole" in line["msg"], 20)
    assert db.handled("a") == [first], f"something above {low} was handled while it was still open"
    b.commit()
    wait_until(lambda: db.handled("a") == [first, low, high, last], 10)
    all_handled(db)
