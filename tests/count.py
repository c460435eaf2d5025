#!/usr/bin/python3
"""Prints `N passed, M failed` for one results file: meson's testlog (a JSON object a line; the tests inside a
cmocka program count each, a program without such counts is one) or pytest's JUnit XML.

usage: count.py RESULTS STATUS. STATUS is the exit status of the run: a run that failed never counts as zero
failures, and a file that is missing after a good run means there was nothing to run.
"""

import json
import os
import re
import sys
import xml.etree.ElementTree as xml


def count_meson(path):
    passed = failed = 0
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            test = json.loads(line)
            text = (test.get("stdout") or "") + (test.get("stderr") or "")
            good = sum(int(n) for n in re.findall(r"\[ {2}PASSED {2}\] (\d+) test", text))
            bad = sum(int(n) for n in re.findall(r"\[ {2}FAILED {2}\] (\d+) test", text))
            ok = test["result"] in ("OK", "EXPECTEDFAIL", "SKIP")
            if ok and not good:
                good = 0 if test["result"] == "SKIP" else 1
            if not ok and not bad:
                bad = 1  # it crashed, hung or leaked: its tests may have passed, it has not
            passed += good
            failed += bad
    return passed, failed


def count_pytest(path):
    outcomes = {}  # a test that fails and whose clean-up fails too stands there twice, and counts once
    for case in xml.parse(path).getroot().iter("testcase"):
        name = (case.get("classname"), case.get("name"))
        kinds = {child.tag for child in case}
        outcome = 2 if kinds & {"failure", "error"} else 0 if "skipped" in kinds else 1
        outcomes[name] = max(outcome, outcomes.get(name, 0))
    found = list(outcomes.values())
    return found.count(1), found.count(2)


def main(path, status):
    passed = failed = 0
    if os.path.exists(path):
        passed, failed = count_pytest(path) if path.endswith(".xml") else count_meson(path)
    if status != "0" and failed == 0:
        failed = 1
    print(f"{passed} passed, {failed} failed")


if __name__ == "__main__":
    main(*sys.argv[1:])
