"""Times of calls so short that one alone cannot be measured, ours and a peer's in turn."""

from __future__ import annotations

from collections.abc import Callable

from benchmark import Row, median_pair_us, row

Call = Callable[[], object]


def calls_row(name: str, params: str, ours: Call, *, peer: str, peer_call: Call, calls: int, repeats: int) -> Row:
    """Return the time of one call, from the median of `repeats` batches of `calls` each.

    Either may take items from an iterator of its own, if it does not end before `calls * (repeats + 1)`.
    """
    own_us, peer_us = median_pair_us(_batch(ours, calls), _batch(peer_call, calls), repeats=repeats)
    return row(name, params, own_us / calls, "us", peer=peer, peer_value=peer_us / calls)


def _batch(call: Call, calls: int) -> Call:
    def run() -> None:
        for _ in range(calls):
            call()

    return run
