"""The data object without bytes: of each unit, which generation was written there last."""

from __future__ import annotations

from mmcached.shm.ring.allocator import Extent
from mmcached.shm.segment.layout import CHUNK_HEADER_BYTES
from mmcached.wire.handle import Handle
from tests.models.control import UNIT


class DataObject:
    """Generation 0 = never written."""

    def __init__(self, generations: list[int]) -> None:
        self._generations = generations

    def copy(self) -> DataObject:
        return DataObject(self._generations.copy())

    def key(self) -> object:
        return tuple(self._generations)

    def write(self, extent: Extent, generation: int) -> None:
        self._generations[extent.offset // UNIT : extent.end // UNIT] = [generation] * (extent.size // UNIT)

    def holds(self, handle: Handle) -> bool:
        """Return whether every byte of a chunk is as it was published."""
        first = handle.offset // UNIT
        written = self._generations[first : first + num_units(handle)]
        return all(generation == handle.generation for generation in written)


def payload_bytes(units: int) -> int:
    """Return the payload that fills so many units, header included."""
    return units * UNIT - CHUNK_HEADER_BYTES


def num_units(handle: Handle) -> int:
    return (handle.nbytes + CHUNK_HEADER_BYTES) // UNIT
