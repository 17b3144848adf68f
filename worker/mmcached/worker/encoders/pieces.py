"""Splits the arguments and results of an actor call into pieces that travel inside its messages.

Ray puts values above 100 KiB into an object store, from which the other node must fetch them: this costs milliseconds,
and pays off from some megabytes on. Below that, several small pieces arrive sooner.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes1D = npt.NDArray[np.uint8]

PIECE_BYTES = 96 << 10
"""Below Ray's limit of 100 KiB, which includes its overhead."""
MAX_BYTES = 2 << 20
"""Larger values are sent in one piece, through the object store."""
HEAD_BYTES = 4096
"""Estimated size of a record without its tensors; more is not an error."""


def num_pieces(nbytes: int) -> int:
    """Return the number of pieces for `nbytes` bytes.

    >>> [num_pieces(nbytes) for nbytes in (0, 96 << 10, 200 << 10, 2 << 20, 3 << 20)]
    [1, 1, 3, 22, 1]
    """
    return 1 if nbytes > MAX_BYTES else max(1, -(-nbytes // PIECE_BYTES))


def cut(packed: Bytes1D, number: int) -> list[Bytes1D]:
    """Return exactly `number` pieces, the last perhaps empty; all in the first if `number` is too small.

    >>> [piece.nbytes for piece in cut(np.zeros(200 << 10, np.uint8), 4)]
    [98304, 98304, 8192, 0]
    >>> [piece.nbytes for piece in cut(np.zeros(200 << 10, np.uint8), 2)]
    [204800, 0]
    """
    size = PIECE_BYTES if number * PIECE_BYTES >= packed.nbytes else packed.nbytes
    return [packed[index * size : (index + 1) * size] for index in range(number)]


def join(pieces: Sequence[Bytes1D]) -> Bytes1D:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
