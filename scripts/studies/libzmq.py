"""Compares libzmq's ROUTER with our `Listener`: what each keeps of SECURITY.md's promises, and what a message costs.

`python -m scripts.studies.libzmq [--quick]`: decision 025.

Every attack is played against both servers, each in a process of its own with the same limits. The ROUTER has every
stable option that helps: MAXMSGSIZE, SNDHWM, RCVHWM, HANDSHAKE_IVL, ROUTER_MANDATORY, ROUTER_HANDOVER. Three others do
not help: the drafts (ROUTER_NOTIFY, DISCONNECT_MSG, `zmq_disconnect_peer`) are missing in pyzmq's wheels; ROUTER_RAW
leaves ZMTP, and so nearly all of our code, to the caller; HEARTBEAT_IVL ends clients that are stopped for a moment.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import zmq

from mmcached.wire.errors import MmcachedError, ServiceUnavailable, error_to_wire
from mmcached.wire.messages.client import Failed, Flushed, ToClient
from mmcached.wire.messages.frontend import FromClient, GetStats
from mmcached.wire.process.turns import TurnShare
from mmcached.wire.sockets.bounds import Bounds
from mmcached.wire.sockets.dialer import Dialer
from mmcached.wire.sockets.frames import Frame, decode_frames, encode_frames, make_decoder
from mmcached.wire.sockets.listener import Listener
from mmcached.wire.sockets.zmtp import COMMAND, GREETING, LONG, MORE, pack

MIB = 1 << 20
MESSAGE_BYTES, HELD_BYTES, QUEUED_BYTES = 64 * MIB, 256 * MIB, 64 * MIB
SLACK_BYTES = 64 * MIB
STALL_S = 2.0
MARK = 64
"""The ROUTER's SNDHWM and RCVHWM."""
FEW_DESCRIPTORS, CROWD = 128, 160
DEADLINE_S = 20.0
REFUSAL = Failed(None, error_to_wire(ServiceUnavailable("too many")))
SERVERS = ("ROUTER", "Listener")

# ---- the two servers: an echo of small payloads; the answer to `big` is 1 MiB, and to `who` the peer's identity


