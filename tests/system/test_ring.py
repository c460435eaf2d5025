"""ring owner and ring simulate: the arithmetic without a database, the fleet's own members with one, wrong input, and
what a terminal gets that a pipe does not."""

import json
import os
import pty
import re
import subprocess
import uuid

import pytest

from cli_helpers import BINARY, ROOT
from harness import millrace, wait_until

NOWHERE = "postgresql://localhost:1/nothing"  # nobody listens there: whoever asks it exits with 3


def fnv1a(text):
    value = 2166136261
    for byte in text.encode():
        value = (value ^ byte) * 16777619 % 2**32
    return value


def offline(*words, status=0):
    done = millrace("ring", *words, database=NOWHERE, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def simulate(*words):
    return json.loads(offline("simulate", *words, "--json"))


# ---- owner, without a database --------------------------------------------------------------------------------------

@pytest.mark.asan
@pytest.mark.parametrize("key", ["a", "foobar", "order:9182", "Grüße", "日本語🦀", ""])
def test_owner_among_given_workers(key):
    rows = [json.loads(offline("owner", key, "--workers", names, "--json"))
            for names in ("a,b,c", "c,a,b", "b,b,c,a,a")]
    assert rows[0] | {"workers": 5} == rows[1] | {"workers": 5} == rows[2]
    assert rows[0] == {"key": key, "bucket": fnv1a(key) % 1024, "buckets": 1024, "owner": rows[0]["owner"],
                       "address": None, "workers": 3}
    assert rows[0]["owner"] in ("a", "b", "c")
    assert offline("owner", key, "--workers", "a,b,c") == (
        f"key     {key}\nbucket  {fnv1a(key) % 1024} of 1024\nowner   {rows[0]['owner']}\n")


def test_the_guide_says_what_the_program_says():
    guide = (ROOT / "docs" / "ring.md").read_text(encoding="utf-8")
    assert f"```text\n{offline('owner', 'order:9182', '--workers', 'a,b,c')}```" in guide


def test_owner_follows_the_options():
    row = json.loads(offline("owner", "foobar", "--workers", "a,b", "--buckets", "7", "--json"))
    assert (row["bucket"], row["buckets"]) == (0xbf9cf968 % 7, 7)
    keys = [str(number) for number in range(60)]
    owners = [{key: json.loads(offline("owner", key, "--workers", "a,b,c", "--json", *more))["owner"] for key in keys}
              for more in ([], ["--hash", "fnv1a"])]
    assert owners[0] != owners[1]


# ---- owner, of a fleet ----------------------------------------------------------------------------------------------

def register(db, state="alive", age=0, queues=()):
    worker = str(uuid.uuid4())
    db.execute("INSERT INTO millrace.worker_nodes (worker_id, host, pid, version, state, queues, heartbeat_at) "
               "VALUES (%s, 'here', 17, '0', %s, %s, now() - %s * interval '1 s')",
               [worker, state, list(queues), age])
    return worker


def test_nobody_is_there(db):
    assert millrace("ring", "owner", "k", database=db).stdout.endswith("\nowner   nobody: no worker is alive\n")
    register(db, queues=["mails"])
    text = millrace("ring", "owner", "k", "--queue", "bills", database=db).stdout
    assert text.endswith("\nowner   nobody: no worker that is alive has the queue bills\n")
    row = json.loads(millrace("ring", "owner", "k", "--queue", "bills", "--json", database=db).stdout)
    assert row["owner"] is None and row["workers"] == 0 and row["bucket"] == fnv1a("k") % 1024


@pytest.mark.asan
def test_only_those_alive_count(db):
    alive = [register(db, queues=["mails", "bills"] if i == 0 else ["mails"]) for i in range(3)]
    register(db, state="draining", queues=["mails"])
    register(db, state="dead", queues=["mails"])
    register(db, age=3600, queues=["mails"])
    seen = set()
    for number in range(30):
        key = f"key {number}"
        row = json.loads(millrace("ring", "owner", key, "--json", database=db).stdout)
        same = json.loads(offline("owner", key, "--workers", ",".join(alive), "--json"))
        assert row == same | {"address": "here:17"} and row["workers"] == 3
        seen.add(row["owner"])
    assert seen == set(alive)
    assert f"\nowner   {alive[0]}  here:17\n" in millrace("ring", "owner", "k", "--queue", "bills", database=db).stdout


def test_a_real_worker(db, worker):
    db.execute("CREATE TABLE t (id bigint PRIMARY KEY, state text DEFAULT 'queued', failure_message text, queued_at "
               "timestamptz DEFAULT now(), started_at timestamptz, finished_at timestamptz, process_after timestamptz, "
               "num_resets int DEFAULT 0, num_failures int DEFAULT 0, last_heartbeat_at timestamptz, "
               "execution_logs json[], worker_hostname text DEFAULT '')")
    process = worker(db, {"queues": [{"name": "mails", "table": "t", "sql": "SELECT 1"}]})

    def owner():
        return json.loads(millrace("ring", "owner", "k", "--queue", "mails", "--json", database=db).stdout)["owner"]
    wait_until(owner, 20, "the worker to be seen")
    assert owner() == process.matching(msg="registered")[-1]["worker"]


def test_a_database_that_is_away():
    assert "millrace: " in offline("owner", "k", status=3)


# ---- simulate -------------------------------------------------------------------------------------------------------

@pytest.mark.asan
@pytest.mark.parametrize("workers", [1, 3, 10, 50])
def test_shares_add_up(workers):
    result = simulate("--workers", workers, "--keys", "20000")
    assert len(result["shares"]) == result["workers"] == workers and "change" not in result
    for what, total in (("bucket", 1024), ("key", 20000)):
        counts = [row[what + "s"] for row in result["shares"]]
        spread = result[what + "_spread"]
        assert sum(counts) == total and spread["min"] == min(counts) and spread["max"] == max(counts)
        assert spread["max_to_mean"] == pytest.approx(max(counts) / (total / workers))
    assert result["bucket_spread"]["max_to_mean"] <= 1.08


@pytest.mark.parametrize("add,remove,ideal,after", [(1, 0, 1 / 11, 11), (0, 1, 1 / 10, 9), (1, 1, 1 / 10, 10),
                                                    (5, 1, 5 / 14, 14), (1, 10, 1, 1)])
def test_moves_beside_the_ideal(add, remove, ideal, after):
    result = simulate("--workers", 10, "--add", add, "--remove", remove, "--keys", "30000")
    change, shares = result["change"], result["shares"]
    assert (change["added"], change["removed"], change["workers"]) == (add, remove, after)
    for what, total in (("buckets", 1024), ("keys", 30000)):
        moved = change[what]
        assert moved["ideal"] == pytest.approx(ideal) and moved["share"] == pytest.approx(moved["moved"] / total)
        assert moved["times_ideal"] == pytest.approx(moved["share"] / ideal)
    # Who comes does not take the place of who goes, so with both more moves than has to.
    assert 1 <= change["buckets"]["times_ideal"] < (2 if add and remove else 1.6)
    assert [row["buckets"] is None for row in shares] == [False] * 10 + [True] * add
    assert [row["buckets_after"] is None for row in shares] == [True] * remove + [False] * (10 - remove + add)
    assert sum(row["buckets_after"] or 0 for row in shares) == 1024
    least = sum(row["buckets"] for row in shares[:remove])
    assert change["buckets"]["moved"] >= least


def test_hash_and_cap_make_the_difference():
    plain = simulate("--workers", "50", "--cap", "none", "--hash", "fnv1a")
    strong = simulate("--workers", "50", "--cap", "none")
    assert plain["bucket_spread"]["max_to_mean"] > 2 > strong["bucket_spread"]["max_to_mean"] > 1.2
    assert plain["cap"] is None and plain["hash"] == "fnv1a"
    exact = simulate("--workers", "50", "--cap", "1", "--buckets", "1000", "--vnodes", "20")
    assert exact["bucket_spread"] == {"min": 20, "max": 20, "mean": 20.0, "max_to_mean": 1.0}
    assert (exact["cap"], exact["vnodes"], exact["buckets"]) == (1.0, 20, 1000)


def test_text():
    text = offline("simulate", "--workers", "4", "--add", "1", "--keys", "1000")
    assert text.startswith("4 workers, 1024 buckets, 150 points a worker, cap 1.05, hash strong\n\nworker ")
    result = simulate("--workers", "4", "--add", "1", "--keys", "1000")
    for row in result["shares"][:4]:
        assert re.search(rf"^{row['worker']} +{row['buckets']} +\d+\.\d\d % +{row['keys']} +\d+\.\d\d % "
                         rf"+{row['buckets_after']}$", text, re.M)
    assert re.search(r"^worker-5 +- +- +- +- +\d+$", text, re.M)
    assert "\n4 workers become 5: 1 new, 0 gone\n" in text
    assert re.search(rf"^buckets +{result['change']['buckets']['moved']} +\d+\.\d\d % +20\.00 % +\d\.\d\d$", text, re.M)
    assert "\033" not in text and "▀" not in text
    assert "one by one with --json" in offline("simulate", "--workers", "65")


# ---- The picture ----------------------------------------------------------------------------------------------------

def on_terminal(*words, **environment):
    """What the program writes when its output is a terminal."""
    leader, follower = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    env |= {"TERM": "xterm", "LC_ALL": "C.UTF-8", **environment}
    process = subprocess.Popen([BINARY, "ring", "simulate", *words], stdout=follower, env=env)
    os.close(follower)
    data = b""
    try:
        while chunk := os.read(leader, 65536):
            data += chunk
    except OSError:  # the other side has closed
        pass
    os.close(leader)
    assert process.wait(30) == 0
    return data.decode().replace("\r\n", "\n")


def circle(text):
    """The rows of the picture in letters, without the legend."""
    rows = [line[2:46] for line in text.split("\n\n")[1].split("\n")]
    assert len(rows) == 22
    return rows


def test_picture_on_a_terminal_only():
    words = ["--workers", "5", "--keys", "100"]
    assert "▀" in on_terminal(*words) and "\033[38;5;" in on_terminal(*words)
    assert "▀" not in on_terminal(*words, TERM="dumb")
    assert "▀" not in on_terminal(*words, "--json")
    forced = subprocess.run([BINARY, "ring", "simulate", *words, "--picture"], capture_output=True, check=True,
                            env={**os.environ, "LC_ALL": "C.UTF-8"}).stdout.decode()
    assert "▀" in forced


@pytest.mark.asan
@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"LC_ALL": "C"}])
def test_picture_in_letters(environment):
    text = on_terminal("--workers", "3", "--add", "1", "--keys", "100", **environment)
    rows = circle(text)
    assert "\033" not in text and "▀" not in text
    assert "A  worker-1" in text and "D  worker-4" in text
    drawn = "".join(rows)
    outside = "".join(row[:6].strip() for row in rows[8:14])
    assert set(outside) <= set("ABC ") and "D" in drawn and "." in drawn  # the newcomer has only what moved
    assert drawn.count("A") > 50 and drawn.count("B") > 50 and drawn.count("C") > 50


