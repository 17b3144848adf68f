"""Computes content keys: digests of 256 bits over typed, length-framed content.

    leaf      tag, length (u64), payload        tags: i int, f float, s str, b bytes; N T F are None, True, False alone
    array     a, dtype, shape, byte length, elements in C order, little-endian
    sequence  [, count, each member
    mapping   {, count, each (key, value), sorted by the encoded key

An encoding follows the name of its domain, so keys of content, of sets of values and of callers' ids never collide.

Invariant: two values have one encoding only if they are equal and of equal type, so two keys are equal only if the
content is, or the digest is broken. A list equals a tuple, a numpy array a torch tensor of the same dtype, shape and
elements; the order of a mapping does not matter. Other types are refused: nothing is pickled or hashed by address.

Source: vLLM's `MultiModalHasher`, whose leaves carry no type.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
from blake3 import blake3

from mmcached.wire.errors import ConfigError, InvalidRequest

MAX_DEPTH = 32
"""Deeper nesting is refused: real values are not that deep, and a list may contain itself."""

MAX_CALLER_ID_BYTES = 256

_ITEM_DOMAIN = b"mmcached item 2"
_CALLER_DOMAIN = b"mmcached caller id 1"
_KWARGS_DOMAIN = b"mmcached kwargs 1"
_NUMERIC_KINDS = "biufc"
_LARGE_BYTES = 4096
"""Pieces above this size are hashed in place; smaller ones are cheaper to copy together than to hash alone."""

Piece = bytes | bytearray | memoryview
_Path = tuple[Any, ...]
"""`(path of the parent, form, name)`, or `()`: formatted only for an error."""


class _Digest(Protocol):
    def update(self, data: Piece, /) -> object: ...
    def hexdigest(self) -> str: ...


_ALGORITHMS: Mapping[str, Callable[[], _Digest]] = {"blake3": blake3, "sha256": hashlib.sha256}


class MultiModalHasher:
    """Computes content keys of 64 hex digits. Stateless.

    Args:
        algorithm: "blake3", or "sha256" where a policy requires it; their keys never collide.

    Raises:
        ConfigError: The algorithm is unknown.
    """

    def __init__(self, algorithm: Literal["blake3", "sha256"] = "blake3") -> None:
        if algorithm not in _ALGORITHMS:
            raise ConfigError("algorithm", algorithm, f"must be one of {', '.join(_ALGORITHMS)}")
        self.algorithm = algorithm
        self._new_digest = _ALGORITHMS[algorithm]

    def hash_kwargs(self, **kwargs: object) -> str:
        """Return the key of a set of named values; InvalidRequest names the path to one without an encoding."""
        return self._hexdigest(_KWARGS_DOMAIN, kwargs)

    def content_digest(self, content: Piece) -> str:
        """Return the digest of a file, 64 hex digits; without frame or domain, as `b3sum` and `sha256sum` print it."""
        digest = self._new_digest()
        digest.update(content)
        return digest.hexdigest()

    def item_key(self, content: str, *, modality: str, fingerprint: str, tenant: str) -> str:
        """Return the key of a tenant's processed item.

        Args:
            content: `content_digest` of the *encoded* file: a hit needs no decoding, and by name not even the file.
        """
        before, after = _around_content(modality, fingerprint, tenant)
        content_bytes = content.encode()
        digest = self._new_digest()
        digest.update(before + _u64(len(content_bytes)) + content_bytes + after)
        return digest.hexdigest()

    def caller_key(self, caller_id: str, *, modality: str, fingerprint: str, tenant: str) -> str:
        """Return the key of an item named by its caller; it never equals an `item_key` or another tenant's key.

        Raises:
            InvalidRequest: The id is empty or too long.
        """
        nbytes = len(_utf8(caller_id))
        if not 1 <= nbytes <= MAX_CALLER_ID_BYTES:
            raise InvalidRequest("caller_id", f"{nbytes} bytes", f"must have 1 to {MAX_CALLER_ID_BYTES}")
        parts = {"id": caller_id, "modality": modality, "fingerprint": fingerprint, "tenant": tenant}
        return self._hexdigest(_CALLER_DOMAIN, parts)

    def _hexdigest(self, domain: bytes, value: Mapping[str, object]) -> str:
        pieces: list[Piece] = [domain]
        _encode(value, pieces, (), 0)
        digest = self._new_digest()
        _feed(digest, pieces)
        return digest.hexdigest()


def _feed(digest: _Digest, pieces: list[Piece]) -> None:
    """Hash pieces in order: large ones without a copy, small ones together."""
    if max(map(len, pieces)) <= _LARGE_BYTES:
        digest.update(b"".join(pieces))
        return
    small: list[Piece] = []
    for piece in pieces:
        if len(piece) <= _LARGE_BYTES:
            small.append(piece)
            continue
        digest.update(b"".join(small))
        small.clear()
        digest.update(piece)
    digest.update(b"".join(small))


@lru_cache(maxsize=1024)
def _around_content(modality: str, fingerprint: str, tenant: str) -> tuple[bytes, bytes]:
    """Return an item's encoding before the length of its content, and after its content; both are cached."""
    pieces: list[Piece] = []
    content = b"\xff" * 9  # occurs in no encoding of text, and the lengths before it are short
    parts = {"content": content, "modality": modality, "fingerprint": fingerprint, "tenant": tenant}
    _encode(parts, pieces, (), 0)
    before, after = b"".join((_ITEM_DOMAIN, *pieces)).split(_u64(len(content)) + content)
    return before, after


