"""Encodes what besides its tokens decides the content of a KV block: one typed record for each kind.

    record          encoding: tag, then the fields
    LoraKey         L  text name, text path
    MultiModalKey   M  text identifier, offset (i64)
    SaltKey         S  text salt
    EmbedsKey       E  offset (i64), bytes digest
    LookaheadKey    N  number of tokens (u32), token ids (u32 each)
    text, bytes: length (u32) and that many bytes, text as UTF-8; all numbers little-endian

Knows nothing of requests or hashes. Invariant: a list of records can be read back from the encodings put one
after the other, so no two lists share one; an adapter never looks like a salt that is spelt like it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from mmcached.cache.hashing.token_bytes import pack_token_ids

__all__ = ["EmbedsKey", "ExtraKey", "LookaheadKey", "LoraKey", "MultiModalKey", "SaltKey", "lookahead_head"]

_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class LoraKey:
    """The adapter that computes a request; the same name from another path is another adapter."""

    name: str
    path: str

    def encode(self) -> bytes:
        return b"L" + _text(self.name) + _text(self.path)


@dataclass(frozen=True, slots=True)
class MultiModalKey:
    """An item that covers positions of the block.

    Attributes:
        identifier: content key of the item.
        offset: tokens from the block's start to the item's; negative if the item began in an earlier block.
    """

    identifier: str
    offset: int

    def encode(self) -> bytes:
        return b"M" + _text(self.identifier) + _I64.pack(self.offset)


@dataclass(frozen=True, slots=True)
class SaltKey:
    """Who may share the sequence: only those with an equal salt."""

    salt: str

    def encode(self) -> bytes:
        return b"S" + _text(self.salt)


@dataclass(frozen=True, slots=True)
class EmbedsKey:
    """A row of prompt embeddings that stands in the place of a token id.

    Attributes:
        offset: tokens from the block's start.
        digest: content key of the row.
    """

    offset: int
    digest: bytes

    def encode(self) -> bytes:
        return b"E" + _I64.pack(self.offset) + _framed(self.digest)


@dataclass(frozen=True, slots=True)
class LookaheadKey:
    """The tokens behind the block that its KV also depends on: a drafter reads the token after the one it stands on."""

    token_ids: tuple[int, ...]

    def encode(self) -> bytes:
        """Raises `InvalidRequest` if one of them is a placeholder."""
        return lookahead_head(len(self.token_ids)) + pack_token_ids(self.token_ids)


ExtraKey = LoraKey | MultiModalKey | SaltKey | EmbedsKey | LookaheadKey


def lookahead_head(num_tokens: int) -> bytes:
    """Return what comes before the packed token ids of a `LookaheadKey`."""
    return b"N" + _U32.pack(num_tokens)


def _framed(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def _text(text: str) -> bytes:
    # Half of a surrogate pair is no text, but it must not end the engine, nor equal another one.
    return _framed(text.encode("utf-8", "surrogatepass"))
