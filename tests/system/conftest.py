"""Fixtures of the system tests: a real PostgreSQL for the session, a fresh database and workers for each test."""

import itertools
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import harness  # noqa: E402
from pg_server import PgServer  # noqa: E402

_numbers = itertools.count(1)


def pytest_configure(config):
    config.addinivalue_line("markers", "asan: runs again with the program built with ASan and UBSan")
    config.addinivalue_line("markers", "tsan: runs again with the program built with TSan")
    config.addinivalue_line("markers", "soak: has a size that MILLRACE_SCALE multiplies; ./dev soak runs it large")
    # A hanging test must not hang the run. A test may set its own by @pytest.mark.timeout.
    if config.pluginmanager.hasplugin("timeout") and getattr(config.option, "timeout", None) is None:
        config.option.timeout = 120 * harness.PATIENCE


@pytest.fixture(scope="session")
def server():
    """The session's server. A test that stops, kills or reconfigures one takes `own_server`."""
    with PgServer() as instance:
        yield instance


@pytest.fixture
def own_server():
    """A server for this test alone, to restart and kill."""
    with PgServer() as instance:
        yield instance


@pytest.fixture(scope="session")
def _template(server):
    """A database with Millrace's schema, applied by the program; each test gets a copy of it."""
    database = harness.Database(server, "postgres")
    database.execute("CREATE DATABASE millrace_template")
    database.close()
    harness.millrace("schema", "apply", database=server.uri("millrace_template"))
    return "millrace_template"


@pytest.fixture
def make_db(server):
    """make_db(server=…, schema=True): a database on any server, dropped at the end when that still runs."""
    made = []

    def make(on=None, schema=True, template="template1"):
        on = on or server
        name = f"t{next(_numbers)}"
        admin = harness.Database(on, "postgres")
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        admin.close()
        database = harness.Database(on, name)
        made.append(database)
        if schema and template == "template1":
            harness.millrace("schema", "apply", database=database)
        return database

    yield make
    for database in made:
        database.close()
        if database.server.running():
            admin = harness.Database(database.server, "postgres")
            # A prepared transaction that a test left behind would forbid the drop and outlive the test.
            with database.connect() as connection:
                for gid in [row[0] for row in connection.execute(
                        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")]:
                    connection.execute(f"ROLLBACK PREPARED '{gid}'")
            admin.execute(f"DROP DATABASE IF EXISTS {database.name} WITH (FORCE)")
            admin.close()


@pytest.fixture
def db(make_db, _template):
    """A fresh database with the schema and an empty log."""
    return make_db(template=_template)


@pytest.fixture
def empty_db(make_db):
    """A fresh database with nothing in it."""
    return make_db(schema=False)


@pytest.fixture
def worker(tmp_path, make_db):
    """worker(db, config, *arguments): starts `millrace run`; what still runs at the end is stopped.
    (Depends on make_db so that workers stop before their databases go.)"""
    started = []

    def start(database, config, *arguments, env=None):
        process = harness.Worker(config, *arguments, database=database, directory=tmp_path, env=env)
        started.append(process)
        return process

    yield start
    problems = []
    for process in started:
        try:
            process.discard()
        except AssertionError as problem:
            problems.append(str(problem))
    assert not problems, "\n".join(problems)


@pytest.fixture
def proxy(server):
    """proxy(server=…, tcp=False): a StallProxy, closed at the end."""
    made = []

    def make(on=None, tcp=False):
        instance = harness.StallProxy(on or server, tcp=tcp)
        made.append(instance)
        return instance

    yield make
    for instance in made:
        instance.close()
