"""A processor cache for vLLM's render and API servers that shares items with all processes of the host.

    is_cached ──claim_many──> hit: cached │ claim: vLLM processes it here │ pending: wait for the other process
        └──────get_many, while items are processed faster than a claim would pay
    get_and_update_item ─────> hit: counts at once, pixels when they are read │ processed: returned, and put meanwhile

`MmcachedProcessorCache` stands before vLLM's own cache in the API process, and takes the items that can be shared. With
`MultiModalProcessorOnlyCache` (`vllm launch render`, tokenize requests, servers with several API processes) it returns
whole items; with a sender cache (servers with one API process) it returns handles, which the engine opens.

A new item is answered as without this cache, and `ItemSaver` puts it into the store. Until that has ended it is found
in this process. A sender cache and its engine keep new items too, as without this cache, and are asked first.

Waits cannot deadlock: a request that holds a claim does not wait, and the saver waits for no claim. Items that cannot
be shared (named by a client, or no service) are left to vLLM's cache.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from vllm.multimodal.cache import BaseMultiModalProcessorCache, MultiModalProcessorOnlyCache
from vllm.multimodal.inputs import MultiModalKwargsItem
from vllm.utils.cache import CacheInfo

from mmcached.cache.fingerprints import fingerprint
from mmcached.client import Claim, Client, Hit
from mmcached.client.saver import NotKept
from mmcached.integrations.processed_inputs.item_saver import ItemSaver
from mmcached.integrations.processed_inputs.items import ProcessedItem, ProcessingTimes, keys_of, wait_for_one
from mmcached.integrations.processed_inputs.vllm_handles import HANDLE, LentPixels
from mmcached.integrations.processed_inputs.vllm_items import (
    Elements,
    LazyItem,
    NotPlain,
    Updates,
    elements_of,
    item_bytes,
    to_processed,
    updates_of,
)
from mmcached.integrations.processed_inputs.vllm_named import NamedItems
from mmcached.integrations.processed_inputs.vllm_names import processor_parts
from mmcached.integrations.vllm.keys import is_content_hash

MAX_WAIT_S = 10.0
"""The longest wait for other processes."""
MAX_NAMED = 65_536
"""Names that vLLM's own cache may have; the oldest leave it."""
_CALL_S = 1.0

_LOG = logging.getLogger("vllm.mmcached")

