"""Encodes the parts of a KV block's hash besides its tokens: one typed record for each kind.

    record          encoding: tag, then the fields
    LoraKey         L  text name, text path
    MultiModalKey   M  text identifier, offset (i64)
    SaltKey         S  text salt
    EmbedsKey       E  offset (i64), bytes digest
    LookaheadKey    N  number of tokens (u32), token ids (u32 each)
    text, bytes: length (u32) and that many bytes, text as UTF-8; all numbers little-endian

Invariant: a list of records can be parsed from their concatenated encodings, so no two lists share an encoding; an
adapter is never confused with a salt of the same text.
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
        identifier: Content key of the item.
        offset: Tokens from the block's start to the item's; negative if the item began in an earlier block.
    """

    identifier: str
    offset: int

    def encode(self) -> bytes:
        return b"M" + _text(self.identifier) + _I64.pack(self.offset)


@dataclass(frozen=True, slots=True)
class SaltKey:
    """A tenant's salt: only sequences with an equal salt share blocks."""

    salt: str

    def encode(self) -> bytes:
        return b"S" + _text(self.salt)


@dataclass(frozen=True, slots=True)
class EmbedsKey:
    """A row of prompt embeddings in place of a token id.

    Attributes:
        offset: Tokens from the block's start.
        digest: Content key of the row.
    """

    offset: int
    digest: bytes

    def encode(self) -> bytes:
        return b"E" + _I64.pack(self.offset) + _framed(self.digest)


@dataclass(frozen=True, slots=True)
class LookaheadKey:
    """The tokens behind the block on which its KV also depends: a drafter reads the token after the current one."""

    token_ids: tuple[int, ...]

    def encode(self) -> bytes:
        """Return the encoding; raise `InvalidRequest` if a token is a placeholder."""
        return lookahead_head(len(self.token_ids)) + pack_token_ids(self.token_ids)


ExtraKey = LoraKey | MultiModalKey | SaltKey | EmbedsKey | LookaheadKey


def lookahead_head(num_tokens: int) -> bytes:
    """Return the bytes before the packed token ids of a `LookaheadKey`."""
    return b"N" + _U32.pack(num_tokens)


def _framed(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def _text(text: str) -> bytes:
    # A lone surrogate is not valid text, but it must not end the engine, nor equal another one.
    return _framed(text.encode("utf-8", "surrogatepass"))
