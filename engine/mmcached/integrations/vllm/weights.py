"""Counts how often the weights of each engine of this process have been changed.

vLLM tells its encoder cache manager of a change, and not its connector; both lie in the scheduler's process.
"""

from __future__ import annotations

from collections import Counter

_RESETS: Counter[str | None] = Counter()


def note_reset(engine_id: str | None) -> None:
    """Take note that an engine has other weights; None: of which engine is not known, so it may be any."""
    _RESETS[engine_id] += 1


def num_resets(engine_id: str | None) -> int:
    """Return how often an engine's weights have been changed."""
    return _RESETS[engine_id] + (_RESETS[None] if engine_id is not None else 0)
