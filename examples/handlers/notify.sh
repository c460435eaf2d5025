#!/bin/sh
# Appends each event's line to a file, at least once. It parses nothing: the line is the event, and one line comes for
# each. A real one would put `curl --fail --data-binary "$event" "$URL"` in place of the printf.
set -u
file=${NOTIFY_FILE:-events.jsonl}

while IFS= read -r event; do
    if printf '%s\n' "$event" >>"$file"; then
        echo '{"ok":true}'
    else
        echo '{"error":"cannot write the file"}'
    fi
done
