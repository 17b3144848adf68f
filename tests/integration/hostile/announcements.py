"""Attacks with frames that are announced and never come, or come slowly; see `attacks`."""

from __future__ import annotations

import contextlib
import random
import time
from contextlib import ExitStack

from mmcached.wire.limits import LimitsConfig
from mmcached.wire.paths import RunDir
from tests.wire.raw_peer import RawPeer, head

LARGEST = LimitsConfig().max_message_mb << 20
NUM_PEERS = 60
ROUND_S = 3.0
PAUSE_S = 0.05


def announced_frames(run_dir: RunDir, rng: random.Random) -> None:
    """Announce the largest frame over many connections, some of them within a message, and send a few bytes of each."""
    with ExitStack() as stack, contextlib.suppress(OSError):
        peers = [stack.enter_context(RawPeer(run_dir.client_address)) for _ in range(NUM_PEERS)]
        for peer in peers:
            peer.send(head(LARGEST - rng.randrange(1 << 20), more=rng.random() < 0.5))
        end = time.monotonic() + ROUND_S
        while time.monotonic() < end:
            rng.choice(peers).send_some(bytes(rng.choice([1, 1, 1, 100_000])))
            time.sleep(PAUSE_S)


def announce_and_close(run_dir: RunDir, rng: random.Random) -> None:
    end = time.monotonic() + ROUND_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError), RawPeer(run_dir.client_address) as peer:
            peer.send(head(rng.randrange(LARGEST)) + bytes(rng.choice([0, 1, 1 << 17])))


def announced_to_engines(run_dir: RunDir, rng: random.Random) -> None:
    """The same at the engines' socket, where a message may have 4 GiB."""
    with contextlib.suppress(OSError), RawPeer(run_dir.engine_address) as peer:
        peer.send(head((4 << 30) - rng.randrange(1 << 20)))
        for _ in range(10):
            peer.send_some(bytes(rng.choice([1, 100_000])))
            time.sleep(PAUSE_S)
