"""No ring: the record's frames go to every reader through ZeroMQ, as an item travels that does not fit the ring."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import zmq

from mmcached.shm import decode_frames, encode
from ring_peers.pool import ReaderPool
from ring_peers.transport import Link, Options, Shape


class InlineWriterEnd:
    """Sends each record whole."""

    name = "inline"

    def __init__(self, pool: ReaderPool, shape: Shape) -> None:
        self._pool = pool
        self._readers = range(shape.num_readers)
        self._session = pool.new_session()
        self._header = bytes([self._session])
        pool.open(self._session, "inline", {index: {} for index in self._readers})

    def begin(self, num_puts: int) -> None:
        pass

    def put(self, key: int, item: torch.Tensor) -> None:
        frames = [self._header, *encode({"pixel_values": item}).frames()]
        for index in self._readers:
            self._pool.links[index].send_multipart(frames, copy=False)

    def hit(self, key: int) -> None:
        raise NotImplementedError("nothing is kept under a key")

    def holds(self, key: int) -> bool:
        return False

    def close(self) -> None:
        self._pool.close_session(self._session, len(self._readers))


class InlineReaderEnd:
    """Makes the record of its frames; its tensors lie in them."""

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        frames: list[zmq.Frame] = link.inbox.recv_multipart(copy=False)
        yield decode_frames([frame.buffer for frame in frames], tensors="torch").pop("pixel_values")

    def close(self) -> None:
        pass


def open_reader(session: int, options: Options, link: Link) -> InlineReaderEnd:
    """Open the reader's end."""
    return InlineReaderEnd()
