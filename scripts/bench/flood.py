"""Measures what a client in a loop costs another one: the cheapest call beside a flood of each kind of message.

One frontend alone, an honest client in this process, and a process that says one thing without end and reads whatever
is answered. For each flood: median and 99th percentile of the honest call against the quiet median, and how busy the
frontend's process was (of one core). For peers that announce large frames, and for large messages of an honest client,
also by how much the frontend's memory has grown at most.
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
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mmcached.shm.files.lock_file import LockFile
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages import frontend as said
from mmcached.wire.messages.client import ToClient
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.dialer import Dialer
from mmcached.wire.sockets.frames import encode_frames
from mmcached.wire.sockets.zmtp import GREETING, LONG, pack
from scripts.bench import harness
from scripts.bench.harness import Bound, Row, Section, row, wall_us

ID = secrets.token_hex(16)
NUM_KEYS = said.MAX_KEYS
LIMITS = ServiceConfig().limits
MIB = 1 << 20
LARGEST_FRAME = bytes([LONG]) + (LIMITS.max_message_mb * MIB).to_bytes(8, "big")
"""The head of one, which never comes."""
NUM_LIARS = 60
SAMPLE_S = 0.01
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
    "nursery": words(said.OpenNursery(ID, 1, 1 << 20)),
    "get": words(said.GetRecords(ID, 1, KEYS[:1])),
    "get 256": words(said.GetRecords(ID, 1, KEYS)),
    "have": words(said.HaveRecords(1, KEYS[:1])),
    "have 256": words(said.HaveRecords(1, KEYS)),
    "put 16 MiB": words(said.PutRecord(ID, 1, "key", 0), [bytes(1 << 24)]),
    "claim": words(said.ClaimRecord(ID, 1, "key", 5.0)),
    "drop claim": words(said.DropClaim(ID, 5)),
    "drop": words(said.DropRecord(1, "key")),
    "bye": words(said.ClientBye(ID)),
    "garbage": b"\0\1x",
    "endless": b"\1\0" * 5000,
}


def connect(directory: RunDir) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.connect(directory.client_address.removeprefix("ipc://"))
    peer.sendall(GREETING + READY)
    return peer


def announce(directory: RunDir) -> None:
    """Announce the largest frame over many connections, and send a byte of each now and then."""
    liars = [connect(directory) for _ in range(NUM_LIARS)]
    for liar in liars:
        liar.sendall(LARGEST_FRAME)
    while True:
        for liar in liars:
            liar.sendall(b"x")
        time.sleep(SETTLE_S)


def announce_and_close(directory: RunDir) -> None:
    while True:
        with contextlib.suppress(OSError), connect(directory) as liar:
            liar.sendall(LARGEST_FRAME)


def large_puts(num_mb: int, directory: RunDir) -> None:
    """Put large records, one after the other, as an honest client."""
    presence = LockFile(directory.client_lock(ID))
    peer = connect(directory)
    payload = bytes(num_mb * MIB)
    for number in range(1, 1 << 30):
        put = said.PutRecord(ID, number, f"key {number}", 0)
        for piece in pack(encode_frames(put, [payload])):
            peer.sendall(piece)
        peer.recv(1 << 20)
    presence.close()


LARGE: dict[str, Callable[[RunDir], None]] = {
    f"announce {NUM_LIARS} x {LIMITS.max_message_mb} MiB": announce,
    "announce and close": announce_and_close,
    "put 60 MiB": partial(large_puts, 60),
    "put 200 MiB": partial(large_puts, 200),
}
KINDS = (*FLOODS, *LARGE)
BOUNDS = [
    *(Bound("reach", "honest call, p50", kind, "quiet", 10.0) for kind in LARGE),
    *(Bound("reach", "frontend's memory", kind, "limits.max_held_mb", 1.0) for kind in LARGE),
]


def flood(directory: RunDir, kind: str) -> None:
    """Run in a process of its own until it is killed."""
    if kind in LARGE:
        LARGE[kind](directory)
        return
    presence = LockFile(directory.client_lock(ID))
    peer = connect(directory)
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


def anonymous_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@contextlib.contextmanager
def peak_memory(pid: int) -> Iterator[list[int]]:
    """Yield a list with the most private memory in bytes that a process has had so far."""
    peak = [anonymous_bytes(pid)]
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(SAMPLE_S):
            peak[0] = max(peak[0], anonymous_bytes(pid))

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield peak
    finally:
        is_over.set()
        watch.join()


def measure(dialer: Dialer[ToClient], num_rounds: int) -> list[float]:
    """Return the microseconds of each honest call, sorted."""

    def ask() -> None:
        dialer.send(said.HaveRecords(1, []))
        dialer.receive(60.0)

    taken: list[float] = []
    end = time.monotonic() + num_rounds * ROUND_S
    while time.monotonic() < end or len(taken) < 10:
        taken.append(wall_us(ask))
    return sorted(taken)


@dataclass(frozen=True, slots=True)
class Scene:
    """The frontend, the honest client's connection, and the median of its call while nobody else speaks.

    Attributes:
        role: the frontend's pid.
    """

    directory: RunDir
    role: int
    dialer: Dialer[ToClient]
    quiet_us: float

    def beside(self, kind: str, num_rounds: int) -> list[Row]:
        """Return a flood's rows."""
        before = anonymous_bytes(self.role)
        command = [sys.executable, "-m", "scripts.bench.flood", "--flood", str(self.directory.path), kind]
        with peak_memory(self.role) as peak, subprocess.Popen(command, start_new_session=True) as attacker:
            time.sleep(SETTLE_S)
            busy_s, begin = cpu_s(self.role), time.monotonic()
            taken = measure(self.dialer, num_rounds)
            busy = (cpu_s(self.role) - busy_s) / (time.monotonic() - begin)
            os.killpg(attacker.pid, signal.SIGKILL)
        p50, p99 = statistics.median(taken), taken[int(len(taken) * 0.99)]
        rows = [
            row("honest call, p50", kind, p50, "us", peer="quiet", peer_value=self.quiet_us),
            row("honest call, p99", kind, p99, "us", peer="quiet, p50", peer_value=self.quiet_us),
            row("frontend's processor", kind, 100 * busy, "%", peer="one core", peer_value=100),
        ]
        if kind in LARGE:
            grown_mb = (peak[0] - before) / MIB
            limit = row(
                "frontend's memory", kind, grown_mb, "MiB", peer="limits.max_held_mb", peer_value=LIMITS.max_held_mb
            )
            worst = row("honest call, worst", kind, taken[-1], "us", peer="quiet, p50", peer_value=self.quiet_us)
            rows += [worst, limit]
        return rows


def open_sections(undo: contextlib.ExitStack) -> Mapping[str, Section]:
    run_dir = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="mmc-")))
    directory, role = undo.enter_context(frontend(run_dir))
    dialer = undo.enter_context(Dialer[ToClient](directory.client_address, ToClient))
    measure(dialer, ROUNDS)  # it starts
    scene = Scene(directory, role, dialer, statistics.median(measure(dialer, ROUNDS)))
    return {kind: partial(scene.beside, kind) for kind in KINDS}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--flood"]:
        flood(RunDir(Path(sys.argv[2])), sys.argv[3])
    else:
        harness.main(
            "the cheapest call beside a flood", KINDS, open_sections, rounds=(ROUNDS, QUICK_ROUNDS), bounds=BOUNDS
        )
