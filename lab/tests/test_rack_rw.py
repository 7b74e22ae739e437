"""`hinterland bench rack-rw` between two guests: every figure over RDMA is taken, and beside it those of perftest."""

import json

import bench


def test_one_sided_accesses_are_measured_beside_perftest(binary):
    outcomes = bench.rack_rw(binary, rounds=1, quick=True)
    said = "".join(f"\n=== {one.name}: {one.status}\n{one.output}\n{one.console[-2000:]}" for one in outcomes.values())
    assert all(one.status == 0 for one in outcomes.values()), said
    rows = {row["case"]: row for row in json.loads(bench.report(outcomes))["rows"]}
    assert set(rows) == {f"rdma-{what}-{size}" for what in ("read", "write") for size in ("64B", "4KiB")}
    for name, row in rows.items():
        assert row["ours"] and row["limit"] and (row["peer"] or "read" in name), row
