"""Sends an item's pixels from vLLM's API process to its engine as a handle: the token of a lease in shared memory.

    API process (P0)     item = counts + field `mmcached_pixels` = token; the lease is kept until the engine has its own
    engine process (P1)  `MmcachedReceiverCache` opens the token; the pixels are loaded when the item is encoded

The pixels of an item whose output is in the engine's encoder cache or in the store are never loaded. Items without a
handle take vLLM's own way, through its own receiver cache, which the sender mirrors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from vllm.multimodal import cache as vllm_cache
from vllm.multimodal.cache import BaseMultiModalReceiverCache
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFeatureSpec,
    MultiModalFieldElem,
    MultiModalKwargsItem,
)

from mmcached.client import Client, Hit, InvalidRequest
from mmcached.integrations.processed_inputs.vllm_items import Elements, LazyItem, elements_of, fields_bytes

HANDLE = "mmcached_pixels"
"""Name of the field that stands for an item's pixels."""
LENT_S, LEAST_LENT_S = 10.0, 1.0
"""The longest that the API process keeps a lease for the engine; and the shortest, above `MAX_LENT_BYTES`."""
MAX_LENT_BYTES = 256 << 20
NO_HANDLES_S = 30.0
"""How long items are sent as a whole after the engine could not open a handle."""
_CALL_S = 1.0
_CacheMiss = getattr(vllm_cache, "MultiModalCacheMissError", None)
"""vLLM's error with which the engine asks the API process to drop items; releases before it fail the request alone."""


class LentPixels:
    """Leases that the API process keeps until the engine has taken its own; a timer ends those of an idle server.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lent: dict[str, tuple[Hit, int, float]] = {}
        self._num_bytes = 0
        self._paused_until = 0.0
        self._timer: threading.Timer | None = None

    def __contains__(self, mm_hash: str) -> bool:
        return mm_hash in self._lent

    @property
    def is_paused(self) -> bool:
        """Whether the engine could not open a handle recently."""
        return self._clock() < self._paused_until

    def lend(self, mm_hash: str, counts: Elements, pixels: Hit) -> MultiModalKwargsItem | None:
        """Return an item with a handle instead of pixels; None if these have no lease, or handles are paused."""
        token = pixels.token
        if token is None or self.is_paused:
            return None
        num_bytes = fields_bytes(pixels.record)
        with self._lock:
            self._end(mm_hash)
            self._lent[mm_hash] = pixels, num_bytes, self._clock()
            self._num_bytes += num_bytes
            self._have_timer()
        handle = MultiModalFieldElem(data=[*token.encode("ascii")], field=MultiModalBatchedField())
        return MultiModalKwargsItem(counts | {HANDLE: handle})

    def pause(self, mm_hash: str) -> bool:
        """Send whole items for a while if the engine could not open this one; return whether it had a handle."""
        if mm_hash in self._lent:
            self._paused_until = self._clock() + NO_HANDLES_S
        return mm_hash in self._lent

    def end_old(self) -> None:
        with self._lock:
            for mm_hash, (_, _, lent_at) in list(self._lent.items()):
                age = self._clock() - lent_at
                if age < LEAST_LENT_S or (age < LENT_S and self._num_bytes <= MAX_LENT_BYTES):
                    return
                self._end(mm_hash)

    def end_all(self) -> None:
        with self._lock:
            self._lent.clear()
            self._num_bytes = 0
            timer = self._timer
        if timer is not None:
            timer.cancel()
            timer.join()

    def _end(self, mm_hash: str) -> None:
        _, num_bytes, _ = self._lent.pop(mm_hash, (None, 0, 0.0))
        self._num_bytes -= num_bytes

    def _have_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(LENT_S, self._ring)
            self._timer.daemon = True
            self._timer.start()

    def _ring(self) -> None:
        self.end_old()
        with self._lock:
            self._timer = None
            if self._lent:
                self._have_timer()


class MmcachedReceiverCache(BaseMultiModalReceiverCache):
    """Opens handles in vLLM's engine process; other items are left to vLLM's own cache.

    Args:
        client: A client that fails open.
        own: vLLM's cache, or None where vLLM has none in this process.
    """

    def __init__(self, client: Client, own: BaseMultiModalReceiverCache | None) -> None:
        super().__init__()
        self._client = client
        self._own = own
        if own is not None:
            # Attach now: a handle can then be opened without the service, which may have died since the look-up.
            client.contains_many([HANDLE], timeout_s=_CALL_S)

    def get_and_update_features(self, mm_features: list[MultiModalFeatureSpec]) -> list[MultiModalFeatureSpec]:
        others, missing = [], []
        for feature in mm_features:
            if feature.data is None or HANDLE not in feature.data:
                others.append(feature)
            elif (item := self._opened(feature.data)) is not None:
                feature.data = item
            else:
                missing.append(feature.mm_hash or feature.identifier)
        # vLLM's cache takes the others even if a handle is missing: the sender has counted them.
        try:
            if self._own is not None and others:
                self._own.get_and_update_features(others)
        except Exception as error:
            if _CacheMiss is None or not isinstance(error, _CacheMiss):
                raise
            missing += error.mm_hashes
        if missing:
            raise RuntimeError(f"pixels of {missing} are gone") if _CacheMiss is None else _CacheMiss(missing)
        return mm_features

    def get_and_update_item(self, mm_item: MultiModalKwargsItem | None, mm_hash: str) -> MultiModalKwargsItem:
        if self._own is not None:
            return self._own.get_and_update_item(mm_item, mm_hash)
        assert mm_item is not None
        return mm_item

    def touch_receiver_cache_item(self, mm_hash: str, mm_item: MultiModalKwargsItem | None = None) -> None:
        if self._own is not None:
            self._own.touch_receiver_cache_item(mm_hash, mm_item)

    def clear_cache(self) -> None:
        if self._own is not None:
            self._own.clear_cache()

    def _opened(self, item: Any) -> LazyItem | None:
        token = bytes(item[HANDLE].data).decode("ascii")
        counts = {name: element for name, element in item.items() if name != HANDLE}
        try:
            pixels = self._client.open(token, view=True, timeout_s=_CALL_S, counts=False)
        except InvalidRequest:
            return None
        if pixels is None:
            return None
        return LazyItem(counts, lambda: elements_of(pixels.record), names=pixels.record)