def _encode(value: Any, pieces: list[Piece], path: _Path, depth: int) -> None:
    """Append the encoding of a value, in pieces, so that large content is not copied.

    Types are compared exactly: a subclass may carry content that its base does not show (`IntEnum`, masked arrays).
    """
    if depth > MAX_DEPTH:
        raise InvalidRequest(_spelled(path), depth, f"nested deeper than {MAX_DEPTH} levels")
    kind = type(value)
    if kind in _LEAF_TYPES:
        _encode_leaf(value, pieces)
    elif kind is dict:
        _encode_mapping(value, pieces, path, depth)
    elif kind is list or kind is tuple:
        pieces.append(b"[" + _u64(len(value)))
        for index, member in enumerate(value):
            _encode(member, pieces, (path, "{}[{}]", index), depth + 1)
    elif isinstance(value, np.ndarray | np.generic) and kind is not np.ma.MaskedArray:
        _encode_array(np.asarray(value), pieces, path)
    elif _is_tensor(value):
        _encode_tensor(value, pieces, path)
    elif isinstance(value, Mapping):
        _encode_mapping(value, pieces, path, depth)
    else:
        raise _refusal(value, path)


_LEAF_TYPES = frozenset((str, bytes, int, float, bool, type(None), bytearray, memoryview))


def _encode_leaf(value: Any, pieces: list[Piece]) -> None:
    kind = type(value)
    if kind is str:
        _frame(b"s", _utf8(value), pieces)
    elif kind is int:
        _frame(b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True), pieces)
    elif kind is float:
        _frame(b"f", struct.pack("<d", value), pieces)
    elif kind is bool:
        pieces.append(b"T" if value else b"F")
    elif value is None:
        pieces.append(b"N")
    elif kind is memoryview:
        # As one row of bytes: the length of a view counts its first dimension only.
        _frame(b"b", value.cast("B") if value.c_contiguous and value.nbytes else value.tobytes(), pieces)
    else:
        _frame(b"b", value, pieces)


def _encode_mapping(value: Mapping[Any, object], pieces: list[Piece], path: _Path, depth: int) -> None:
    entries = []
    for key, child in value.items():
        if type(key) is str:
            entries.append((_name(key), key, child))
            continue
        if type(key) not in _LEAF_TYPES:
            raise _refusal(key, (path, "{} (key)", None))
        encoded_key: list[Piece] = []
        _encode_leaf(key, encoded_key)
        entries.append((b"".join(encoded_key), key, child))
    pieces.append(b"{" + _u64(len(entries)))
    for encoded, key, child in sorted(entries, key=_first):
        pieces.append(encoded)
        _encode(child, pieces, (path, "{}.{}", key), depth + 1)


def _encode_array(array: np.ndarray[Any, Any], pieces: list[Piece], path: _Path) -> None:
    if array.dtype.kind not in _NUMERIC_KINDS:
        raise InvalidRequest(_spelled(path), str(array.dtype), "only arrays of numbers have a content key")
    little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    _head_array(array.dtype.name, array.shape, pieces)
    _frame(b"e", little.reshape(-1).view(np.uint8).data, pieces)


def _encode_tensor(tensor: Any, pieces: list[Piece], path: _Path) -> None:
    torch = sys.modules["torch"]
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise InvalidRequest(_spelled(path), str(tensor.layout), "only dense tensors of numbers have a content key")
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    _head_array(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), pieces)
    # As bytes, because numpy has no bfloat16.
    _frame(b"e", dense.view(torch.uint8).numpy().data, pieces)


def _head_array(dtype: str, shape: tuple[int, ...], pieces: list[Piece]) -> None:
    _frame(b"a", dtype.encode(), pieces)
    pieces.append(b"".join(map(_u64, (len(shape), *shape))))


def _frame(tag: bytes, payload: Piece, pieces: list[Piece]) -> None:
    nbytes = len(payload)
    if nbytes <= _LARGE_BYTES:
        pieces.append(tag + _u64(nbytes) + payload)
    else:
        pieces.append(tag + _u64(nbytes))
        pieces.append(payload)


@lru_cache(maxsize=1024)
def _name(key: str) -> bytes:
    text = _utf8(key)
    return b"s" + _u64(len(text)) + text


def _is_tensor(value: object) -> bool:
    # A tensor can only come from a process that has imported torch already.
    torch = sys.modules.get("torch")
    return torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter)


def _refusal(value: object, path: _Path) -> InvalidRequest:
    limit = "has no content key: pass numbers, text, bytes, arrays, lists or dicts"
    return InvalidRequest(_spelled(path), type(value).__name__, limit)


def _spelled(path: _Path) -> str:
    return "$" if not path else path[1].format(_spelled(path[0]), path[2])


def _first(entry: tuple[bytes, Any, Any]) -> bytes:
    return entry[0]


def _utf8(text: str) -> bytes:
    return text.encode() if text.isascii() else text.encode("utf-8", "surrogatepass")


def _u64(number: int) -> bytes:
    return number.to_bytes(8, "little")
