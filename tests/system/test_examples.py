"""The examples and the README do what they say: each program runs against a real database and its tables are looked
at; the README's commands run as they stand; an installed library is found by pkg-config."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from cli_helpers import CLEARED
from harness import (MILLRACE_BIN, PATIENCE, ROOT, SANITIZED, SANITIZER_WORDS, append_lines, insert_events,
                     rolled_back, wait_until)

EXAMPLES = Path(MILLRACE_BIN).resolve().parent / "examples"


def command(name, db, *arguments):
    program = EXAMPLES / f"example_{name}"
    assert program.exists(), f"{program} is missing: build with -Dtests=true"
    return [str(program), db.uri, *arguments]


def checked(done, status=0):
    assert not [word for word in SANITIZER_WORDS if word in done.stderr], done.stderr
    assert done.returncode == status, f"{done.args} exited {done.returncode}:\n{done.stdout}{done.stderr}"
    return done


def example(name, db, *arguments, status=0):
    """Runs an example to its end."""
    return checked(subprocess.run(command(name, db, *arguments), text=True, capture_output=True, check=False,
                                  timeout=60 * PATIENCE), status)


def stock(product, event_type, pieces):
    return {"aggregate_type": "Product", "aggregate_id": product, "event_type": event_type, "data": {"pieces": pieces}}


# ---- projection.c ---------------------------------------------------------------------------------------------------

@pytest.mark.asan
@pytest.mark.tsan
def test_projection_counts_each_event_once(db):
    append_lines(db, [stock("tea", "Received", 10), stock("tea", "Shipped", 3), stock("jam", "Received", 4)])
    rolled_back(db)
    insert_events(db, 5)  # of another type: passed over
    assert "handled 3 events" in example("projection", db).stdout
    assert db.rows("SELECT * FROM stock ORDER BY 1") == [("jam", 4), ("tea", 7)]
    assert db.rows("SELECT * FROM reorders") == []
    append_lines(db, [stock("tea", "Shipped", 4), stock("tea", "Shipped", 1), stock("tea", "Received", 9)])
    assert "handled 3 events" in example("projection", db).stdout
    assert db.rows("SELECT * FROM stock ORDER BY 1") == [("jam", 4), ("tea", 11)]
    assert db.rows("SELECT product, pieces FROM reorders ORDER BY position") == [("tea", 3), ("tea", 2)]


def test_projection_makes_its_schema_in_an_empty_database(empty_db):
    assert "handled 0 events" in example("projection", empty_db).stdout
    assert empty_db.value("SELECT count(*) FROM stock") == 0


@pytest.mark.asan
def test_projection_keeps_the_good_and_names_the_bad(db):
    append_lines(db, [stock("tea", "Received", 10), stock("tea", "Shipped", "many")])
    done = example("projection", db, status=1)  # it drains the log, so a pause is its end
    assert "position=2" in done.stderr
    assert db.rows("SELECT * FROM stock") == [("tea", 10)]
    assert db.checkpoint("stock_v1") == 1


# ---- batch.c --------------------------------------------------------------------------------------------------------

@pytest.mark.asan
@pytest.mark.tsan
def test_batch_writes_few_rows_for_many_events(db):
    insert_events(db, 1500, event_type="A")
    insert_events(db, 700, event_type="B")
    assert re.search(r"2200 events in \d+ batches", example("batch", db).stdout)
    assert db.rows("SELECT * FROM event_counts ORDER BY 1") == [("A", 1500), ("B", 700)]
    rows = db.rows("SELECT first, last, n FROM batches ORDER BY first")
    assert sum(row[2] for row in rows) == 2200 and max(row[2] for row in rows) <= 1000
    assert rows[0][0] == 1 and rows[-1][1] == 2200
    assert "0 events" in example("batch", db).stdout


# ---- appender.c -----------------------------------------------------------------------------------------------------

@pytest.mark.asan
def test_appender_places_then_confirms(db):
    assert "OrderPlaced at position 1, version 1" in example("appender", db).stdout
    said = example("appender", db).stdout
    assert "conflict: stream Order/o-1 is at version 1, expected none" in said
    assert "OrderConfirmed at position 2, version 2" in said  # the conflict drew no position
    example("appender", db, "o-2")
    assert db.rows("SELECT aggregate_id, aggregate_version, event_type, correlation_id FROM events "
                   "ORDER BY global_position") == [
        ("o-1", 1, "OrderPlaced", "o-1"), ("o-1", 2, "OrderConfirmed", "o-1"), ("o-2", 1, "OrderPlaced", "o-2")]
    assert db.rows("SELECT id, saves FROM orders ORDER BY 1") == [("o-1", 2), ("o-2", 1)]


def test_appenders_side_by_side(db):
    example("appender", db, "o-0")  # makes the tables
    started = [subprocess.Popen(command("appender", db), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
               for _ in range(8)]
    for process in started:
        said, _ = process.communicate(timeout=60 * PATIENCE)
        assert process.returncode == 0, said
    versions = db.values("SELECT aggregate_version FROM events WHERE aggregate_id = 'o-1' ORDER BY global_position")
    assert versions == list(range(1, 9))
    assert db.value("SELECT saves FROM orders WHERE id = 'o-1'") == 8


# ---- own_loop.c -----------------------------------------------------------------------------------------------------

@pytest.fixture
def own_loop(db):
    process = subprocess.Popen(command("own_loop", db), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, bufsize=1)
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()


def notes(db):
    if db.value("SELECT to_regclass('notes')") is None:
        return []
    return db.values("SELECT note FROM notes ORDER BY position")


@pytest.mark.asan
@pytest.mark.tsan
def test_own_loop_handles_what_it_appends(db, own_loop):
    own_loop.stdin.write("first\nsecond\n")
    wait_until(lambda: notes(db) == ["first", "second"], 20, lambda: f"two notes, not {notes(db)}")
    own_loop.stdin.write("third\n")
    wait_until(lambda: len(notes(db)) == 3, 20, "the third note")
    own_loop.stdin.close()
    own_loop.wait(30 * PATIENCE)
    checked(subprocess.CompletedProcess("own_loop", own_loop.returncode, "", own_loop.stderr.read()))
    assert db.value("SELECT count(*) FROM millrace.worker_nodes") == 0  # it has left in good order


def test_own_loop_stops_on_a_signal(db, own_loop):
    own_loop.stdin.write("only\n")
    wait_until(lambda: notes(db) == ["only"], 20, "the note")
    own_loop.send_signal(signal.SIGTERM)
    assert own_loop.wait(30 * PATIENCE) == 0, own_loop.stderr.read()


# ---- test_handler.c -------------------------------------------------------------------------------------------------

@pytest.mark.asan
def test_the_tests_of_a_handler_pass(empty_db):
    without = [str(EXAMPLES / "example_test_handler")]  # no server is needed but for the last part
    done = checked(subprocess.run(without, text=True, capture_output=True, check=False, timeout=60 * PATIENCE))
    assert "\nFAIL" not in done.stdout and done.stdout.count("\nok") > 30
    said = example("test_handler", empty_db).stdout
    assert "\nFAIL" not in said and len(said) > len(done.stdout)
    assert empty_db.value("SELECT count(*) FROM pg_class WHERE relname = 'balances'") == 0


def test_the_guide_to_testing_shows_the_example():
    source = (ROOT / "examples" / "test_handler.c").read_text(encoding="utf-8")
    guide = (ROOT / "docs" / "testing-your-handlers.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```c\n(.*?)```", guide, re.S)
    assert len(blocks) >= 8
    for block in blocks:
        assert block in source, f"not in the example:\n{block}"


# ---- The README -----------------------------------------------------------------------------------------------------

def readme_blocks(language):
    """Fenced blocks of the section that a newcomer follows."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("## A first consumer", 1)[1].split("\n## ", 1)[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.S)


