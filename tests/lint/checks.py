#!/usr/bin/python3
"""Rules of the house that no compiler knows. `checks.py NAME [ARGUMENT]` prints each offence as
`file:line: what` and exits 1 if there is one. MILLRACE_ROOT names another tree (for the tests of these checks).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ.get("MILLRACE_ROOT", Path(__file__).resolve().parents[2]))
HEADER = "include/millrace/millrace.h"
EXPORTED = "tests/lint/exported.txt"
C_DIRECTORIES = ("include", "src", "cli", "tests", "examples", "bench", "tools")
# A room may include itself and rooms of a lower number. Rooms of one number don't know each other.
ROOMS = {"base": 0, "pg": 1, "log": 2, "cluster": 3, "handler": 4, "consumer": 5, "queue": 5,
         "observe": 6, "runtime": 7}
BANNED = ("strcpy", "strcat", "sprintf", "vsprintf", "strncpy", "atoi", "strtok", "gmtime", "localtime",
          "rand", "system", "popen", "gets")
LENGTH_CAP, LENGTH_WARNING = 900, 600


def c_files(*directories):
    for directory in directories:
        for path in sorted((ROOT / directory).rglob("*.[ch]")):
            yield path


def text_files():
    """All files of the tree that are text: build directories, hidden caches and binaries left out."""
    for directory, names, files in os.walk(ROOT):
        names[:] = [n for n in names if not n.startswith(("build", ".git", ".millrace", ".cache"))
                    and n not in ("__pycache__", ".pytest_cache", "node_modules")]
        for name in sorted(files):
            path = Path(directory, name)
            try:
                yield path, path.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue


def without_comments(text, strings=True):
    """The code with comments (and the insides of strings) blanked, line numbers kept."""
    def blank(match):
        found = match.group(0)
        if found[0] in "\"'":
            return found if strings else found[0] * 2
        return re.sub(r"[^\n]", " ", found)
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def includes(path):
    text = without_comments(path.read_text(encoding="utf-8"))
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if match:
            yield number, match.group(1) == '"', match.group(2)


def offence(path, number, text):
    return f"{path.relative_to(ROOT)}:{number}: {text}"


def check_layers():
    """Lower rooms never include upper ones; cli/ sees only the public header and its own."""
    for path in c_files("src"):
        parts = path.relative_to(ROOT / "src").parts
        room = parts[0] if len(parts) > 1 else None
        if room not in ROOMS:
            yield offence(path, 1, "is in no known room of src/")
            continue
        for number, quoted, name in includes(path):
            other = name.split("/")[0] if "/" in name else room
            if not quoted or name == "millrace/millrace.h":
                continue
            if other not in ROOMS:
                yield offence(path, number, f'"{name}" names no room')
            elif other != room and ROOMS[other] >= ROOMS[room]:
                yield offence(path, number, f'{room} must not include "{name}"')
    inner = {str(path.relative_to(ROOT / "src")) for path in c_files("src")}
    for path in c_files("cli"):
        for number, quoted, name in includes(path):
            own = (ROOT / "cli" / name).exists() or (path.parent / name).exists()
            if name in inner or ".." in name or (quoted and not own):
                yield offence(path, number, f'cli must not include "{name}"')
    for path in c_files("include"):
        if str(path.relative_to(ROOT)) != HEADER:
            yield offence(path, 1, "is public, but only the one header may be")


def check_banned():
    """Calls with a better replacement in every case."""
    pattern = re.compile(r"(?<![\w.>])(" + "|".join(BANNED) + r")\s*\(")
    for path in c_files(*C_DIRECTORIES):
        text = without_comments(path.read_text(encoding="utf-8"), strings=False)
        for number, line in enumerate(text.splitlines(), 1):
            for match in pattern.finditer(line):
                yield offence(path, number, f"{match.group(1)}() is banned")


def declarations():
    """(line, name, documented) of each MR_API function. A comment covers the declarations up to the next
    blank line; what a `_free` does stands in the header's first rule."""
    lines = (ROOT / HEADER).read_text(encoding="utf-8").splitlines()
    documented = False
    for number, line in enumerate(lines, 1):
        if not line.strip() or "----" in line:
            documented = False
        elif "*/" in line and not line.startswith(("MR_API", "typedef")):
            documented = True
        if line.startswith("MR_API"):
            match = re.match(r"MR_API[^(]*?(\w+)\(", " ".join(lines[number - 1:number + 2]))
            name = match.group(1) if match else "?"
            yield number, name, documented or "/*" in line or name.endswith("_free")


def check_header():
    """Every public function starts with mr_ and is documented by a comment on it or its group."""
    for number, name, documented in declarations():
        if not name.startswith("mr_") or name.startswith("mr__"):
            yield offence(ROOT / HEADER, number, f"{name}: public names start with mr_")
        if not documented:
            yield offence(ROOT / HEADER, number, f"{name} is not documented")


def check_length():
    """Files never shrink later, so they are kept short."""
    for path in c_files(*C_DIRECTORIES):
        length = path.read_text(encoding="utf-8").count("\n")
        if length > LENGTH_CAP:
            yield offence(path, length, f"is longer than {LENGTH_CAP} lines; split it by responsibility")
        elif length > LENGTH_WARNING:
            print(f"warning: {path.relative_to(ROOT)} has {length} lines")


def check_paths():
    """Nothing in the tree may depend on one machine's directories."""
    pattern = re.compile(r"(?<![\w.$}~*])/(?:root|home|work|Users)/\w")
    for path, text in text_files():
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                yield offence(path, number, "names a directory of some machine")


def check_links():
    """Links between our own documents lead somewhere."""
    for path, text in text_files():
        if path.suffix != ".md":
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                file = target.split("#")[0]
                if file and not re.match(r"[a-z]+:", file) and not (path.parent / file).exists():
                    yield offence(path, number, f"link to {target}, which does not exist")


def exported_symbols(library):
    listing = subprocess.run(["nm", "-D", "--defined-only", library], check=True, text=True,
                             stdout=subprocess.PIPE).stdout
    return {line.split()[-1].split("@")[0] for line in listing.splitlines() if line.strip()}


def check_exported(library, *flags):
    """The library exports what the header declares and what the checked-in list says, no more, no less."""
    symbols = exported_symbols(library)
    for number, name, _ in declarations():
        if name not in symbols:
            yield offence(ROOT / HEADER, number, f"{name} is declared but not in the library")
    if "--update" in flags:
        (ROOT / EXPORTED).write_text("".join(f"{name}\n" for name in sorted(symbols)), encoding="utf-8")
    listed = set((ROOT / EXPORTED).read_text(encoding="utf-8").split()) if (ROOT / EXPORTED).exists() else set()
    for name in sorted(symbols - listed):
        yield f"{EXPORTED}: {name} is exported but not listed (checks.py exported LIBRARY --update)"
    for name in sorted(listed - symbols):
        yield f"{EXPORTED}: {name} is listed but not exported any more"


def main(name, *arguments):
    offences = list(globals()[f"check_{name}"](*arguments))
    print("\n".join(offences) if offences else "nothing found")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
