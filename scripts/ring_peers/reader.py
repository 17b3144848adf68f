"""One reader process: `python -m ring_peers.reader DIRECTORY INDEX`.

Blocks for messages, lets the session's transport turn them into tensors, reads their first and last element and tells
the writer when that was done. It ends with its parent.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from typing import Any

import msgspec
import torch
import zmq

from ring_peers.memory import anonymous_bytes, private_bytes
from ring_peers.transport import CONTROL, READY, Link, ReaderEnd

PARENT_CHECK_MS = 5_000


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
        module = importlib.import_module(f"ring_peers.{call['transport']}")
        opened = module.open_reader(call["session"], call["options"], self._link)
        self._ends[call["session"]] = opened
        return getattr(opened, "greeting", None)

    def _answer(self, answer: object, error: str | None) -> None:
        self._link.outbox.send(bytes([CONTROL]) + msgspec.msgpack.encode((self._link.index, answer, error)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
