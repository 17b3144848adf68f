"""Blocks that each request holds, from position 0 on, and their hashes.

    hashes      h0 h1 h2 h3            known so far: of full blocks whose tokens are final
    block_ids   b0 b1 b2 b3 b4 b5      ABSENT: not stored, and no later block either
                ------------ -----
                sealed       open

Invariant: each request holds a prefix of its sequence; the sealed blocks in the store are prefixes too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmcached.wire.errors import InvalidRequest
from mmcached.worker.hidden_states.by_content.block_pool import RowBlockPool
from mmcached.worker.integers import as_integer

ABSENT = -1


class Chain:
    __slots__ = ("block_ids", "hashes")

    def __init__(self) -> None:
        self.hashes: list[bytes] = []
        self.block_ids: list[int] = []


class RequestChains:
    """Chains of blocks by request, in the order in which the requests came; `of_request` is changed here only."""

    def __init__(self, pool: RowBlockPool) -> None:
        self.of_request: dict[int, Chain] = {}
        self._pool = pool

    def open(self, request_id: int) -> Chain:
        """Return a request's chain; creates an empty one if it has none."""
        chain = self.of_request.get(request_id)
        if chain is None:
            chain = self.of_request[request_id] = Chain()
        return chain

    def at(self, request_ids: Sequence[int], numbers: Sequence[int]) -> list[int]:
        """Return one block of each request by its number; `ABSENT` if it is not held. Changes nothing."""
        chains = self.of_request
        try:
            return [chains[each].block_ids[number] for each, number in zip(request_ids, numbers, strict=True)]
        except (KeyError, IndexError):  # rare: a request has no chain, or begins a block
            held = [chains[each].block_ids if each in chains else [] for each in request_ids]
            return [ids[number] if number < len(ids) else ABSENT for ids, number in zip(held, numbers, strict=True)]

    def check_hashes(self, request_id: int, first_block: int, hashes: Sequence[bytes]) -> None:
        """Raise `InvalidRequest` if the hashes leave a gap, or differ from a known hash of a block. Changes nothing."""
        chain = self.of_request.get(request_id)
        known = chain.hashes if chain is not None else []
        if not 0 <= as_integer("first_block", first_block) <= len(known):
            limit = f"request {request_id}: 0 … {len(known)}, the number of known block hashes"
            raise InvalidRequest("first_block", first_block, limit)
        again = known[first_block:]  # usually empty
        for number, (old, new) in enumerate(zip(again, hashes, strict=False), first_block):
            if old != new:
                limit = f"request {request_id}: block {number} has hash {old.hex()}; release the request first"
                raise InvalidRequest("block_hashes", new.hex(), limit)

    def add_hashes(self, chain: Chain, first_block: int, hashes: Sequence[bytes]) -> list[int]:
        """Add checked hashes, and hold the blocks that are sealed under them.

        Returns the numbers of the blocks with these hashes that are still open: to be sealed when their rows have been
        written. They can be found from now on, unless another block has the hash.
        """
        open_blocks: list[int] = []
        for number in range(len(chain.hashes), first_block + len(hashes)):
            block_hash = hashes[number - first_block]
            chain.hashes.append(block_hash)
            if number < len(chain.block_ids) and chain.block_ids[number] != ABSENT:
                open_blocks.append(number)
                if self._pool.find(block_hash) is None:
                    self._pool.announce(chain.block_ids[number], block_hash)
            else:
                self._find(chain, number)
        return open_blocks

    def place(self, chain: Chain, first: int, end: int) -> list[int]:
        """Find or allocate blocks `[first, end)` of a chain, as far as possible; return the new blocks."""
        ids, new = chain.block_ids, []
        ids.extend([ABSENT] * (end - len(ids)))
        for number in range(first, end):
            if ids[number] != ABSENT or self._find(chain, number):
                continue
            if number and ids[number - 1] == ABSENT and not self._find(chain, number - 1):
                continue  # useless without its predecessor
            block_hash = chain.hashes[number] if number < len(chain.hashes) else None
            if block_hash is not None and self._pool.find(block_hash) is not None:
                continue  # its predecessor is not sealed: the hashes are not of one sequence
            block_id = self._pool.take_block()
            if block_id is not None:
                ids[number] = block_id
                new.append(block_id)
                if block_hash is not None:
                    self._pool.seal(block_id, block_hash)
        return new

    def seal(self, chain: Chain, number: int, merge: Callable[[int, int], None]) -> None:
        """Seal an open block. If another block has its hash, hold that one instead, after `merge(mine, other)`."""
        mine, block_hash = chain.block_ids[number], chain.hashes[number]
        other = self._pool.find(block_hash)
        if other is None or other == mine:
            self._pool.seal(mine, block_hash)
        else:
            self._pool.hold(other)
            chain.block_ids[number] = other
            self._pool.changed[block_hash] = None
            merge(mine, other)
            self._pool.let_go(mine)

    def release(self, request_id: int) -> None:
        chain = self.of_request.pop(request_id, None)
        if chain is not None:
            for block_id in reversed(chain.block_ids):
                if block_id != ABSENT:
                    self._pool.let_go(block_id)

    def cut(self) -> bool:
        """Release the last block of the youngest request that holds any; return whether there was one."""
        for chain in reversed(self.of_request.values()):
            num_held = sum(block_id != ABSENT for block_id in chain.block_ids)
            if num_held:
                self._pool.let_go(chain.block_ids[num_held - 1])
                chain.block_ids[num_held - 1] = ABSENT
                return True
        return False

    def clear(self) -> None:
        for request_id in list(self.of_request):
            self.release(request_id)

    def _find(self, chain: Chain, number: int) -> bool:
        """Hold a sealed block and all before it; return whether all were found."""
        ids, hashes = chain.block_ids, chain.hashes
        ids.extend([ABSENT] * (number + 1 - len(ids)))
        if number >= len(hashes) or self._pool.find(hashes[number]) is None:
            return False
        first = number
        while first and ids[first - 1] == ABSENT:
            first -= 1
        for at in range(first, number + 1):
            block_id = self._pool.find(hashes[at])
            if block_id is None:
                return False
            self._pool.hold(block_id)
            ids[at] = block_id
        return True
