#!/usr/bin/env python3
"""Simulates pools of 20 to 1000 nodes and draws what was found: one command for docs/internals/scaling.md.

  bench/figures/scaling/run.py take FILE.json      builds the simulator alone, runs every size, about two minutes of one processor
  bench/figures/scaling/run.py draw FILE.json DIR  draws DIR/*.svg from it
"""

import json
import math
import os
import pathlib
import platform
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
SIZES = [20, 60, 200, 600, 1000]
NODES_PER_RACK = 20
BUILD = ["cargo", "build", "--release", "--quiet", "-p", "hinterland-sim", "--example", "scale"]
# Workload, seconds, operations of a node in a second, switch.
RUNS = [("tenants", 5, 1000, ""), ("tenants", 2, 200, "die"), ("zipfian", 3, 1000, ""), ("zipfian", 3, 1000, "ask"), ("tenants", 5, 1000, "still")]
COLOURS = ["#1f6feb", "#d29922", "#2da44e", "#cf222e"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 620, 330, 70, 20, 60, 50


def take(path):
    """Runs every size of every run and keeps what was printed."""
    subprocess.run(BUILD, cwd=ROOT, check=True)
    runs = []
    machine = {"cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(), "load": os.getloadavg()[0]}
    document = {"command": "bench/figures/scaling/run.py take", "machine": machine, "runs": runs}
    for workload, seconds, operations, switch in RUNS:
        for nodes in SIZES:
            words = [nodes, max(2, nodes // NODES_PER_RACK), workload, seconds, operations, switch or "-"]
            print("scale", *words, file=sys.stderr)
            done = subprocess.run([ROOT / "target/release/examples/scale", *map(str, words)], stdout=subprocess.PIPE, check=True)
            runs.append({"workload": workload, "switch": switch, "operations_per_s": operations, "figures": json.loads(done.stdout)})
            # After each, so that a run that is cut short keeps what it has.
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def escape(words):
    """Words that cannot break a picture."""
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def ticks(low, high):
    """Powers of ten from below the least to above the most."""
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def figure(value):
    """A number for people."""
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def plot(path, title, unit, lines, limit=None):
    """Lines over the number of nodes, both axes logarithmic. `lines` are name and points; `limit` is name and value."""
    points = [value for _, line in lines for _, value in line if value > 0] + ([limit[1]] if limit else [])
    if not points:
        print(f"{path.name}: no figures, not drawn", file=sys.stderr)
        return
    marks = ticks(min(points), max(points))
    low, high = marks[0], max(marks[-1], marks[0] * 10)
    x = lambda nodes: LEFT + (WIDTH - LEFT - RIGHT) * math.log(nodes / SIZES[0]) / math.log(SIZES[-1] / SIZES[0])
    y = lambda value: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(value / low) / math.log(high / low)
    body = []
    text = lambda x, y, words, more="": body.append(f'<text x="{x:.0f}" y="{y:.0f}" {more}>{escape(words)}</text>')
    text(10, 20, title, 'font-size="15"')
    for mark in marks:
        body.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(mark):.1f}" y2="{y(mark):.1f}" stroke="#d8dee4"/>')
        text(LEFT - 6, y(mark) + 4, figure(mark), 'text-anchor="end"')
    for nodes in SIZES:
        text(x(nodes), HEIGHT - BOTTOM + 18, str(nodes), 'text-anchor="middle"')
    text(WIDTH / 2, HEIGHT - 10, f"nodes ({NODES_PER_RACK} in a rack); up: {unit}", 'text-anchor="middle"')
    at = LEFT
    for number, (name, line) in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        shown = [(x(nodes), y(value)) for nodes, value in line if value > 0]
        body.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in shown)}"/>')
        body.extend(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in shown)
        body.append(f'<rect x="{at}" y="33" width="10" height="10" fill="{colour}"/>')
        text(at + 14, 42, name)
        at += 34 + 7 * len(name)
    if limit:
        body.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(limit[1]):.1f}" y2="{y(limit[1]):.1f}" stroke="#57606a" stroke-dasharray="6 4"/>')
        text(LEFT + 6, y(limit[1]) - 5, limit[0], 'fill="#57606a"')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">'
    path.write_text("\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *body, "</svg>\n"]), encoding="utf-8")


def draw(source, folder):
    """Draws every picture."""
    runs = json.loads(source.read_text(encoding="utf-8"))["runs"]
    folder.mkdir(parents=True, exist_ok=True)

    def line(name, workload, switch, value):
        chosen = [run["figures"] for run in runs if (run["workload"], run["switch"]) == (workload, switch)]
        return name, [(run["nodes"], value(run)) for run in chosen if value(run) is not None]

    everyone = [("own regions", "tenants", ""), ("one region of all", "zipfian", ""), ("the same, homes asked first", "zipfian", "ask")]
    each = lambda value: [line(*names, value) for names in everyone]
    plot(folder / "directory.svg", "Simulated: transactions of one directory in a second", "transactions/s",
         each(lambda run: run["directory"]["durable_per_s"]), ("as many as the model's directory can write", 1000))
    plot(folder / "cpu.svg", "Measured: processor time of a command on the real directory, without its store", "us",
         each(lambda run: run["directory"]["measured_ns"] / 1e3))
    plot(folder / "operation.svg", "Simulated: mean time of an operation of 64 bytes", "us",
         [line("pages move", "tenants", "", lambda run: run["operation_ns"] / 1e3),
          line("no page moves", "tenants", "still", lambda run: run["operation_ns"] / 1e3),
          line("one region of all", "zipfian", "", lambda run: run["operation_ns"] / 1e3)])
    plot(folder / "moves.svg", "Simulated: pages moved in a second, and words found out of date", "1/s",
         [line("pages moved", "tenants", "", lambda run: run["moves"]["taken_per_s"]),
          line("words out of date", "tenants", "", lambda run: run["stale"] / run["seconds"])])
    plot(folder / "recovery.svg", "Simulated: after one rack died", "s",
         [line("noticed", "tenants", "die", lambda run: run["recovery"]["noticed_s"]),
          line("first copy begun", "tenants", "die", lambda run: run["recovery"]["begun_s"]),
          line("whole again", "tenants", "die", lambda run: run["recovery"]["whole_s"])])


def main():
    """Reads the command line."""
    match sys.argv[1:]:
        case ["take", file]:
            take(pathlib.Path(file))
        case ["draw", file, folder]:
            draw(pathlib.Path(file), pathlib.Path(folder))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
