"""The attacks on a service, each played in rounds until its process is killed.

An attack knows the run directory (or nothing but the host, as another user does), expects to be refused, and goes on
whatever it is told. It runs at the lowest priority, so that what an honest client notices is what the service does with
it, and not that the machine has few cores.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import zmq

from mmcached.cli.admin.observe import fetch
from mmcached.client import Client
from mmcached.wire.errors import MmcachedError
from mmcached.wire.messages import frontend as said
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages.parts import NurseryPlace
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.frames import encode_frames
from tests.integration.hostile import announcements, client_lives, files, nurseries
from tests.integration.hostile.counts import false_counts
from tests.integration.processes import DEADLINE_S
from tests.wire.examples import EXAMPLES
from tests.wire.raw_peer import RawPeer, frame, head

OTHER_UID = 65_534
ROUND_S = 3.0
MIB = 1 << 20
EMPTY_FRAME = b"\1\0"
"""After which the message goes on."""

Attack = Callable[[RunDir, random.Random], None]


# ---- floods


@contextlib.contextmanager
def _dealer(address: str) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(address)
        yield dealer


def _flood(run_dir: RunDir, make: Callable[[str, int], list[bytes]]) -> None:
    """Send messages as fast as they are taken, and read no answer but what hinders."""
    client_id = secrets.token_hex(16)
    with _dealer(run_dir.client_address) as dealer:
        end = time.monotonic() + ROUND_S
        for number in itertools.count(1):
            if time.monotonic() > end:
                return
            with contextlib.suppress(zmq.Again):
                dealer.send_multipart(make(client_id, number), zmq.NOBLOCK)
            with contextlib.suppress(zmq.Again):
                while number % 64 == 0:
                    dealer.recv_multipart(zmq.NOBLOCK)


def _messages(client_id: str, number: int) -> list[object]:
    """Return one message of each kind that a client can send."""
    other = secrets.token_hex(16)
    return [
        said.ClientHello(client_id),
        said.Generate(client_id, number, "flood", 1, None, 1.0),
        said.TokensTaken(other, number, 5),
        said.Cancel(other, number),
        said.GetStats(number),
        said.GetProcessorInfo(number),
        said.Probe(number, 1.0),
        said.Flush(number),
        said.Flush(number, new_epoch=True),
        said.RegisterReader(client_id, number, 1, number % 64, number),
        said.GetRecords(client_id, number, [f"none {number}"]),
        said.HaveRecords(number, [f"none {number}"] * 100),
        said.ClaimRecord(client_id, number, f"claim {number}", 60.0),
        said.DropClaim(other, number),
        said.DropRecord(number, "none"),
        said.OpenNursery(client_id, number, MIB),
        said.PutRecord(client_id, number, "k", 1, place=NurseryPlace(number % 8, number % 64 * MIB, MIB, 0)),
        said.ClientBye(other),
    ]


NUM_KINDS = len(_messages("0" * 32, 0))


def flood_of(kind: int) -> Attack:
    def attack(run_dir: RunDir, rng: random.Random) -> None:
        _flood(run_dir, lambda client_id, number: list(map(bytes, encode_frames(_messages(client_id, number)[kind]))))

    return attack


def garbage(run_dir: RunDir, rng: random.Random) -> None:
    _flood(run_dir, lambda client_id, number: [rng.randbytes(rng.randrange(1, 40))])


EDGES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    2**64 - 1,
    -(2**63),
    0.0,
    float("nan"),
    float("inf"),
    "",
    "x",
    "x" * 300,
    b"",
    [],
    {},
    [[]],
)


def _changed(rng: random.Random, value: Any) -> Any:
    """Return a message's value with one part of it replaced, left out or doubled."""
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        match rng.randrange(4):
            case 0:
                return value[:index] + value[index + 1 :]
            case 1:
                return [*value[:index], value[index], *value[index:]]
            case _:
                return [*value[:index], _changed(rng, value[index]), *value[index + 1 :]]
    return rng.choice(EDGES)


def _mutated(rng: random.Random, union: str) -> list[bytes]:
    """Return the frames of some message of a union, with mistakes in them."""
    message = rng.choice([example for name, example in EXAMPLES if name == union])
    version, body = map(bytes, encode_frames(message))
    if rng.random() < 0.7:
        tag, *fields = msgpack.unpackb(body, strict_map_key=False)
        changed = _changed(rng, fields)
        body = bytes(msgpack.packb([tag, *changed] if isinstance(changed, list) else changed))
    else:
        flipped = bytearray(body)
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        body = bytes(flipped[: rng.randrange(1, len(flipped) + 1)])
    return [version, body, *(rng.randbytes(rng.randrange(20)) for _ in range(rng.randrange(4)))]


def mutated(run_dir: RunDir, rng: random.Random) -> None:
    _flood(run_dir, lambda client_id, number: _mutated(rng, "FromClient"))


