"""Puts the store behind the embedding cache of an SGLang engine that encodes for itself.

    embedding_cache.get, get_single ──> SGLang's own ──miss──> the host's ──> and into SGLang's own
                    set ──────────────> SGLang's own, and saved for the host
                    free ─────────────> out of both: SGLang found that it does not fit the item
                    clear ────────────> SGLang's own is empty; the engine's name is made anew, see `tower`

The name of an engine has the content of its tower's weights, read at start and after each flush or update. While
weights change (an open update, released memory) nothing is shared. Where the model is unknown the name has the files of
the checkpoint, and after `clear` nothing is shared. With several tensor-parallel ranks each would look up for itself,
and they could disagree about what to encode, so several ranks are refused.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.srt.constants import GPU_MEMORY_TYPE_WEIGHTS
from sglang.srt.managers import mm_schedule
from sglang.srt.mem_cache.multimodal_cache import EmbeddingResult, MultiModalStaticCache
from sglang.srt.runtime_context import get_device, get_parallel

from mmcached.client import Client
from mmcached.client.device.devices import device_of
from mmcached.client.saver import Saver, SaverCounters
from mmcached.integrations.sglang.contact import log_contact
from mmcached.integrations.sglang.identity import forms_of_embeddings, item_key, namespace
from mmcached.integrations.sglang.settings import ASKED, ENGINE_CACHE, SglangSettings
from mmcached.integrations.sglang.tensors import SharedEmbeddings
from mmcached.integrations.sglang.tower import is_loaded, known_runner, tower_digest
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import ConfigError

_LOG = logging.getLogger("mmcached.sglang")
TIMEOUT_S = 0.25
"""Deadline of a look-up, which asks the service only where its memory cannot be read. The engine waits for it."""


class EngineCache(MultiModalStaticCache, Closeable):
    """SGLang's cache of one engine, with the host's embeddings behind it.

    Args:
        max_size: Size of SGLang's own cache in bytes.

    Attributes:
        num_found: Embeddings that the engine has not encoded, because the host had them.
        is_paused: Whether the weights are changing, so that nothing is shared.

    Raises:
        ConfigError: There are several tensor-parallel ranks, or the environment lacks a required setting.
    """

    def __init__(self, max_size: int) -> None:
        if (ranks := get_parallel().tp_size) > 1:
            raise ConfigError(ASKED, ENGINE_CACHE, f"is for --tp-size 1; here it is {ranks}")
        super().__init__(max_size)
        settings = SglangSettings.read()
        self.num_found = 0
        self._client = Client(settings.run_dir, timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S, name="sglang")
        self._settings = settings
        self.is_paused = False
        self._first_tower = ""
        self._runner = known_runner()
        self._names = None if self._runner is not None else namespace(ENGINE_CACHE, settings, self._client)
        self._saver = Saver(self._client, max_bytes=settings.max_save_bytes)
        self._device = device_of(str(get_device().device), max_pinned_bytes=settings.max_pinned_bytes)
        self._tensors = SharedEmbeddings(self._client, self._saver, self._device, forms_of_embeddings())
        self._list: tuple[int | None, str | None] = (None, None)
        """Python's hash of the last requested list of items, and the list's key."""
        log_contact(self._client)
        self.name()

    def get(self, mm_hashes: list[int | None], combined_hash: int | None = None) -> EmbeddingResult | None:
        # Python's hash differs between processes, so it is no key; SGLang passes it to `set` and `free`.
        combined = self.combine_hashes(mm_hashes)
        self._list = (combined, self._key("list", *mm_hashes))
        found = super().get(mm_hashes, combined_hash)
        return self._found(combined) if found is None else found

    def get_single(self, mm_hash: int | None) -> EmbeddingResult | None:
        found = super().get_single(mm_hash)
        return self._found(mm_hash) if found is None else found

    def set(self, mm_hash: int | None, embedding: EmbeddingResult, loc: torch.Tensor | None = None) -> bool:
        is_new = not self.has(mm_hash)
        is_kept = bool(super().set(mm_hash, embedding, loc))
        key = self._key_of(mm_hash)
        if is_new and key is not None and type(embedding) is EmbeddingResult:  # a subclass has more than the tensor
            # the cache's copy, if the embedding was part of a batch
            own = self.mm_cache[mm_hash] if is_kept else embedding
            self._tensors.save(key, own.embedding)
        return is_kept

    def free(self, mm_hash: int | None, mm_embedding_allocator: Any) -> bool:
        if (key := self._key_of(mm_hash)) is not None:
            self._tensors.drop(key)
        return bool(super().free(mm_hash, mm_embedding_allocator))

    def clear(self) -> None:
        super().clear()
        self._names = None
        self._list = (None, None)

    def name(self) -> str | None:
        """Return the name of this engine's embeddings; None while nothing is shared. Reads the tower after `clear`."""
        runner = self._runner
        if self._names is None and runner is not None and not self.is_paused and is_loaded(runner):
            try:
                tower = tower_digest(runner.model)
                self._first_tower = self._first_tower or tower
                self._names = namespace(
                    ENGINE_CACHE, self._settings, self._client, tower=tower, is_first=tower == self._first_tower
                )
            except Exception as error:  # whatever a device or a quantiser raises: the engine goes on without sharing
                self.is_paused = True
                _LOG.warning("mmcached: embeddings are not shared, because weights cannot be read: %s", error)
        return self._names

    def _found(self, mm_hash: int | None) -> EmbeddingResult | None:
        key = self._key_of(mm_hash)
        embedding = None if key is None else self._tensors.get(key)
        if embedding is None:
            return None
        self.num_found += 1
        found = EmbeddingResult(embedding=embedding)
        super().set(mm_hash, found)
        return found

    def _key_of(self, mm_hash: int | None) -> str | None:
        """Return the key of an item, or of the last requested list."""
        combined, key = self._list
        return key if mm_hash == combined else self._key(mm_hash)

    def _key(self, *mm_hashes: int | str | None) -> str | None:
        """Return the key of one item or of several; None if an item has no hash."""
        own = self.name()
        names = [name for name in mm_hashes if name is not None]
        return item_key(own, *names) if own is not None and len(names) == len(mm_hashes) else None

    @property
    def counters(self) -> SaverCounters:
        return self._saver.counters

    def drain(self, timeout_s: float) -> bool:
        return self._saver.drain(timeout_s)

    def close(self) -> None:
        self._saver.close()
        self._device.close()
        self._client.close()


def install(result: None, max_size: int = 0) -> None:
    """Replace the cache that SGLang has just made by an `EngineCache`; SGLang calls this."""
    mm_schedule.embedding_cache = EngineCache(max_size)


def clear_after_flush(result: bool, scheduler: Any = None, *arguments: Any, **named: Any) -> None:
    """Clear the cache after SGLang has flushed its others; SGLang calls this."""
    if result:
        clear_after_update(result, getattr(scheduler, "weight_updater", None))


def clear_after_update(result: Any, manager: Any = None, *arguments: Any, **named: Any) -> None:
    """Clear the cache after an update of the weights, even a partial one, and read the tower once no update is open;
    SGLang calls this.
    """
    cache = mm_schedule.embedding_cache
    if cache is None:
        return
    cache.clear()
    if isinstance(cache, EngineCache):
        is_open = getattr(manager, "_session", None) is not None
        cache.is_paused = is_open or GPU_MEMORY_TYPE_WEIGHTS in getattr(manager, "offload_tags", ())
        cache.name()
