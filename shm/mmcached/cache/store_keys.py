"""Names a tenant's record in the store, and in the index that its readers look into.

    store_key(tenant, key) = hex of blake2b-256 over  length of tenant (u64) │ tenant │ length of key (u64) │ key

Both sides compute it: the server to find the record, a client to look into the shared index without asking. Framed by
lengths, so that no two pairs are the same bytes; of one size, however long the names are.

>>> store_key("a", "bc") == store_key("ab", "c"), len(store_key("", ""))
(False, 64)
"""

from __future__ import annotations

import hashlib
import struct

_LENGTH = struct.Struct("<Q")


def store_key(tenant: str, key: str) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for name in (tenant, key):
        name_bytes = name.encode("utf-8", "surrogatepass")
        digest.update(_LENGTH.pack(len(name_bytes)))
        digest.update(name_bytes)
    return digest.hexdigest()
