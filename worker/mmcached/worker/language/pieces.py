"""Cuts the chunks of a step into pieces, each computed by one call of the model.

    prompt of 300, chunk_tokens 128     [0, 128) [128, 256) [256, 300)   then [300] [301] …

Pieces depend on the prompt's length and on positions alone: not on what was cached, nor on how the engine cut the work
into steps. See `engine.scheduling.alignment`.
"""

from __future__ import annotations

from collections.abc import Iterator


def pieces(start: int, end: int, *, num_prompt_tokens: int, chunk_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield the pieces of the positions `[start, end)` of a sequence, in order.

    >>> list(pieces(128, 303, num_prompt_tokens=300, chunk_tokens=128))
    [(128, 256), (256, 300), (300, 301), (301, 302), (302, 303)]
    """
    while start < end:
        if start < num_prompt_tokens:
            stop = min(start // chunk_tokens * chunk_tokens + chunk_tokens, num_prompt_tokens, end)
        else:
            stop = start + 1
        yield start, stop
        start = stop
