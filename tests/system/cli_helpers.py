"""Helpers for tests of the program's commands: homes, runs, waiting for conditions."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.path.abspath(os.environ.get("MILLRACE_BIN", ROOT / "build" / "millrace"))
IS_ROOT = os.geteuid() == 0
# Variables that would point a command at another database than the one a test means.
CLEARED = ("MILLRACE_DATABASE", "DATABASE_URL", "MILLRACE_HOME", "MILLRACE_PG_BIN", "PGHOST", "PGPORT",
           "PGUSER", "PGDATABASE", "PGSERVICE", "XDG_RUNTIME_DIR")
NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}


def wait_for(condition, what, timeout=60.0):
    """Waits until condition() gives something true and returns that."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.02)


class Home:
    """A directory with an embedded PostgreSQL of its own."""

    def __init__(self, path, owner=None, cwd=None):
        self.path = pathlib.Path(path)
        self.owner = owner or {}
        self.cwd = cwd

    def environment(self, **extra):
        env = {k: v for k, v in os.environ.items() if k not in CLEARED}
        env["MILLRACE_HOME"] = str(self.path)
        env.update(extra)
        return env

    def start(self, *args, env=None, **options):
        return subprocess.Popen([BINARY, *map(str, args)], env=self.environment(**(env or {})), cwd=self.cwd,
                                stdin=options.pop("stdin", subprocess.DEVNULL), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, **self.owner, **options)

    def run(self, *args, stdin="", env=None, timeout=120):
        """Runs a command to its end; bytes on stdin are passed as they are."""
        if isinstance(stdin, str):
            stdin = stdin.encode()
        done = subprocess.run([BINARY, *map(str, args)], input=stdin, env=self.environment(**(env or {})),
                              cwd=self.cwd, capture_output=True, timeout=timeout, check=False, **self.owner)
        done.stdout, done.stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        return done

    def ok(self, *args, **options):
        done = self.run(*args, **options)
        assert done.returncode == 0, f"{args}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def sql(self, text):
        return self.ok("dev", "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text).strip()

    def status(self):
        import json
        return json.loads(self.ok("dev", "status", "--json"))

    def kill_server(self):
        """kill -9 of the postmaster; returns its pid."""
        pid = self.status()["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not pathlib.Path(f"/proc/{pid}/cwd").exists() or is_zombie(pid), "the server to die")
        return pid

    def remove(self):
        try:
            self.run("dev", "stop")
            data = pathlib.Path(self.status()["data"])
            if data.parent.name.startswith("millrace-"):
                shutil.rmtree(data.parent, ignore_errors=True)
        except (OSError, AssertionError):
            pass  # the program itself is broken or missing: the test has said so
        shutil.rmtree(self.path, ignore_errors=True)


def is_zombie(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def open_directory():
    """A new directory that every user may enter: pytest's own are closed to others."""
    path = tempfile.mkdtemp(prefix="millrace-test-")
    os.chmod(path, 0o755)
    return pathlib.Path(path)
