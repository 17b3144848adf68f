"""Computes the name of a tenant's record in the store, and in the index that its readers use.

    store_key(tenant, key) = hex of blake2b-256 over  length of tenant (u64) │ tenant │ length of key (u64) │ key

Both sides compute it: the server to find the record, a client to look into the shared index without a message. Length
framing keeps pairs distinct; the size is fixed, however long the names are.

>>> store_key("a", "bc") == store_key("ab", "c"), len(store_key("", ""))
(False, 64)

A digest cannot be inverted, so the note behind a record has both names, too, with the time of the put and the seconds
that computing the record took: for a writer that adopts the store, and for people.

>>> parse_about(about_record("a", "bc", 7)), parse_about(b"a")
(About(tenant='a', key='bc', put_at=7, cost_s=0.0), None)

A record that is known by its name alone, because another host has told that name, is one of the tenant `NAMES_TENANT`,
under the name as its key.

>>> store_key(NAMES_TENANT, store_key("a", "bc")) == store_key("a", "bc")
True

Processed items are records of the service's own tenant, under their keys; the note of an item has the number of its
embeddings, too.

>>> num_embeds_of(about_item("aaaa", 16, 7)), num_embeds_of(about_record("a", "b:16", 7)), num_embeds_of(b"a")
(16, None, None)

`output_key` is the key of an item's encoder output.

>>> output_key("ffff", "aaaa"), is_named("aaaa"), is_named("aaaa:16")
('encoder/ffff/aaaa', False, True)
"""

from __future__ import annotations

import hashlib
import re
import struct
from functools import lru_cache
from typing import NamedTuple

EMBEDDINGS = "embeddings"
"""Name of the tensor with one row for each placeholder, in the record of an encoder's output."""
GRID = "grid"
"""Name of the tensor `(1, 3)` with an item's patches in time, height and width, in such a record."""
TOKENS = "tokens"
"""Name of the tensor `(num_tokens,)` with tokens of text among the rows of `EMBEDDINGS`, -1 for the others."""
ROWS = "rows"
"""Name of the tensor in a record of rows on their way to one client."""
ITEMS_TENANT = "mmcached/items"
"""Tenant of the processed items, whose records no client can put or drop."""
NAMES_TENANT = "mmcached/names"
"""Tenant of records that are known by their names alone; only the second level's process puts them."""
_LENGTH = struct.Struct("<Q")
_ABOUT = struct.Struct("<QII")
_COST_UNIT_S = 1e-5
_MAX_COST = (1 << 32) - 1
_NAME = re.compile(r"[0-9a-f]{64}")
_ROWS_KEY = re.compile(r"rows/[0-9a-f]{32}/\d+/\d+-\d+")


@lru_cache(maxsize=256)  # a put needs the name of its key several times
def store_key(tenant: str, key: str) -> str:
    if tenant == NAMES_TENANT and _NAME.fullmatch(key):
        return key
    digest = hashlib.blake2b(digest_size=32)
    for name in (tenant, key):
        name_bytes = name.encode("utf-8", "surrogatepass")
        digest.update(_LENGTH.pack(len(name_bytes)))
        digest.update(name_bytes)
    return digest.hexdigest()


class About(NamedTuple):
    """The content of the note behind a record.

    Attributes:
        put_at: Nanoseconds since boot.
        cost_s: Seconds that computing the record took, in steps of 10 µs; 0.0: unknown.
    """

    tenant: str
    key: str
    put_at: int
    cost_s: float = 0.0


def about_record(tenant: str, key: str, put_at: int, cost_s: float = 0.0) -> bytes:
    """Return the note of a record: time of the put (u64) │ length of the tenant (u32) │ cost (u32) │ tenant │ key."""
    tenant_bytes = tenant.encode("utf-8", "surrogatepass")
    cost = min(round(cost_s / _COST_UNIT_S), _MAX_COST)
    return _ABOUT.pack(put_at, len(tenant_bytes), cost) + tenant_bytes + key.encode("utf-8", "surrogatepass")


def parse_about(about: bytes) -> About | None:
    if len(about) < _ABOUT.size:
        return None
    put_at, tenant_bytes, cost = _ABOUT.unpack_from(about)
    end = _ABOUT.size + tenant_bytes
    if end > len(about):
        return None
    try:
        tenant = about[_ABOUT.size : end].decode("utf-8", "surrogatepass")
        return About(tenant, about[end:].decode("utf-8", "surrogatepass"), put_at, cost * _COST_UNIT_S)
    except UnicodeDecodeError:
        return None


def about_item(mm_hash: str, num_embeds: int, put_at: int, cost_s: float = 0.0) -> bytes:
    return about_record(ITEMS_TENANT, f"{mm_hash}:{num_embeds}", put_at, cost_s)


def num_embeds_of(about: bytes) -> int | None:
    """Return the number of embeddings in an item's note; None if it is not the note of an item."""
    known = parse_about(about)
    number = "" if known is None or known.tenant != ITEMS_TENANT else known.key.rpartition(":")[2]
    return int(number) if number.isdecimal() else None


def is_on_its_way(key: str) -> bool:
    """Return whether a record holds rows on their way to one client, which then drops it.

    >>> is_on_its_way(f"rows/{'0' * 32}/0/0-7"), is_on_its_way("rows/of mine")
    (True, False)
    """
    return _ROWS_KEY.fullmatch(key) is not None


def output_key(fingerprint: str, mm_hash: str, modality: str = "") -> str:
    """Return the key of an encoder output.

    Args:
        modality: Of an adapter's item: part of the key, because nothing else tells the service. "" where it is unknown,
            or known from requests.
    """
    return f"encoder/{fingerprint}/{modality}/{mm_hash}" if modality else f"encoder/{fingerprint}/{mm_hash}"


def is_named(mm_hash: str) -> bool:
    """Return whether an item's key has its client's name for it, and the number of its embeddings.

    Its output is not put into the store: after a flush the client may use the name for another image, while the former
    output is still on its way.
    """
    return ":" in mm_hash
