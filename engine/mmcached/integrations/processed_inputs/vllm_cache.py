"""A processor cache for vLLM's render and API servers that shares items with all processes of the host.

    is_cached ──claim_many──> hit: cached │ claim: vLLM processes it here │ pending: wait for the other process
    get_and_update_item ─────> hit: counts at once, pixels when they are read │ processed: put, the claim ends

`MmcachedProcessorCache` stands before vLLM's own cache in the API process, and takes the items that can be shared. With
`MultiModalProcessorOnlyCache` (`vllm launch render`, tokenize requests, servers with several API processes) it returns
whole items; with a sender cache (servers with one API process) it returns handles, which the engine opens.

Waits cannot deadlock: a process that holds a claim does not wait. Items that cannot be shared (named by a client, or no
service) are left to vLLM's cache.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from vllm.multimodal.cache import BaseMultiModalProcessorCache, MultiModalProcessorOnlyCache
from vllm.multimodal.inputs import MultiModalKwargsItem
from vllm.utils.cache import CacheInfo

from mmcached.cache.fingerprints import fingerprint
from mmcached.client import Claim, Client, Hit, InvalidRequest
from mmcached.integrations.processed_inputs.items import ProcessedItem, keys_of
from mmcached.integrations.processed_inputs.vllm_handles import HANDLE, LentPixels
from mmcached.integrations.processed_inputs.vllm_items import (
    Elements,
    LazyItem,
    NotPlain,
    Updates,
    elements_of,
    to_processed,
    updates_of,
)
from mmcached.integrations.processed_inputs.vllm_named import NamedItems
from mmcached.integrations.processed_inputs.vllm_names import processor_parts
from mmcached.integrations.vllm.keys import says_what_it_is

MAX_CLAIM_S = 10.0
"""The longest wait for other processes; also the age at which a claim is dropped whose item vLLM did not process."""
_POLL_S = 0.005
_POLLS = 50
"""Number of polls before the claims are asked for again."""
_CALL_S = 1.0

_LOG = logging.getLogger("vllm.mmcached")


class PixelsNotKept(Exception):
    """A server that keeps only counts was asked for pixels."""


class MmcachedProcessorCache(BaseMultiModalProcessorCache):
    """vLLM's cache of processed items, shared with all processes of the host. Used by one thread, as vLLM's own.

    Args:
        client: A client that fails open: without a service everything is a miss.
        own: vLLM's cache, for items that are not shared; default a cache of whole items.
        counts_only: Keep and read no pixels: for servers that return only counts (`mm_payload="none"`).
        has_named: Also share items that clients have named (`uuid`): the name decides the content.
        clock: Monotonic seconds.

    Attributes:
        num_hits: Items that were found.
        num_processed: Items that vLLM has processed here.
        num_not_shared: Processed items that are kept only in this process.
        named: The named items of a request.
    """

    def __init__(
        self,
        model_config: Any,
        client: Client,
        *,
        own: BaseMultiModalProcessorCache | None = None,
        counts_only: bool = False,
        has_named: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self.num_hits = self.num_processed = self.num_not_shared = 0
        self._own = MultiModalProcessorOnlyCache(model_config) if own is None else own
        self._lent = None if isinstance(self._own, MultiModalProcessorOnlyCache) else LentPixels(clock)
        self.named = NamedItems(client)
        self._has_named = has_named
        self._contents: dict[str, str] = {}  # by vLLM's hash, which is a uuid for named items
        self._client = client
        self._counts_only = counts_only
        self._clock = clock
        self._wait = wait
        self._processor = fingerprint(processor_parts(model_config, client))
        self._hits: dict[str, tuple[Hit, Hit | None]] = {}  # by content, as are claims
        self._claims: dict[str, tuple[Claim, float]] = {}
        self._reported = CacheInfo(0, 0)

    def is_cached_item(self, mm_hash: str) -> bool:
        """Return whether an item was found or sent recently; vLLM asks this in other threads, and `is_cached` first."""
        is_lent = self._lent is not None and mm_hash in self._lent
        return is_lent or self._is_hit(mm_hash) or self._own.is_cached_item(mm_hash)

    def is_cached(self, mm_hashes: list[str]) -> list[bool]:
        self._drop_old_claims()
        names = dict.fromkeys(mm_hashes)
        self._contents |= {each: each for each in names if says_what_it_is(each) and each not in self.named}
        if self._has_named:
            self._find_named([each for each in names if each in self.named])
        self._look([each for each in map(self._contents.get, names) if each is not None and each not in self._hits])
        return [self._is_hit(each) or self._own.is_cached_item(each) for each in mm_hashes]

    def touch_sender_cache_item(self, mm_hash: str) -> None:
        if not self._is_hit(mm_hash):
            self._own.touch_sender_cache_item(mm_hash)

    def get_and_update_item(
        self, mm_item: tuple[MultiModalKwargsItem, Updates] | None, mm_hash: str
    ) -> tuple[MultiModalKwargsItem | None, Updates]:
        if mm_item is None:
            self.num_hits += 1
            if self._is_hit(mm_hash):
                self.named.bind(mm_hash)
                return self._found(mm_hash, *self._hits[self._contents[mm_hash]])
            return self._own.get_and_update_item(None, mm_hash)  # type: ignore[no-any-return]
        self.num_processed += 1
        content = self._contents.get(mm_hash)
        processed = None if content is None else self._share(content, mm_item)
        if processed is not None:
            self.named.bind(mm_hash)
        if processed is None or content is None:
            self.num_not_shared += 1
        elif self._lent is None:
            return mm_item
        elif (sent := self._lend_new(self._lent, mm_hash, content, mm_item[0], processed)) is not None:
            return sent, mm_item[1]
        return self._own.get_and_update_item(mm_item, mm_hash)  # type: ignore[no-any-return]

    def invalidate(self, mm_hash: str) -> None:
        """Called when the engine lacks an item that was sent without its data."""
        if self._lent is not None and self._lent.pause(mm_hash):
            _LOG.warning("the engine could not open %s in shared memory; items are sent to it for a while", mm_hash)
        self._own.invalidate(mm_hash)

    def validate_input_item(self, mm_item: MultiModalKwargsItem, mm_hash: str) -> None:
        """Refuse a handle in an item that a client has sent: it would name another tenant's memory."""
        if HANDLE in mm_item:
            raise ValueError(f"an item of a request has the field {HANDLE}")
        self._own.validate_input_item(mm_item, mm_hash)

    def begin_request(self) -> None:
        """Forget the last request, if it failed or vLLM has not called `release_sender_touches` (before 0.32)."""
        self._hits.clear()
        self._contents.clear()
        self.named.forget()
        for claim, _ in self._claims.values():
            claim.drop()
        self._claims.clear()
        if self._lent is not None:
            self._lent.end_old()

    def release_sender_touches(self) -> None:
        self.begin_request()
        self._own.release_sender_touches()

    def clear_cache(self) -> None:
        self._own.clear_cache()

    def make_stats(self, *, delta: bool = False) -> CacheInfo:
        now = CacheInfo(self.num_hits, self.num_hits + self.num_processed)
        stats = now - self._reported if delta else now
        if delta:
            self._reported = now
        return stats

    def close(self) -> None:
        self.begin_request()
        if self._lent is not None:
            self._lent.end_all()
        self._own.close()
        self._client.close()

    # ---- how

    def _is_hit(self, mm_hash: str) -> bool:
        return self._contents.get(mm_hash) in self._hits

    def _find_named(self, names: list[str]) -> None:
        """Note the contents of named items. An item without data is not claimed: it cannot be processed here."""
        for name in names:
            content, has_data = self.named.content_of(name)
            self._contents.pop(name, None)
            counts = None
            if content is not None and not has_data and content not in self._hits:
                counts = self._client.get(keys_of(self._processor, content)[0], view=True)
            if counts is not None and content is not None:
                self._note(content, counts)
            if content is not None and (has_data or content in self._hits):
                self._contents[name] = content

    def _look(self, mm_hashes: list[str]) -> None:
        """Note found items, and claim the rest; wait for other processes if nothing was claimed here."""
        give_up = self._clock() + MAX_CLAIM_S
        missing = mm_hashes
        while missing:
            pending = []
            by_key = {keys_of(self._processor, each)[0]: each for each in missing if each not in self._claims}
            found = self._client.claim_many(list(by_key), view=True, timeout_s=_CALL_S) if by_key else []
            for mm_hash, each in zip(by_key.values(), found, strict=True):
                if isinstance(each, Claim):
                    self._claims[mm_hash] = each, self._clock()
                elif isinstance(each, Hit):
                    self._note(mm_hash, each)
                else:
                    pending.append(mm_hash)
            if self._claims or self._clock() >= give_up:
                return
            missing = pending
            self._wait_for_one(missing)

    def _wait_for_one(self, mm_hashes: list[str]) -> None:
        """Return when an item is in the store, or after `_POLLS` polls: the process that makes them may have died."""
        keys = [keys_of(self._processor, each)[0] for each in mm_hashes]
        for _ in range(_POLLS if keys else 0):
            if any(self._client.contains_many(keys, timeout_s=_CALL_S)):
                return
            self._wait(_POLL_S)

    def _note(self, mm_hash: str, counts: Hit) -> None:
        # The lease keeps the pixels readable for later; nothing is read of them here.
        pixels = None if self._counts_only else self._client.get(keys_of(self._processor, mm_hash)[1], view=True)
        if pixels is not None or self._counts_only:
            self._hits[mm_hash] = counts, pixels

    def _found(self, mm_hash: str, counts: Hit, pixels: Hit | None) -> tuple[MultiModalKwargsItem | None, Updates]:
        def load() -> Elements:
            if pixels is None:
                raise PixelsNotKept("this server keeps counts only, and was asked for pixels")
            return elements_of(pixels.record)

        fields, updates = elements_of(counts.record["fields"]), updates_of(counts.record)
        if self._lent is None or pixels is None:
            return LazyItem(fields, load), updates
        sent = self._lent.lend(mm_hash, fields, pixels)
        return (
            (sent, updates)
            if sent is not None
            else self._own.get_and_update_item((LazyItem(fields, load), updates), mm_hash)
        )

    def _lend_new(
        self, lent: LentPixels, mm_hash: str, content: str, item: MultiModalKwargsItem, processed: ProcessedItem
    ) -> MultiModalKwargsItem | None:
        """Return an item that was just put, with a handle; None if its record has no lease."""
        (pixels,) = self._client.get_many([keys_of(self._processor, content)[1]], view=True, counts=False)
        counts = {name: element for name, element in item.items() if name not in processed.pixels}
        return None if pixels is None else lent.lend(mm_hash, counts, pixels)

    def _share(self, mm_hash: str, mm_item: tuple[MultiModalKwargsItem, Updates]) -> ProcessedItem | None:
        """Put an item; return its records if other processes can find it."""
        of_counts, of_pixels = keys_of(self._processor, mm_hash)
        claim, _ = self._claims.pop(mm_hash, (None, 0.0))
        try:
            processed = to_processed(*mm_item)
            if self._counts_only or self._client.put(of_pixels, processed.pixels, timeout_s=_CALL_S):
                taken, claim = claim, None
                if self._client.put(of_counts, processed.counts, claim=taken, timeout_s=_CALL_S):
                    return processed
        except (NotPlain, InvalidRequest) as error:
            _LOG.debug("%s is not shared: %s", mm_hash, error)
        finally:
            if claim is not None:
                claim.drop()
        return None

    def _drop_old_claims(self) -> None:
        for mm_hash, (claim, made_at) in list(self._claims.items()):
            if self._clock() - made_at > MAX_CLAIM_S:
                claim.drop()
                del self._claims[mm_hash]
