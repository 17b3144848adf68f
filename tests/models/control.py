"""A control object without shared memory: the product's `Control` over an array, its layout without page padding."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from mmcached.shm.segment.layout import ALIGNMENT, CHUNK_HEADER_BYTES, Layout
from mmcached.shm.segment.mapped import Control
from tests.models.byte_locks import Description

Words = npt.NDArray[np.uint64]

UNIT = CHUNK_HEADER_BYTES + ALIGNMENT
"""Bytes of the smallest chunk; the model's ring is a few of them."""


@dataclass(frozen=True, slots=True)
class SmallLayout(Layout):
    """Rows of a few words instead of pages, since the explorer copies and compares them; all else is the product's."""

    @property
    def row_bytes(self) -> int:
        return CHUNK_HEADER_BYTES + 8 * self.num_slots

    def row_offset(self, row: int) -> int:
        return row * self.row_bytes


class ModelControl(Control):
    """One process's view of the words."""

    def __init__(self, words: Words, layout: Layout, description: Description) -> None:
        self.fd = description.as_fd()
        self.layout = layout
        self._mapping = cast(mmap.mmap, words)
        self.words = words.data.cast("B").cast("Q")

    def map_row(self, row: int) -> None:
        first = self.layout.nonce_word(row)
        self.words = self.words[first : first + self.layout.row_bytes // 8]

    def nonce(self, row: int) -> int:
        nonce: int = self.words[self.layout.nonce_word(row)]
        return nonce
