#!/usr/bin/env python3
"""Takes benches and keeps what they print, or shows what was kept as tables in Markdown.

  bench/record.py take FOLDER NAME [WORDS...]   runs `hinterland bench NAME WORDS --json` and keeps FOLDER/NAME.json
  bench/record.py show FOLDER                   prints a table for each file of the folder

The program is HINTERLAND_BIN, else target/release/hinterland.
"""

import json
import os
import pathlib
import subprocess
import sys


def take(folder, name, words):
    program = os.environ.get("HINTERLAND_BIN", "target/release/hinterland")
    done = subprocess.run([program, "bench", name, *words, "--json"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return done.returncode
    report = {"command": " ".join(["hinterland", "bench", name, *words, "--json"]), **json.loads(done.stdout)}
    path = pathlib.Path(folder, name + ".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def figure(value):
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def ratio(value, other):
    return f"{value / other:.2f}" if value is not None and other else "-"


def table(report):
    machine = report["machine"]
    yield f"### {report['bench']}"
    yield ""
    yield (
        f"`{report['command']}`: {machine['cpus']} CPUs, {machine['memory_bytes'] / 2**30:.1f} GiB, Linux "
        f"{machine['kernel']}, {machine['huge_pages']} huge pages, load {machine['load']:.1f} before."
    )
    yield ""
    yield "| case | unit | ours | spread | limit | ours/limit | peer | ours/peer | limit is | peer is |"
    yield "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | --- | --- |"
    for row in report["rows"]:
        spread = " ... ".join(figure(value) for value in row["spread"]) if row["spread"] else "-"
        cells = [row["case"], row["unit"] + (" (less)" if row["better"] == "lower" else " (more)")]
        cells += [figure(row["ours"]), spread, figure(row["limit"]), ratio(row["ours"], row["limit"])]
        cells += [figure(row["peer"]), ratio(row["ours"], row["peer"]), row["limit_name"] or "-", row["peer_name"] or "-"]
        yield "| " + " | ".join(cells) + " |"
    reasons = [f"- {row['case']}: {row['why']}" for row in report["rows"] if row.get("why")]
    yield from [""] + reasons if reasons else []
    yield ""


def show(folder):
    order = ["rpc", "read", "scan", "fault", "load", "experts", "kv-get", "kv-batch", "kv-scatter", "kv-sparse", "kv-lookup", "kv-racks", "kv-gpu", "kv-trace", "vllm-ttft"]
    paths = sorted(pathlib.Path(folder).glob("*.json"), key=lambda path: (path.stem not in order, path.stem))
    paths.sort(key=lambda path: order.index(path.stem) if path.stem in order else len(order))
    for path in paths:
        print("\n".join(table(json.loads(path.read_text()))))
    return 0


def main():
    match sys.argv[1:]:
        case ["take", folder, name, *words]:
            return take(folder, name, words)
        case ["show", folder]:
            return show(folder)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
