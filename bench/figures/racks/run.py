#!/usr/bin/env python3
"""Redraws for this system what figures 6 to 10 of a paper on racks joined by RDMA (Rcmp) show, from what benches printed.

  bench/figures/racks/run.py take FOLDER [OUT]    runs the benches, about ten minutes, and draws; the program is HINTERLAND_BIN, else target/release/hinterland
  bench/figures/racks/run.py draw FOLDER OUT      draws OUT/*.svg from FOLDER/*.json, else from the newest of FOLDER/*/*.json, and says what is missing

A figure whose JSON is missing is left out; nothing is filled in.
"""

import json
import pathlib
import subprocess
import sys

BENCHES = ["rings", "rpc-adaptive", "hot", "ycsb", "write-buffer"]
ROOT = pathlib.Path(__file__).resolve().parents[3]
COLOURS = ["#1f6feb", "#9aa4b1", "#d29922", "#2da44e", "#8250df"]
WIDTH, LABEL, BARS = 900, 230, 360


def take(folder):
    """Takes every bench that the program has."""
    failed = []
    for name in BENCHES:
        done = subprocess.run([ROOT / "bench/record.py", "take", folder, name], cwd=ROOT)
        failed += [name] if done.returncode else []
    if failed:
        print(f"not taken: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def escape(words):
    """Words that cannot break a picture."""
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def bars(path, title, captions, groups):
    """Groups of bars, each group on a scale of its own: `groups` are a label and pairs of name and value with its words."""
    top, body = 30, []
    text = lambda x, y, words, more="": body.append(f'<text x="{x:.0f}" y="{y:.0f}" {more}>{escape(words)}</text>')
    text(10, 20, title, 'font-size="15"')
    for caption in captions:
        top += 16
        text(10, top, caption, 'fill="#57606a"')
    for label, pairs in groups:
        top += 24
        text(10, top, label, 'font-weight="bold"')
        largest = max(value for _, value, _ in pairs)
        for number, (name, value, words) in enumerate(pairs):
            top += 18
            long = BARS * value / largest if largest > 0 else 0
            body.append(f'<rect x="{LABEL}" y="{top - 11}" width="{long:.1f}" height="13" fill="{COLOURS[number % len(COLOURS) if len(pairs) <= len(COLOURS) else 0]}"/>')
            text(24, top, name)
            text(LABEL + long + 6, top, words)
    high = top + 20
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{high}" viewBox="0 0 {WIDTH} {high}" font-family="sans-serif" font-size="12">'
    path.write_text("\n".join([head, f'<rect width="{WIDTH}" height="{high}" fill="white"/>', *body, "</svg>\n"]), encoding="utf-8")


def short(value):
    """A number for people."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


class Inputs:
    """Reports of a folder."""

    def __init__(self, folder):
        self.folder = folder

    def read(self, name):
        """A report, or nothing and a word about it."""
        path = self.folder / f"{name}.json"
        kept = sorted(self.folder.glob(f"*/{name}.json"), key=lambda path: path.parent.name)
        if not path.exists() and kept:
            path = kept[-1]
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))
        print(f"{path} is missing: what needs it is left out (hint: run.py take {self.folder}, for `scale` bench/figures/scaling/run.py take)", file=sys.stderr)
        return None

    @staticmethod
    def machine(report):
        """Where it was measured."""
        machine = report["machine"]
        load = f", load {machine['load']}" if "load" in machine else ""
        return f"{machine['cpus']} CPUs, Linux {machine['kernel']}{load}; all nodes on this one machine, over loopback TCP"


def figure_6(inputs, out):
    """Throughput of a rack as racks are added: simulated here."""
    report = inputs.read("scale")
    if not report:
        return
    pairs = []
    for run in report["runs"]:
        figures = run["figures"]
        if (run["workload"], run["switch"]) == ("tenants", ""):
            rate = figures["operations"] / figures["seconds"] / figures["racks"] / 1e3
            words = f"{short(rate)} k/s done; {100 * figures['here'] / figures['operations']:.0f} % on the node, {figures['operation_ns'] / 1e3:.1f} us each"
            pairs.append((f"{figures['racks']} racks, {figures['nodes']} nodes", rate, words))
    offered = report["runs"][0]["operations_per_s"]
    captions = ["SIMULATED, not measured: each node offers " + short(offered) + " operations a second, so a line that falls is a pool that does not keep up.",
                "A rack has 20 nodes, the smallest pool 10.", "The paper, measured on up to 5 racks: linear in clients until one daemon of a rack is busy."]
    bars(out / "figure-6-racks.svg", "Operations of a rack in a second as racks are added", captions, [("own regions, pages move", pairs)])


def figure_7(inputs, out):
    """YCSB against no techniques, Redis and page faults."""
    report = inputs.read("ycsb")
    if not report:
        return
    rows = {row["case"]: row for row in report["rows"] if row["ours"]}
    groups = []
    for popularity in ("zipfian", "uniform"):
        for workload in "abcdef":
            name = f"{workload}-{popularity}"
            ours, plain = rows.get(name), rows.get(f"{name}-plain")
            if not ours or not plain:
                continue
            pairs = [("all techniques", ours["ours"], ""), ("none", plain["ours"], "")]
            pairs += [("two Redis servers", ours["peer"], "")] if ours["peer"] else []
            for suffix, label in (("-fault", "page faults"), ("-fault-tenth", "page faults, room for a tenth")):
                pairs += [(label, rows[name + suffix]["ours"], "")] if name + suffix in rows else []
            groups.append((name, [(label, value / plain["ours"], f"{value / plain['ours']:.2f}  ({short(value)} {ours['unit']})") for label, value, _ in pairs]))
    if not groups:
        return print("ycsb.json has no row with and without techniques: figure 7 is left out", file=sys.stderr)
    captions = ["MEASURED: " + Inputs.machine(report), "Twice what the slower program did, relative to our own system without techniques; the paper's is relative to Fastswap.",
                "Fastswap did not run here: page faults are two programs of ours that share the table's pages, with room for all or a tenth of the other's.",
                "The paper: about 3 for B, C, D and 1.5 for A, F; up to 3.8 under zipfian."]
    bars(out / "figure-7-ycsb.svg", "YCSB on a hash table in pool memory, two racks", captions, groups)


def figure_8(inputs, out):
    """What each technique brings, one at a time."""
    groups, machines = [], set()
    if report := inputs.read("rings"):
        machines.add(Inputs.machine(report))
        paper = {"local-p50": "21.7", "local-p99": "30.9", "local-p999": "51.5"}
        for row in report["rows"]:
            if row["case"] in paper and row["ours"] and row["peer"]:
                less = 100 * (1 - row["ours"] / row["peer"])
                pairs = [("two rings", row["ours"], f"{short(row['ours'])} {row['unit']}: {less:.1f} % less (paper {paper.get(row['case'], '-')} %)"),
                         ("one ring", row["peer"], f"{short(row['peer'])} {row['unit']}")]
                groups.append((f"two-layer ring, {row['case']}", pairs))
    if report := inputs.read("write-buffer"):
        machines.add(Inputs.machine(report))
        for row in report["rows"]:
            if row["ours"] and row["peer"]:
                words = [f"{short(value)} {row['unit']}" for value in (row["ours"], row["peer"])]
                groups.append((f"write buffer, {row['case']} (paper: up to 1.6 x below 256 B)", [("with", row["ours"], words[0]), ("without", row["peer"], words[1])]))
    if not groups:
        return
    captions = ["MEASURED: " + words for words in sorted(machines)] + ["Hot pages are figure 9, adaptive RPC figure 10. The paper's figure adds techniques up; here each stands alone."]
    bars(out / "figure-8-techniques.svg", "What single techniques bring", captions, groups)


def figure_9(inputs, out):
    """Hot pages on and off by threshold."""
    report = inputs.read("hot")
    if not report:
        return
    groups = []
    for popularity in ("zipfian", "uniform"):
        rows = [row for row in report["rows"] if row["case"].startswith(popularity) and row["ours"] and row["peer"]]
        gain = lambda row: 100 * (row["ours"] / row["peer"] - 1)
        pairs = [(row["case"], row["ours"], f"{short(row['ours'])} {row['unit']}: {gain(row):+.0f} %") for row in rows]
        pairs += [(row["case"] + ", no moves", row["peer"], f"{short(row['peer'])} {row['unit']}") for row in rows[:1]]
        groups += [(popularity, pairs)] if pairs else []
    if not groups:
        return print("hot.json has no row with a peer: figure 9 is left out", file=sys.stderr)
    captions = ["MEASURED: " + Inputs.machine(report), "hpN: a page moves when that spares N moves' worth of accesses. The paper at its Hp = 3: about +35 % zipfian, +5 % uniform."]
    bars(out / "figure-9-hot-pages.svg", "Hot pages that move to their user", captions, groups)


def figure_10(inputs, out):
    """Ways to fetch by size."""
    report = inputs.read("rpc-adaptive")
    if not report:
        return
    sizes = {}
    for row in report["rows"]:
        way, _, size = row["case"].partition("-")
        if row["ours"]:
            sizes.setdefault(size, []).append((way, row["ours"], f"{short(row['ours'])} {row['unit']}"))
    captions = ["MEASURED: " + Inputs.machine(report), "Less is better. Medians; the reports have their spreads, which are wide for small sizes.",
                "The paper, over 100 Gbit RDMA: adaptive 1.5 to 2 x eRPC for large transfers, 1.33 to 1.89 x eRPC with one-sided."]
    if not sizes:
        return print("rpc-adaptive.json has no figures: figure 10 is left out", file=sys.stderr)
    bars(out / "figure-10-rpc.svg", "Ways to fetch bytes that another node finds", captions, list(sizes.items()))


def draw(folder, out):
    """Draws what there are reports for."""
    inputs = Inputs(folder)
    out.mkdir(parents=True, exist_ok=True)
    for one in (figure_6, figure_7, figure_8, figure_9, figure_10):
        one(inputs, out)
    return 0


def main():
    """Reads the command line."""
    match sys.argv[1:]:
        case ["take", folder]:
            return take(pathlib.Path(folder))
        case ["take", folder, out]:
            return take(pathlib.Path(folder)) or draw(pathlib.Path(folder), pathlib.Path(out))
        case ["draw", folder, out]:
            return draw(pathlib.Path(folder), pathlib.Path(out))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
