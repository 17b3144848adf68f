"""Checks that the workers hold the entries of the encoder cache table, after every step with `debug_check_workers`.

    ready  ⊆  keys held by each rank  ⊆  ready + lingering

Ready: computed by a committed step. Lingering: no longer listed, but perhaps not dropped by the workers yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set

from mmcached.wire.errors import InvariantError

MAX_NAMED = 4
"""Most keys of each kind in an error message."""


def check_encoder_caches(
    ready: Set[str], lingering: Set[str], held: Mapping[int, Collection[str] | None], *, step: int
) -> None:
    """Compare each rank's keys (None if it has not sent them) with the table.

    Raises `InvariantError` with step, rank and keys of the first rank that differs.
    """
    for rank in sorted(held):
        keys = held[rank]
        if keys is None:
            raise InvariantError(f"step {step}: rank {rank} has not sent the keys of its encoder cache", rank=rank)
        lacking = sorted(ready - set(keys))
        surplus = sorted(set(keys) - ready - lingering)
        if lacking or surplus:
            raise InvariantError(
                f"step {step}: rank {rank} lacks {len(lacking)} listed encoder outputs {lacking[:MAX_NAMED]} "
                f"and holds {len(surplus)} unlisted ones {surplus[:MAX_NAMED]}",
                step=step,
                rank=rank,
                lacking=lacking[:MAX_NAMED],
                surplus=surplus[:MAX_NAMED],
            )
