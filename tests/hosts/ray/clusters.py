"""A Ray cluster of several nodes on this machine, and `mmcached ray` as its users call it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image

DEADLINE_S = 120.0


class Nodes:
    """A cluster in a child process, until `close`.

    Attributes:
        address: of the cluster.
        ids: of its nodes, the head first.
        services: those of them that have the resource `host`.
    """

    def __init__(self, num_nodes: int, num_services: int) -> None:
        command = [sys.executable, "-m", "tests.hosts.ray.cluster_process", str(num_nodes), str(num_services)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            said = json.loads(self._line())
        except BaseException:
            self.close()
            raise
        self.address: str = said["address"]
        self.ids: list[str] = said["nodes"]
        self.services = self.ids[:num_services]

    def kill(self, node: str) -> None:
        """Kill all processes of a node."""
        assert self._process.stdin is not None
        self._process.stdin.write(node + "\n")
        self._process.stdin.flush()
        self._line()

    def close(self) -> None:
        """End the cluster."""
        with self._process:  # closes its input, and waits
            pass

    def _line(self) -> str:
        """Return a line of the process. The test's own deadline is that of the wait."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the cluster has ended"
        return line


def ray(verb: str, config: Path, *more: str, status: int = 0) -> str:
    """Run a verb of `mmcached ray`, and return what it prints."""
    command = [sys.executable, "-m", "mmcached", "ray", verb, str(config), *more]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert child.returncode == status, child.stdout + child.stderr
    return child.stdout


def placed(config: Path) -> dict[str, dict[str, str]]:
    """Return what `status` says of each actor, by name; without those that do not answer."""
    command = [sys.executable, "-m", "mmcached", "ray", "status", str(config), "--json"]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert child.returncode in (0, 1), child.stderr
    return {each["name"]: each for each in json.loads(child.stdout) if each["node"]}


def encoder_processes() -> list[int]:
    """Return the processes of all encoder actors of this test's machine."""
    return processes("ray::EncoderActor")


def processes(*words: str) -> list[int]:
    """Return the processes whose command line begins with the first of the words, and has the others."""
    first, *others = (word.encode() for word in words)
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = file.read_bytes()
            if command.startswith(first) and all(word in command for word in others):
                found.append(int(file.parent.name))
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S} s"
        time.sleep(0.1)


def pictures(number: int, seed: int) -> list[bytes]:
    """Return files of so many pictures; with another seed, others."""
    draw = random.Random(seed)
    files = []
    for _ in range(number):
        buffer = io.BytesIO()
        Image.frombytes("RGB", (64, 64), draw.randbytes(3 * 64 * 64)).save(buffer, "PNG", compress_level=1)
        files.append(buffer.getvalue())
    return files
