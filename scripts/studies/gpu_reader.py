"""A process that pins a ring for its device and holds a lease, until its input ends or somebody kills it."""

from __future__ import annotations

import sys
import time

import msgspec

from mmcached.shm import ReaderEntry, RingReader
from mmcached.wire.handle import Handle, RingAnnouncement
from scripts.bench.leases import Lease
from scripts.studies.gpu_memory import pinned, require_cuda


def say(value: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    ring = msgspec.json.decode(sys.stdin.buffer.readline(), type=RingAnnouncement)
    require_cuda()
    with ReaderEntry.attach(ring) as entry, RingReader.open(ring) as reader:
        say((entry.reader_id, entry.incarnation))
        handle = msgspec.json.decode(sys.stdin.buffer.readline(), type=Handle)
        if not all(entry.take_leases([Lease(handle)], reader.look)):
            raise RuntimeError("the lease was not taken")
        begun = time.perf_counter()
        with pinned(ring):
            say(time.perf_counter() - begun)
            sys.stdin.buffer.read()
        entry.give_back(handle)


if __name__ == "__main__":
    main()
