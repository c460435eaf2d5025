"""The checks find what they are for: each is shown a small tree that breaks its rule, and one that doesn't."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
HEADER = "include/millrace/millrace.h"


def run(name, tree, files, *arguments):
    for path, text in files.items():
        file = tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, str(HERE / "checks.py"), name, *arguments], check=False, text=True,
                          stdout=subprocess.PIPE, env={**os.environ, "MILLRACE_ROOT": str(tree)})
    return done.returncode, done.stdout


GOOD = [
    ("layers", {"src/log/a.c": '#include "log/b.h"\n#include "base/x.h"\n#include <uv.h>\n'}),
    ("layers", {"cli/main.c": '#include <millrace/millrace.h>\n#include "cli.h"\n', "cli/cli.h": "\n"}),
    ("banned", {"src/base/a.c": "/* strcpy( */ int f(void) { gmtime_r(0, 0); mr_system(); puts(\"rand(\"); }\n"}),
    ("header", {HEADER: "/* Does it. */\nMR_API int mr_do(void);\n"}),
    ("length", {"src/base/a.c": "\n" * 900}),
    ("paths", {"docs/a.md": "see ./home/x, $HOME/work/x and /usr/bin/python3\n"}),
    ("links", {"docs/a.md": "[b](b.md#part) [web](https://www.postgresql.org/)\n", "docs/b.md": "\n"}),
]
BAD = [
    ("layers", {"src/base/a.c": '#include "pg/conn.h"\n'}),
    ("layers", {"src/queue/a.c": '#include "consumer/batch.h"\n'}),
    ("layers", {"src/attic/a.c": "\n"}),
    ("layers", {"cli/main.c": '#include "base/buf.h"\n', "src/base/buf.h": "\n"}),
    ("layers", {"cli/main.c": '#include <base/buf.h>\n', "src/base/buf.h": "\n"}),
    ("layers", {"cli/main.c": '#include "../src/base/buf.h"\n', "src/base/buf.h": "\n"}),
    ("layers", {"include/millrace/more.h": "\n"}),
    ("banned", {"src/base/a.c": "int f(void) { return system (0); }\n"}),
    ("banned", {"tests/unit/a.c": "x = atoi(y);\n"}),
    ("header", {HEADER: "MR_API int mr_do(void);\n"}),
    ("header", {HEADER: "/* Does it. */\nMR_API int do_it(void);\n"}),
    ("length", {"cli/a.c": "\n" * 901}),
    ("paths", {"docs/a.md": "in " + "/".join(["", "root", "x"]) + "\n"}),
    ("links", {"docs/a.md": "[b](b.md)\n"}),
]


@pytest.mark.parametrize("name, files", GOOD)
def test_good_tree_passes(tmp_path, name, files):
    status, output = run(name, tmp_path, files)
    assert status == 0, output


@pytest.mark.parametrize("name, files", BAD)
def test_bad_tree_is_found(tmp_path, name, files):
    status, output = run(name, tmp_path, files)
    assert status == 1, output
    assert output.split(":")[0] in files


def test_exported_symbols_are_compared(tmp_path):
    source = tmp_path / "a.c"
    source.write_text("int mr_do(void) { return 1; }\nint mr_extra(void) { return 2; }\n", encoding="utf-8")
    library = str(tmp_path / "a.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, str(source)], check=True)
    files = {HEADER: "/* Does it. */\nMR_API int mr_do(void);\n", "tests/lint/exported.txt": "mr_do\n"}
    status, output = run("exported", tmp_path, files, library)
    assert status == 1 and "mr_extra" in output and "mr_do is" not in output
    status, output = run("exported", tmp_path, {}, library, "--update")
    assert status == 0, output


def test_counts(tmp_path):
    """tests/count.py sums cmocka's own counts and never reports a failed run as good."""
    log = tmp_path / "testlog.json"
    log.write_text('{"name":"a","result":"OK","stdout":"","stderr":"[  PASSED  ] 7 test(s).\\n"}\n'
                   '{"name":"b","result":"FAIL","stdout":"[  PASSED  ] 2 test(s).\\n[  FAILED  ] 1 test(s)"}\n'
                   '{"name":"example","result":"OK","stdout":""}\n'
                   '{"name":"crashed","result":"FAIL","stdout":""}\n', encoding="utf-8")

    def count(path, status):
        return subprocess.run([sys.executable, str(HERE.parent / "count.py"), str(path), status], check=True,
                              text=True, stdout=subprocess.PIPE).stdout.strip()
    assert count(log, "1") == "10 passed, 2 failed"
    assert count(tmp_path / "none.json", "0") == "0 passed, 0 failed"
    assert count(tmp_path / "none.json", "1") == "0 passed, 1 failed"
