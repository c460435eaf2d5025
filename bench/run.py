#!/usr/bin/python3
"""Runs the benchmark on a private PostgreSQL that is removed afterwards: run.py --build DIR [ARGUMENT…].

Durable as in production (fsync on); the rest of the settings keeps checkpoints of the server out of the
measured time, on both sides alike.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from pg_server import PgServer  # noqa: E402

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
}


def main(arguments):
    build = "build-release"
    if arguments[:1] == ["--build"] and len(arguments) > 1:
        build, arguments = arguments[1], arguments[2:]
    program = ROOT / build / "bench" / "millrace-bench"
    if "--help" in arguments:
        return subprocess.run([program, "--help"], check=False).returncode

    def interrupted(number, _frame):
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    with PgServer(SETTINGS) as server:
        environment = {**os.environ, "MILLRACE_TEST_DATABASE": server.uri()}
        with subprocess.Popen([program, *arguments], env=environment) as child:
            try:
                return child.wait()
            finally:
                if child.poll() is None:
                    child.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
