"""The embedded PostgreSQL: starts anywhere, as anybody, after anything."""

import os
import pathlib
import shutil
import stat
import subprocess

import pytest

from cli_helpers import BINARY, IS_ROOT, NOBODY, Home, open_directory, wait_for

needs_root = pytest.mark.skipif(not IS_ROOT, reason="needs root")


@pytest.fixture
def home():
    directory = open_directory()
    home = Home(directory / "home")
    yield home
    home.remove()
    shutil.rmtree(directory, ignore_errors=True)


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_start_status_url_stop(home):
    assert home.status()["state"] == "stopped"
    assert not home.path.exists(), "looking must create nothing"
    assert "started (pid" in home.ok("dev", "start")
    assert "already running" in home.ok("dev", "start")
    status = home.status()
    assert status["state"] == "running" and status["pid"] > 1
    assert status["url"] == home.ok("dev", "url").strip()
    assert pathlib.Path(status["data"]).is_dir()
    assert status["version"].split(".")[0].isdigit()
    out = subprocess.run(["psql", status["url"], "-XAtc", "SELECT current_user || ' ' || current_database()"],
                         capture_output=True, text=True, check=True).stdout
    assert out.strip() == "postgres millrace"
    assert home.ok("dev", "stop").strip() == "stopped"
    assert home.ok("dev", "stop").strip() == "not running"
    assert home.status()["state"] == "stopped"


def test_settings_and_privacy(home):
    home.ok("dev", "start")
    data = pathlib.Path(home.status()["data"])
    assert mode_of(data) == 0o700 and mode_of(data.parent / "run") == 0o700
    rows = home.sql("SELECT name || '=' || setting FROM pg_settings WHERE name IN ('listen_addresses', "
                    "'max_connections', 'max_prepared_transactions', 'fsync') ORDER BY name").splitlines()
    assert rows == ["fsync=on", "listen_addresses=", "max_connections=200", "max_prepared_transactions=64"]
    assert home.sql("SELECT pg_encoding_to_char(encoding) || ' ' || datcollate FROM pg_database "
                    "WHERE datname = 'millrace'") == "UTF8 C"


def test_any_command_works_after_kill_9(home):
    home.ok("dev", "start")
    home.sql("CREATE TABLE kept AS SELECT 42 AS n")
    for _ in range(3):
        home.kill_server()
        assert home.status()["state"] == "stopped"
        assert home.ok("schema", "status")
        assert home.sql("SELECT n FROM kept") == "42"


def test_kill_9_with_a_busy_backend(home):
    """A backend that outlives the postmaster must not share its memory with the next server."""
    home.ok("dev", "start")
    busy = home.start("dev", "psql", "-XAtqc", "SELECT count(*) FROM generate_series(1, 1e12::bigint)")
    wait_for(lambda: home.sql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%1e12%' "
                              "AND pid <> pg_backend_pid()") == "1", "the long query")
    home.kill_server()
    assert home.sql("SELECT 1") == "1"
    assert busy.wait(timeout=60) != 0


def write_pid_file(data, pid, lines):
    path = data / "postmaster.pid"
    path.write_text("\n".join([str(pid), *lines]) + "\n")
    os.chmod(path, 0o600)
    if IS_ROOT:
        info = data.stat()
        os.chown(path, info.st_uid, info.st_gid)


def test_stale_pid_file_of_no_process(home):
    home.ok("dev", "start")
    data = pathlib.Path(home.status()["data"])
    lines = (data / "postmaster.pid").read_text().splitlines()[1:]
    home.ok("dev", "stop")
    ended = subprocess.Popen(["true"])
    ended.wait()
    write_pid_file(data, ended.pid, lines)
    assert home.status()["state"] == "stopped"
    assert home.sql("SELECT 1") == "1"


