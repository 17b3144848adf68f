"""Names what the encoder says of an image as the service does: a client finds it in the store without asking.

    bytes of the file, or the name that the caller gave it ──> key of the item ──> key of the encoder's output

A fingerprint of the service's processor and one of its encoder are part of the keys: a service that would say something
else has other keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from mmcached.cache.hasher import MultiModalHasher
from mmcached.cache.store_keys import output_key
from mmcached.wire.messages.client import Welcome


def output_keys(
    welcome: Welcome, files: Sequence[bytes], image_ids: Sequence[str | None], tenant: str
) -> list[str] | None:
    """Return the keys of the encoder's outputs for some images; None if the service has not said what is in them.

    Args:
        files: encoded image files; what is named is not looked at.
        image_ids: one per image, or none at all.
    """
    if not welcome.encoder_fingerprint:
        return None
    hasher, fingerprint = _hasher(welcome.hasher_algorithm), welcome.item_fingerprint
    keys = []
    for index, file in enumerate(files):
        name = image_ids[index] if image_ids else None
        if name is None:
            key = hasher.item_key(file, modality="image", fingerprint=fingerprint, tenant=tenant)
        else:
            key = hasher.caller_key(name, modality="image", fingerprint=fingerprint, tenant=tenant)
        keys.append(output_key(welcome.encoder_fingerprint, key))
    return keys


@lru_cache(maxsize=2)
def _hasher(algorithm: Literal["blake3", "sha256"]) -> MultiModalHasher:
    return MultiModalHasher(algorithm)
