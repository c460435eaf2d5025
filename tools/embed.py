"""Turns text files into one C source with a NUL-terminated array each, for embedding in the library."""
import os
import sys

out, symbol, *paths = sys.argv[1:]
lines = ["/* Generated from the files named below; do not edit. */",
         '#include "base/embed.h"', "", f"const mr_embed {symbol}[] = {{"]
bodies = []
for i, path in enumerate(paths):
    data = open(path, "rb").read()
    values = ",".join(str(b - 256 if b > 127 else b) for b in data) + ("," if data else "") + "0"
    bodies.append(f"static const char file_{i}[] = {{{values}}};")
    lines.append(f'    {{"{os.path.basename(path)}", file_{i}, {len(data)}}},')
lines += ["    {0, 0, 0},", "};", ""]
head, rest = lines[:3], lines[3:]
open(out, "w").write("\n".join(head + bodies + rest))