def test_stale_pid_file_of_another_process(home):
    """The pid is in use again, by a process of the very user the server runs as."""
    home.ok("dev", "start")
    data = pathlib.Path(home.status()["data"])
    lines = (data / "postmaster.pid").read_text().splitlines()[1:]
    home.ok("dev", "stop")
    owner = {"user": data.stat().st_uid, "group": data.stat().st_gid} if IS_ROOT else {}
    other = subprocess.Popen(["sleep", "600"], cwd="/", **owner)
    try:
        write_pid_file(data, other.pid, lines)
        assert home.status()["state"] == "stopped"
        assert home.ok("dev", "stop").strip() == "not running"
        assert home.sql("SELECT 1") == "1"
        assert other.poll() is None, "a process that is not ours was ended"
    finally:
        other.kill()
        other.wait()


def test_started_by_many_at_once(home):
    runs = [home.start("dev", "start") for _ in range(8)]
    outputs = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0] * 8, outputs
    started = [out for out, _ in outputs if out.startswith("started")]
    assert len(started) == 1, outputs
    pid = home.status()["pid"]
    assert all(f"(pid {pid})" in out for out, _ in outputs)


def test_half_done_initdb(home):
    home.ok("dev", "start")
    data = pathlib.Path(home.status()["data"])
    home.ok("dev", "stop")
    # What a start that was killed in the middle of initdb leaves.
    os.rename(data, data.parent / "pg.new")
    (data.parent / "pg.new" / "PG_VERSION").unlink()
    assert home.sql("SELECT 1") == "1"
    assert not (data.parent / "pg.new").exists()


def test_killed_while_starting(home):
    """Whatever moment a start is killed at, the next one works."""
    for _ in range(6):
        first = home.start("dev", "start")
        wait_for(lambda: home.path.exists(), "the home")
        first.kill()
        first.communicate()
    assert home.sql("SELECT 1") == "1"


def test_paths_with_spaces_and_quotes(home):
    odd = Home(home.path.parent / "it's a \"home\", ok? #1%20")
    try:
        assert odd.sql("SELECT 1") == "1"
        url = odd.ok("dev", "url").strip()
        assert subprocess.run(["psql", url, "-XAtc", "SELECT 2"], capture_output=True, text=True,
                              check=True).stdout.strip() == "2"
        odd.kill_server()
        assert odd.sql("SELECT 3") == "3"
    finally:
        odd.remove()


def test_path_too_long_for_a_socket(home):
    deep = Home(home.path.parent / ("d" * 60) / ("e" * 60))
    try:
        assert deep.sql("SELECT 1") == "1"
        sockets = deep.ok("dev", "url").strip().split("host=")[1].split("&")[0]
        assert len(sockets) < 90
        assert mode_of(sockets) == 0o700
        deep.ok("dev", "stop")
        assert not os.path.exists(sockets), "nothing stays behind in /tmp"
        # A directory in that place that others can enter is refused.
        os.mkdir(sockets, 0o755)
        refused = deep.run("dev", "start")
        assert refused.returncode == 1 and sockets in refused.stderr
        os.rmdir(sockets)
        assert deep.sql("SELECT 1") == "1"
    finally:
        deep.remove()


def test_home_in_the_current_directory(home):
    here = Home("", cwd=home.path.parent)
    try:
        out = here.run("dev", "start", env={"MILLRACE_HOME": ""})
        assert out.returncode == 0, out.stderr
        assert (home.path.parent / ".millrace" / "pg").is_dir() or not IS_ROOT
        assert here.run("dev", "stop", env={"MILLRACE_HOME": ""}).stdout.strip() == "stopped"
    finally:
        shutil.rmtree(home.path.parent / ".millrace", ignore_errors=True)


def test_no_server_binaries(home):
    empty = home.path.parent / "empty"
    empty.mkdir()
    wrong = home.run("dev", "start", env={"MILLRACE_PG_BIN": str(empty)})
    assert wrong.returncode == 2 and "MILLRACE_PG_BIN" in wrong.stderr
    if not pathlib.Path("/usr/lib/postgresql").exists():
        none = home.run("dev", "start", env={"PATH": str(empty)})
        assert none.returncode == 2 and "apt install postgresql" in none.stderr


