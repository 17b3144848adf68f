"""What a client in a loop costs another one: the cheapest call beside a flood of each kind of message.

    .venv/bin/python scripts/bench_flood.py [KIND ...]

One frontend alone, an honest client in this process, and a process that says one thing without end and reads whatever
is answered. A line per flood: median and 99th percentile of the honest call, the median ÷ the quiet one's, and how busy
the frontend's process was (of one core).
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
from collections.abc import Iterator
from pathlib import Path

import zmq

from mmcached.shm.files.lock_file import LockFile
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages import frontend as said
from mmcached.wire.messages.client import ToClient
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.channels import DealerChannel, encode_frames
from mmcached.wire.sockets.zmtp import GREETING, pack

ID = secrets.token_hex(16)
NUM_KEYS = said.MAX_KEYS
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
SETTLE_S = 0.5
MEASURE_S = 2.0


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
    "probe": words(said.Probe(1, 5.0)),
    "flush": words(said.Flush(1)),
    "row": words(said.TakeRow(ID, 1, 2, 3, 4)),
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


def measure(channel: DealerChannel[ToClient]) -> list[float]:
    """Return the seconds of each honest call."""
    taken: list[float] = []
    end = time.monotonic() + MEASURE_S
    while time.monotonic() < end or len(taken) < 10:
        begin = time.perf_counter()
        channel.send(said.HaveRecords(1, []))
        channel.receive(60.0)
        taken.append(time.perf_counter() - begin)
    return sorted(taken)


def main(kinds: list[str]) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="mmc-") as run_dir,
        frontend(Path(run_dir)) as (directory, role),
        zmq.Context() as context,
        DealerChannel[ToClient](context, directory.client_address, ToClient) as channel,
    ):
        measure(channel)  # it starts
        quiet = statistics.median(measure(channel))
        print(f"{'quiet':12} p50 {quiet * 1e6:8.0f} us")
        for kind in kinds or FLOODS:
            with subprocess.Popen(
                [sys.executable, __file__, "--flood", run_dir, kind], start_new_session=True
            ) as attacker:
                time.sleep(SETTLE_S)
                busy_s, begin = cpu_s(role), time.monotonic()
                taken = measure(channel)
                busy = (cpu_s(role) - busy_s) / (time.monotonic() - begin)
                os.killpg(attacker.pid, signal.SIGKILL)
            median, p99 = statistics.median(taken), taken[int(len(taken) * 0.99)]
            times = f"p50 {median * 1e6:8.0f} us  p99 {p99 * 1e6:8.0f} us"
            print(f"{kind:12} {times}  ÷ quiet {median / quiet:6.1f}  {busy:4.0%}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--flood"]:
        flood(RunDir(Path(sys.argv[2])), sys.argv[3])
    else:
        main(sys.argv[1:])
