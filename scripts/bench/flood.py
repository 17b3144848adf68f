"""Measures what a client in a loop costs another one: the cheapest call beside a flood of each kind of message.

One frontend alone, an honest client in this process, and a process that says one thing without end and reads whatever
is answered. For each flood: median and 99th percentile of the honest call against the quiet median, and how busy the
frontend's process was (of one core).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import zmq

from mmcached.shm.files.lock_file import LockFile
from mmcached.wire.config import ServiceConfig
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.messages import frontend as said
from mmcached.wire.messages.client import ToClient
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.channels import DealerChannel
from mmcached.wire.sockets.frames import encode_frames
from mmcached.wire.sockets.zmtp import GREETING, pack
from scripts.bench import harness
from scripts.bench.harness import Row, Section, row, wall_us

ID = secrets.token_hex(16)
NUM_KEYS = said.MAX_KEYS
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
SETTLE_S = 0.5
ROUND_S = 0.5
ROUNDS = 4
QUICK_ROUNDS = 1


def words(message: object, payload: list[bytes] | None = None) -> bytes:
    return b"".join(bytes(piece) for piece in pack(encode_frames(message, payload or [])))


KEYS = [f"key {number}" for number in range(NUM_KEYS)]
FLOODS = {
    "hello": words(said.ClientHello(ID)),
    "generate": words(said.Generate(ID, 1, "hello", 4, None, 60.0)),
    "bad prompt": words(said.Generate(ID, 1, "x" * 1_000_000, 4, None, 60.0)),
    "encode": words(said.Encode(ID, 1, 60.0), [b"no picture"]),
    "taken": words(said.TokensTaken(ID, 1, 16)),
    "cancel": words(said.Cancel(ID, 1)),
    "stats": words(said.GetStats(1)),
    "processor info": words(said.GetProcessorInfo(1)),
    "probe": words(said.Probe(1, 5.0)),
    "flush": words(said.Flush(1)),
    "reader": words(said.RegisterReader(ID, 1, 2, 3, 4)),
    "egress ring": words(said.RegisterEgressRing(ID, 1, RingAnnouncement(0, ID, 1, 1 << 20, 64, 1))),
    "get": words(said.GetRecords(ID, 1, KEYS[:1])),
    "get 256": words(said.GetRecords(ID, 1, KEYS)),
    "have": words(said.HaveRecords(1, KEYS[:1])),
    "have 256": words(said.HaveRecords(1, KEYS)),
    "put 16 MiB": words(said.PutRecord(ID, 1, "key", 0), [bytes(1 << 24)]),
    "claim": words(said.ClaimRecord(ID, 1, "key", 5.0)),
    "drop claim": words(said.DropClaim(ID, 5)),
    "drop": words(said.DropRecord(1, "key")),
    "reconcile": words(said.Reconcile(1, 2, {3: 4})),
    "bye": words(said.ClientBye(ID)),
    "garbage": b"\0\1x",
    "endless": b"\1\0" * 5000,
}


def flood(directory: RunDir, kind: str) -> None:
    """Run in a process of its own until it is killed."""
    presence = LockFile(directory.client_lock(ID))
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.connect(directory.client_address.removeprefix("ipc://"))
    peer.sendall(GREETING + READY)

    if not os.fork():  # two threads would wait for each other's interpreter lock
        while peer.recv(1 << 20):
            pass
        os._exit(0)
    said_at_once = FLOODS[kind] * max(1, 20_000 // len(FLOODS[kind]))
    with contextlib.suppress(OSError):
        while True:
            peer.sendall(said_at_once)
    presence.close()


@contextlib.contextmanager
def frontend(run_dir: Path) -> Iterator[tuple[RunDir, int]]:
    directory = RunDir(run_dir)
    directory.create()
    ServiceConfig(log_level="error", store_gb=1 / 16, mm_processor_cache_gb=1 / 16).save(directory.config)
    command = [sys.executable, "-m", "mmcached", "frontend", "--run-dir", str(run_dir)]
    with subprocess.Popen(command) as role:
        try:
            yield directory, role.pid
        finally:
            role.terminate()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(channel: DealerChannel[ToClient], num_rounds: int) -> list[float]:
    """Return the microseconds of each honest call, sorted."""

    def ask() -> None:
        channel.send(said.HaveRecords(1, []))
        channel.receive(60.0)

    taken: list[float] = []
    end = time.monotonic() + num_rounds * ROUND_S
    while time.monotonic() < end or len(taken) < 10:
        taken.append(wall_us(ask))
    return sorted(taken)


@dataclass(frozen=True, slots=True)
class Scene:
    """The frontend, the honest client's channel, and the median of its call while nobody else speaks.

    Attributes:
        role: the frontend's pid.
    """

    directory: RunDir
    role: int
    channel: DealerChannel[ToClient]
    quiet_us: float

    def beside(self, kind: str, num_rounds: int) -> list[Row]:
        """Return a flood's rows."""
        command = [sys.executable, "-m", "scripts.bench.flood", "--flood", str(self.directory.path), kind]
        with subprocess.Popen(command, start_new_session=True) as attacker:
            time.sleep(SETTLE_S)
            busy_s, begin = cpu_s(self.role), time.monotonic()
            taken = measure(self.channel, num_rounds)
            busy = (cpu_s(self.role) - busy_s) / (time.monotonic() - begin)
            os.killpg(attacker.pid, signal.SIGKILL)
        p50, p99 = statistics.median(taken), taken[int(len(taken) * 0.99)]
        return [
            row("honest call, p50", kind, p50, "us", peer="quiet", peer_value=self.quiet_us),
            row("honest call, p99", kind, p99, "us", peer="quiet, p50", peer_value=self.quiet_us),
            row("frontend's processor", kind, 100 * busy, "%", peer="one core", peer_value=100),
        ]


def open_sections(undo: contextlib.ExitStack) -> Mapping[str, Section]:
    run_dir = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="mmc-")))
    directory, role = undo.enter_context(frontend(run_dir))
    context = undo.enter_context(zmq.Context())
    channel = undo.enter_context(DealerChannel[ToClient](context, directory.client_address, ToClient))
    measure(channel, ROUNDS)  # it starts
    scene = Scene(directory, role, channel, statistics.median(measure(channel, ROUNDS)))
    return {kind: partial(scene.beside, kind) for kind in FLOODS}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--flood"]:
        flood(RunDir(Path(sys.argv[2])), sys.argv[3])
    else:
        harness.main("the cheapest call beside a flood", FLOODS, open_sections, rounds=(ROUNDS, QUICK_ROUNDS))
