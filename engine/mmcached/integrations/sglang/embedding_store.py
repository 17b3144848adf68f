"""Keeps the embeddings of SGLang's encoder servers in the store, for all encoder servers of the host.

    EmbeddingCacheController ──its I/O thread: read, save──┐
                             ──threads of a pool: exist────┴──> MmcachedEmbeddingStore ──> Buffers

SGLang makes the store without arguments, in the process whose rank 0 uses it. It does not reuse the saved pages until
`batch_put…` returns, and they are copied by then; another thread puts the copy, so that the embeddings which others
wait for are not delayed. A page that could not be filled is encoded again.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.embedding_store import EmbeddingStore

from mmcached.client import Client
from mmcached.client.saver import Saver
from mmcached.integrations.sglang.buffers import Buffers
from mmcached.integrations.sglang.contact import log_contact
from mmcached.integrations.sglang.identity import forms_of_embeddings, item_key, namespace
from mmcached.integrations.sglang.settings import EMBEDDING_STORE, SglangSettings
from mmcached.wire.closeable import Closeable

TIMEOUT_S = 1.0
"""Deadline of a look-up, which asks the service only where its memory cannot be read."""


class MmcachedEmbeddingStore(EmbeddingStore, Closeable):
    """SGLang's store of embeddings, over the service that the environment names.

    Args:
        storage_config: Ignored; SGLang's other stores take it.

    Attributes:
        saver: Puts the copies of saved pages.

    Raises:
        ConfigError: The environment lacks a required setting.
    """

    def __init__(self, storage_config: Any = None) -> None:
        settings = SglangSettings.read()
        self._client = Client(settings.run_dir, timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S, name="sglang")
        self._namespace = namespace(EMBEDDING_STORE, settings, self._client)
        self.saver = Saver(self._client, max_bytes=settings.max_save_bytes)
        (dtype,) = {form.dtype for form in forms_of_embeddings()} or (None,)
        self._buffers = Buffers(self._client, self.saver, dtype)
        log_contact(self._client)

    def get_key(self, mm_hash: str) -> str:
        return item_key(self._namespace, mm_hash)

    def batch_is_exist(self, hashes: list[str]) -> list[bool]:
        return self._buffers.contains(self._keys(hashes))

    def batch_get_into_multi_buffers(
        self, hashes: list[str], ptrs: list[list[int]], sizes: list[list[int]]
    ) -> list[bool]:
        return self._buffers.read(self._keys(hashes), ptrs, sizes)

    def batch_put_from_multi_buffers(
        self, hashes: list[str], ptrs: list[list[int]], sizes: list[list[int]]
    ) -> list[bool]:
        return self._buffers.save(self._keys(hashes), ptrs, sizes)

    def batch_get(self, hashes: list[str], ptrs: list[int], sizes: list[int]) -> list[bool]:
        return self._buffers.read(self._keys(hashes), [[ptr] for ptr in ptrs], [[size] for size in sizes])

    def batch_put(self, hashes: list[str], ptrs: list[int], sizes: list[int]) -> list[bool]:
        return self._buffers.save(self._keys(hashes), [[ptr] for ptr in ptrs], [[size] for size in sizes])

    def close(self) -> None:
        self.saver.close()
        self._client.close()

    def _keys(self, hashes: list[str]) -> list[str]:
        return [self.get_key(mm_hash) for mm_hash in hashes]
