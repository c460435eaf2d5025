#!/usr/bin/env python3
"""Mail for each placed order. Mail cannot be rolled back, so the consumer is detached: no transaction is open
meanwhile, and after a crash the last few may be sent again. The event's id as Message-ID lets mail servers see that.

Without MAILER_SMTP (host:port) the mails are written into the directory MAILER_OUTBOX, ./outbox by default.
"""

import json
import os
import smtplib
import sys
from email.message import EmailMessage
from pathlib import Path


def letter(event):
    message = EmailMessage()
    message["From"] = "shop@example.org"
    message["To"] = event["data"]["mail"]
    message["Subject"] = f"Order {event['aggregate_id']}"
    message["Message-ID"] = f"<{event['event_id']}@example.org>"
    message.set_content("We have it and will be back.")
    return message


def send(message, name):
    if "MAILER_SMTP" in os.environ:
        host, _, port = os.environ["MAILER_SMTP"].partition(":")
        with smtplib.SMTP(host, int(port or 25), timeout=20) as server:
            server.send_message(message)
        return
    outbox = Path(os.environ.get("MAILER_OUTBOX", "outbox"))
    outbox.mkdir(parents=True, exist_ok=True)
    (outbox / f"{name}.eml").write_bytes(bytes(message))


for line in sys.stdin:
    event = json.loads(line)
    try:
        send(letter(event), event["event_id"])
        answer = {"ok": True}
    except (KeyError, TypeError, ValueError) as problem:
        answer = {"error": f"no mail can be made of this event: {problem!r}", "retry": False}
    except (OSError, smtplib.SMTPException) as problem:
        answer = {"error": str(problem)}  # the server may be back later
        print(f"mail server: {problem}", file=sys.stderr, flush=True)  # goes into Millrace's log
    print(json.dumps({**answer, "position": event["position"]}), flush=True)
