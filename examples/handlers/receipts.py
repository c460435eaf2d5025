#!/usr/bin/env python3
"""A receipt for each job of the table `receipts`: written into a directory, and its name stored with the job's outcome,
exactly once.

    CREATE TABLE receipts (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, items jsonb NOT NULL, file text,
        state text NOT NULL DEFAULT 'queued', failure_message text, queued_at timestamptz DEFAULT now(),
        started_at timestamptz, finished_at timestamptz, process_after timestamptz,
        num_resets integer NOT NULL DEFAULT 0, num_failures integer NOT NULL DEFAULT 0, last_heartbeat_at timestamptz,
        execution_logs json[], worker_hostname text NOT NULL DEFAULT '', cancel boolean NOT NULL DEFAULT false,
        lease_generation bigint NOT NULL DEFAULT 0);
    millrace run examples/handlers/receipts.yaml
"""

import json
import os
import sys
from pathlib import Path

OUT = Path(os.environ.get("RECEIPTS", "receipts"))


def say(**line):
    print(json.dumps(line), flush=True)


def handle(job):
    total = 0
    lines = [f"Receipt for {job['customer']}"]
    for number, item in enumerate(job["items"], 1):
        total += item["cents"]
        lines.append(f"{item['name']:<20}{item['cents'] / 100:>10.2f}")
        say(log=f"item {number} of {len(job['items'])}", level="debug",
            entry={"step": "item", "number": number})  # in the job's execution log
    lines.append(f"{'total':<20}{total / 100:>10.2f}")
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{job['id']}.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"ok": True, "sql": [{"text": "UPDATE receipts SET file = $1 WHERE id = $2", "params": [str(path), job["id"]]}]}


for text in sys.stdin:
    line = json.loads(text)
    if line["type"] != "job":
        continue  # a cancel line: this one is quick, so the job is over by the time it is read
    try:
        answer = handle(line["job"])
    except (KeyError, TypeError) as problem:
        answer = {"error": f"no receipt can be made of this job: {problem!r}", "retry": False}
    except BlockingIOError:
        answer = {"snooze": "30s"}  # the disk is busy: later, and it costs no attempt
    except OSError as problem:
        answer = {"error": str(problem)}
    say(**answer, id=line["id"])
