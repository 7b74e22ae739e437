"""The command line: data on standard output, words on standard error, and a next step in every error."""

import json
import os
import subprocess

import pytest

COMMANDS = ["up", "node", "put", "get", "ls", "stat", "rm", "verify", "mount", "run", "status", "top", "doctor", "bench",
            "completions", "generate"]


def hinterland(binary, *words, **options):
    """Runs the binary without a node."""
    options = {"capture_output": True, "text": True, "timeout": 60, **options}
    return subprocess.run([str(binary), *map(str, words)], **options)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(binary, command):
    outcome = hinterland(binary, command, "--help")
    assert outcome.returncode == 0 and "Usage:" in outcome.stdout and outcome.stderr == ""


def test_help_names_every_command(binary):
    text = hinterland(binary, "--help").stdout
    assert [command for command in COMMANDS if f"\n  {command} " not in text] == []


@pytest.mark.parametrize("words", [["ls"], ["put", "/dev/null", "--name", "x"], ["status"], ["run", "--", "true"]],
                         ids=lambda words: words[0])
def test_without_a_node_the_status_is_3_and_the_hint_says_how_to_start_one(binary, folder, words):
    outcome = hinterland(binary, "--socket", folder / "none.sock", *words)
    assert outcome.returncode == 3, outcome.stderr
    assert "hint:" in outcome.stderr and "hinterland up" in outcome.stderr and outcome.stdout == ""


def test_an_empty_variable_names_no_socket(binary, folder):
    environment = {**os.environ, "HINTERLAND_SOCKET": "", "XDG_RUNTIME_DIR": str(folder)}
    outcome = hinterland(binary, "ls", env=environment)
    assert outcome.returncode == 3, outcome.stderr
    assert f"no node answers on {folder}/hinterland/node.sock" in outcome.stderr


def test_an_error_is_json_on_request(binary, folder):
    outcome = hinterland(binary, "--socket", folder / "none.sock", "ls", "--json")
    error = json.loads(outcome.stderr or outcome.stdout)
    assert set(error) >= {"error", "hint"} and outcome.returncode == 3


@pytest.mark.parametrize("words", [["lss"], ["put"], ["run", "--budget", "many", "--", "true"],
                                   ["put", "x", "--copies", "99"], ["run", "--unit", "3M", "--", "true"]],
                         ids=lambda words: "-".join(words))
def test_a_wrong_command_line_has_status_2(binary, words):
    outcome = hinterland(binary, *words)
    assert outcome.returncode == 2 and outcome.stdout == "" and outcome.stderr != ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_of_a_shell(binary, folder, shell):
    script = hinterland(binary, "completions", shell).stdout
    assert "hinterland" in script and "verify" in script
    if shell == "bash":
        (folder / "completions").write_text(script)
        subprocess.run(["bash", "-n", folder / "completions"], check=True)


def test_manual_pages_are_written(binary, folder):
    hinterland(binary, "generate", "man", folder / "man", check=True)
    names = {path.name for path in (folder / "man").iterdir()}
    assert {"hinterland.1", "hinterland-put.1", "hinterland-run.1"} <= names


def test_no_colours_where_they_are_not_wanted(node, make_file):
    node.run("put", make_file("source", 1000), "--name", "one")
    for words in (["ls"], ["status"], ["doctor"], ["stat", "one"]):
        for environment in ({}, {"NO_COLOR": "1"}):
            outcome = node.run(*words, check=False, env={**os.environ, **environment})
            assert "\x1b" not in outcome.stdout + outcome.stderr


def test_every_answer_is_json_on_request(node, make_file):
    source = make_file("source", 1000)
    assert node.json("put", source, "--name", "one")["name"] == "one"
    assert node.json("ls")[0]["bytes"] == 1000
    assert node.json("stat", "one")["state"] == "sealed"
    assert node.json("status")["name"] == "a"
    assert node.json("verify", "one")[0]["bad"] == []
    json.loads(node.run("doctor", "--json", check=False).stdout)
    assert node.json("get", "one", source.with_suffix(".back"))["bytes"] == 1000
    assert node.json("rm", "one")[0]["removed"] is True


def test_quiet_says_nothing(node, make_file):
    outcome = node.run("put", make_file("source", 1000), "--name", "one", "--quiet")
    assert (outcome.stdout, outcome.stderr) == ("", "")


def test_a_reader_that_goes_away_is_no_error(node, make_file):
    for number in range(50):
        node.run("put", make_file("source", 10), "--name", f"o{number}")
    words = " ".join(node.command("ls"))
    outcome = subprocess.run(["bash", "-c", f"set -o pipefail; {words} | true"], capture_output=True, text=True)
    assert outcome.stderr == ""


def test_doctor_names_a_command_for_everything_that_it_misses(node):
    report = json.loads(node.run("doctor", "--json", check=False).stdout)
    checks = [check for part in report.values() if isinstance(part, list) for check in part]
    assert checks, report
    assert all(check["mend"] for check in checks if check["state"] != "good")


def test_two_nodes_cannot_share_a_socket_or_a_state_folder(node, binary):
    outcome = hinterland(binary, "node", "--name", "other", "--rack", "other", "--socket", node.socket,
                         "--state", node.folder / "elsewhere", "--listen", "127.0.0.1:0")
    assert outcome.returncode == 1 and "hint:" in outcome.stderr
    outcome = hinterland(binary, "node", "--name", "other", "--rack", "other", "--socket", node.folder / "other.sock",
                         "--state", node.state, "--listen", "127.0.0.1:0")
    assert outcome.returncode == 1 and "hint:" in outcome.stderr
    assert node.json("ls") == []


def test_up_is_one_command_with_a_ready_line(binary, folder):
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "XDG_STATE_HOME": str(folder / "state"),
                   "HOME": str(folder)}
    process = subprocess.Popen([str(binary), "up", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=environment)
    try:
        assert json.loads(process.stdout.readline())["ready"] is True
        assert hinterland(binary, "ls", env=environment).returncode == 0
    finally:
        process.send_signal(2)
        _, words = process.communicate(timeout=20)
    assert process.returncode == 0, words