def test_failed_start_shows_the_log(home):
    home.ok("dev", "start")
    data = pathlib.Path(home.status()["data"])
    home.ok("dev", "stop")
    with open(data / "postgresql.conf", "a", encoding="utf-8") as file:
        file.write("\nno_such_setting_here = 1\n")
    failed = home.run("dev", "start")
    assert failed.returncode == 1
    assert "no_such_setting_here" in failed.stderr and "did not start" in failed.stderr


def test_foreign_server_on_the_data_is_left_alone(home):
    home.ok("dev", "start")
    status = home.status()
    home.ok("dev", "stop")
    data = pathlib.Path(status["data"])
    owner = {"user": data.stat().st_uid, "group": data.stat().st_gid, "extra_groups": []} if IS_ROOT else {}
    sockets = open_directory()
    if IS_ROOT:
        os.chown(sockets, data.stat().st_uid, data.stat().st_gid)
    program = shutil.which("postgres") or str(next(pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres")))
    other = subprocess.Popen([program, "-D", data, "-k", sockets], cwd="/", stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, **owner)
    try:
        wait_for(lambda: (sockets / ".s.PGSQL.5432").exists(), "the other server")
        for command in ("start", "stop"):
            refused = home.run("dev", command)
            assert refused.returncode == 1 and "did not start" in refused.stderr
        assert other.poll() is None
    finally:
        other.terminate()
        other.wait()
        shutil.rmtree(sockets, ignore_errors=True)


@needs_root
def test_as_root_the_server_is_another_user(home):
    home.ok("dev", "start")
    pid = home.status()["pid"]
    uid = os.stat(f"/proc/{pid}").st_uid
    assert uid != 0
    assert os.stat(home.status()["data"]).st_uid == uid
    assert home.sql("SELECT 1") == "1"


@needs_root
def test_as_root_below_a_closed_directory(home):
    """The server's user cannot get there, so the data lives elsewhere and a note says where."""
    closed = home.path.parent / "closed"
    closed.mkdir(mode=0o700)
    hidden = Home(closed / "home")
    try:
        first = hidden.run("schema", "status")
        assert first.returncode == 0 and "/var/tmp/millrace-" in first.stderr
        data = pathlib.Path(hidden.status()["data"])
        assert str(data).startswith("/var/tmp/millrace-")
        assert mode_of(data.parent) == 0o700
        assert (hidden.path / "pg.location").read_text().strip() == str(data)
        hidden.ok("dev", "stop")
        os.chown(data.parent, 12345, 12345)
        refused = hidden.run("dev", "start")
        assert refused.returncode == 1 and "belongs to another user" in refused.stderr
        os.chown(data.parent, data.stat().st_uid, data.stat().st_gid)
        assert hidden.sql("SELECT 1") == "1"
    finally:
        hidden.remove()


@needs_root
def test_as_an_ordinary_user(home):
    place = open_directory()
    os.chown(place, 65534, 65534)
    plain = Home(place / "home", owner=NOBODY)
    try:
        assert plain.sql("SELECT 1") == "1"
        pid = plain.status()["pid"]
        assert os.stat(f"/proc/{pid}").st_uid == 65534
        assert mode_of(plain.path) == 0o700
        # Root, later, finds the same server and keeps it running as its owner.
        root = Home(plain.path)
        assert root.status()["pid"] == pid
        root.ok("dev", "stop")
        root.ok("dev", "start")
        assert os.stat(f"/proc/{root.status()['pid']}").st_uid == 65534
        # The other way round is refused in words.
        home.ok("dev", "start")
        stranger = Home(home.path, owner=NOBODY)
        refused = stranger.run("dev", "start")
        assert refused.returncode == 1 and "another user" in refused.stderr
    finally:
        plain.remove()
        shutil.rmtree(place, ignore_errors=True)


def test_server_does_not_keep_our_pipes(home):
    """A caller that reads our output to its end must not wait for the server to end."""
    done = subprocess.run([BINARY, "dev", "start"], env=home.environment(), capture_output=True, timeout=60,
                          check=True)
    assert b"started" in done.stdout
