"""Checks that pool, block tables and steps agree; used by tests and on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmcached.engine.kv.groups import Group
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool
from mmcached.engine.kv.request_blocks import RequestBlocks
from mmcached.engine.kv.steps import Steps
from mmcached.wire.errors import InvariantError


def check_integrity(
    pool: BlockPool, steps: Steps, groups: Sequence[Group], requests: Mapping[int, RequestBlocks]
) -> None:
    """Raise `InvariantError`, with the place, if pool, block tables and steps contradict each other."""
    pool.check_integrity([*(table for held in requests.values() for table in held.tables), *steps.fenced])
    reserved = {block_id for each in steps.reservations for block_id in each.block_ids if each.keys}
    for request_id, held in requests.items():
        if held.request_id != request_id:
            raise InvariantError(f"the tables of request {held.request_id} are under {request_id}")
        for group in groups:
            _check_table(pool, reserved, held, group)
    free = set(pool.free_order())
    if not reserved.isdisjoint(free):
        raise InvariantError(f"blocks {sorted(reserved & free)} are free, although a step will fill them")


def _check_table(pool: BlockPool, reserved: set[int], held: RequestBlocks, group: Group) -> None:
    table = held.tables[group.index]
    num_published, num_left = held.num_published[group.index], held.num_left_behind[group.index]
    where = f"request {held.request_id}, group {group.index}"
    if num_published > len(table) or num_left > len(table):
        raise InvariantError(f"{where}: {num_published} published, {num_left} left behind, of {len(table)} blocks")
    if any(table[:num_left]):
        raise InvariantError(f"{where}: blocks before the window are not null: {table[:num_left]}")
    for position, block_id in enumerate(table):
        is_findable = pool.block_key(block_id) is not None or block_id in reserved
        is_for_hits = any(group.kind.runs_for_hits(position, position + 1))
        is_final = position < num_published and held.can_publish and is_for_hits
        if block_id != NULL_BLOCK_ID and not held.is_lost and is_findable != is_final:
            raise InvariantError(
                f"{where}: block {block_id} at {position}: published is {is_findable}, expected {is_final}"
            )