def mutated_to_engines(run_dir: RunDir, rng: random.Random) -> None:
    """The same at the engines' socket."""
    with _dealer(run_dir.engine_address) as dealer:
        for _ in range(2000):
            with contextlib.suppress(zmq.Again):
                dealer.send_multipart(_mutated(rng, "FromEngine"), zmq.NOBLOCK)


# ---- sockets


def crowd(run_dir: RunDir, rng: random.Random) -> None:
    """Open connections by the hundred, some of them with half a handshake, and hold them."""
    peers = []
    for index in range(600):
        with contextlib.suppress(OSError):
            peers.append(RawPeer(run_dir.client_address, shakes_hands=index % 2 == 0))
    time.sleep(ROUND_S)
    for peer in peers:
        peer.close()


def endless_message(run_dir: RunDir, rng: random.Random) -> None:
    peer = RawPeer(run_dir.client_address)
    with contextlib.closing(peer):
        for _ in range(2000):
            peer.send(frame(bytes(MIB), more=True))


def endless_small_frames(run_dir: RunDir, rng: random.Random) -> None:
    peer = RawPeer(run_dir.client_address)
    with contextlib.closing(peer):
        for _ in range(200):
            peer.send(EMPTY_FRAME * 100_000)


def many_frames(run_dir: RunDir, rng: random.Random) -> None:
    peer = RawPeer(run_dir.client_address)
    with contextlib.closing(peer):
        peer.send(EMPTY_FRAME * 4_000_000 + b"\0\0")
        time.sleep(ROUND_S)


def huge_frame(run_dir: RunDir, rng: random.Random) -> None:
    peer = RawPeer(run_dir.client_address)
    with contextlib.closing(peer):
        peer.send(head(8 << 30))
        for _ in range(1000):
            peer.send(bytes(MIB))


def stolen_name(run_dir: RunDir, rng: random.Random) -> None:
    """Claim routing ids of the kind that the service gives by itself."""
    peers = [
        RawPeer(run_dir.client_address, identity=b"\0" + rng.randbytes(4) if index % 2 else b"") for index in range(20)
    ]
    for peer in peers:
        with contextlib.closing(peer), contextlib.suppress(OSError):
            peer.send(frame(b"x"))


def deaf(run_dir: RunDir, rng: random.Random) -> None:
    """Ask for large records and never read one."""
    with Client(run_dir.path, timeout_s=5.0, tenant="deaf") as client:
        client.put("large", {"a": np.zeros(3 * MIB, np.uint8)})
    client_id = secrets.token_hex(16)
    with _dealer(run_dir.client_address) as dealer:
        for number in range(1, 400):
            question = said.GetRecords(client_id, number, ["large"], "deaf")
            with contextlib.suppress(zmq.Again):
                dealer.send_multipart(list(map(bytes, encode_frames(question))), zmq.NOBLOCK)
        time.sleep(ROUND_S)


def false_engine(run_dir: RunDir, rng: random.Random) -> None:
    with _dealer(run_dir.engine_address) as dealer:
        hello = from_engine.EngineHello(0, rng.getrandbits(62), "0" * 16)
        dealer.send_multipart(list(map(bytes, encode_frames(hello))))
        dealer.send_multipart([rng.randbytes(20)])
        time.sleep(ROUND_S / 10)


# ---- contents


def pictures(run_dir: RunDir, rng: random.Random) -> None:
    with Client(run_dir.path, timeout_s=20.0, tenant="painter") as client:
        make = files.EVIL[rng.choice(list(files.EVIL))]
        with contextlib.suppress(MmcachedError):
            client.encode([make(rng.getrandbits(30))])


def fresh_pictures(run_dir: RunDir, rng: random.Random) -> None:
    """Send pictures without a fault, more than can be decoded."""
    with Client(run_dir.path, timeout_s=20.0, tenant="photographer") as client, contextlib.suppress(MmcachedError):
        client.encode([files.noise(1500, 1000, rng.getrandbits(30)) for _ in range(8)])


def long_prompts(run_dir: RunDir, rng: random.Random) -> None:
    message: list[object] = [
        said.Generate(secrets.token_hex(16), 1, "x" * 20_000_000, 1, None, 1.0),
        said.Generate(secrets.token_hex(16), 1, [7] * 10_000_000, 1, None, 1.0),
        said.HaveRecords(1, ["k" * 100_000] * 100),
    ]
    with _dealer(run_dir.client_address) as dealer:
        dealer.send_multipart(list(map(bytes, encode_frames(rng.choice(message)))))
        dealer.poll(int(ROUND_S * 1000))


