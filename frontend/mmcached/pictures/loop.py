"""The message loop of all decoders: answers a frontend's messages, one file after the other.

It reads files from one descriptor and writes results to another.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import msgspec

from mmcached.pictures import messages as said
from mmcached.pictures.confinement import cpu_limit
from mmcached.wire.errors import InvalidRequest, error_to_wire
from mmcached.wire.process.descriptors import write_all


class DecoderLoop:
    """Answers a frontend's messages until the socket is closed; a subclass implements `make`.

    Args:
        hears: Type of the received messages.
        cpu_s: CPU seconds for one file.
    """

    def __init__(self, channel: socket.socket, file: int, made: int, *, hears: Any, cpu_s: float) -> None:
        self._channel = channel
        self._file = file
        self._made = made
        self._cpu_s = cpu_s
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(hears)

    def make(self, message: Any) -> msgspec.Struct | None:
        raise NotImplementedError

    def run(self) -> None:
        self.tell(said.Ready())
        answer: msgspec.Struct | None = None
        while not isinstance(answer, said.OutOfMemory):  # the remaining memory may be fragmented
            message = self.receive()
            with cpu_limit(self._cpu_s):
                answer = self._answer(message)
            if answer is not None:
                self.tell(answer)

    def tell(self, message: msgspec.Struct) -> None:
        try:
            self._channel.send(msgspec.msgpack.encode(message))
        except OSError:
            sys.exit()  # the frontend is gone

    def receive(self) -> Any:
        packet = self._channel.recv(said.MAX_MESSAGE_BYTES)
        if not packet:
            sys.exit()  # the frontend is gone
        return self._decoder.decode(packet)

    def write_made(self, data: bytes | memoryview, place: int = 0) -> None:
        write_all(self._made, data, place)

    def _answer(self, message: Any) -> msgspec.Struct | None:
        try:
            return self.make(message)
        except InvalidRequest as error:
            return said.FileRefused(error_to_wire(error))
        except MemoryError:
            return said.OutOfMemory()
        except Exception as error:
            return said.DecoderFailed(f"{type(error).__name__}: {error}"[:1000])
