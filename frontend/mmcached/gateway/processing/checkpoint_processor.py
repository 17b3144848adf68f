"""Makes items from the tensors that a checkpoint's image processor returns for a picture.

A decoder process runs the image processor, see `mmcached.pictures.processor`. Invariant: the same file and the same
fingerprint give the same bytes.
"""

from __future__ import annotations

import hashlib

from mmcached.cache.checkpoints.checkpoint import Checkpoint, library_versions
from mmcached.cache.fingerprints import fingerprint
from mmcached.cache.store_keys import TOKENS
from mmcached.gateway.processing.decoder_process import DecodedTensors, Pixels
from mmcached.gateway.processing.processor import GatewayItem
from mmcached.pictures.processor import TOKENIZER
from mmcached.shm.store.codec import encode
from mmcached.wire.errors import InvalidRequest, InvariantError

_VERSION = 1
"""Increase it with every change, here or in `mmcached.pictures`, that gives other tensors for some file."""


class CheckpointProcessor:
    """Turns tensors into items. Stateless: any thread may call it.

    Args:
        limits: Of a file; part of the fingerprint, so services with other limits do not share items.
    """

    def __init__(self, checkpoint: Checkpoint, limits: str) -> None:
        self._checkpoint = checkpoint
        self._limits = limits

    @property
    def fingerprint(self) -> str:
        """Hash input of the item's key beside the file: all settings of the result; "" if no tower takes pictures."""
        if "image" not in self._checkpoint.processors:
            return ""
        names = self._checkpoint.countings["image"].inputs
        tokenizer = self._checkpoint.path / TOKENIZER
        return fingerprint(
            {
                **({TOKENS: hashlib.sha256(tokenizer.read_bytes()).hexdigest()} if TOKENS in names else {}),
                "kind": "hf",
                "version": _VERSION,
                "processor": self._checkpoint.processors["image"],
                "model": self._checkpoint.model,  # the number of embeddings follows from it
                "versions": library_versions(),
                "limits": self._limits,
            }
        )

    def item(self, made: Pixels | DecodedTensors) -> GatewayItem:
        """Select the tensors that the tower takes, and count its embeddings.

        Raises:
            InvalidRequest: The image processor has made several pictures of one.
        """
        if isinstance(made, Pixels):
            raise InvariantError("a decoder with an image processor made plain pixels")
        names = self._checkpoint.countings["image"].inputs
        if missing := [name for name in names if name not in made.arrays]:
            raise InvalidRequest("image", f"no {missing[0]}", f"the image processor must make {', '.join(names)}")
        kept = {name: made.arrays[name] for name in names}
        return GatewayItem(encode(kept), self._checkpoint.num_embeds("image", kept))