def long_heads(run_dir: RunDir, rng: random.Random) -> None:
    """Put records whose heads are lists of millions."""
    from mmcached.shm.store.record_head import PREAMBLE

    header = bytes(msgpack.packb([{"a": [None] * 4_000_000}, []]))
    head = PREAMBLE.pack(b"MMREC\0\0\1", len(header), 0) + header
    with _dealer(run_dir.client_address) as dealer:
        put = said.PutRecord(secrets.token_hex(16), 1, f"head {rng.random()}", 1)
        dealer.send_multipart([*map(bytes, encode_frames(put)), head])
        dealer.poll(int(ROUND_S * 1000))


def hoard(run_dir: RunDir, rng: random.Random) -> None:
    """Hold views of records, and stop: the lease of a process that is stopped and not dead."""
    client = Client(run_dir.path, timeout_s=5.0, tenant=f"hoarder {rng.random()}")
    views = []
    for index in range(8):
        client.put(f"{index}", {"a": np.zeros(MIB, np.uint8)})
        views.append(client.get(f"{index}", view=True))
    os.kill(os.getpid(), signal.SIGSTOP)  # until it is killed


def puts(run_dir: RunDir, rng: random.Random) -> None:
    """Fill the store with what nobody asks for."""
    with Client(run_dir.path, timeout_s=5.0, tenant="filler") as client:
        for _ in range(50):
            client.put(f"{rng.random()}", {"a": np.zeros(rng.choice([100, 50_000, MIB]), np.uint8)})


# ---- the host, as another user


@cache
def _owner(run_dir: RunDir) -> int:
    """Return whose service it is; the answer is kept, because another user cannot look."""
    return run_dir.path.stat().st_uid


@cache
def _http_port(run_dir: RunDir) -> tuple[str, int]:
    url: str = json.loads(fetch(run_dir.path, "/status", DEADLINE_S))["http"]
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    return host, int(port)


def _become_other_user() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(OTHER_UID, OTHER_UID, OTHER_UID)
        os.setresuid(OTHER_UID, OTHER_UID, OTHER_UID)


def planted_names(run_dir: RunDir, rng: random.Random) -> None:
    """Make names in /dev/shm that look like the service's own."""
    uid = _owner(run_dir)
    _become_other_user()
    plant: list[Callable[[Path], object]] = [
        lambda name: name.symlink_to("/nowhere"),
        Path.mkdir,
        os.mkfifo,
        Path.touch,
        lambda name: socket.socket(socket.AF_UNIX).bind(str(name)),
    ]
    for make in plant:
        with contextlib.suppress(OSError):
            make(Path("/dev/shm") / f"mmc.{uid}.{rng.randbytes(16).hex()}.{rng.choice(['ctl', 'data'])}")
    time.sleep(ROUND_S)


def held_http(run_dir: RunDir, rng: random.Random) -> None:
    """Hold connections to the HTTP port, each with half a request."""
    address = _http_port(run_dir)
    _become_other_user()
    held = []
    for _ in range(400):
        with contextlib.suppress(OSError):
            connection = socket.create_connection(address, timeout=1.0)
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
            held.append(connection)
    time.sleep(ROUND_S)
    for connection in held:
        connection.close()


def junk_locks(run_dir: RunDir, rng: random.Random) -> None:
    """Put what is no lock where the locks of clients are."""
    path = run_dir.clients / f"{rng.randbytes(16).hex()}.lock"
    make: list[Callable[[Path], object]] = [Path.mkdir, os.mkfifo, lambda name: name.symlink_to("/nowhere")]
    with contextlib.suppress(OSError):
        rng.choice(make)(path)
    time.sleep(ROUND_S / 10)


ATTACKS: dict[str, Attack] = {
    **{f"flood {type(kind).__name__} {index}": flood_of(index) for index, kind in enumerate(_messages("0" * 32, 0))},
    **{
        attack.__name__: attack
        for attack in (
            garbage,
            mutated,
            mutated_to_engines,
            crowd,
            endless_message,
            endless_small_frames,
            many_frames,
            huge_frame,
            announcements.announced_frames,
            announcements.announce_and_close,
            announcements.announced_to_engines,
            stolen_name,
            deaf,
            false_engine,
            pictures,
            fresh_pictures,
            long_prompts,
            long_heads,
            hoard,
            puts,
            planted_names,
            held_http,
            junk_locks,
            false_counts,
        )
    },
    **client_lives.ATTACKS,
    **nurseries.ATTACKS,
}


def main() -> None:
    """Play one attack until this process, or its parent, is killed: `NAME RUN_DIR SEED`."""
    name, run_dir, seed = sys.argv[1:]
    os.nice(19)
    rng = random.Random(f"{seed} {name}")
    parent = os.getppid()
    while os.getppid() == parent:
        try:
            ATTACKS[name](RunDir(Path(run_dir)), rng)
        except (MmcachedError, OSError, zmq.ZMQError, MemoryError, KeyError, ValueError):
            time.sleep(0.1)  # refused or thrown out; it comes again


if __name__ == "__main__":
    main()
