"""Consumers that cope: one bad event is found and given up, everything else is handled once and in order; streams wait
behind their dead letters; replays."""

import json
import random

import pytest

from harness import SCALE, all_handled, insert_event, insert_events, millrace, recorder, wait_until

QUICK = {"retry_base_delay": "5ms", "retry_max_delay": "20ms"}
LETTERS = ("SELECT global_position, state, attempts, error FROM millrace.consumer_dead_letters "
           "WHERE consumer_name = %s ORDER BY 1")


def letters(db, consumer="a"):
    return db.rows(LETTERS, [consumer])


def picky(consumer, poison, kind="sql", table="effects"):
    """A recorder that cannot take the event at a position (or at any for which the condition holds)."""
    condition = f"pos = {poison}" if isinstance(poison, int) else poison
    check = f"1 / (CASE WHEN {condition} THEN 0 ELSE 1 END)"
    if kind == "sql":
        return {"name": consumer, "sql": f"INSERT INTO {table} (consumer, pos) SELECT '{consumer}', pos * {check} "
                                         "FROM (SELECT :global_position AS pos, :aggregate_id AS id) AS e"}
    return {"name": consumer, "sql_batch": f"INSERT INTO {table} (consumer, pos) SELECT '{consumer}', pos * {check} FROM "
                                           "(SELECT global_position AS pos, aggregate_id AS id FROM batch) AS e ORDER BY pos"}


def assert_all_but(db, given_up, consumer="a"):
    handled = db.handled(consumer)
    assert handled == [pos for pos in db.committed() if pos not in given_up]


# ---- One bad event --------------------------------------------------------------------------------------------------

@pytest.mark.timeout(300)
@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sql", "sql_batch"])
def test_one_poison_event_among_many(db, worker, kind):
    db.create_effects()
    count = int((100_000 if kind == "sql_batch" else 20_000) * SCALE)
    insert_events(db, count)
    poison = count // 2 + 17
    process = worker(db, {"worker": {"batch_size": 500},
                          "consumers": [{**picky("a", poison, kind), "on_failure": "dead_letter"}]}, "--once")
    process.finish(timeout=200)
    assert_all_but(db, {poison})
    ((position, state, _, error),) = letters(db)
    assert (position, state) == (poison, "poison") and "division by zero" in error
    # Once together, once behind a savepoint an event; then the batch without it.
    assert len(process.matching(msg="batch failed")) == 2
    assert db.checkpoint("a") == count


@pytest.mark.asan
@pytest.mark.tsan
@pytest.mark.parametrize("kind", ["sql", "sql_batch"])
def test_many_bad_events(db, worker, kind):
    db.create_effects()
    insert_events(db, 300)
    bad = {1, 2, 3, 50, 51, 100, 299, 300}
    condition = f"pos IN ({', '.join(map(str, bad))})"
    process = worker(db, {"worker": {**QUICK, "batch_size": 40}, "consumers": [
        {**picky("a", condition, kind), "on_failure": "dead_letter"}, recorder("b")]}, "--once")
    process.finish()
    assert_all_but(db, bad)
    assert {row[0] for row in letters(db)} == bad
    all_handled(db, "b")


def test_retries_come_first(db, worker):
    """23505 may go away: tried max_retries times more before the event is given up; then its attempts are told."""
    db.create_effects()
    db.execute("CREATE UNIQUE INDEX ON effects (pos)")
    insert_events(db, 30)
    db.execute("INSERT INTO effects (consumer, pos) VALUES ('other', 10), ('other', 20)")
    process = worker(db, {"worker": {**QUICK, "max_retries": 3}, "consumers": [
        recorder("a", on_failure="dead_letter")]}, "--once")
    process.finish()
    assert_all_but(db, {10, 20})
    assert [(row[0], row[2]) for row in letters(db)] == [(10, 4), (20, 4)]
    assert len(process.matching(msg="dead letter")) == 2