def test_picture_goes_round_from_the_top():
    options = ["--buckets", "4", "--cap", "1"]
    quarters = {}
    for number in range(40):  # keys for each of the four buckets
        row = json.loads(offline("owner", str(number), "--workers", "worker-1,worker-2,worker-3,worker-4", "--json",
                                 *options))
        quarters[row["bucket"]] = "ABCD"[int(row["owner"][-1]) - 1]
    rows = circle(on_terminal("--workers", "4", "--keys", "100", *options, NO_COLOR="1"))
    right, left = [row[22:] for row in rows], [row[:22] for row in rows]
    shown = [re.sub(r"[^ABCD]", "", "".join(part)) for part in (right[:10], right[12:], left[12:], left[:10])]
    assert [set(part) for part in shown] == [{quarters[bucket]} for bucket in range(4)]
    assert len(set(quarters.values())) == 4


def test_picture_of_one_and_of_many():
    one = circle(on_terminal("--workers", "1", "--keys", "100", NO_COLOR="1"))
    assert set("".join(one)) - set(" 1024buckets1worker") == {"A"}
    for row in one[1:]:  # left and right half alike: a circle
        body = re.sub(r"[^A]", " ", row)
        assert body == body[::-1]
    many = on_terminal("--workers", "300", "--keys", "100")
    assert "and 281 more" in many


