"""Content keys: a digest of 256 bits over typed, length-framed content.

    leaf      tag, length (u64), payload        tags: i int, f float, s str, b bytes; N T F are None, True, False alone
    array     a, dtype, shape, byte length, elements in C order, little-endian
    sequence  [, count, each member
    mapping   {, count, each (key, value), sorted by the encoded key

Invariant: two values have one encoding only if they are equal and of equal type, so two keys are equal only if the
content is, or the digest is broken. A list equals a tuple, a numpy array a torch tensor of the same dtype, shape and
elements; the order of a mapping does not matter. What has no encoding here is refused: nothing is pickled, nothing is
hashed by address.

Knows nothing of images. Source: vLLM's `MultiModalHasher`, whose leaves carry no type.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Protocol

import numpy as np
from blake3 import blake3

from mmcached.wire.errors import ConfigError, InvalidRequest

MAX_DEPTH = 32
"""Nesting beyond it is refused: nothing real is that deep, and a list may contain itself."""

_ITEM_DOMAIN = b"mmcached item 1"
_KWARGS_DOMAIN = b"mmcached kwargs 1"
_NUMERIC_KINDS = "biufc"

Piece = bytes | bytearray | memoryview


class _Digest(Protocol):
    def update(self, data: Piece, /) -> object: ...
    def hexdigest(self) -> str: ...


_ALGORITHMS: Mapping[str, Callable[[], _Digest]] = {"blake3": blake3, "sha256": hashlib.sha256}


class MultiModalHasher:
    """Makes content keys of 64 hex digits. Stateless.

    Args:
        algorithm: "blake3", or "sha256" where policy asks for it; keys of the two never meet.
    Raises:
        ConfigError: no such algorithm.
    """

    def __init__(self, algorithm: Literal["blake3", "sha256"] = "blake3") -> None:
        if algorithm not in _ALGORITHMS:
            raise ConfigError("algorithm", algorithm, f"must be one of {', '.join(_ALGORITHMS)}")
        self.algorithm = algorithm

    def hash_kwargs(self, **kwargs: object) -> str:
        """Return the key of a set of named values.

        Raises:
            InvalidRequest: a value has a type that has no encoding; names the path to it.
        """
        return self._hexdigest(_KWARGS_DOMAIN, kwargs)

    def item_key(self, content: bytes, *, modality: str, fingerprint: str, tenant: str) -> str:
        """Return the key of a processed item, from its *encoded* bytes: so a hit needs no decoding.

        Args:
            content: the file as it came.
            fingerprint: of the processor; it changes when the same file would be processed to something else.
            tenant: tenants never share items.
        """
        parts = {"content": content, "modality": modality, "fingerprint": fingerprint, "tenant": tenant}
        return self._hexdigest(_ITEM_DOMAIN, parts)

    def _hexdigest(self, domain: bytes, value: Mapping[str, object]) -> str:
        digest = _ALGORITHMS[self.algorithm]()
        digest.update(domain)
        for piece in _encode(value, "$", 0):
            digest.update(piece)
        return digest.hexdigest()


def _encode(value: object, path: str, depth: int) -> Iterator[Piece]:
    """Yield the encoding in pieces, so that large content is not copied.

    Types are compared exactly: a subclass may carry content that its base does not show (`IntEnum`, masked arrays).
    """
    if depth > MAX_DEPTH:
        raise InvalidRequest(path, depth, f"nested deeper than {MAX_DEPTH} levels")
    kind = type(value)
    if isinstance(value, Mapping):
        yield from _encode_mapping(value, path, depth)
    elif isinstance(value, list | tuple) and kind in (list, tuple):
        yield b"[" + _u64(len(value))
        for index, member in enumerate(value):
            yield from _encode(member, f"{path}[{index}]", depth + 1)
    elif isinstance(value, np.ndarray | np.generic) and kind is not np.ma.MaskedArray:
        yield from _encode_array(np.asarray(value), path)
    elif _is_tensor(value):
        yield from _encode_tensor(value, path)
    else:
        yield from _encode_leaf(value, path)


def _encode_leaf(value: Any, path: str) -> Iterator[Piece]:
    kind = type(value)
    if kind in (bytes, bytearray):
        yield from _framed(b"b", value)
    elif kind is memoryview:
        yield from _framed(b"b", value if value.c_contiguous and value.format == "B" else value.tobytes())
    elif kind is str:
        yield from _framed(b"s", value.encode("utf-8", "surrogatepass"))
    elif kind is int:
        yield from _framed(b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    elif kind is float:
        yield from _framed(b"f", struct.pack("<d", value))
    elif value is None:
        yield b"N"
    elif kind is bool:
        yield b"T" if value else b"F"
    else:
        raise InvalidRequest(
            path, kind.__name__, "has no content key: pass numbers, text, bytes, arrays, lists or dicts"
        )


def _encode_mapping(value: Mapping[Any, object], path: str, depth: int) -> Iterator[Piece]:
    entries = {b"".join(_encode_leaf(key, f"{path} (key)")): (key, child) for key, child in value.items()}
    yield b"{" + _u64(len(entries))
    for encoded_key in sorted(entries):
        key, child = entries[encoded_key]
        yield encoded_key
        yield from _encode(child, f"{path}.{key}", depth + 1)


def _encode_array(array: np.ndarray[Any, Any], path: str) -> Iterator[Piece]:
    if array.dtype.kind not in _NUMERIC_KINDS:
        raise InvalidRequest(path, str(array.dtype), "only arrays of numbers have a content key")
    little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    yield from _array_header(array.dtype.name, array.shape)
    yield from _framed(b"e", little.reshape(-1).view(np.uint8).data)


def _encode_tensor(tensor: Any, path: str) -> Iterator[Piece]:
    torch = sys.modules["torch"]
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise InvalidRequest(path, str(tensor.layout), "only dense tensors of numbers have a content key")
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    yield from _array_header(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    # As bytes, because numpy has no bfloat16.
    yield from _framed(b"e", dense.view(torch.uint8).numpy().data)


def _array_header(dtype: str, shape: tuple[int, ...]) -> Iterator[Piece]:
    yield from _framed(b"a", dtype.encode())
    yield b"".join(map(_u64, (len(shape), *shape)))


def _framed(tag: bytes, payload: Piece) -> Iterator[Piece]:
    yield tag + _u64(len(payload))
    yield payload


def _is_tensor(value: object) -> bool:
    # A tensor can only come from a process that has imported torch already.
    torch = sys.modules.get("torch")
    return torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter)


def _u64(number: int) -> bytes:
    return number.to_bytes(8, "little")
