#!/usr/bin/env python3
"""How many items of which order, exactly once: each answer carries the SQL that Millrace runs in the batch's
transaction, together with the checkpoint. No database driver is needed.

    CREATE TABLE order_items (order_id text PRIMARY KEY, items bigint NOT NULL, cents numeric NOT NULL);
    millrace run examples/handlers/projection.yaml
"""

import json
import sys

ADD = ("INSERT INTO order_items AS o (order_id, items, cents) VALUES ($1, 1, $2) "
       "ON CONFLICT (order_id) DO UPDATE SET items = o.items + 1, cents = o.cents + excluded.cents")


def handle(event):
    if event["event_type"] != "ItemAdded":
        return {"ok": True}
    data = event["data"]
    if not isinstance(data, dict) or "cents" not in data:
        return {"error": "an ItemAdded without cents", "retry": False}  # trying again cannot help
    return {"ok": True, "sql": [{"text": ADD, "params": [event["aggregate_id"], data["cents"]]}]}


for line in sys.stdin:
    event = json.loads(line)
    # The position lets Millrace check that question and answer belong together. flush: somebody waits for this line.
    print(json.dumps({**handle(event), "position": event["position"]}), flush=True)
