"""Programs that run on hosts of a network, and are asked from outside; nobody waits for one for ever."""

import concurrent.futures
import itertools
import json
import os
import pathlib
import subprocess
import sys
import threading

PROGRAM = pathlib.Path(__file__).resolve().parent / "programs/on_a_host.py"
PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "python"
# Longer than any call waits, and far shorter than for ever.
SECONDS = 90


class Refused(Exception):
    """The program was told why something was not done."""

    def __init__(self, code, text):
        super().__init__(f"{text} (errno {code})")
        self.code, self.text = code, text


class Host:
    """A program on one host."""

    def __init__(self, node, key):
        self.node = node
        environment = {**os.environ, "HINTERLAND_KEY_FILE": str(key), "PYTHONPATH": str(PACKAGE)}
        self.process = subprocess.Popen([*node.wrapper, sys.executable, PROGRAM, node.socket], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=environment)
        assert json.loads(self.process.stdout.readline()) == {"ready": True}
        self.numbers = itertools.count(1)
        self.asked, self.asking = {}, threading.Lock()
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self):
        for line in self.process.stdout:
            said = json.loads(line)
            with self.asking:
                future = self.asked.pop(said["number"])
            if "error" in said:
                future.set_exception(Refused(*said["error"]))
            else:
                future.set_result(said["value"])

    def begin(self, what, *words):
        """Asks and does not wait; the answer comes as a future."""
        future = concurrent.futures.Future()
        with self.asking:
            number = next(self.numbers)
            self.asked[number] = future
            self.process.stdin.write(json.dumps({"number": number, "what": what, "words": words}) + "\n")
            self.process.stdin.flush()
        return future

    def ask(self, what, *words):
        """Asks and waits. Refused, with a reason; an assertion if no answer comes."""
        try:
            return self.begin(what, *words).result(SECONDS)
        except concurrent.futures.TimeoutError as error:
            raise AssertionError(f"{what} of {self.node.name} hangs: {words}\n{self.node.words()}") from error

    def stop(self):
        """Ends it."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
