"""millrace demo: three workers, one killed in the middle, and a count that proves that nothing was lost."""

import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from fcntl import ioctl

import pytest

from cli_helpers import BINARY, Home, open_directory, wait_for

END = re.compile(r"demo: (\d+) committed, (\d+) handled by each of (\d+) consumers, (\d+) rolled back, "
                 r"0 lost, 0 doubled")


@pytest.fixture(scope="module")
def home():
    directory = open_directory()
    home = Home(directory / "home", cwd=directory)
    home.ok("dev", "start")
    yield home
    home.remove()
    shutil.rmtree(directory, ignore_errors=True)


def demo_sql(home, text):
    uri = home.ok("dev", "url").strip().replace("/millrace?", "/millrace_demo?")
    return subprocess.run(["psql", uri, "-XAtqc", text], capture_output=True, text=True, check=False).stdout.strip()


def test_a_worker_is_killed_and_nothing_is_lost(home):
    """On a server that has only just started, too, and in well under a minute."""
    begin = time.monotonic()
    done = home.run("demo", "--seconds", "3", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - begin < 40
    lines = done.stdout.splitlines()
    committed, handled, consumers, rolled_back = map(int, END.fullmatch(lines[-1]).groups())
    assert committed == handled > 100 and consumers == 4 and rolled_back > 10
    assert demo_sql(home, "SELECT count(*) FROM events") == str(committed)
    kill, = (line for line in lines if line.startswith("kill -9 worker "))
    victim, names = re.fullmatch(r"kill -9 worker (\d)(?:, the leader)?, which owned (.+)", kill).groups()
    moved, = (line for line in lines if line.startswith("killed worker "))
    found = re.fullmatch(rf"killed worker {victim}, its consumers moved in (\d+) ms: {names}", moved)
    assert found and int(found.group(1)) < 10000, moved
    # Nobody's consumer stays with the victim; before, all three workers had some.
    owners = [line for line in lines if line.startswith("owners, ")]
    after = [line for line in lines[lines.index(kill):] if line.startswith("owners, ")]
    assert any(set(re.findall(r"worker (\d)", line)) == {"1", "2", "3"} for line in owners), owners
    assert victim not in re.findall(r"worker (\d)", after[-1]), after
    assert "\033" not in done.stdout


def test_json(home):
    done = home.run("demo", "--json", "--seconds", "2", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["ok"] is True and result["workers"] == 3
    assert result["lost"] == result["doubled"] == result["out_of_order"] == 0
    assert set(result["handled"].values()) == {result["committed"]} and result["rolled_back"] > 0
    killed = result["killed"]
    assert killed["moved_ms"] > 0 and killed["consumers"] and set(killed["consumers"]) <= set(result["handled"])
    # Its row says that it died at work: nobody took it away, as one does who leaves.
    assert demo_sql(home, f"SELECT count(*) FROM millrace.worker_nodes WHERE pid = {killed['pid']}") == "1"


def test_one_worker_is_not_killed(home):
    result = json.loads(home.ok("demo", "--json", "--seconds", "1", "--workers", "1"))
    assert result["killed"] is None and result["ok"] and result["workers"] == 1


def run_on_a_terminal(home, rows, *words, **environment):
    """Everything the program writes to a terminal of that height, and its exit status."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
    demo = subprocess.Popen([BINARY, *words], cwd=home.cwd, stdin=subprocess.DEVNULL, stdout=theirs,
                            stderr=subprocess.DEVNULL, start_new_session=True,
                            env=home.environment(**{"TERM": "xterm", "LC_ALL": "C.UTF-8", **environment}))
    os.close(theirs)
    output, deadline = b"", time.monotonic() + 90
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], 1)[0]:
            continue
        try:
            output += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    return output.decode(errors="replace").replace("\r\n", "\n"), demo.wait(30)


def test_the_live_view(home):
    text, status = run_on_a_terminal(home, 24, "demo", "--seconds", "2")
    assert status == 0, text
    assert END.search(text)
    assert text.count("\033[?25l") == text.count("\033[?25h") == 1  # the cursor comes back
    frames = re.split(r"\033\[\d+A", text.split("\033[?25h")[0])
    assert len(frames) > 10
    plain = [re.sub(r"\033\[[?0-9;]*[A-Za-z]", "", frame) for frame in frames]
    for frame in plain[1:]:
        lines = frame.rstrip("\n").split("\n")
        assert len(lines) <= 22 and max(map(len, lines)) <= 79, frame
    last = plain[-1]
    assert re.search(r"worker \d  killed", last) and re.search(r"pid \d+ +leader", last)
    assert len(re.findall(r"^  (?:ledger|totals|audit|index) .* worker \d +█+ ", last, re.M)) == 4, last
    assert re.search(r"kill -9 worker \d", last) and re.search(r"its consumers moved in \d+ ms", last)


@pytest.mark.parametrize("rows, environment", [(10, {}), (24, {"TERM": "dumb"})])
def test_plain_lines_where_a_frame_cannot_stand(home, rows, environment):
    text, status = run_on_a_terminal(home, rows, "demo", "--seconds", "1", "--workers", "1", **environment)
    assert status == 0 and END.search(text) and "\033" not in text


def test_a_doubled_effect_is_found(home):
    demo = home.start("demo", "--seconds", "2", "--workers", "1")
    twice = ("WITH one AS (SELECT consumer, position FROM effects LIMIT 1) INSERT INTO effects (consumer, position) "
             "SELECT * FROM one RETURNING 'done'")
    wait_for(lambda: demo_sql(home, twice) == "done", "an effect to double")
    out, err = demo.communicate(timeout=60)
    assert demo.returncode == 5 and "lost or handled twice" in err
    assert out.splitlines()[-1].endswith(" 0 lost, 1 doubled")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_behind(home, number):
    demo = home.start("demo", "--seconds", "60")
    wait_for(lambda: demo_sql(home, "SELECT count(*) > 50 FROM events") == "t", "the demo to write")
    demo.send_signal(number)
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 1 and "interrupted" in err
    wait_for(lambda: home.sql("SELECT count(*) FROM pg_stat_activity WHERE datname = 'millrace_demo'") == "0",
             "the demo's sessions to end")


def test_killed_itself_its_workers_follow(home):
    demo = home.start("demo", "--seconds", "60")
    wait_for(lambda: demo_sql(home, "SELECT count(*) > 50 FROM events") == "t", "the demo to write")
    demo.kill()
    demo.communicate(timeout=60)
    wait_for(lambda: home.sql("SELECT count(*) FROM pg_stat_activity WHERE datname = 'millrace_demo'") == "0",
             "the workers to end")


@pytest.mark.parametrize("words", [["--workers", "0"], ["--workers", "9"], ["--seconds", "x"], ["more"],
                                   ["--database", "postgresql:///x"]])
def test_words_that_do_not_fit(home, words):
    assert home.run("demo", *words).returncode == 2
