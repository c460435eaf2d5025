#!/usr/bin/python3
"""A private, throw-away PostgreSQL for tests.

`pg_server.py run -- COMMAND …` starts one, exports MILLRACE_TEST_DATABASE, runs the command and removes
everything again, also on SIGINT and SIGTERM. As a module it gives the class PgServer.

The server listens on a socket in a short directory under /tmp only (a socket's path is limited to about
100 bytes). Started by root, it runs as user postgres, because the server refuses to run as root.
"""

import glob
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from urllib.parse import quote

SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "max_prepared_transactions": "64",
    "fsync": "off",  # tests kill processes, never the machine: what was written stays written
    "shared_buffers": "64MB",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %a ",
    "timezone": "UTC",
}

# Removes the cluster when the process that owns it is gone, however it went.
WATCHDOG = """
import os, shutil, signal, sys
sys.stdin.read()
for data in sys.argv[2:]:
    try:
        with open(os.path.join(data, 'postmaster.pid')) as pid:
            os.kill(int(pid.readline()), signal.SIGQUIT)
    except (OSError, ValueError):
        pass
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


def bin_dir():
    """Where the server's programs are: MILLRACE_PG_BIN, Debian's place (newest first), then PATH."""
    places = [os.environ.get("MILLRACE_PG_BIN", "")]
    debian = glob.glob("/usr/lib/postgresql/*/bin")
    places += sorted(debian, key=lambda path: float(path.split("/")[-2]), reverse=True)
    found = shutil.which("initdb")
    places += [os.path.dirname(found)] if found else []
    for place in places:
        if place and os.access(os.path.join(place, "initdb"), os.X_OK):
            return place
    raise RuntimeError("no PostgreSQL server found: install postgresql or set MILLRACE_PG_BIN")


def _children(pid):
    """Process ids whose parent is `pid`: a killed postmaster leaves its backends behind for a moment."""
    found = []
    for stat in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(stat, encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.split("/")[2]))
    return found


class PgServer:
    """One server. start(), stop(mode), restart(mode), kill9(), uri(dbname), create_standby(), promote(),
    destroy(). Also a context manager, which starts and destroys it."""

    def __init__(self, settings=None, _data=None):
        self.bin = bin_dir()
        self.settings = {**SETTINGS, **(settings or {})}
        self.port = 5432  # only part of the socket's name
        self.process = None
        self.standbys = []
        self.as_user = {}
        account = None
        if os.geteuid() == 0:
            try:
                account = pwd.getpwnam("postgres")
            except KeyError:
                account = pwd.getpwnam("nobody")
            self.as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self.base = tempfile.mkdtemp(prefix="mr-", dir="/tmp")
        self.data = os.path.join(self.base, "data")
        self.log_path = os.path.join(self.base, "log")
        open(self.log_path, "ab").close()
        if account:
            os.chown(self.base, account.pw_uid, account.pw_gid)
            os.chown(self.log_path, account.pw_uid, account.pw_gid)
        self.watchdog = subprocess.Popen(
            [sys.executable, "-c", WATCHDOG, self.base, self.data],
            stdin=subprocess.PIPE, start_new_session=True)
        if _data is None:
            self._tool("initdb", "-D", self.data, "-U", "postgres", "--auth=trust", "--no-sync",
                       "--encoding=UTF8", "--locale=C.UTF-8")

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_exc):
        self.destroy()

    def _tool(self, name, *args):
        done = subprocess.run([os.path.join(self.bin, name), *args], cwd=self.base,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, **self.as_user)
        if done.returncode != 0:
            raise RuntimeError(f"{name} failed:\n{done.stdout}")
        return done.stdout

    def _ready(self):
        check = [os.path.join(self.bin, "pg_isready"), "-q", "-h", self.base, "-p", str(self.port)]
        return subprocess.run(check, check=False, stdin=subprocess.DEVNULL).returncode == 0

    def log(self):
        """Everything the server has logged."""
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def uri(self, dbname="postgres", user="postgres", host=None, port=None, **parameters):
        """Connection URI; `host` (a socket directory or a name) and `port` lead through a proxy."""
        query = {"host": host or self.base, "user": user, **parameters}
        if port:
            query["port"] = port
        pairs = "&".join(f"{key}={quote(str(value), safe='/')}" for key, value in query.items())
        return f"postgresql:///{quote(dbname, safe='')}?{pairs}"

    def socket_path(self):
        return os.path.join(self.base, f".s.PGSQL.{self.port}")

    def running(self):
        return self.process is not None and self.process.poll() is None

    def start(self, timeout=60):
        """Starts it and waits until it takes connections."""
        if self.running():
            return
        command = [os.path.join(self.bin, "postgres"), "-D", self.data, "-k", self.base,
                   "-p", str(self.port)]
        for name, value in self.settings.items():
            command += ["-c", f"{name}={value}"]
        # A session of its own: Ctrl-C in the terminal is for the tests, which then stop the server.
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, cwd=self.base, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, start_new_session=True,
                                            **self.as_user)
        deadline = time.monotonic() + timeout
        while not self._ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log()[-4000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL not ready after {timeout} s:\n{self.log()[-4000:]}")
            time.sleep(0.02)

    def stop(self, mode="fast", timeout=60):
        """`smart`, `fast` or `immediate`, as in pg_ctl."""
        if not self.running():
            return
        number = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode]
        self.process.send_signal(number)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill9()

    def restart(self, mode="fast"):
        self.stop(mode)
        self.start()

    def kill9(self):
        """Kills the server and all its backends at once, as a power cut of the server process would."""
        if not self.running():
            return
        self.process.send_signal(signal.SIGSTOP)  # so that it forks no more while we look
        doomed = _children(self.process.pid)
        self.process.kill()
        for pid in doomed:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        deadline = time.monotonic() + 10
        while any(os.path.exists(f"/proc/{pid}") for pid in doomed) and time.monotonic() < deadline:
            time.sleep(0.01)

    def create_standby(self, settings=None):
        """A streaming standby of this server, started; destroyed with it at the latest."""
        standby = PgServer({**self.settings, **(settings or {})}, _data=False)
        self.standbys.append(standby)
        standby._tool("pg_basebackup", "-D", standby.data, "-h", self.base, "-p", str(self.port),
                      "-U", "postgres", "-R", "-X", "stream", "-c", "fast", "--no-sync")
        standby.start()
        return standby

    def promote(self):
        """Makes a standby the primary; returns once it accepts writes."""
        self._tool("pg_ctl", "promote", "-D", self.data, "-w")

    def destroy(self):
        """Stops it and removes its files."""
        for standby in self.standbys:
            standby.destroy()
        self.standbys = []
        self.stop("immediate")
        if self.watchdog:
            self.watchdog.communicate()
            self.watchdog = None
        shutil.rmtree(self.base, ignore_errors=True)


def main(arguments):
    if arguments[:2] != ["run", "--"] or len(arguments) < 3:
        print("usage: pg_server.py run -- COMMAND …", file=sys.stderr)
        return 2

    # An exception unwinds through the `with` below, so that the server goes whatever happens.
    def interrupted(number, _frame):
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    with PgServer() as server:
        environment = {**os.environ, "MILLRACE_TEST_DATABASE": server.uri()}
        child = subprocess.Popen(arguments[2:], env=environment)
        try:
            return child.wait()
        finally:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(10)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
