#!/usr/bin/env python3
"""Shows far memory: k-means with all of its memory here, and with half of it in compressed memory."""

import argparse
import os
import pathlib
import re
import subprocess
import sys

from demo import print_rows, say

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = [sys.executable, str(TREE / "examples/far/kmeans.py"), "600000"]
# Runs a program as `time` does, and says its most resident bytes.
MEASURE = """
import resource, subprocess, sys
ended = subprocess.run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, "MiB", file=sys.stderr)
sys.exit(ended.returncode)
"""


def run(label, command, resident):
    """Runs the program one way; returns its row, what it said, and what was measured."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if ended.returncode != 0:
        sys.exit(f"{label}: {ended.stderr}")
    seconds = re.search(r"^([0-9.]+) s$", ended.stderr, re.MULTILINE).group(1)
    return [label, f"{float(seconds):.1f} s", f"{float(re.search(resident, ended.stderr).group(1)):.0f} MiB"], ended.stdout.strip(), ended.stderr


def main():
    """Runs both and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        say("far memory follows forks of programs, which needs root: it is not shown")
        return
    say("k-means, all of its memory here")
    plain, groups, _ = run("all memory here", [sys.executable, "-c", MEASURE, *PROGRAM], r"([0-9.]+) MiB")
    say("k-means, half of its memory here")
    far = [str(arguments.binary), "run", "--local", "50%", "--far", "lz4", "--", *PROGRAM]
    half, again, measured = run("half here, half lz4", far, r"at most ([0-9.]+) MiB resident")
    if again != groups:
        sys.exit(f"the groups differ: {groups} and {again}")
    print_rows([["k-means of 600,000 points", "time", "resident"], plain, half])
    here, elsewhere = re.search(r"at most (\S+ \S+) here and (\S+ \S+) far", measured).groups()
    print(f"Libraries are resident, too: of the program's own memory {here} was here at most, and {elsewhere} in lz4.")
    print(f"The same {groups} both ways. Random numbers hardly shrink: a disk or the pool (--far) would take them off this host.")


main()
