"""Decides which hits a host recomputes, and compares a found record with the recomputed one.

    mmcached verify ──share──> frontend ──word of the board──> every reader: `is_sampled`
                                  ^── counts; a name whose hits differ is not shared ──> `compare` ──report──┘

The word has the share of keys, and a salt that changes every second. So all processes choose the same keys without a
message, and other keys a second later. 0: nothing is recomputed.

>>> sample = sample_word(0.5, salt=3)
>>> [is_sampled(sample, key) for key in "abcdef"], any(is_sampled(0, key) for key in "abcdef")
([True, False, False, True, True, False], False)
>>> all(is_sampled(sample_word(1.0, salt=3), key) for key in "abcdef")
True
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any
from zlib import crc32

import numpy as np

from mmcached.shm.store.codec import leaves_of
from mmcached.shm.store.tensor_bytes import is_tensor, to_bytes

TOLERANCE = 0.05
"""Largest distance of a row of a numerically close output from the recomputed row, relative to the row's length."""
_SHARE_BITS = 32
_SALTS = 1 << 31


def sample_word(share: float, salt: int) -> int:
    """Return the word for a share of all keys, from 0.0 to 1.0."""
    threshold = round(share * (1 << _SHARE_BITS))
    return (salt % _SALTS) << (_SHARE_BITS + 1) | threshold if threshold else 0


def is_sampled(sample: int, key: str) -> bool:
    """Return whether a hit of this key is recomputed."""
    threshold = sample & ((2 << _SHARE_BITS) - 1)
    return threshold > 0 and crc32(key.encode("utf-8", "surrogatepass"), sample >> _SHARE_BITS + 1) < threshold


def name_of(key: str) -> str:
    """Return the part of a key that its record shares with those of other items.

    >>> name_of("encoder/ffff/aaaa"), name_of("my record")
    ('encoder/ffff/', 'my record')
    """
    name, slash, _ = key.rpartition("/")
    return name + slash or key


def compare(found: Mapping[str, Any], computed: Mapping[str, Any], *, is_exact: bool) -> str:
    """Return in what a found record differs from the recomputed one; empty if it does not.

    Args:
        is_exact: Compare bit for bit; otherwise rows of floating-point tensors may differ by `TOLERANCE`.

    >>> one, other = ({"x": np.array([1.0, value], np.float32), "grid": [1]} for value in (3.0, 3.001))
    >>> compare(one, one, is_exact=True), compare(one, other, is_exact=False)
    ('', '')
    >>> compare(one, other, is_exact=True)
    'x: 1 of 2 elements have other bits'
    >>> compare(one, {"x": np.array([3.0, 1.0], np.float32), "grid": [1]}, is_exact=False)
    'x: 2 of 2 elements have other bits, by up to 0.89 of a row'
    """
    for (path, one), (other_path, other) in zip_longest(
        leaves_of(found), leaves_of(computed), fillvalue=("missing", None)
    ):
        if path != other_path:
            return f"{path} in place of {other_path}"
        reason = _of_tensors(one, other, is_exact) if is_tensor(one) and is_tensor(other) else _of_values(one, other)
        if reason:
            return f"{path}: {reason}"
    return ""


def _of_values(one: Any, other: Any) -> str:
    is_same = type(one) is type(other) and one == other
    return "" if is_same else f"{_short(one)} in place of {_short(other)}"


def _of_tensors(found: Any, computed: Any, is_exact: bool) -> str:
    (kind, one), (other_kind, other) = to_bytes(found), to_bytes(computed)
    if kind[1] != other_kind[1] or (is_exact and kind != other_kind):
        return f"{kind[0]} {kind[1]} in place of {other_kind[0]} {other_kind[1]}"
    if kind == other_kind and np.array_equal(one, other):
        return ""
    differ = f"{kind[0]} in place of {other_kind[0]}"
    if kind == other_kind:
        size = max(1, len(one) // max(1, int(np.prod(kind[1], dtype=np.int64))))
        elements = (one != other).reshape(-1, size).any(axis=1)
        differ = f"{int(elements.sum())} of {len(elements)} elements have other bits"
    if is_exact or "float" not in kind[0]:
        return differ
    distance = _distance(found, computed)
    return "" if distance <= TOLERANCE else f"{differ}, by up to {distance:.2g} of a row"


def _distance(found: Any, computed: Any) -> float:
    """Return the largest distance of two rows, relative to the length of the row, or of a usual row if that is longer.

    Rows with numbers that are not finite are infinitely far apart.
    """
    one, other = (_rows(each) for each in (found, computed))
    lengths = np.linalg.norm(other, axis=1)
    usual = float(np.sqrt(np.mean(lengths**2))) if len(lengths) else 0.0
    apart = np.linalg.norm(one - other, axis=1)
    relative = apart / np.maximum(np.maximum(lengths, usual), np.finfo(np.float64).tiny)
    return float(np.max(np.nan_to_num(relative, nan=np.inf, posinf=np.inf), initial=0.0))


def _rows(tensor: Any) -> Any:
    if not isinstance(tensor, np.ndarray):
        import torch

        tensor = tensor.detach().to("cpu", torch.float64).numpy()
    rows = np.asarray(tensor, np.float64)
    return rows.reshape(-1, rows.shape[-1] if rows.ndim else 1)


def _short(value: Any) -> str:
    text = repr(value) if not is_tensor(value) else "a tensor"
    return text if len(text) <= 64 else f"{text[:64]} …"