def test_what_fails_only_at_the_commit_is_found_too(db, worker):
    db.create_effects()
    db.execute("CREATE TABLE parent (id bigint PRIMARY KEY)")
    db.execute("INSERT INTO parent SELECT generate_series(1, 60)")
    db.execute("DELETE FROM parent WHERE id IN (7, 33)")
    db.execute("ALTER TABLE effects ADD FOREIGN KEY (pos) REFERENCES parent DEFERRABLE INITIALLY DEFERRED")
    insert_events(db, 60)
    process = worker(db, {"worker": {**QUICK, "max_retries": 1},
                          "consumers": [recorder("a", on_failure="dead_letter")]}, "--once")
    process.finish()
    assert_all_but(db, {7, 33})
    assert [row[0] for row in letters(db)] == [7, 33]


def test_more_than_fits_into_batch_timeout(db, worker):
    """A batch that takes too long as a whole makes progress all the same, and no event is blamed for it."""
    db.create_effects()
    insert_events(db, 12)
    slow = ("INSERT INTO effects (consumer, pos) SELECT 'a', :global_position FROM "
            "(SELECT pg_sleep(0.15)) AS nap")
    process = worker(db, {"worker": {**QUICK}, "consumers": [
        {"name": "a", "sql": slow, "batch_timeout": "700ms", "on_failure": "dead_letter"}]}, "--once")
    process.finish()
    assert db.handled("a") == db.committed() and letters(db) == []


def test_permanent_pause_is_at_once_and_survives(db, worker):
    db.create_effects()
    insert_events(db, 20)
    process = worker(db, {"worker": QUICK, "consumers": [picky("a", 13), recorder("b")]})
    line = process.wait_log("consumer paused", consumer="a")
    assert int(line["position"]) == 13 and "consumers resume a" in line["hint"]
    assert db.checkpoint("a") == 12
    wait_until(lambda: db.rows("SELECT paused, pause_kind, last_error_position FROM millrace.consumer_controls "
                               "WHERE consumer_name = 'a'") == [(True, "failure", 13)], what="the pause to be written")
    assert db.values("SELECT action FROM millrace.consumer_audit WHERE consumer_name = 'a'") == ["pause"]
    all_handled(db, "b")
    process.stop()
    # A worker that starts gives it another chance: its handler may be a mended one.
    worker(db, {"worker": QUICK, "consumers": [recorder("a")]}, "--once").finish()
    all_handled(db, "a")
    assert db.values("SELECT action FROM millrace.consumer_audit WHERE consumer_name = 'a' ORDER BY id") == [
        "pause", "resume"]


# ---- Order by key ---------------------------------------------------------------------------------------------------

def add_streams(db, rng, streams, count):
    """Events of random streams in random order, versions counted."""
    versions = dict.fromkeys(streams, 0)
    rows = []
    for _ in range(count):
        stream = rng.choice(streams)
        versions[stream] += 1
        rows.append((stream, versions[stream]))
    with db.connect() as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type,"
                           " payload) VALUES ('Order', %s, %s, gen_random_uuid(), 'Made', '{}')", rows)


def effects_by_stream(db):
    rows = db.rows("SELECT id, array_agg(version ORDER BY n) FROM keyed GROUP BY 1")
    return dict(rows)


def keyed(name, **options):
    """Writes stream and version; cannot take what the table `bad` says, from that version on."""
    return {"name": name, "on_failure": "dead_letter", "dead_letter_order": "key", **options, "sql":
            "INSERT INTO keyed (id, version) SELECT e.id, e.version / (CASE WHEN EXISTS (SELECT FROM bad "
            "WHERE bad.id = e.id AND bad.version = e.version) THEN 0 ELSE 1 END) FROM "
            "(SELECT :aggregate_id AS id, :aggregate_version AS version) AS e"}


def make_keyed(db):
    db.execute("CREATE TABLE keyed (n bigserial PRIMARY KEY, id text, version bigint)")
    db.execute("CREATE TABLE bad (id text, version bigint)")


