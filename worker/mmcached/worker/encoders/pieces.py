"""Cuts what an actor is sent, and what it answers, into pieces that travel inside the messages of a call.

Ray lays whatever is larger than 100 KiB into an object store, from which the other node has to fetch it: milliseconds
that are worth while from some megabytes on. Below that, several small pieces are sooner there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes1D = npt.NDArray[np.uint8]

PIECE_BYTES = 96 << 10
"""Ray's own limit is 100 KiB, with what it adds."""
MAX_BYTES = 2 << 20
"""What is larger goes in one piece, through the object store."""
HEAD_BYTES = 4096
"""Of a record, beside its tensors; more is no error."""


def num_pieces(nbytes: int) -> int:
    """Return in how many pieces so many bytes are sent.

    >>> [num_pieces(nbytes) for nbytes in (0, 96 << 10, 200 << 10, 2 << 20, 3 << 20)]
    [1, 1, 3, 22, 1]
    """
    return 1 if nbytes > MAX_BYTES else max(1, -(-nbytes // PIECE_BYTES))


def cut(packed: Bytes1D, number: int) -> list[Bytes1D]:
    """Return exactly so many pieces, of which the last may be empty; all of it in the first if that is too few.

    >>> [piece.nbytes for piece in cut(np.zeros(200 << 10, np.uint8), 4)]
    [98304, 98304, 8192, 0]
    >>> [piece.nbytes for piece in cut(np.zeros(200 << 10, np.uint8), 2)]
    [204800, 0]
    """
    size = PIECE_BYTES if number * PIECE_BYTES >= packed.nbytes else packed.nbytes
    return [packed[index * size : (index + 1) * size] for index in range(number)]


def join(pieces: Sequence[Bytes1D]) -> Bytes1D:
    """Return what was cut; one piece is not copied."""
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