def test_the_readme_shows_the_example_file():
    comments = re.compile(r"^ *#.*\n", re.M)
    shown = comments.sub("", readme_blocks("yaml")[0])
    assert shown == comments.sub("", (ROOT / "examples" / "orders.yaml").read_text(encoding="utf-8"))


@pytest.mark.skipif(SANITIZED, reason="once is enough")
def test_the_readme_works_word_for_word(tmp_path):
    home = Path("/tmp") / f"mr-readme-{os.getpid()}"  # a short path, and one that the server's user can enter
    (tmp_path / "build").mkdir()
    os.symlink(MILLRACE_BIN, tmp_path / "build" / "millrace")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    env = {name: value for name, value in os.environ.items() if name not in CLEARED}
    env["MILLRACE_HOME"] = str(home)
    said = ""
    try:
        for block in readme_blocks("sh"):
            if "./dev " in block:
                continue
            done = checked(subprocess.run(["sh", "-e", "-c", block], cwd=tmp_path, env=env, text=True, check=False,
                                          capture_output=True, timeout=120))
            said += done.stdout
    finally:
        subprocess.run([MILLRACE_BIN, "dev", "stop"], env=env, check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)
    shown = readme_blocks("text")
    assert shown
    for block in shown:
        for line in block.splitlines():
            assert line.strip() in said, f"README shows {line!r}, but the commands said:\n{said}"


# ---- The installed library ------------------------------------------------------------------------------------------

@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """`meson install` into a directory of its own."""
    if SANITIZED:
        pytest.skip("a sanitized library is not for installing")
    stage = tmp_path_factory.mktemp("stage")
    subprocess.run(["meson", "install", "-C", str(EXAMPLES.parent), "--no-rebuild", "--destdir", str(stage)],
                   check=True, capture_output=True)
    return stage


def pkg_config(stage, *arguments):
    """Flags for what is below the stage. Only Millrace's own prefix moves there: a sysroot would move libpq's too."""
    file = next(stage.rglob("pkgconfig/millrace.pc"))
    moved = re.sub(r"^prefix=", f"prefix={stage}", file.read_text(encoding="utf-8"), flags=re.M)
    (stage / "millrace.pc").write_text(moved, encoding="utf-8")
    return subprocess.run(["pkg-config", *arguments, "millrace"], env={**os.environ, "PKG_CONFIG_PATH": str(stage)},
                          check=True, text=True, capture_output=True).stdout.split()


def test_an_installed_library_is_found_by_pkg_config(db, installed, tmp_path):
    program = tmp_path / "appender"
    flags = pkg_config(installed, "--cflags", "--libs")
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", ROOT / "examples" / "appender.c",
                    *flags, "-o", program], check=True)
    library = next(installed.rglob("libmillrace.so.0")).parent
    checked(subprocess.run([program, db.uri], env={**os.environ, "LD_LIBRARY_PATH": str(library)}, text=True,
                           check=False, capture_output=True, timeout=60))
    assert db.value("SELECT event_type FROM events") == "OrderPlaced"


def test_the_header_is_good_for_a_strict_compiler_and_for_cpp(installed, tmp_path):
    flags = pkg_config(installed, "--cflags")
    source = tmp_path / "only.c"
    source.write_text("#include <millrace/millrace.h>\nint main(void) { return mr_version() == 0; }\n",
                      encoding="utf-8")
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-c", source, *flags, "-o",
                    tmp_path / "only.o"], check=True)
    cpp = shutil.which("g++") or shutil.which("clang++")
    if cpp is None:
        pytest.skip("no C++ compiler here")
    subprocess.run([cpp, "-x", "c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", source, *flags],
                   check=True)
