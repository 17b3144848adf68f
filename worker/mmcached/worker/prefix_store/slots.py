"""Slots of blocks: who holds one, what it is named, and which one is given up for room.

    free ──take──> open ──name──> sealed, held <──hold / let_go──> sealed, evictable ──evict──> free
      ^              |
      └───let_go─────┘

A slot is the same place in the arena of every key. Numbers are handed out from 0 on, a free one before a new one, so
what was never used has never been touched. The evictable stand in the order in which they were let go.

Knows nothing of rows or requests. Invariant: a slot is either free or it is named or held, and at most `capacity` are
not free.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import numpy as np

from mmcached.wire.errors import InvariantError


class SlotBook:
    """The slots of one store.

    Args:
        num_slots: numbers that there are.

    Attributes:
        capacity: slots that may be in use.
        names: by slot; None where it is open or free.
        is_named: the same as bits, but for blocks that were only announced.
        changed: names that were evicted, or noted as changed, since somebody cleared it.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.capacity = num_slots
        self.names: list[bytes | None] = []
        self.is_named = np.zeros(num_slots, dtype=np.bool_)
        self.changed: dict[bytes, None] = {}
        self.num_evictions = 0
        self._refs: list[int] = []
        self._free: list[int] = []
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._slot_of: dict[bytes, int] = {}

    @property
    def num_used(self) -> int:
        return len(self._refs) - len(self._free)

    @property
    def num_named(self) -> int:
        return len(self._slot_of)

    @property
    def num_evictable(self) -> int:
        return len(self._evictable)

    @property
    def free(self) -> list[int]:
        """Slots that were in use once, the next to be taken last."""
        return list(self._free)

    @property
    def evictable(self) -> list[int]:
        """The next to be evicted first."""
        return list(self._evictable)

    @property
    def all_names(self) -> list[bytes]:
        return list(self._slot_of)

    def find(self, name: bytes) -> int | None:
        """Return the slot of a name. Changes nothing."""
        return self._slot_of.get(name)

    def take(self) -> int | None:
        """Return an open slot with one holder, if need be after evicting; None if everything is held."""
        if self.num_used >= self.capacity and not self.evict():
            return None
        if self._free:
            slot = self._free.pop()
        elif len(self._refs) < self.num_slots:
            slot = len(self._refs)
            self._refs.append(0)
            self.names.append(None)
        else:
            return None
        self._refs[slot] = 1
        return slot

    def announce(self, slot: int, name: bytes) -> None:
        """Give an open slot a name by which it is found; nothing else has it. Its rows are not final until `name`."""
        self.names[slot] = name
        self._slot_of[name] = slot
        self.changed[name] = None

    def name(self, slot: int, name: bytes) -> None:
        """Seal an open slot; nothing else has that name."""
        self.announce(slot, name)
        self.is_named[slot] = True

    def note_changed(self, slots: np.ndarray) -> None:
        """Rows of these slots may have changed; negative ones are none."""
        for slot in slots[self.is_named[slots] & (slots >= 0)].tolist() if len(self.names) else ():
            self.changed[self.names[slot] or b""] = None

    def hold(self, slot: int) -> None:
        """Add a holder."""
        if not self._refs[slot]:
            del self._evictable[slot]
        self._refs[slot] += 1

    def let_go(self, slot: int) -> None:
        """Take a holder away. The last one leaves a sealed slot evictable, an open one free."""
        self._refs[slot] -= 1
        if not self._refs[slot]:
            if self.names[slot] is None:
                self._free.append(slot)
            else:
                self._evictable[slot] = None

    def evict(self) -> bool:
        """Free the evictable slot of longest standing; return whether there was one."""
        if not self._evictable:
            return False
        slot, _ = self._evictable.popitem(last=False)
        name = self.names[slot]
        if name is None:
            raise InvariantError(f"slot {slot} is evictable and has no name")
        del self._slot_of[name]
        self.changed[name] = None
        self.names[slot] = None
        self.is_named[slot] = False
        self._free.append(slot)
        self.num_evictions += 1
        return True

    def resize(self, num_slots: int) -> None:
        """Begin anew with so many slots; none is in use."""
        if self.num_used:
            raise InvariantError(f"{self.num_used} slots are in use and cannot be numbered anew")
        self.num_slots = self.capacity = num_slots
        self.names.clear()
        self._refs.clear()
        self._free.clear()
        self.is_named = np.zeros(num_slots, dtype=np.bool_)

    def clear(self) -> None:
        """Forget all names at once; nobody holds anything. `changed` forgets too."""
        self._evictable.clear()
        self._slot_of.clear()
        self.changed.clear()
        self._free = list(range(len(self._refs) - 1, -1, -1))
        self.names = [None] * len(self._refs)
        self.is_named[:] = False

    def check_integrity(self, refs: Mapping[int, int]) -> None:
        """Raise `InvariantError` if the book contradicts itself, or the holders `refs` by slot that others count."""
        free, evictable = set(self._free), set(self._evictable)
        for slot, count in enumerate(self._refs):
            name = self.names[slot]
            if count != refs.get(slot, 0):
                raise InvariantError(f"slot {slot} counts {count} holder(s), there are {refs.get(slot, 0)}")
            where = (slot in free, slot in evictable)
            if where != (not count and name is None, not count and name is not None):
                raise InvariantError(f"slot {slot}, named {name!r}, with {count} holder(s), is in the wrong list")
            if bool(self.is_named[slot]) != (name is not None) or (name is not None and self._slot_of[name] != slot):
                raise InvariantError(f"slot {slot} is named {name!r}, but is not found so")
        if len(free) != len(self._free) or len(self._slot_of) != sum(name is not None for name in self.names):
            raise InvariantError("a slot is free twice, or a name has no slot")
        if self.num_used > self.capacity:
            raise InvariantError(f"{self.num_used} slots are in use, the budget allows {self.capacity}")
