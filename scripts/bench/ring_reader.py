"""Reads as one process: `python -m scripts.bench.ring_reader DIRECTORY INDEX`.

Blocks for messages, lets the session's transport turn them into tensors, reads their first and last element and tells
the writer when that was done. It ends with its parent. On demand it says what a tensor takes of the process's own
memory, by the kernel's tables in /proc, so that no transport can claim to be zero-copy and be believed.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec
import torch
import zmq

from scripts.bench import ring_ours, ring_peers
from scripts.bench.ring_processes import CONTROL, READY, Link, ReaderEnd

PARENT_CHECK_MS = 5_000
READER_ENDS = {**ring_ours.READER_ENDS, **ring_peers.READER_ENDS}


def main(directory: str, index: int) -> None:
    torch.set_num_threads(1)
    parent = os.getppid()
    with zmq.Context() as context, context.socket(zmq.PULL) as inbox, context.socket(zmq.PUSH) as outbox:
        inbox.set(zmq.RCVTIMEO, PARENT_CHECK_MS)
        inbox.bind(f"ipc://{directory}/reader{index}")
        outbox.set(zmq.LINGER, 0)
        outbox.connect(f"ipc://{directory}/writer")
        process = ReaderProcess(Link(index, inbox, outbox, context, directory))
        while os.getppid() == parent:
            try:
                message = inbox.recv()
            except zmq.Again:
                continue
            process.handle(message)


class ReaderProcess:
    """The sessions of one process."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._ends: dict[int, ReaderEnd] = {}
        self._watches_memory = False
        self._memory = (0, 0)

    def handle(self, message: bytes) -> None:
        """Do what one message asks; failures are told to the writer, which ends the run."""
        session = message[0]
        try:
            if session == CONTROL:
                self._answer(self._control(msgspec.msgpack.decode(message[1:])), None)
            else:
                self._serve(session, message)
        except Exception:
            self._answer(None, traceback.format_exc())

    def _serve(self, session: int, message: bytes) -> None:
        link = self._link
        if self._watches_memory:
            self._serve_watched(session, message)
            return
        for tensor in self._ends[session].serve(message, link):
            first, last = tensor[0].item(), tensor[-1].item()
            link.outbox.send(READY.pack(link.index, session, time.monotonic_ns(), first, last))
            del tensor

    def _serve_watched(self, session: int, message: bytes) -> None:
        """As `_serve`, but note what each tensor takes of this process's own memory; not for timing."""
        before = anonymous_bytes()
        for tensor in self._ends[session].serve(message, self._link):
            first, last = tensor[0].item(), tensor[-1].item()
            grown = anonymous_bytes() - before
            self._memory = (private_bytes(tensor.data_ptr(), tensor.nbytes), grown)
            self._link.outbox.send(READY.pack(self._link.index, session, time.monotonic_ns(), first, last))
            del tensor

    def _control(self, call: dict[str, Any]) -> object:
        if call["do"] == "hello":
            return os.getpid()
        if call["do"] == "watch":
            self._watches_memory = call["on"]
            return self._memory
        if call["do"] == "close":
            self._ends.pop(call["session"]).close()
            return None
        opened = READER_ENDS[call["transport"]](call["options"], self._link)
        self._ends[call["session"]] = opened
        return opened.greeting

    def _answer(self, answer: object, error: str | None) -> None:
        self._link.outbox.send(bytes([CONTROL]) + msgspec.msgpack.encode((self._link.index, answer, error)))


_KIB = 1024


def private_bytes(address: int, nbytes: int) -> int:
    """Return how many of the bytes at an address lie in mappings that no other process can share."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, permissions, *_ = line.split(maxsplit=2)
        begin, end = (int(bound, 16) for bound in bounds.split("-"))
        if permissions.endswith("p"):
            total += max(0, min(end, address + nbytes) - max(begin, address))
    return total


def anonymous_bytes() -> int:
    """Return the size of this process's resident private memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * _KIB
    raise RuntimeError("/proc/self/status has no RssAnon")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
