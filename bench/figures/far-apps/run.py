#!/usr/bin/env python3
"""Draws and tells what `hinterland bench far-apps` found: real programs with a part of their memory here, beside the kernel's swap.

  bench/figures/far-apps/run.py draw FOLDER CASE FILE.svg   one case, such as example-50, as bars, from FOLDER/far-apps-*.json
  bench/figures/far-apps/run.py show FOLDER PERCENT         a table in Markdown of all cases with so much of their memory, and means
"""

import json
import math
import pathlib
import re
import sys

WAYS = [("zram", "swap to zram"), ("zswap", "zswap before a disk"), ("disk", "swap to a disk")]
COLOURS = {"plain": "#57606a", "ours": "#1f6feb", "zram": "#d29922", "zswap": "#2da44e", "disk": "#cf222e"}
WIDTH, LEFT, RIGHT, TOP, LINE = 620, 190, 90, 50, 30


def rows(folder):
    """The rows of all files by their case; what was measured twice counts as it was the last time."""
    found = {}
    for path in sorted(folder.glob("far-apps-*.json")):
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            if not row["case"].startswith(("mean-", "slower-")):
                found[row["case"]] = row
    return found


def escape(words):
    """Words that cannot break a picture."""
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def more(row):
    """Whether the peer was ended before it had finished."""
    return (row["peer_name"] or "").startswith("more than")


def bars(found, case):
    """Name, words and seconds of each way."""
    row = found[case]
    yield "plain", "all of its memory here", row["limit"], False
    yield "ours", "hinterland run --local", row["ours"], False
    for way, words in WAYS:
        other = found[f"{case}-{way}"]
        if other["peer"] is not None:
            yield way, words, other["peer"], more(other)


def draw(folder, case, target):
    """One case as bars."""
    shown = list(bars(rows(folder), case))
    most = max(seconds for _, _, seconds, _ in shown)
    name, percent = case.rsplit("-", 1)
    height = TOP + LINE * len(shown) + 10
    body = [f'<text x="10" y="24" font-size="15">{escape(name)}: {percent} % of its memory here, seconds from start to end</text>']
    for index, (way, words, seconds, crawled) in enumerate(shown):
        y = TOP + LINE * index
        width = (WIDTH - LEFT - RIGHT) * seconds / most
        body.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(words)}</text>')
        body.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="20" fill="{COLOURS[way]}"/>')
        body.append(f'<text x="{LEFT + width + 6:.1f}" y="{y + 15}">{escape("> " if crawled else "")}{seconds:.1f} s</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">'
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *body, "</svg>\n"]), encoding="utf-8")


def mean(ratios):
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def figure(value, row=None):
    """A number for people, or a dash."""
    if value is None:
        return "-"
    return ("> " if row and more(row) else "") + (f"{value:.2f}" if value < 10 else f"{value:.1f}")


def show(folder, percent):
    """A table of all cases, and means of how many times as fast ours is."""
    found = rows(folder)
    cases = [case for case in found if re.fullmatch(rf"[a-z]+-{percent}", case)]
    print("| program | plain | ours | zram | zswap | disk | best / ours | processor s: ours | of the best |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    ups = {way: [] for way in ["best", *(way for way, _ in WAYS)]}
    for case in cases:
        row, cpu = found[case], found[f"{case}-cpu"]
        others = {way: found[f"{case}-{way}"] for way, _ in WAYS}
        for way, other in [("best", row), *others.items()]:
            if row["ours"] and other["peer"]:
                ups[way].append(other["peer"] / row["ours"])
        up = row["peer"] / row["ours"] if row["peer"] and row["ours"] else None
        cells = [case.rsplit("-", 1)[0], figure(row["limit"]), figure(row["ours"]), *(figure(other["peer"], other) for other in others.values())]
        print("| " + " | ".join([*cells, figure(up), figure(cpu["ours"]), figure(cpu["peer"])]) + " |")
    for way, ratios in ups.items():
        print(f"\ngeometric mean of {way} / ours: {figure(mean(ratios))} ({len(ratios)} programs, {sum(r < 1 / 1.05 for r in ratios)} of them more than 5 % slower)")


def main():
    """Reads the command line."""
    match sys.argv[1:]:
        case ["draw", folder, case, file]:
            draw(pathlib.Path(folder), case, pathlib.Path(file))
        case ["show", folder, percent]:
            show(pathlib.Path(folder), percent)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