_New = tuple[MultiModalKwargsItem, Updates]
"""An item that vLLM has processed."""
_Named = tuple[str, _New]
"""The same with vLLM's hash of it, which is a client's name for a named item."""


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
        num_not_shared: Processed items that other processes cannot find.
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
        self._has_named = has_named
        self._contents: dict[str, str] = {}  # by vLLM's hash, which is a uuid for named items
        self._client = client
        self._counts_only = counts_only
        self._clock = clock
        self._wait = wait
        self._processor = fingerprint(processor_parts(model_config, client))
        self._lost: deque[tuple[str, _Named]] = deque()
        self._saver: ItemSaver[_Named] = ItemSaver(client, self._processor, self._note_lost, counts_only=counts_only)
        self.named = NamedItems(client, self._saver, lambda content: keys_of(self._processor, content)[0])
        self._in_own: dict[str, str] = {}  # by name: the content with which vLLM's cache got it
        self._replaced: set[str] = set()  # names of the request that vLLM's cache may have with other content
        self._looked_at = 0.0
        self._num_looked = 0
        self._times = ProcessingTimes()
        self._made: dict[str, _New] = {}  # by content: items of this process that are not in the store yet
        self._hits: dict[str, tuple[Hit, Hit | None]] = {}  # by content, as are claims
        self._claims: dict[str, Claim] = {}
        self._reported = CacheInfo(0, 0)

    def is_cached_item(self, mm_hash: str) -> bool:
        """Return whether an item was found or sent recently; vLLM asks this in other threads, and `is_cached` first."""
        is_lent = self._lent is not None and mm_hash in self._lent
        return is_lent or self._is_known(mm_hash)

    def is_cached(self, mm_hashes: list[str]) -> list[bool]:
        names = dict.fromkeys(mm_hashes)
        self._contents |= {each: each for each in names if is_content_hash(each) and each not in self.named}
        if self._has_named:
            for name in names:
                if name in self.named:
                    self._find_named(name)
        missing = [name for name in names if name in self._contents and not self._is_known(name)]
        for name in missing:
            made = self._saver.get(self._contents[name])
            if made is not None:
                self._made[self._contents[name]] = made[1]
        self._keep_lost()  # after the look into the saver: a lost item is in one of both
        self._look([self._contents[name] for name in missing if not self._is_known(name)])
        known = [self._is_known(each) for each in mm_hashes]
        self._looked_at, self._num_looked = self._clock(), known.count(False)
        return known

    def touch_sender_cache_item(self, mm_hash: str) -> None:
        if not self._is_found(mm_hash):
            self._own.touch_sender_cache_item(mm_hash)

    def get_and_update_item(self, mm_item: _New | None, mm_hash: str) -> tuple[MultiModalKwargsItem | None, Updates]:
        content = self._contents.get(mm_hash)
        if mm_item is None:
            self.num_hits += 1
            if content is None or not self._is_found(mm_hash):
                return self._own.get_and_update_item(None, mm_hash)  # type: ignore[no-any-return]
            self.named.bind(mm_hash)
            if content in self._hits:
                return self._found(mm_hash, *self._hits[content])
            return self._whole(mm_hash, self._made[content], content)
        self.num_processed += 1
        # An equal share of the request's time.
        self._times.note((self._clock() - self._looked_at) / max(self._num_looked, 1))
        if content is None or not self.named.is_content(mm_hash, content):
            self.num_not_shared += 1
            return self._to_own(mm_hash, mm_item, mm_hash if content is None else "")
        claim = self._claims.pop(content, None)
        self._saver.save(content, (mm_hash, mm_item), item_bytes(mm_item[0]), _to_processed, claim)
        self.named.bind(mm_hash)
        return self._whole(mm_hash, mm_item, content)

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

    def forget_request(self) -> None:
        """Give back the leases and drop the claims of a request that has ended, with or without an error."""
        self._hits.clear()
        self._made.clear()
        self._contents.clear()
        self._replaced.clear()
        self.named.forget()
        for claim in self._claims.values():
            claim.drop()
        self._claims.clear()
        if self._lent is not None:
            self._lent.end_old()

    def release_sender_touches(self) -> None:
        self.forget_request()
        self._own.release_sender_touches()

    def clear_cache(self) -> None:
        self._own.clear_cache()

    def make_stats(self, *, delta: bool = False) -> CacheInfo:
        now = CacheInfo(self.num_hits, self.num_hits + self.num_processed)
        stats = now - self._reported if delta else now
        if delta:
            self._reported = now
        return stats

    def drain(self, timeout_s: float) -> bool:
        """Wait until new items have been put; return whether that is so."""
        return self._saver.drain(timeout_s)

    def close(self) -> None:
        """Drop items that wait to be put, and end a put in progress."""
        self.forget_request()
        self._saver.close()
        if self._lent is not None:
            self._lent.end_all()
        self._own.close()
        self._client.close()

    # ---- how

    def _is_found(self, mm_hash: str) -> bool:
        content = self._contents.get(mm_hash)
        return content in self._hits or content in self._made

    def _is_known(self, mm_hash: str) -> bool:
        return self._is_found(mm_hash) or (mm_hash not in self._replaced and self._own.is_cached_item(mm_hash))

    def _find_named(self, name: str) -> None:
        """Note the content of a named item. An item without data is not claimed: it cannot be processed here."""
        content, counts = self.named.content_of(name)
        self._contents.pop(name, None)
        if self._in_own.get(name, content) != content:  # the name was forgotten, or has other content now
            self._own.invalidate(name)  # vLLM's cache of type shm keeps it
            self._replaced.add(name)
        if content is None:
            return
        if counts is not None and content not in self._hits and not self._is_known(name):
            self._note(content, counts)
        if self.named.has_data(name) or content in self._hits or self._saver.get(content) is not None:
            self._contents[name] = content

    def _look(self, mm_hashes: list[str]) -> None:
        """Note found items, and claim the rest; wait for other processes if nothing was claimed here."""
        give_up = self._clock() + MAX_WAIT_S
        missing = mm_hashes
        if missing and self._times.are_short:
            self._find(missing)
            return
        while missing:
            pending = []
            by_key = {keys_of(self._processor, each)[0]: each for each in missing if each not in self._claims}
            asked = self._client.claim_many(list(by_key), view=True, timeout_s=_CALL_S) if by_key else []
            for mm_hash, each in zip(by_key.values(), asked, strict=True):
                if isinstance(each, Claim):
                    self._claims[mm_hash] = each
                elif isinstance(each, Hit):
                    self._note(mm_hash, each)
                else:
                    pending.append(mm_hash)
            if self._claims or self._clock() >= give_up:
                return
            missing = pending
            wait_for_one(self._client, [keys_of(self._processor, each)[0] for each in missing], self._wait)

    def _find(self, mm_hashes: list[str]) -> None:
        """Note found items, with one look for all records; claim nothing."""
        kept = slice(0, 1 if self._counts_only else 2)
        keys = [key for each in mm_hashes for key in keys_of(self._processor, each)[kept]]
        found = self._client.get_many(keys, view=True, timeout_s=_CALL_S)
        step = len(keys) // len(mm_hashes)
        for mm_hash, counts, pixels in zip(mm_hashes, found[::step], found[step - 1 :: step], strict=True):
            if counts is not None and pixels is not None:
                self._hits[mm_hash] = counts, None if self._counts_only else pixels

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
        whole = LazyItem(fields, load), updates
        if self._lent is None or pixels is None:
            return whole
        sent = self._lent.lend(mm_hash, fields, pixels)
        return self._to_own(mm_hash, whole, self._contents[mm_hash]) if sent is None else (sent, updates)

    def _whole(self, mm_hash: str, made: _New, content: str) -> tuple[MultiModalKwargsItem | None, Updates]:
        """Return a shared item that was made here: as a whole, unless the engine has it in vLLM's cache."""
        return made if self._lent is None else self._to_own(mm_hash, made, content)

    def _to_own(self, mm_hash: str, made: _New, content: str) -> tuple[MultiModalKwargsItem | None, Updates]:
        """Return what vLLM's cache returns for an item, which it keeps unless it has the name with other content."""
        if self._in_own.get(mm_hash, content) != content and self._own.is_cached_item(mm_hash):
            return made
        if mm_hash != content:
            self._in_own[mm_hash] = content
            if len(self._in_own) > MAX_NAMED:
                oldest = next(iter(self._in_own))
                del self._in_own[oldest]
                self._own.invalidate(oldest)
        return self._own.get_and_update_item(made, mm_hash)  # type: ignore[no-any-return]

    def _note_lost(self, content: str, item: _Named) -> None:
        """Note an item that was not put; the saver calls this in its thread."""
        self._lost.append((content, item))

    def _keep_lost(self) -> None:
        """Leave items that were not put to vLLM's cache; a sender cache has them already."""
        while self._lost:
            content, (mm_hash, mm_item) = self._lost.popleft()
            self.num_not_shared += 1
            if self._lent is None:
                self._to_own(mm_hash, mm_item, content)


def _to_processed(item: _Named) -> ProcessedItem:
    mm_hash, mm_item = item
    try:
        return to_processed(*mm_item)
    except NotPlain as error:
        raise NotKept(f"{mm_hash}: {error}") from error
