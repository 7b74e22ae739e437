"""What `hinterland bench` prints: ratios, and what its optimisations are worth, each turned off in turn."""

import json
import subprocess


def bench(binary, *words, check=True):
    return subprocess.run([binary, "bench", *words], text=True, capture_output=True, timeout=300, check=check)


def test_each_row_has_its_ratios_and_each_switch_its_rows(binary):
    rows = json.loads(bench(binary, "kv-lookup", "--quick", "--rounds", "1", "--switches", "--json").stdout)["rows"]
    plain = {row["case"]: row for row in rows if " without " not in row["case"]}
    assert plain and len(rows) == 2 * len(plain)
    for row in plain.values():
        assert row["ours_over_limit"] == row["ours"] / row["limit"], row
        assert (row["ours_over_peer"] is None) == (row["peer"] is None), row
        turned_off = next(other for other in rows if other["case"] == row["case"] + " without HINTERLAND_NO_LOOKAHEAD")
        assert turned_off["peer"] == row["ours"] and turned_off["ours"] > 0, turned_off
        assert turned_off["ours_over_peer"] == turned_off["ours"] / row["ours"], turned_off


def test_the_nodes_of_a_bench_can_go_without_an_optimisation(binary):
    rows = json.loads(bench(binary, "kv-lookup", "--quick", "--rounds", "1", "--without", "huge-pages", "--json").stdout)["rows"]
    assert all(row["ours"] for row in rows)
    wrong = bench(binary, "kv-lookup", "--without", "speed", check=False)
    assert wrong.returncode == 2 and "expert-prefetch" in wrong.stderr


def test_a_bench_without_switches_says_so_before_it_begins(binary):
    outcome = bench(binary, "rpc", "--switches", check=False)
    assert outcome.returncode == 2 and outcome.stdout == ""
    assert "rpc has no optimisation that could be turned off" in outcome.stderr


def test_figures_are_shown_although_their_picture_cannot_be_written(binary):
    outcome = bench(binary, "kv-lookup", "--quick", "--rounds", "1", "--plot", "/dev/full", "--json", check=False)
    assert outcome.returncode == 1 and "writing /dev/full failed" in outcome.stderr
    assert all(row["ours"] for row in json.loads(outcome.stdout)["rows"])


def test_a_place_that_takes_no_picture_is_refused_before_the_bench_begins(binary, folder):
    outcome = bench(binary, "kv-lookup", "--rounds", "1000", "--plot", folder / "none/a.svg", check=False)
    assert outcome.returncode == 1 and outcome.stdout == "" and "hint: check the path" in outcome.stderr
