#!/usr/bin/python3
"""Runs the benchmark on a private PostgreSQL that is removed afterwards: run.py --build DIR [ARGUMENT…].

Durable as in production (fsync on); the rest of the settings keeps checkpoints of the server out of the
measured time, on both sides alike. The row `peers` is peers.py's; without rows it comes last.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import peers  # noqa: E402
from pg_server import PgServer  # noqa: E402

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
}
PEERS_HELP = """  peers      jobs beside graphile-worker and pg-boss, which come from the npm registry;
             --jobs N (100,000; with --quick 20,000), --what enqueue|drain|latency
"""


def run_program(program, arguments, as_json):
    """(exit code, what it printed when that is JSON)."""
    with PgServer(SETTINGS) as server:
        environment = {**os.environ, "MILLRACE_TEST_DATABASE": server.uri()}
        out = subprocess.PIPE if as_json else None
        with subprocess.Popen([program, *arguments], env=environment, stdout=out, text=True) as child:
            try:
                text, _ = child.communicate()
                return child.returncode, json.loads(text) if text else {}
            finally:
                if child.poll() is None:
                    child.kill()


def run_peers(options, asked):
    """(exit code, figures). That they cannot be installed is a failure only for one who asked for them."""
    jobs = options.jobs or (20000 if options.quick else 100000)
    runs = options.runs or (3 if options.quick else 5)
    try:
        return peers.run(options.build, jobs, runs, options.quick, options.json,
                         options.what or tuple(peers.ENTRIES))
    except peers.Unavailable as why:
        print(f"bench: no figures beside other job queues: {why}\n"
              "bench: `./dev bench peers` gives them alone", file=sys.stderr)
        return (3 if asked else 0), {"unavailable": str(why)}


def parse(arguments):
    parser = argparse.ArgumentParser(add_help=False, usage="run.py [--build DIR] ARGUMENT…")
    parser.add_argument("--build", default="build-release")
    parser.add_argument("--help", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--what", action="append", choices=tuple(peers.ENTRIES))
    parser.add_argument("rows", nargs="*")
    return parser.parse_intermixed_args(arguments)


def main(arguments):
    options = parse(arguments)
    program = ROOT / options.build / "bench" / "millrace-bench"
    if options.help:
        code = subprocess.run([program, "--help"], check=False).returncode
        print(PEERS_HELP, end="")
        return code

    def interrupted(number, _frame):
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    rows = [row for row in options.rows if row != "peers"]
    asked = len(rows) < len(options.rows)
    code, result = 0, {}
    if rows or not asked:
        flags = ["--json"] * options.json + ["--quick"] * options.quick
        flags += ["--runs", str(options.runs)] if options.runs else []
        code, result = run_program(program, [*flags, *rows], options.json)
        if code == 2:
            return code
    if asked or not rows:
        if not options.json and (rows or not asked):
            print()
        other, result["peers"] = run_peers(options, asked)
        code = max(code, other)
    if options.json:
        print(json.dumps(result, indent=2))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
