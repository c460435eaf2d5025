"""What a review of the fleet's functions and of start-up found."""

from harness import millrace, recorder

import yaml

KEY = 4711


def test_who_leaves_gives_up_the_leaders_lock_however_often_it_took_it(db):
    """A tick that fails after it took the session lock leaves it taken; the next one takes it again."""
    with db.connect() as session, db.connect() as other:
        for believes in (True, False):
            for _ in range(2):
                session.execute("SELECT pg_advisory_lock(%s)", [KEY])
            session.execute("SELECT millrace.leave_fleet(gen_random_uuid(), %s, %s, false)", [KEY, believes])
            assert other.execute("SELECT pg_try_advisory_lock(%s)", [KEY]).fetchone()[0]
            other.execute("SELECT pg_advisory_unlock(%s)", [KEY])


def test_transactions_that_are_read_only_by_default_are_refused_at_the_start(db, tmp_path):
    db.create_effects()
    db.execute(f"ALTER DATABASE {db.name} SET default_transaction_read_only = on")
    config = tmp_path / "worker.yaml"
    config.write_text(yaml.safe_dump({"consumers": [recorder("a")]}))
    done = millrace("run", config, "--check", database=db, check=False)
    assert done.returncode != 0 and "default_transaction_read_only" in done.stderr
