"""Which blocks each request holds, from position 0 on, and what they are named.

    names   n0 n1 n2 n3            known so far: of full blocks whose tokens are final
    slots   s0 s1 s2 s3 s4 s5      -1: not kept, and nothing behind it either
            ------------ -----
            sealed       open

Knows nothing of rows. Invariant: what a request holds is a prefix of its sequence; so is what is sealed in the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from mmcached.wire.errors import InvalidRequest, InvariantError
from mmcached.worker.integers import as_integer
from mmcached.worker.prefix_store.slots import SlotBook

ABSENT = -1


class Chain:
    """One request's blocks."""

    __slots__ = ("names", "slots")

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.slots: list[int] = []


class ChainBook:
    """All requests that have any.

    Attributes:
        of_request: in the order in which they came; only this class changes it.
    """

    def __init__(self, slots: SlotBook) -> None:
        self.of_request: dict[int, Chain] = {}
        self._slots = slots
        self._last: tuple[Sequence[int], Sequence[int], list[int]] | None = None  # until any request's slots change

    def open(self, request_id: int) -> Chain:
        """Return a request's chain; an empty one if it has none."""
        chain = self.of_request.get(request_id)
        if chain is None:
            chain = self.of_request[request_id] = Chain()
        return chain

    def slots_of(self, request_ids: Sequence[int], blocks: Sequence[int]) -> list[int]:
        """Return the slot of one block, from 0 on, of each request; `ABSENT` where it holds none. Changes nothing.

        A step is often read just as it was written: of the same blocks as before the answer is at hand.
        """
        if self._last is not None and self._last[0] == request_ids and self._last[1] == blocks:
            return self._last[2].copy()
        get = self.of_request.get
        found = [
            slots[index] if (chain := get(request_id)) is not None and index < len(slots := chain.slots) else ABSENT
            for request_id, index in zip(request_ids, blocks, strict=True)
        ]
        self.remember(request_ids, blocks, found)
        return found

    def remember(self, request_ids: Sequence[int], blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Have the next `slots_of` the same blocks answered with these, as long as nothing changes."""
        self._last = request_ids, blocks, list(slots)

    def check_names(self, request_id: int, first_block: int, names: Sequence[bytes]) -> None:
        """Return if these may be the names of a request's blocks from `first_block` on. Changes nothing.

        Raises:
            InvalidRequest: there is a gap before them, or a block has been named otherwise.
        """
        chain = self.of_request.get(request_id)
        known = chain.names if chain is not None else []
        if not 0 <= as_integer("first_block", first_block) <= len(known):
            limit = f"request {request_id}: {len(known)} blocks are named, the next name is that of block {len(known)}"
            raise InvalidRequest("first_block", first_block, limit)
        again = known[first_block:]  # most of the time nothing
        for index, (old, new) in enumerate(zip(again, names, strict=False), first_block):
            if old != new:
                limit = f"request {request_id}: block {index} is named {old.hex()}; release the request first"
                raise InvalidRequest("names", new.hex(), limit)

    def add_names(self, chain: Chain, first_block: int, names: Sequence[bytes]) -> list[int]:
        """Add names that were checked; hold what is sealed under them.

        Returns:
            The blocks of these names that are still open: to be sealed when their rows have been written. They are
            found from now on, but where another block has the name.
        """
        open_blocks: list[int] = []
        for index in range(len(chain.names), first_block + len(names)):
            name = names[index - first_block]
            chain.names.append(name)
            if index < len(chain.slots) and chain.slots[index] != ABSENT:
                open_blocks.append(index)
                if self._slots.find(name) is None:
                    self._slots.announce(chain.slots[index], name)
            else:
                self._find(chain, index)
        return open_blocks

    def place(self, chain: Chain, first: int, end: int) -> list[int]:
        """See that blocks `[first, end)` have slots, if there is room; return the slots that are new."""
        slots, new = chain.slots, []
        if len(slots) < end:
            slots.extend([ABSENT] * (end - len(slots)))
        for index in range(first, end):
            if slots[index] != ABSENT or self._find(chain, index):
                continue
            if index and slots[index - 1] == ABSENT and not self._find(chain, index - 1):
                continue  # useless without what comes before it
            name = chain.names[index] if index < len(chain.names) else None
            if name is not None and self._slots.find(name) is not None:
                continue  # what comes before it is not: these names do not belong together
            slot = self._slots.take()
            if slot is not None:
                self._last = None
                slots[index] = slot
                new.append(slot)
                if name is not None:
                    self._slots.name(slot, name)
        return new

    def seal(self, chain: Chain, index: int, merge: Callable[[int, int], None]) -> None:
        """Name an open block. If another has the name, hold that one, after `merge(mine, other)`."""
        mine, name = chain.slots[index], chain.names[index]
        other = self._slots.find(name)
        if other is None or other == mine:
            self._slots.name(mine, name)
        else:
            self._slots.hold(other)
            self._last = None
            chain.slots[index] = other
            self._slots.changed[name] = None
            merge(mine, other)
            self._slots.let_go(mine)

    def release(self, request_id: int) -> None:
        """Let go of all that a request holds, its tail first; an unknown one changes nothing."""
        chain = self.of_request.pop(request_id, None)
        if chain is not None:
            self._last = None
            for slot in reversed(chain.slots):
                if slot != ABSENT:
                    self._slots.let_go(slot)

    def cut(self) -> bool:
        """Take the last block from the request that came last, of those that hold any; return whether there was one."""
        for chain in reversed(self.of_request.values()):
            for index in range(len(chain.slots) - 1, -1, -1):
                if chain.slots[index] != ABSENT:
                    self._last = None
                    slot, chain.slots[index] = chain.slots[index], ABSENT
                    self._slots.let_go(slot)
                    return True
        return False

    def clear(self) -> None:
        """Let go of everything."""
        for request_id in list(self.of_request):
            self.release(request_id)

    def check_integrity(self) -> None:
        """Raise `InvariantError` if holders, names or order contradict what the slots say."""
        if self._last is not None:
            request_ids, blocks, slots = self._last
            self._last = None
            if self.slots_of(request_ids, blocks) != slots:
                raise InvariantError(f"blocks of requests {request_ids} are remembered in slots {slots}")
        refs = Counter(slot for chain in self.of_request.values() for slot in chain.slots if slot != ABSENT)
        self._slots.check_integrity(refs)
        for request_id, chain in self.of_request.items():
            num_held = sum(slot != ABSENT for slot in chain.slots)
            if ABSENT in chain.slots[:num_held]:
                raise InvariantError(f"request {request_id} holds a block without the one before: {chain.slots}")
            for index, slot in enumerate(chain.slots[:num_held]):
                name = chain.names[index] if index < len(chain.names) else None
                if self._slots.names[slot] != name:
                    raise InvariantError(f"block {index} of request {request_id} is in slot {slot} of another name")

    def _find(self, chain: Chain, index: int) -> bool:
        """Hold a block that is sealed, and all before it; return whether it is there."""
        slots, names = chain.slots, chain.names
        if len(slots) <= index:
            slots.extend([ABSENT] * (index + 1 - len(slots)))
        if index >= len(names) or self._slots.find(names[index]) is None:
            return False
        first = index
        while first and slots[first - 1] == ABSENT:
            first -= 1
        for at in range(first, index + 1):
            slot = self._slots.find(names[at])
            if slot is None:
                return False
            self._slots.hold(slot)
            self._last = None
            slots[at] = slot
        return True
