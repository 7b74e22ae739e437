"""Two vLLM servers behind nginx, which knows nothing of caches: whichever computed a prompt, the other has it, too."""

import http.client
import json
import os
import shutil
import subprocess
import sys
import time

import pytest
from conftest import TREE

sys.path.insert(0, str(TREE / "bench/vllm"))
from engine import DEFAULTS
from engines_of_vllm import CACHE, PYTHON, hinterland
from loopback import free_port

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
SERVER_SECONDS_MAX = 600
CONFIGURATION = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream engines {{ server 127.0.0.1:{first}; server 127.0.0.1:{second}; }}
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://engines; proxy_read_timeout 600s; }} }}
}}
"""

pytestmark = [
    pytest.mark.skipif(not (CACHE / "installed").exists(), reason="vLLM is not installed (bench/vllm/prepare.sh does it)"),
    pytest.mark.skipif(not os.environ.get("HINTERLAND_FULL"), reason="takes minutes (./check --full)"),
    pytest.mark.skipif(not os.path.exists(NGINX), reason="there is no nginx (apt-get install -y nginx-light)"),
]


def complete(port, prompt):
    """The text that follows a prompt, and how many of its tokens were cached."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SERVER_SECONDS_MAX)
    request = {"model": "m", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, body
    answer = json.loads(body)
    details = answer["usage"].get("prompt_tokens_details") or {}
    return answer["choices"][0]["text"], details.get("cached_tokens") or 0


def wait_healthy(port, process, log):
    deadline = time.monotonic() + SERVER_SECONDS_MAX
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise AssertionError(log.read_text(errors="replace")[-4000:])


@pytest.fixture
def started():
    """A list of processes that end with the test."""
    processes = []
    yield processes
    for process in reversed(processes):
        process.terminate()
    for process in processes:
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def start_server(started, folder, name, port, node):
    environment = {**os.environ, **DEFAULTS, "PYTHONPATH": str(TREE / "python")}
    # As in service: the engine is a process of its own, and so is each side of the connector.
    del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]
    words = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", CACHE / "models/tiny"]
    words += ["--dtype", "float32", "--served-model-name", "m", "--host", "127.0.0.1", "--port", port, "--enforce-eager"]
    words += ["--max-model-len", 4096, "--enable-prompt-tokens-details"]
    if node is not None:
        words += ["--kv-transfer-config", json.dumps(hinterland(node.socket))]
    log = folder / f"{name}.log"
    with open(log, "wb") as target:
        process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=target, stderr=target,
                                   env=environment)
    started.append(process)
    return process, log


def test_round_robin_over_two_servers_finds_every_prefix(hinterland, start_node, folder, started):
    node = start_node("a", options=["--capacity", "64M", "--kv-capacity", "512M"])
    ports = {name: free_port() for name in ("first", "second", "plain", "nginx")}
    servers = {name: start_server(started, folder, name, ports[name], None if name == "plain" else node)
               for name in ("first", "second", "plain")}
    configuration = folder / "nginx.conf"
    names = {"folder": folder, "first": ports["first"], "second": ports["second"], "port": ports["nginx"]}
    configuration.write_text(CONFIGURATION.format(**names))
    for name, (process, log) in servers.items():
        wait_healthy(ports[name], process, log)
    with open(folder / "nginx.log", "wb") as log:
        started.append(subprocess.Popen([NGINX, "-c", configuration, "-p", folder], stdout=log, stderr=log))
    wait_healthy(ports["nginx"], started[-1], folder / "nginx.log")

    # Each health check was a turn of nginx; three requests of each prompt reach either server at least once.
    for begin in (3, 1500):
        prompt = list(range(begin, begin + 8 * 128 + 1))
        expected, _ = complete(ports["plain"], prompt)
        answers = [complete(ports["nginx"], prompt) for _ in range(3)]
        assert [text for text, _ in answers] == [expected] * 3
        assert [cached for _, cached in answers] == [0, 1024, 1024]
    (space,) = node.json("kv", "stat")[0]["namespaces"]
    assert space["hits"] >= 1 if "hits" in space else space["blocks"] > 0