def answer_to(peer: bytes, payload: list[Frame]) -> list[Frame]:
    match bytes(payload[0]) if payload and len(payload[0]) < 8 else b"":
        case b"big":
            return [bytes(MIB)]
        case b"who":
            return [peer]
        case b"open":
            try:
                os.close(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                return [b"none"]
            return [b"free"]
    return payload if payload and len(payload[0]) < 64 else []


def serve_router(address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        for option, value in (
            (zmq.MAXMSGSIZE, MESSAGE_BYTES),
            (zmq.SNDHWM, MARK),
            (zmq.RCVHWM, MARK),
            (zmq.HANDSHAKE_IVL, round(STALL_S * 1000)),
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.ROUTER_HANDOVER, 1),
        ):
            router.setsockopt(option, value)
        router.bind(address)
        decoder = make_decoder(FromClient)
        while True:
            peer, *frames = router.recv_multipart()
            try:
                message, payload = decode_frames(frames, decoder)
                answer = encode_frames(Flushed(message.request_id), answer_to(peer, payload))
                router.send_multipart([peer, *answer], zmq.NOBLOCK)
            except (zmq.ZMQError, MmcachedError):
                pass  # it does not read, or is gone: there is no call to disconnect it


def serve_listener(address: str) -> None:
    bounds = Bounds(
        max_connections=1024,
        reserved_descriptors=32,
        max_frames=4096,
        max_message_bytes=MESSAGE_BYTES,
        max_body_bytes=MIB,
        max_queued_bytes=QUEUED_BYTES,
        max_held_bytes=HELD_BYTES,
        stall_s=STALL_S,
    )
    listener: Listener[FromClient] = Listener(address, FromClient, bounds, refusal=REFUSAL, overload=REFUSAL)
    share = TurnShare()
    while True:
        listener.wait(0.25)
        for peer, message, payload in listener.serve(share):
            if isinstance(message, GetStats):
                listener.try_send(peer, Flushed(message.request_id), answer_to(peer, payload))
        listener.check(time.monotonic())


class Served:
    """One of the servers in a process of its own, and raw peers of it; all closed at the end."""

    def __init__(self, kind: str, directory: str, stack: ExitStack, *, num_descriptors: int = 4096) -> None:
        self.kind = kind
        self.path = f"{directory}/{kind}.sock"
        self._stack = stack
        command = [sys.executable, "-m", __spec__.name, "--serve", kind, "--at", f"ipc://{self.path}"]
        self.process = subprocess.Popen([*command, "--descriptors", str(num_descriptors)], stderr=subprocess.DEVNULL)
        stack.callback(self.process.wait)
        stack.callback(self.process.kill)
        wait_until(self._is_open)
        self.first_bytes = self.rss_bytes()

    def _is_open(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.connect(self.path)
            return True
        return False

    def peer(self, *, shakes_hands: bool = True, identity: bytes = b"") -> socket.socket:
        peer = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        peer.settimeout(DEADLINE_S)
        peer.connect(self.path)
        if shakes_hands:
            ready = b"\x05READY"
            for name, value in ((b"Socket-Type", b"DEALER"), (b"Identity", identity)):
                ready += bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
            peer.sendall(GREETING + bytes([COMMAND, len(ready)]) + ready)
            received(peer, b"READY")  # libzmq ends a peer that speaks before
        return peer

    def rss_bytes(self) -> int:
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
            return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) << 10
        return 0

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def is_alive(self) -> bool:
        return self.process.poll() is None


def wait_until(is_so: Callable[[], bool], timeout_s: float = DEADLINE_S) -> bool:
    end = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def request(*payload: bytes) -> bytes:
    return b"".join(bytes(piece) for piece in pack(encode_frames(GetStats(1), payload)))


def received(peer: socket.socket, wanted: bytes, timeout_s: float = 5.0) -> bool:
    """Return whether these bytes come."""
    peer.settimeout(timeout_s)
    data = b""
    with suppress(OSError):
        while wanted not in data and (piece := peer.recv(1 << 16)):
            data += piece
    return wanted in data


def is_closed(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        while peer.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


# ---- attacks: each returns what was seen, and whether the promise was kept

Verdict = tuple[str, bool]


def endless_message(served: Served) -> Verdict:
    """A message of frames without an end takes no more memory than a message may have."""
    peer = served.peer()
    piece = bytes([LONG | MORE]) + (1 << 16).to_bytes(8, "big") + bytes(1 << 16)
    with suppress(OSError):
        for _ in range(768 * MIB // len(piece)):
            peer.sendall(piece)
    time.sleep(0.3)
    grown = served.rss_bytes() - served.first_bytes
    return f"{grown >> 20} MiB of 768 sent, limit {MESSAGE_BYTES >> 20}", grown < MESSAGE_BYTES + SLACK_BYTES


def incomplete_messages(served: Served) -> Verdict:
    """The incomplete messages of all peers together take no more memory than `max_held_mb`."""
    size, most = MESSAGE_BYTES - MIB, 0
    for _ in range(12):
        peer = served.peer()
        with suppress(OSError):
            peer.sendall(bytes([LONG]) + size.to_bytes(8, "big") + bytes(size - 1))
        most = max(most, served.rss_bytes() - served.first_bytes)
    return f"{most >> 20} MiB, limit {HELD_BYTES >> 20}", most < HELD_BYTES + SLACK_BYTES


def deaf_peer(served: Served) -> Verdict:
    """A peer that asks and does not read is disconnected."""
    peer = served.peer()
    peer.settimeout(1.0)
    with suppress(OSError):
        for _ in range(500):
            peer.sendall(request(b"big"))
    time.sleep(2 * STALL_S)
    grown, is_ended = served.rss_bytes() - served.first_bytes, is_closed(peer)
    return f"{grown >> 20} MiB held, {'ended' if is_ended else 'connected for good'}", is_ended


def half_a_message(served: Served) -> Verdict:
    """A peer that stops in the middle of a message is disconnected."""
    peer = served.peer()
    peer.sendall(request(b"x" * 1000)[:-1])
    is_ended = wait_until(lambda: is_closed(peer), 3 * STALL_S)
    return "ended" if is_ended else "connected for good", is_ended


def no_handshake(served: Served) -> Verdict:
    """A peer that does not say what it is is disconnected."""
    peer = served.peer(shakes_hands=False)
    is_ended = wait_until(lambda: is_closed(peer), 3 * STALL_S)
    return "ended" if is_ended else "connected for good", is_ended


def descriptors(served: Served) -> Verdict:
    """More connections than descriptors leave the server alive, at rest, with descriptors for its own files."""
    first = served.peer()
    first.sendall(request(b"echo 1"))
    received(first, b"echo 1")
    crowd: list[socket.socket] = []
    for _ in range(CROWD):
        with suppress(OSError):  # the backlog is full for a moment
            crowd.append(served.peer(shakes_hands=False))
        time.sleep(0.005)
    time.sleep(0.5)
    before = served.cpu_s()
    time.sleep(1.0)
    busy = served.cpu_s() - before if served.is_alive() else 0.0
    with suppress(OSError):
        first.sendall(request(b"open"))
    has_free = served.is_alive() and received(first, b"free")
    for peer in crowd:
        peer.close()
    wait_until(lambda: False, 2 * STALL_S)
    recovers = False
    with suppress(OSError):
        last = served.peer()
        last.sendall(request(b"echo 2"))
        recovers = received(last, b"echo 2")
    text = f"{busy:.0%} of a core, {'a' if has_free else 'no'} free descriptor, {'recovers' if recovers else 'is lost'}"
    return (
        text if served.is_alive() else f"process ended: {served.process.poll()}",
        has_free and recovers and busy < 0.5,
    )


def next_identity(served: Served) -> Verdict:
    """A peer that calls itself by the next identity that the server gives out disturbs nobody."""
    peer = served.peer()
    peer.sendall(request(b"who"))
    peer.settimeout(DEADLINE_S)
    number = int.from_bytes(peer.recv(1 << 12)[-4:], "big")  # the answer's last frame
    for step in range(1, 4):
        served.peer(identity=b"\0" + ((number + step) % (1 << 32)).to_bytes(4, "big")).sendall(request(b"echo 1"))
    time.sleep(0.3)
    answered = 0
    for _ in range(4):
        with suppress(OSError):
            honest = served.peer()
            honest.sendall(request(b"echo 2"))
            answered += received(honest, b"echo 2", 1.0)
    text = f"{answered} of 4 others answered" if served.is_alive() else f"process ended: {served.process.poll()}"
    return text, served.is_alive() and answered == 4


def same_identity(served: Served) -> Verdict:
    """Two clients that call themselves by one name are both answered."""
    one, other = served.peer(identity=b"name"), served.peer()
    one.sendall(request(b"echo 1"))
    received(one, b"echo 1")
    other = served.peer(identity=b"name")
    other.sendall(request(b"echo 2"))
    has_other = received(other, b"echo 2", 1.0)
    with suppress(OSError):
        one.sendall(request(b"echo 3"))
    has_one = received(one, b"echo 3", 1.0)
    return (
        f"first {'answered' if has_one else 'cut off'}, second {'answered' if has_other else 'not'}",
        has_one and has_other,
    )


def flood(served: Served) -> Verdict:
    """Beside a peer that asks without a pause another one is answered in at most ten times the quiet time."""
    quiet = statistics.median(round_trips(served, request(b"echo 1"), b"echo 1", 200))
    flooder = served.peer()
    flooder.setblocking(False)
    many = request(b"y" * 100) * 64

    def push() -> None:
        with suppress(BlockingIOError):
            flooder.send(many)
        with suppress(BlockingIOError):
            flooder.recv(1 << 18)

    beside = statistics.median(round_trips(served, request(b"echo 1"), b"echo 1", 200, before=push))
    return f"{beside / quiet:.1f} times the quiet time", beside < 10 * quiet


def round_trips(
    served: Served, question: bytes, wanted: bytes, number: int, before: Callable[[], None] = lambda: None
) -> list[float]:
    peer, taken = served.peer(), []
    peer.sendall(question)
    received(peer, wanted)
    for _ in range(number):
        before()
        start = time.perf_counter()
        peer.sendall(question)
        received(peer, wanted)
        taken.append(time.perf_counter() - start)
    return taken


ATTACKS = (
    endless_message, incomplete_messages, deaf_peer, half_a_message, no_handshake, descriptors, next_identity,
    same_identity, flood,
)  # fmt: skip

# ---- what a message costs

COSTS = (("a step: plan of 600 bytes", 600), ("put of 4 KiB", 4 << 10), ("put of 4.7 MiB", round(4.7 * MIB)))


@contextmanager
def zmq_client(served: Served) -> Iterator[Callable[[Frame], None]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"ipc://{served.path}")
        decoder = make_decoder(ToClient)

        def ask(payload: Frame) -> None:
            dealer.send_multipart(encode_frames(GetStats(1), [payload]), copy=False)
            decode_frames(dealer.recv_multipart(), decoder)

        yield ask


@contextmanager
def own_client(served: Served) -> Iterator[Callable[[Frame], None]]:
    with Dialer[ToClient](f"ipc://{served.path}", ToClient) as dialer, zmq.Context():
        poller = zmq.Poller()
        poller.register(dialer.fileno(), zmq.POLLIN)

        def ask(payload: Frame) -> None:
            dialer.send_frames(encode_frames(GetStats(1), [payload]))
            while dialer.try_receive() is None:
                poller.poll(1000)

        yield ask


def ratio(servers: list[Served], num_bytes: int, num_rounds: int) -> tuple[float, float]:
    """Return microseconds of a round trip through ROUTER and through `Listener`, medians of turns in one run."""
    payload = os.urandom(num_bytes)
    with ExitStack() as stack:
        asks = [
            stack.enter_context((zmq_client if served.kind == "ROUTER" else own_client)(served)) for served in servers
        ]
        taken: list[list[float]] = [[] for _ in asks]
        for number in range(num_rounds):
            for ask, times in zip(asks, taken, strict=True):
                start = time.perf_counter()
                ask(payload)
                if number >= num_rounds // 10:
                    times.append(time.perf_counter() - start)
    router, own = (1e6 * statistics.median(times) for times in taken)
    return router, own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer round trips")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    parser.add_argument("--descriptors", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        resource.setrlimit(resource.RLIMIT_NOFILE, (chosen.descriptors, chosen.descriptors))
        (serve_router if chosen.serve == "ROUTER" else serve_listener)(chosen.at)
        return
    print(f"pyzmq {zmq.__version__}, libzmq {zmq.zmq_version()}, drafts: {zmq.has('draft')}")
    for attack in ATTACKS:
        print(f"{attack.__name__:20} {(attack.__doc__ or '').partition(chr(10))[0]}")
        for kind in SERVERS:
            with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
                num_descriptors = FEW_DESCRIPTORS if attack is descriptors else 4096
                served = Served(kind, directory, stack, num_descriptors=num_descriptors)
                text, is_kept = attack(served)
                print(f"    {kind:10} {'kept' if is_kept else 'BROKEN':8} {text}", flush=True)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        servers = [Served(kind, directory, stack) for kind in SERVERS]
        for name, num_bytes in COSTS:
            router, own = ratio(servers, num_bytes, 200 if chosen.quick or num_bytes > MIB else 4000)
            print(f"{name:28} ROUTER {router:8.0f} us, Listener {own:8.0f} us: ROUTER/Listener {router / own:.2f}")


if __name__ == "__main__":
    main()