# ---- Wrong input ----------------------------------------------------------------------------------------------------

@pytest.mark.asan
@pytest.mark.parametrize("words,message", [
    (["simulate"], "needs --workers N"),
    (["simulate", "--workers", "0"], "--workers: '0' is not a whole number from 1 to 10000"),
    (["simulate", "--workers", "-3"], "--workers: '-3'"),
    (["simulate", "--workers", "9" * 30], "--workers: '999"),
    (["simulate", "--workers", "three"], "--workers: 'three'"),
    (["simulate", "--workers", "10000", "--add", "1"], "at most 10000 workers"),
    (["simulate", "--workers", "10000", "--vnodes", "2000"], "more than 4000000 points"),
    (["simulate", "--workers", "3", "--remove", "4"], "--remove: '4'"),
    (["simulate", "--workers", "3", "--remove", "3"], "nothing is left"),
    (["simulate", "--workers", "3", "--add", "99999999"], "--add: '99999999'"),
    (["simulate", "--workers", "3", "--buckets", "0"], "--buckets: '0' is not a whole number from 1 to 65536"),
    (["simulate", "--workers", "3", "--buckets", "1e9"], "--buckets: '1e9'"),
    (["simulate", "--workers", "3", "--vnodes", "0"], "--vnodes: '0'"),
    (["simulate", "--workers", "3", "--cap", "0.9"], "--cap: '0.9' is neither 'none' nor a number from 1"),
    (["simulate", "--workers", "3", "--cap", "nan"], "--cap: 'nan'"),
    (["simulate", "--workers", "3", "--hash", "md5"], "--hash: 'md5' is neither strong nor fnv1a"),
    (["simulate", "--workers", "3", "--keys", "0"], "--keys: '0'"),
    (["simulate", "--workers", "3", "--keys", "99999999999"], "--keys: '99999999999'"),
    (["simulate", "--workers", "3", "--queue", "x"], "has no option --queue"),
    (["simulate", "--workers", "3", "more"], "unexpected word 'more'"),
    (["owner"], "needs a key"),
    (["owner", "a", "b", "--workers", "x"], "unexpected word 'b'"),
    (["owner", "a", "--workers", ""], "has an empty name"),
    (["owner", "a", "--workers", "x,,y"], "has an empty name"),
    (["owner", "a", "--workers", "x", "--queue", "q"], "exclude each other"),
    (["owner", "a", "--workers", "x", "--add", "1"], "has no option --add"),
    (["owner", b"\xff", "--workers", "x"], "not valid UTF-8"),
    (["owner", "a", "--workers", b"x,\xff"], "not valid UTF-8"),
    (["ownr", "a"], "did you mean owner?"),
    ([], "needs one more word"),
])
def test_wrong_input(words, message):
    done = subprocess.run([BINARY, "ring", *words], capture_output=True, check=False)
    assert done.returncode == 2 and done.stdout == b""
    assert message in done.stderr.decode(), done.stderr.decode()


def test_names_are_not_obeyed_by_terminals():
    text = offline("owner", "\033[31mred", "--workers", "\033]0;x")
    assert "\033" not in text and "key     ?[31mred\n" in text