@pytest.mark.parametrize("partitions", [1, 3])
def test_streams_wait_behind_their_dead_letters(db, worker, partitions):
    rng = random.Random(20261118 + partitions)
    make_keyed(db)
    streams = [f"s{i}" for i in range(20)]
    add_streams(db, rng, streams, 1500)
    totals = dict(db.rows("SELECT aggregate_id, max(aggregate_version) FROM events GROUP BY 1"))
    for stream in rng.sample(streams, 6):
        for version in rng.sample(range(1, totals[stream] + 1), 3):
            db.execute("INSERT INTO bad VALUES (%s, %s)", [stream, version])
    first_bad = dict(db.rows("SELECT id, min(version) FROM bad GROUP BY 1"))
    config = {"worker": {**QUICK, "batch_size": 50, "heartbeat_interval": "100ms", "rebalance_interval": "50ms"},
              "consumers": [keyed("a", partitions=partitions)]}
    process = worker(db, config)
    wait_until(lambda: db.value("SELECT (SELECT count(*) FROM keyed) + (SELECT count(*) FROM "
                                "millrace.consumer_dead_letters)") == 1500, 60,
               lambda: f"all to be handled or set aside:\n{process.log()[-1500:]}")
    for stream in streams:
        wanted = list(range(1, first_bad.get(stream, totals[stream] + 1)))
        assert effects_by_stream(db).get(stream, []) == wanted, stream
    # A replay while they are still bad changes nothing but the counts; nothing runs out of order.
    done = millrace("dead-letters", "replay", "--all", "--timeout", "30s", database=db, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    for stream in streams:
        assert effects_by_stream(db).get(stream, []) == list(range(1, first_bad.get(stream, totals[stream] + 1)))
    # New events of a waiting stream wait, too, also while others are replayed.
    db.execute("DELETE FROM bad")
    for stream in streams:
        db.execute("INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload) "
                   "VALUES ('Order', %s, %s, gen_random_uuid(), 'Made', '{}')", [stream, totals[stream] + 1])
    millrace("dead-letters", "replay", "--all", "--timeout", "60s", database=db)

    def rest():
        left = db.value("SELECT count(*) FROM millrace.consumer_dead_letters")
        if left:  # parked after the replay had gathered what to replay
            millrace("dead-letters", "replay", "--all", "--timeout", "60s", database=db)
        return db.value("SELECT count(*) FROM keyed") == 1520
    wait_until(rest, 60, "everything to be handled")
    assert effects_by_stream(db) == {stream: list(range(1, totals[stream] + 2)) for stream in streams}
    assert letters(db) == []
    process.stop()


# Fails for good where `bad` says so, and as often as `flaky` says where that does: what a sequence gave stays given when
# the transaction is rolled back.
TROUBLED = """
    CREATE TABLE flaky (id text, version bigint, times int, state text, PRIMARY KEY (id, version));
    CREATE FUNCTION handle(which text, at bigint) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        f flaky;
    BEGIN
        IF EXISTS (SELECT FROM bad WHERE bad.id = which AND bad.version = at) THEN
            RAISE EXCEPTION 'never';
        END IF;
        SELECT * INTO f FROM flaky WHERE flaky.id = which AND flaky.version = at;
        IF FOUND AND nextval('flaky_' || which || '_' || at) <= f.times THEN
            RAISE EXCEPTION 'not yet' USING ERRCODE = f.state;
        END IF;
        INSERT INTO keyed (id, version) VALUES (which, at);
    END $$
"""
TROUBLED_HANDLERS = {
    "sql": "SELECT handle(:aggregate_id, :aggregate_version)",
    "sql_batch": "SELECT count(handle(e.aggregate_id, e.aggregate_version)::text) FROM "
                 "(SELECT aggregate_id, aggregate_version FROM batch ORDER BY global_position) AS e"}


def make_trouble(db, rng, totals):
    """Permanent failures in some streams, transient ones in any. Gives the first permanent one of each stream."""
    db.execute(TROUBLED)
    for stream in rng.sample(sorted(totals), 5):
        for version in rng.sample(range(1, totals[stream] + 1), 2):
            db.execute("INSERT INTO bad VALUES (%s, %s)", [stream, version])
    for stream in rng.sample(sorted(totals), 10):
        version = rng.randint(1, totals[stream])
        db.execute(f"CREATE SEQUENCE flaky_{stream}_{version}")
        db.execute("INSERT INTO flaky VALUES (%s, %s, %s, %s)",
                   [stream, version, rng.randint(1, 3), rng.choice(["P0001", "40001", "40P01", "23505"])])
    return dict(db.rows("SELECT id, min(version) FROM bad GROUP BY 1"))


@pytest.mark.parametrize("kind", ["sql", "sql_batch"])
def test_streams_keep_their_order_through_all_kinds_of_failures(db, worker, kind):
    """At every moment a stream's effects are the first of its events; after a replay they are all of them."""
    rng = random.Random(20261120 + len(kind))
    make_keyed(db)
    add_streams(db, rng, [f"s{i}" for i in range(15)], 400)
    totals = dict(db.rows("SELECT aggregate_id, max(aggregate_version) FROM events GROUP BY 1"))
    first_bad = make_trouble(db, rng, totals)

    def prefixes():
        effects = effects_by_stream(db)
        for stream, versions in effects.items():
            assert versions == list(range(1, len(versions) + 1)), (stream, versions)
        return effects
    process = worker(db, {"worker": {**QUICK, "batch_size": 40, "max_retries": 4}, "consumers": [
        {"name": "a", kind: TROUBLED_HANDLERS[kind], "on_failure": "dead_letter", "dead_letter_order": "key"}]})
    wait_until(lambda: prefixes() is not None and db.checkpoint("a") == 400, 60, process.log)
    wanted = {stream: list(range(1, first_bad.get(stream, total + 1))) for stream, total in totals.items()}
    assert prefixes() == {stream: versions for stream, versions in wanted.items() if versions}
    assert db.value("SELECT count(*) FROM millrace.consumer_dead_letters") == 400 - sum(map(len, wanted.values()))
    db.execute("DELETE FROM bad")
    millrace("dead-letters", "replay", "--all", "--timeout", "60s", database=db, check=False)
    for _ in range(3):  # those that failed for a while
        if letters(db):
            prefixes()
            millrace("dead-letters", "replay", "--all", "--timeout", "60s", database=db, check=False)
    assert letters(db) == []
    assert prefixes() == {stream: list(range(1, total + 1)) for stream, total in totals.items()}
    process.stop()


# ---- Replays --------------------------------------------------------------------------------------------------------

@pytest.mark.asan
@pytest.mark.tsan
def test_replay_runs_the_handler_once_and_removes_the_row(db, worker):
    db.create_effects()
    db.execute("CREATE TABLE bad (pos bigint)")
    db.execute("INSERT INTO bad VALUES (3), (5), (8)")
    sql = ("INSERT INTO effects (consumer, pos) SELECT 'a', p / (CASE WHEN EXISTS (SELECT FROM bad WHERE pos = p) "
           "THEN 0 ELSE 1 END) FROM (SELECT :global_position AS p) AS e")
    process = worker(db, {"worker": {**QUICK, "rebalance_interval": "50ms"},
                          "consumers": [{"name": "a", "sql": sql, "on_failure": "dead_letter"}]})
    insert_events(db, 10)
    wait_until(lambda: db.checkpoint("a") == 10, what="all to be passed")
    assert [row[0] for row in letters(db)] == [3, 5, 8]
    db.execute("DELETE FROM bad WHERE pos <> 5")
    done = millrace("dead-letters", "replay", "--consumer", "a", "--json", database=db, check=False)
    assert done.returncode == 1  # one failed again
    answer = json.loads(done.stdout)
    assert (answer["replayed"], answer["failed"]) == (2, 1), answer
    assert db.handled("a") == [1, 2, 4, 6, 7, 9, 10, 3, 8]
    ((position, _, attempts, _),) = letters(db)
    assert position == 5 and attempts >= 2
    db.execute("DELETE FROM bad")
    millrace("dead-letters", "replay", "--consumer", "a", "--position", 5, database=db)
    assert sorted(db.handled("a")) == list(range(1, 11)) and letters(db) == []
    insert_event(db)
    wait_until(lambda: db.checkpoint("a") == 11, what="the consumer to go on")
    process.stop()


def test_a_replay_that_fails_only_at_the_commit_is_told(db, worker):
    """It is a failure of its letter like any other, and the consumer goes on."""
    db.create_effects()
    db.execute("CREATE TABLE parent (id bigint PRIMARY KEY)")
    db.execute("INSERT INTO parent SELECT generate_series(1, 40) EXCEPT VALUES (3), (5)")
    db.execute("ALTER TABLE effects ADD FOREIGN KEY (pos) REFERENCES parent DEFERRABLE INITIALLY DEFERRED")
    process = worker(db, {"worker": {**QUICK, "max_retries": 1, "rebalance_interval": "50ms"},
                          "consumers": [recorder("a", on_failure="dead_letter")]})
    insert_events(db, 10)
    wait_until(lambda: db.checkpoint("a") == 10, 20, process.log)
    db.execute("INSERT INTO parent VALUES (5)")
    done = millrace("dead-letters", "replay", "--all", "--json", "--timeout", "20s", database=db, check=False)
    answer = json.loads(done.stdout)
    assert (answer["replayed"], answer["failed"]) == (1, 1), done.stderr
    assert "foreign key" in answer["failures"][0]["error"] and answer["failures"][0]["position"] == 3
    insert_events(db, 5)
    wait_until(lambda: db.checkpoint("a") == 15, 20, process.log)
    assert db.handled("a")[-6:] == [5, *range(11, 16)]
    process.stop()


def test_a_stop_comes_between_two_letters(db, worker):
    """A replay of many does not hold up a stop; the next worker goes on where it was."""
    db.create_effects()
    db.execute("CREATE TABLE gate (bad bool)")
    db.execute("INSERT INTO gate VALUES (true)")
    sql = ("INSERT INTO effects (consumer, pos) SELECT 'a', p / (CASE WHEN (SELECT bad FROM gate) THEN 0 ELSE 1 END) "
           "FROM (SELECT :global_position AS p, pg_sleep(CASE WHEN (SELECT bad FROM gate) THEN 0 ELSE 0.05 END)) AS e")
    config = {"worker": {**QUICK, "rebalance_interval": "50ms", "shutdown_timeout": "1h"},
              "consumers": [{"name": "a", "sql": sql, "on_failure": "dead_letter"}]}
    process = worker(db, config)
    insert_events(db, 400)
    wait_until(lambda: db.checkpoint("a") == 400, 60, process.log)
    db.execute("UPDATE gate SET bad = false")
    done = millrace("dead-letters", "replay", "--all", "--timeout", "0ms", database=db, check=False)
    assert "stay requested" in done.stderr
    wait_until(lambda: len(db.handled("a")) > 3, 20, process.log)
    process.stop()
    left = db.value("SELECT count(*) FROM millrace.consumer_dead_letters WHERE replay_at IS NOT NULL")
    assert 0 < left == 400 - len(db.handled("a"))
    process = worker(db, config)
    wait_until(lambda: len(db.handled("a")) > 405 - left, 20, process.log)
    process.stop()
    assert db.handled("a") == list(range(1, len(db.handled("a")) + 1))


def test_controls_are_no_failures(db, worker):
    """Pauses, resumes and skips in the middle of the work fence batches off; nobody is blamed, nothing is done twice."""
    db.create_effects()
    process = worker(db, {"worker": {"batch_size": 20, "max_retries": 0, "rebalance_interval": "50ms"},
                          "consumers": [recorder("a", on_failure="dead_letter")]})
    process.wait_log("consumer taken", consumer="a")
    skipped = set()
    for turn in range(6):
        insert_events(db, 2000)
        head = db.value("SELECT max(global_position) FROM events")
        wait_until(lambda: db.checkpoint("a") > head - 1900, 20, process.log)
        if millrace("consumers", "skip", "a", head - 5, "--reason", "not wanted", database=db,
                    check=False).returncode == 0:
            skipped.add(head - 5)
        millrace("consumers", "pause", "a", "--reason", f"turn {turn}", database=db)
        stands = db.checkpoint("a")
        insert_events(db, 1)
        millrace("consumers", "resume", "a", database=db)
        assert db.checkpoint("a") >= stands
    wait_until(lambda: db.checkpoint("a") == db.value("SELECT max(global_position) FROM events"), 30, process.log)
    assert_all_but(db, skipped)
    assert set(db.values("SELECT gap_position FROM millrace.consumer_gap_skips WHERE strategy = 'skip'")) == skipped
    assert letters(db) == [] and not process.matching(msg="batch failed")
    process.stop()
