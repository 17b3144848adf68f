"""Puts the store behind the embedding cache of an SGLang engine that encodes for itself.

    embedding_cache.get, get_single ──> SGLang's own ──miss──> the host's ──> and into SGLang's own
                    set ──────────────> SGLang's own, and saved for the host
                    free ─────────────> out of both: SGLang found that it does not fit the item
                    clear ────────────> SGLang's own is empty; the engine's name is made anew, see `engine_name`

With several tensor-parallel ranks each asks its own cache for the same items in the same order, and all encode what
their caches lack. So they look up together: the first rank finds a record and holds its lease, every rank reads that
record, and if one fails all encode. The first rank saves and drops for all.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.srt.constants import GPU_MEMORY_TYPE_WEIGHTS
from sglang.srt.managers import mm_schedule
from sglang.srt.mem_cache.multimodal_cache import EmbeddingResult, MultiModalStaticCache
from sglang.srt.runtime_context import get_device, get_parallel

from mmcached.client import Client, Hit
from mmcached.client.device.devices import device_of
from mmcached.client.saver import Saver
from mmcached.integrations.ranks import failed_in_any, from_first
from mmcached.integrations.sglang.contact import log_contact
from mmcached.integrations.sglang.engine_name import EngineName
from mmcached.integrations.sglang.identity import forms_of_embeddings, item_key
from mmcached.integrations.sglang.settings import ASKED, ENGINE_CACHE, SglangSettings
from mmcached.integrations.shared_embeddings import TOGETHER_S, SharedEmbeddings
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import ConfigError

_LOG = logging.getLogger("mmcached.sglang")
TIMEOUT_S = 0.25
"""Deadline of a look-up, which asks the service only where its memory cannot be read. The engine waits for it."""
_AGREE = "agree"
"""In place of a token: the ranks have to agree on the engine's name first."""


class EngineCache(MultiModalStaticCache, Closeable):
    """SGLang's cache of one engine in one rank, with the host's embeddings behind it.

    Args:
        max_size: Size of SGLang's own cache in bytes.

    Attributes:
        name: The name of the engine's embeddings.
        saver: Puts new embeddings.
        num_found: Embeddings that the engine has not encoded, because the host had them.

    Raises:
        ConfigError: No process group has the ranks that work together, or the environment lacks a required setting.
    """

    def __init__(self, max_size: int) -> None:
        super().__init__(max_size)
        settings = SglangSettings.read()
        self.num_found = 0
        self._group = _group_of_ranks()
        self._is_first = self._group is None or torch.distributed.get_rank(self._group) == 0
        self._client = Client(settings.run_dir, timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S, name="sglang")
        self.name = EngineName(settings, self._client, self._group)
        self.saver = Saver(self._client, max_bytes=settings.max_save_bytes, delay_s=TOGETHER_S)
        self._device = device_of(str(get_device().device), max_pinned_bytes=settings.max_pinned_bytes)
        self._tensors = SharedEmbeddings(
            self._client, self.saver, self._device, forms_of_embeddings(), is_writer=self._is_first
        )
        self._list: tuple[int | None, tuple[int | str | None, ...]] = (None, (None,))
        """Python's hash of the last requested list of items, and the words of the list's key."""
        self._has_warned = False
        log_contact(self._client)
        if self.name.is_unknown:
            self.name.agree()

    def get(self, mm_hashes: list[int | None], combined_hash: int | None = None) -> EmbeddingResult | None:
        # Python's hash differs between processes, so it is no key; SGLang passes it to `set` and `free`.
        combined = self.combine_hashes(mm_hashes)
        self._list = (combined, ("list", *mm_hashes))
        found = super().get(mm_hashes, combined_hash)
        return self._found(combined) if found is None else found

    def get_single(self, mm_hash: int | None) -> EmbeddingResult | None:
        found = super().get_single(mm_hash)
        return self._found(mm_hash) if found is None else found

    def set(self, mm_hash: int | None, embedding: EmbeddingResult, loc: torch.Tensor | None = None) -> bool:
        is_new = not self.has(mm_hash)
        is_kept = bool(super().set(mm_hash, embedding, loc))
        key = self._key(mm_hash)
        if is_new and key is not None and type(embedding) is EmbeddingResult:  # a subclass has more than the tensor
            # the cache's copy, if the embedding was part of a batch
            own = self.mm_cache[mm_hash] if is_kept else embedding
            self._tensors.save(key, own.embedding)
        return is_kept

    def free(self, mm_hash: int | None, mm_embedding_allocator: Any) -> bool:
        if (key := self._key(mm_hash)) is not None:
            self._tensors.drop(key)
        return bool(super().free(mm_hash, mm_embedding_allocator))

    def clear(self) -> None:
        super().clear()
        self.name.forget()
        self._list = (None, (None,))

    def _found(self, mm_hash: int | None) -> EmbeddingResult | None:
        if self._group is not None:
            embedding = self._read_together(mm_hash)
        else:
            key = self._key(mm_hash)
            embedding = None if key is None else self._tensors.get(key)
        if embedding is None:
            self._tensors.note_miss()
            return None
        self.num_found += 1
        found = EmbeddingResult(embedding=embedding)
        super().set(mm_hash, found)
        return found

    def _read_together(self, mm_hash: int | None) -> torch.Tensor | None:
        """Return an embedding that every rank has read from one record; collective."""
        hit: Hit | None = None
        while True:
            if self._is_first and not self.name.is_unknown:
                hit = self._find(mm_hash)
            found = None if hit is None else hit.token
            order = from_first(_AGREE if self.name.is_unknown else found, self._group)
            if order != _AGREE:
                break
            self.name.agree()
        if order is None:
            return None
        embedding = self._open(order, mm_hash)
        (has_failed,) = failed_in_any([embedding is None], self._group)
        if hit is not None:
            hit.close()  # every rank has its own lease or copy
        return None if has_failed else embedding

    def _find(self, mm_hash: int | None) -> Hit | None:
        # the other ranks wait for what this one has found, whatever happens here
        try:
            key = self._key(mm_hash)
            return None if key is None else self._client.get(key, view=True)
        except Exception as error:
            self._warn(error)
            return None

    def _open(self, token: str, mm_hash: int | None) -> torch.Tensor | None:
        # a device may raise anything, and the other ranks must learn that this one has failed
        try:
            return self._tensors.open(token, self._key(mm_hash))
        except Exception as error:
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("mmcached: an embedding could not be read: %s: %s (logged once)", type(error).__name__, error)

    def _key(self, mm_hash: int | None) -> str | None:
        """Return the key of an item, or of the last requested list; None if an item has no hash."""
        combined, listed = self._list
        words = listed if mm_hash == combined else (mm_hash,)
        name = self.name.get()
        named = [word for word in words if word is not None]
        return item_key(name, *named) if name is not None and len(named) == len(words) else None

    def close(self) -> None:
        self.saver.close()
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
        cache.name.is_paused = is_open or GPU_MEMORY_TYPE_WEIGHTS in getattr(manager, "offload_tags", ())
        cache.name.read()


def _group_of_ranks() -> Any:
    """Return the group, on the host's network, of the ranks that get the same requests; None for one rank."""
    parallel = get_parallel()
    if not parallel.attn_dp_enabled:
        return parallel.tp_group.cpu_group if parallel.tp_size > 1 else None
    if parallel.attn_cp_size > 1:
        raise ConfigError(ASKED, ENGINE_CACHE, "is not for context-parallel ranks beside data-parallel attention")
    return parallel.attn_tp_group.cpu_group if parallel.attn_tp_size > 1 else None
