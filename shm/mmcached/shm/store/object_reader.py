"""Decodes records in a ring for readers, from their handles."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from mmcached.shm.ring.reader import RingReader
from mmcached.shm.store.codec import Library, Record, decode
from mmcached.shm.store.tensor_bytes import Bytes1D
from mmcached.wire.closeable import Closeable
from mmcached.wire.handle import Handle

_RELEASES: dict[int, tuple[weakref.ref[Bytes1D], Callable[[], None]]] = {}
"""Weak references to living holders (base arrays of views), by their ids, with the callback for each holder's death."""


def _when_dead(holder: Bytes1D, on_release: Callable[[], None]) -> None:
    """Call back once when a holder has died, but not at the interpreter's exit.

    Like `weakref.finalize`, in an eighth of its time, because it is called for each view.
    """
    release = weakref.ref(holder, _released)
    _RELEASES[id(release)] = release, on_release


def _released(release: weakref.ref[Bytes1D]) -> None:
    _, on_release = _RELEASES.pop(id(release))
    on_release()


class ObjectStoreReader(Closeable):
    """Reads records through one mapping; `close` closes the mapping too, while views stay valid."""

    def __init__(self, reader: RingReader) -> None:
        self.reader = reader

    def get(
        self,
        handle: Handle,
        *,
        tensors: Library = "torch",
        copy: bool = False,
        on_release: Callable[[], None] | None = None,
    ) -> Record:
        """Return the record of a handle that came with a lease.

        Args:
            copy: Return owned tensors. Otherwise views: never write into them (see `reader`), and give the lease back
                only after `on_release`.
            on_release: Called once, when nothing of the record reads the ring any more: with `copy` before `get`
                returns, else when the last view has died, *in any thread*: append to a deque and nothing more. Not
                called if `get` fails, which it does as `RingReader.view` and `decode` do.
        """
        holder = self.reader.view(handle)
        record = decode(holder, tensors=tensors, copy=copy)
        if on_release is not None:
            _when_dead(holder, on_release)
        return record

    def decode_held(self, handle: Handle, holder: Bytes1D, *, tensors: Library, copy: bool) -> Record:
        """Decode the record of a holder that `reader` has made, under a lease that ends with the holder; see `get`."""
        self.reader.check(handle, holder)
        return decode(holder, tensors=tensors, copy=copy)

    def close(self) -> None:
        self.reader.close()
