#!/usr/bin/env python3
"""Takes benches and keeps what they print, or shows what was kept as tables in Markdown.

  bench/record.py take FOLDER NAME [WORDS...]   runs `hinterland bench NAME WORDS --json` and keeps FOLDER/NAME.json
  bench/record.py show FOLDER                   prints a table for each file of the folder
  bench/record.py aims                          prints what the benches must reach, beside the newest kept figures

The program is HINTERLAND_BIN, else target/release/hinterland.
"""

import fnmatch
import json
import operator
import os
import pathlib
import statistics
import subprocess
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
MEASUREMENTS = HERE.parent / "docs/measurements"
OPERATORS = {"/": operator.truediv, "-": operator.sub}
HEAD = """# What was aimed at, and what is measured

Made by `bench/record.py aims > docs/reference/aims.md` of `bench/aims.toml` and the newest figure of each case under `docs/measurements/`; what each bench does stands in [Benches](benches.md),
all figures of a day are printed by `bench/record.py show docs/measurements/DAY`. Most were taken on virtual machines of two processors whose host is shared: a ratio is good to about a tenth.
Of several cases the one that is farthest from the aim counts, or of orders and thresholds the best one where it says so; it is named.
"""


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


def newest():
    """Rows by bench and case, each with its folder; later folders replace earlier ones."""
    rows = {}
    for path in sorted(MEASUREMENTS.glob("*/*.json"), key=lambda path: (path.parent.name, path.name)):
        report = json.loads(path.read_text())
        for row in report.get("rows", []):
            rows[report["bench"], row["case"]] = {**row, "folder": path.parent.name}
    return rows


def worth(figure_of, row):
    """What an aim looks at in a row; None where a part of it was not taken."""
    for sign, apply in OPERATORS.items():
        if sign in figure_of:
            one, other = (row[part] for part in figure_of.split(sign))
            return apply(one, other) if one is not None and other else None
    return row[figure_of]


def deciding(aim, rows):
    """What the row that decides about an aim is worth, its case and its folder; of several the farthest from the aim, the nearest, or their mean."""
    patterns = aim["case"] if isinstance(aim["case"], list) else [aim["case"]]
    found = []
    for (bench, case), row in rows.items():
        meant = any(fnmatch.fnmatchcase(case, pattern) for pattern in patterns)
        if bench == aim["bench"] and meant and " without " not in case:
            value = worth(aim["figure"], row)
            if value is not None:
                found.append((value, case, row["folder"]))
    if len(found) < aim.get("enough", 1):
        raise SystemExit(f"bench/aims.toml: {len(found)} figures of {aim['bench']} {aim['case']} are kept: too few")
    if aim.get("pick") == "mean":
        return statistics.geometric_mean(value for value, *_ in found), f"mean of {len(found)}", max(found, key=lambda one: one[2])[2]
    if enough := aim.get("enough"):
        value, case, folder = sorted(found, reverse="least" in aim)[enough - 1]
        return value, f"{case}, number {enough} of {len(found)}", folder
    largest = ("most" in aim) != (aim.get("pick") == "best")
    return max(found) if largest else min(found)


def aims():
    rows = newest()
    print(HEAD)
    print("| bench | what | figure | asked | measured | | case, day |")
    print("| --- | --- | --- | --- | ---: | --- | --- |")
    missed = []
    for aim in tomllib.loads((HERE / "aims.toml").read_text())["aim"]:
        value, case, folder = deciding(aim, rows)
        met = value <= aim["most"] if "most" in aim else value >= aim["least"]
        asked = f"<= {figure(aim['most'])}" if "most" in aim else f">= {figure(aim['least'])}"
        cells = [f"`{aim['bench']}`", aim["what"], aim["figure"], asked, figure(value), "met" if met else "**missed**"]
        print("| " + " | ".join([*cells, f"{case}, {folder}"]) + " |")
        if not met:
            missed.append(f"- `{aim['bench']}`, {case}: {figure(value)}, asked {asked}. {sentence(aim.get('why', 'not known why'))}")
    print("\n## Missed, and why\n")
    print("\n".join(missed))
    return 0


def sentence(words):
    return words[0].upper() + words[1:] + "."


def main():
    match sys.argv[1:]:
        case ["aims"]:
            return aims()
        case ["take", folder, name, *words]:
            return take(folder, name, words)
        case ["show", folder]:
            return show(folder)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
