#!/usr/bin/python3
"""clang-tidy over everything the build directory compiles from this tree, on all cores.

A file that passed is not looked at again until it, a header of ours it includes, its compile command,
.clang-tidy or clang-tidy itself changes: the hash of all those is kept in BUILD/tidy-passed.

usage: tidy.py BUILD [FILE…]
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ANALYZER = ROOT / "tests/lint/analyzer.h"


def headers(path, seen):
    """Headers of this tree that a file includes, directly or not."""
    for quoted in re.findall(r'#\s*include\s*[<"]([^">]+)[">]', path.read_text(encoding="utf-8")):
        for directory in (path.parent, ROOT / "src", ROOT / "include", ROOT / "cli", ROOT / "tests"):
            candidate = directory / quoted
            if candidate.is_file() and candidate not in seen:
                seen.add(candidate)
                headers(candidate, seen)
    return seen


def fingerprint(path, command, salt):
    digest = hashlib.sha256(salt + command.encode())
    for file in sorted({path} | headers(path, set())):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def main(build, only):
    build = Path(build).resolve()
    stamps = build / "tidy-passed"
    stamps.mkdir(exist_ok=True)
    salt = subprocess.run(["clang-tidy", "--version"], stdout=subprocess.PIPE, check=True).stdout
    salt += (ROOT / ".clang-tidy").read_bytes() + ANALYZER.read_bytes()
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = Path(entry["directory"], entry["file"]).resolve()
        inside = path.is_relative_to(ROOT) and not path.is_relative_to(build)
        if inside and (not only or str(path.relative_to(ROOT)) in only):
            commands.setdefault(path, entry["command"])
    todo = [(path, fingerprint(path, command, salt)) for path, command in sorted(commands.items())]
    todo = [(path, stamp) for path, stamp in todo if not (stamps / stamp).exists()]
    print(f"{len(commands)} files, {len(commands) - len(todo)} unchanged since they passed")

    def examine(item):
        path, stamp = item
        command = ["clang-tidy", "--quiet", "--warnings-as-errors=*", "-p", str(build), str(path)]
        if path.is_relative_to(ROOT / "tests"):
            # Tests run under ASan, UBSan and valgrind, which see what it guesses; it takes half of the time.
            command.append("--checks=-clang-analyzer-*")
        if path != ROOT / "src/base/error.c":  # which defines what analyzer.h wraps
            command += ["--extra-arg=-include", f"--extra-arg={ANALYZER}"]
        done = subprocess.run(command,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                              stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            (stamps / stamp).touch()
            return ""
        return done.stdout or done.stderr

    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        findings = [text for text in pool.map(examine, todo) if text]
    print("\n".join(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], set(sys.argv[2:])))
