"""How an engine takes a row, one step per event, so that everybody else can act, and everybody die, between any two.

    lock the byte exclusively --> write the nonce --> share the byte, lock the engine's own --> Hello

The words and the byte locks that it touches are the product's; see `mmcached.shm.ring.row` for why the order is this
one. A test holds the two together.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from tests.models.byte_locks import ByteLocks
from tests.models.control import ModelControl
from tests.models.explorer import Violation


class Stage(Enum):
    LOCKED = "locked"
    NAMED = "named"
    SHARED = "shared"


class Taking(NamedTuple):
    """A row that is being taken."""

    epoch: int
    row: int
    nonce: int
    stage: Stage = Stage.LOCKED

    def next(self, control: ModelControl) -> Taking:
        """Do the next step; after the last one only the Hello is missing."""
        row, layout = self.row, control.layout
        if self.stage is Stage.LOCKED:
            control.words[layout.nonce_word(row)] = self.nonce
            return self._replace(stage=Stage.NAMED)
        # The product shares the one byte and then locks the other: in between it holds the row's byte either way.
        ByteLocks.downgrade(control.fd, ByteLocks.row_byte(row))
        if not ByteLocks.try_exclusive(control.fd, ByteLocks.engine_byte(row, layout.max_rows)):
            raise Violation(f"row {row} was free, and its engine byte is taken")
        return self._replace(stage=Stage.SHARED)
