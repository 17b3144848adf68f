"""Encodes items tile by tile: a tile whose output is in the store, or that comes twice in its item, is not encoded.

    item ── split ──> tiles ── digests ──> one look-up ──found, and right──┐
                                                 └──else──> encoded alone ─┴─> joined in order: the item's output
                                                                └──> saved, after the step's answer

The key of a tile's output has the digest of the tile's tensors, as the tower gets them. Its tenant and epoch are those
of the item. While hits are verified nothing is looked up: the saver compares each new output with the store's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import torch

from mmcached.cache.store_keys import EMBEDDINGS
from mmcached.client.device.stopwatch import Stopwatch
from mmcached.wire.closeable import Closeable
from mmcached.wire.messages.parts import EncoderForm
from mmcached.wire.messages.worker import EncodeItem
from mmcached.worker.encoders.content import Content
from mmcached.worker.encoders.encoder import Outputs, TileEncoder, are_finite, outputs_in
from mmcached.worker.payloads import CALL_S, Record, StoreContact
from mmcached.worker.steps.output_counts import OutputCounts
from mmcached.worker.stored_outputs import StoredOutputs


class NewTile(NamedTuple):
    """A tile that the last step has encoded; `item` is the first with it, `saves` whether this rank saves it."""

    item: EncodeItem
    outputs: Outputs
    watch: Stopwatch
    saves: bool


class TileOutputs(Closeable):
    """Tiles of one worker's items.

    Args:
        outputs: The store's outputs; None if there is no store.
        store: Connection for look-ups, whose hits keep records in the store longer.
        form: Returns the form of the encoder's outputs for an item.
    """

    def __init__(
        self,
        encoder: TileEncoder,
        outputs: StoredOutputs | None,
        store: StoreContact,
        *,
        form: Callable[[], EncoderForm],
        device: torch.device,
        counts: OutputCounts,
    ) -> None:
        self._encoder = encoder
        self._outputs = outputs
        self._store = store
        self._form = form
        self._device = device
        self._counts = counts
        self._left_s = CALL_S
        self._new: dict[tuple[str, str], NewTile] = {}  # by tenant and digest

    def begin(self) -> None:
        """Forget the tiles of an earlier step, and allow `CALL_S` seconds for all look-ups of the next one."""
        self._new.clear()
        self._left_s = CALL_S

    def encode(self, record: Record, item: EncodeItem, *, saves: bool) -> Outputs:
        """Return the outputs of an item; views of the store end with the call, or with their copy onto a device.

        Args:
            saves: Whether new tiles are saved: of several ranks one does it.

        Raises:
            InvalidRequest: As `Encoder.encode`.
        """
        tiles = self._encoder.split(record, item.num_embeds)
        digests = [_digest(tile) for tile in tiles]
        known: dict[str, Outputs] = {}
        is_shared = item.store_epoch > 0 and len(tiles) > 1  # the only tile is found as its item
        if is_shared:
            known = self._known(list(dict.fromkeys(digests)), item.tenant)
        num_encoded = 0
        for digest, tile in zip(digests, tiles, strict=True):
            if digest in known:
                continue
            watch = Stopwatch(self._device)
            known[digest] = self._encoder.encode_tile(tile)
            watch.stop()
            num_encoded += 1
            if is_shared:
                self._new[item.tenant, digest] = NewTile(item, known[digest], watch, saves)
        self._counts.tiles(encoded=num_encoded, reused=len(tiles) - num_encoded)
        return self._encoder.join(record, [known[digest] for digest in digests])

    def save(self) -> None:
        """Save the tiles that the last step has encoded; called after its answer is sent."""
        new, self._new = self._new, {}
        if self._outputs is not None:
            for (_, digest), tile in new.items():
                if tile.saves:
                    self._outputs.save_tile(tile.item, digest, tile.outputs, _cost_of(tile.watch))

    def close(self) -> None:
        self._store.close()

    def _known(self, digests: Sequence[str], tenant: str) -> dict[str, Outputs]:
        """Return the outputs of known tiles by digest: of this step, and of the store by one call."""
        known = {digest: self._new[tenant, digest].outputs for digest in digests if (tenant, digest) in self._new}
        missing = [digest for digest in digests if digest not in known]
        if self._outputs is None or not missing or self._left_s <= 0:
            return known
        client, began = self._store.client(), time.monotonic()
        if client.is_verifying():
            return known
        keys = [self._outputs.tile_key(digest) for digest in missing]
        hits = client.get_many(keys, view=True, timeout_s=self._left_s, tenant=tenant)
        self._left_s -= time.monotonic() - began
        for digest, hit in zip(missing, hits, strict=True):
            outputs = None if hit is None else self._right(hit.record)
            if outputs is not None:
                known[digest] = outputs
        return known

    def _right(self, record: Mapping[str, torch.Tensor]) -> Outputs | None:
        """Return a record as a tile's outputs; None if it is another one: a client has put it there."""
        form, num_embeds = self._form(), self._encoder.tile_embeds
        (embeddings,) = [each for each in form.outputs if each.name == EMBEDDINGS]
        of_tile = msgspec.structs.replace(embeddings, shape=(num_embeds, *embeddings.shape[1:]))
        outputs = outputs_in(record, msgspec.structs.replace(form, outputs=[of_tile]), num_embeds)
        return outputs if outputs is not None and are_finite(outputs) else None


def _digest(tile: Mapping[str, torch.Tensor]) -> str:
    content = Content()
    for name, tensor in tile.items():
        content.add(name, tensor)
    return content.hexdigest()


def _cost_of(watch: Stopwatch) -> Callable[[], float]:
    """Return a function that returns the seconds of an encoding; 0.0 while the device is not done."""
    return lambda: watch.seconds() if watch.is_over() else 0.0
