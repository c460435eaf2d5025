#!/usr/bin/env python3
"""Sends an invoice: a JSON line a job in, a JSON line back. The note that it was sent is SQL in the answer, which
commits together with the job's completion: it is there exactly once, whatever dies when.

Sending itself is played: nothing leaves this program. An address that ends in @slow.example is busy at the first try.
"""

import json
import sys


def say(**line):
    print(json.dumps(line), flush=True)


def handle(job):
    if not job["email"]:
        return {"error": f"{job['name']} has no mail address", "retry": False}  # trying again cannot help
    if job["email"].endswith("@slow.example") and int(job["attempt"]) == 1:
        return {"error": "the mail server is busy"}  # errored: tried again after retry_after
    say(log=f"sending invoice {job['invoice']}", entry={"step": "send", "to": job["email"]})
    return {"ok": True, "sql": [{"text": "INSERT INTO sent_invoices (invoice_id, email) VALUES ($1, $2)",
                                 "params": [job["invoice"], job["email"]]}]}


for line in sys.stdin:
    request = json.loads(line)
    if request["type"] == "job":  # a "cancel" is for programs that can stop halfway
        say(id=request["id"], **handle(request["job"]))
