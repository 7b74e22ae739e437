"""What tests of the lab share: a reason to be skipped that is true, and an outcome that is easy to read."""

import os
import pathlib
import sys

import pytest

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TREE / "lab"))
# For what the tests of one machine have, too.
sys.path.append(str(TREE / "tests"))

import guests  # noqa: E402
import packages  # noqa: E402


def pytest_collection_modifyitems(items):
    """Skips everything where guests cannot be booted, with what is missing."""
    reason = packages.why_not()
    if reason:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def binary():
    """The hinterland binary under test, which guests run where it lies."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TREE / "target"))
    path = pathlib.Path(os.environ.get("HINTERLAND_BIN", target / "debug/hinterland")).resolve()
    if not path.exists():
        pytest.fail(f"there is no {path} (hint: cargo build -p hinterland-cli -p hinterland-preload)")
    return path


@pytest.fixture
def boot():
    """Boots guests and fails, with all that they said, if one of their scripts did not end well."""

    def booted(*chosen, seconds=guests.SECONDS_MAX):
        outcomes = guests.boot(list(chosen), seconds)
        said = "".join(
            f"\n=== {one.name}: status {one.status} after {one.seconds:.1f} s\n{one.output}"
            + ("" if one.status is not None else f"--- its console:\n{one.console[-4000:]}")
            for one in outcomes.values()
        )
        assert all(one.status == 0 for one in outcomes.values()), said
        return outcomes

    return booted
