"""Packs token ids into bytes for hashing: u32 each, little-endian. Placeholders, which have no content, are refused."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import SupportsIndex

from mmcached.wire.errors import InvalidRequest

TOKEN_BYTES = 4
MAX_TOKEN_ID = (1 << 32) - 1


def pack_token_ids(token_ids: Sequence[int], first_position: int = 0) -> bytes:
    """Return token ids as bytes.

    Args:
        first_position: Position of the first id in its request, for the error.

    Raises:
        InvalidRequest: Names the position of the first invalid token id.
    """
    try:
        # From a list, because an array takes bytes as its memory, not as numbers.
        packed = array("I", token_ids if isinstance(token_ids, list) else list(token_ids))
    except (OverflowError, TypeError):
        raise _refusal(token_ids, first_position) from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _refusal(token_ids: Sequence[object], first_position: int) -> InvalidRequest:
    numbered = enumerate(token_ids, first_position)
    position, value = next((position, value) for position, value in numbered if not _is_token_id(value))
    limit = f"a placeholder has no content: token ids that are hashed are numbers from 0 to {MAX_TOKEN_ID}"
    return InvalidRequest(f"token_ids[{position}]", value if isinstance(value, int) else repr(value), limit)


def _is_token_id(value: object) -> bool:
    return isinstance(value, SupportsIndex) and 0 <= value.__index__() <= MAX_TOKEN_ID
