"""The lab itself: guests boot, say how they ended, wait for each other, and reach each other by RDMA."""

import pytest
from guests import RDMA_MODULES, Guest, boot as boot_all
from packages import Missing


def test_a_guest_says_what_its_script_said_and_how_it_ended():
    outcome = boot_all([Guest("a", "uname -r; touch /made-here; echo to-standard-error >&2; exit 7", wires=())])["a"]
    assert outcome.status == 7, outcome.console
    assert "-amd64" in outcome.output and "to-standard-error" in outcome.output


def test_a_guest_that_hangs_is_ended_and_has_no_status():
    outcome = boot_all([Guest("a", "echo begun; sleep 1000", wires=())], seconds=12)["a"]
    assert outcome.status is None


def test_names_and_numbers_of_guests_are_limited():
    with pytest.raises(ValueError):
        boot_all([Guest("a", "true"), Guest("a", "true")])
    with pytest.raises(ValueError):
        boot_all([Guest(name, "true") for name in "abcde"])


def test_a_machine_without_the_lab_says_what_to_do(monkeypatch):
    monkeypatch.setattr("guests.why_not", lambda: "qemu is missing (hint: lab/lab setup)")
    with pytest.raises(Missing, match="hint"):
        boot_all([Guest("a", "true")])


def test_two_guests_move_bytes_by_soft_roce(boot):
    script = """
network_up && rxe_up || exit 1
if [ $LAB_NUMBER = 1 ]; then
    ib_read_lat -d rxe0 -x 1 -F -s 4096 -n 20 >/tmp/said 2>&1 & server=$!
    sleep 0.5; tell up; wait $server; expect "reads are served" [ $? = 0 ]
else
    await up && expect "reads come back" ib_read_lat -d rxe0 -x 1 -F -s 4096 -n 20 10.0.0.1
fi
tested
"""
    both = [Guest(name, script, modules=RDMA_MODULES) for name in "ab"]
    assert all("1 right, 0 wrong" in one.output for one in boot(*both).values())
