"""Store keys and records of the names that callers give to media.

    name   ──alias_key──> alias/<digest of the name>   {"content": digest of the content}
    digest ──media_key──> media/<digest>               {"file": the bytes}, only if a caller keeps the file

A binding names content, not a result: each processor makes its own key from the digest. Kinds keep names apart that
come from different places: text that a request carries never equals the name of a file or of a URL.

>>> alias_key("name", "a", "bc") == alias_key("name", "ab", "c"), alias_key("url", "a") == alias_key("name", "a")
(False, False)
>>> content_in({"content": "0" * 64}) == "0" * 64, content_in({"content": "../etc"}), content_in({})
(True, None, None)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

NameKind = Literal["name", "url", "file"]
CONTENT = "content"
"""Name of the digest in the record of a binding."""
FILE = "file"
"""Name of the bytes, an array `(num_bytes,)` of uint8, in the record of a kept file."""
_DIGEST = re.compile(r"[0-9a-f]{32,128}")


@lru_cache(maxsize=1024)
def alias_key(kind: NameKind, *parts: str) -> str:
    """Return the store key of a name's binding; the name itself, which may be a signed URL, is not part of it."""
    digest = hashlib.blake2b(digest_size=32)
    for part in (kind, *parts):
        part_bytes = part.encode("utf-8", "surrogatepass")
        digest.update(len(part_bytes).to_bytes(8, "little") + part_bytes)
    return f"alias/{digest.hexdigest()}"


def media_key(content: str) -> str:
    """Return the store key of the kept file with a digest."""
    return f"media/{content}"


def content_in(record: Mapping[str, Any]) -> str | None:
    """Return the digest in the record of a binding; None if the record has another form."""
    content = record.get(CONTENT)
    return content if is_digest(content) else None


def is_digest(content: object) -> bool:
    """Return whether a value is the digest of content: 32 to 128 lower-case hex digits."""
    return isinstance(content, str) and _DIGEST.fullmatch(content) is not None
