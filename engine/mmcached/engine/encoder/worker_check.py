"""Checks that the workers hold what the encoder cache table lists, after every step with `debug_check_workers`.

    ready  ⊆  what each rank holds  ⊆  ready + lingering

Ready: computed by a committed step. Lingering: no longer listed, but not surely dropped by the workers. Knows neither
tables nor sockets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set

from mmcached.wire.errors import InvariantError

MAX_NAMED = 4
"""Keys that an error names of each kind."""


def check_encoder_caches(
    ready: Set[str], lingering: Set[str], held: Mapping[int, Collection[str] | None], *, step: int
) -> None:
    """Compare each rank's keys (None: it has not sent them) with the table.

    Raises:
        InvariantError: names step, rank and keys of the first rank that differs.
    """
    for rank in sorted(held):
        keys = held[rank]
        if keys is None:
            raise InvariantError(f"step {step}: rank {rank} does not say what its encoder cache holds", rank=rank)
        lacking = sorted(ready - set(keys))
        surplus = sorted(set(keys) - ready - lingering)
        if lacking or surplus:
            raise InvariantError(
                f"step {step}: rank {rank} lacks {len(lacking)} encoder outputs that are listed {lacking[:MAX_NAMED]} "
                f"and holds {len(surplus)} that are not {surplus[:MAX_NAMED]}",
                step=step,
                rank=rank,
                lacking=lacking[:MAX_NAMED],
                surplus=surplus[:MAX_NAMED],
            )
