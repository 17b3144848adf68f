"""Puts the store behind the encoder cache of one model in one rank of TensorRT-LLM.

    get ──> TensorRT-LLM's own ──miss──> the host's, if all ranks have it ──> and into TensorRT-LLM's own
    put ──> TensorRT-LLM's own, and saved for the host by the first rank

The cache stays TensorRT-LLM's: only its `get` and `put` are replaced. Ranks call both in the same order, as the
encoder's collectives need, and after each miss of their own caches they exchange whether they found the output. Nothing
here raises; a look-up waits for the service at most `TIMEOUT_S`, and reads memory otherwise.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

import torch
from blake3 import blake3

from mmcached.cache.name_files import note_name
from mmcached.cache.store_keys import output_key
from mmcached.client import Client
from mmcached.client.device.devices import device_of
from mmcached.client.saver import Saver
from mmcached.integrations.shared_embeddings import TOGETHER_S, SharedEmbeddings
from mmcached.integrations.tensorrt_llm.model import digest_of, forms_of, rows_of, tower_tensors
from mmcached.integrations.tensorrt_llm.ranks import Ranks, ranks_of
from mmcached.integrations.watched_writes import WatchedWrites
from mmcached.wire.closeable import Closeable

_LOG = logging.getLogger("mmcached.tensorrt_llm")
TIMEOUT_S = 0.25
"""Deadline of a look-up, which asks the service only where its memory cannot be read. The executor waits for it."""
HASH_INTS = 8
"""Integers of TensorRT-LLM's hash of an item: 256 bits."""


@dataclass(frozen=True, slots=True)
class SharingSettings:
    """The adapter's settings.

    Attributes:
        run_dir: Run directory of the service; None for the default of `mmcached serve`.
        namespace: Name of the checkpoint's small files, for a checkpoint that is not on this host; empty: their bytes.
        max_save_bytes: Bytes of outputs that may wait to be saved.
        max_pinned_bytes: Bytes of the store's memory that a rank pins with CUDA, where it reads repeatedly.
    """

    run_dir: str | None = None
    namespace: str = ""
    max_save_bytes: int = 256 << 20
    max_pinned_bytes: int = 2048 << 20


class SharedEncoderCache(Closeable):
    """The store behind one encoder cache; making one replaces `get` and `put` of the cache.

    Args:
        own: TensorRT-LLM's `TensorLRUCache` of the model.
        model: The model, with all its weights.
        ranks: The ranks that encode together; None: those of the model's mapping. Making one is collective.

    Attributes:
        saver: Puts this rank's outputs.
        num_found: Outputs that this rank has not encoded, because the host had them.
    """

    def __init__(self, own: Any, model: Any, settings: SharingSettings, ranks: Ranks | None = None) -> None:
        self.num_found = 0
        self._own_get, self._own_put = own.get, own.put
        self._model = model
        self._settings = settings
        self._ranks = ranks or ranks_of(model.model_config.mapping)
        self._client = Client(settings.run_dir, timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S, name="tensorrt-llm")
        self.saver = Saver(self._client, max_bytes=settings.max_save_bytes, delay_s=TOGETHER_S)
        self._writes = WatchedWrites()
        self._tensors: SharedEmbeddings | None = None
        self._name: str | None = None
        self._make_name()
        own.get, own.put = self.get, self.put

    def get(self, key: Any) -> torch.Tensor | None:
        """Return the output of an item, on the model's device; None if a rank lacks it."""
        found: torch.Tensor | None = self._own_get(key)
        if found is None:
            found = self._find(key)
            if found is None and self._tensors is not None:
                self._tensors.note_miss()
        return found

    def put(self, key: Any, value: torch.Tensor) -> bool:
        is_kept = bool(self._own_put(key, value))
        name = self._key(key)
        if name is not None and self._ranks.is_first and self._tensors is not None and not self._is_written():
            # The encoder's output may be a part of a batch, and may be changed while it is saved.
            self._tensors.save(name, value.detach().clone())
        return is_kept

    @property
    def name(self) -> str | None:
        """The name of this model's outputs; None while nothing is shared."""
        return self._name

    def close(self) -> None:
        self.saver.close()
        self._client.close()

    # ---- how

    def _find(self, key: Any) -> torch.Tensor | None:
        found = self._look_up(key)
        states = self._ranks.gather((found is not None, self._is_written()))
        if any(is_written for _, is_written in states):
            self._make_name()
            return None
        if found is None or not all(is_found for is_found, _ in states):
            return None
        self.num_found += 1
        self._own_put(key, found)
        return found

    def _is_written(self) -> bool:
        """Return whether the tower may have other weights than those of its name."""
        return self._name is not None and self._writes.is_written()

    def _look_up(self, key: Any) -> torch.Tensor | None:
        name = self._key(key)
        if name is None or self._tensors is None:
            return None
        try:
            found = self._tensors.get(name)
        except Exception as error:  # whatever a device raises: the other ranks wait for this one's answer
            _LOG.warning("mmcached: an encoder output in the store cannot be read: %s", error)
            return None
        if found is not None and found.shape[0] != key[2]:
            self._tensors.drop(name)
            return None
        return found

    def _key(self, key: Any) -> str | None:
        """Return the key of an item in the store; None where TensorRT-LLM's key has another form."""
        if self._name is None or not isinstance(key, tuple) or len(key) != 4:
            return None
        modality, item_hash, _, arguments = key
        if not isinstance(modality, str) or not isinstance(arguments, str) or len(item_hash) != HASH_INTS:
            return None
        return output_key(self._name, blake3(json.dumps(key).encode()).hexdigest(16))

    def _make_name(self) -> None:
        """Read the tower, and name its outputs in agreement with the other ranks; nothing is shared if one cannot."""
        towers = self._ranks.gather(self._read_tower())
        name = None
        try:
            if None not in towers:
                rows = rows_of(self._model, towers, self._client, self._settings.namespace)
                name = note_name(self._client.run_dir, rows)
        except Exception as error:  # file errors, and whatever a model of another version lacks
            self._warn(error)
        names = self._ranks.gather(name)
        self._name = None if None in names or len(set(names)) > 1 else name
        if self._name is not None:
            _LOG.info("mmcached: encoder outputs are shared with the TensorRT-LLM processes of this host")

    def _read_tower(self) -> str | None:
        try:
            tensors = tower_tensors(self._model)
            self._writes.begin(self._model, tensors.keys())
            if self._tensors is None:
                device = device_of(
                    str(next(iter(tensors.values())).device), max_pinned_bytes=self._settings.max_pinned_bytes
                )
                self._tensors = SharedEmbeddings(self._client, self.saver, device, forms_of(self._model))
            return digest_of(tensors)
        except Exception as error:  # whatever a device or a quantiser raises: the engine goes on without sharing
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        _LOG.warning("mmcached: encoder outputs are not shared: %s: %s", type(error).__name__, error)
