"""Reads records in a ring: the readers' way from a handle to a record."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from mmcached.shm.ring.reader import RingReader
from mmcached.shm.store.codec import Library, Record, decode
from mmcached.shm.store.tensor_bytes import Bytes1D
from mmcached.wire.closeable import Closeable
from mmcached.wire.handle import Handle

_RELEASES: dict[int, tuple[weakref.ref[Bytes1D], Callable[[], None]]] = {}
"""The references to holders that live, by their ids, and whom their death is told."""


def _when_dead(holder: Bytes1D, on_release: Callable[[], None]) -> None:
    """Call back once when a holder has died, but not at the interpreter's exit, where nobody is left to tell.

    As `weakref.finalize`, in an eighth of its time: it is done for each view.
    """
    release = weakref.ref(holder, _released)
    _RELEASES[id(release)] = release, on_release


def _released(release: weakref.ref[Bytes1D]) -> None:
    _, on_release = _RELEASES.pop(id(release))
    on_release()


class ObjectStoreReader(Closeable):
    """Reads records through one mapping; `close` closes the mapping too, and views live on."""

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
            copy: return owned tensors. Otherwise views: never write into them (see `reader`), and give the lease back
                only after `on_release`.
            on_release: called once, when nothing of the record reads the ring any more: with `copy` before `get`
                returns, else when the last view has died, *in any thread*: append to a deque and nothing more. Not
                called if `get` fails, which it does as `RingReader.view` and `decode` do.
        """
        holder = self.reader.view(handle)
        record = decode(holder, tensors=tensors, copy=copy)
        if on_release is not None:
            _when_dead(holder, on_release)
        return record

    def decode_held(self, handle: Handle, holder: Bytes1D, *, tensors: Library, copy: bool) -> Record:
        """As `get`, of a holder that `reader` has made, and under a lease that ends with it."""
        self.reader.check(handle, holder)
        return decode(holder, tensors=tensors, copy=copy)

    def close(self) -> None:
        self.reader.close()
