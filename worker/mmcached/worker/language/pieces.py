"""Cuts the chunks of a step into pieces, each computed by one call of the model.

    prompt of 300, chunk_tokens 128     [0, 128) [128, 256) [256, 300)   then [300] [301] …

Pieces depend on the prompt's length and on positions alone: not on what was cached, nor on how the engine cut the work
into steps. A piece that would divide an item which must stay whole goes on to the item's end. See
`engine.scheduling.alignment`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Span = tuple[int, int]
"""Positions from the first up to the second."""


def pieces(
    start: int, end: int, *, num_prompt_tokens: int, chunk_tokens: int, whole: Sequence[Span] = ()
) -> Iterator[Span]:
    """Yield the pieces of the positions `[start, end)` of a sequence, in order.

    Args:
        whole: Positions of items that no piece may divide; none reaches beyond `end`.

    >>> list(pieces(128, 303, num_prompt_tokens=300, chunk_tokens=128))
    [(128, 256), (256, 300), (300, 301), (301, 302), (302, 303)]
    >>> list(pieces(0, 300, num_prompt_tokens=300, chunk_tokens=128, whole=[(9, 20), (100, 140)]))
    [(0, 140), (140, 256), (256, 300)]
    """
    while start < end:
        if start < num_prompt_tokens:
            stop = start // chunk_tokens * chunk_tokens + chunk_tokens
            stop = next((last for first, last in whole if first < stop < last), stop)
            stop = min(stop, num_prompt_tokens, end)
        else:
            stop = start + 1
        yield start, stop
        start = stop
