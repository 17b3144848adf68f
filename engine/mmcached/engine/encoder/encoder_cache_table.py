"""Table of the encoder outputs that the workers hold, and of the requests that refer to them.

    (absent) --allocate--> RESERVED --commit--> READY, referred to <--> READY, without reference
                              |                   |                       |
                              |                   +--last reference of    +--evict: the longest without reference
                              +--withdraw, or     |  an old entry            first, only as much as is needed
                                 last reference   v                       v
                                 freed --------> (absent), sent to the workers by `take_freed`

RESERVED: the open step will encode it; the step's requests may refer to it, since a worker encodes before it reads.
Outside a step an allocation is READY at once. A reference belongs to one item of one request.

`new_epoch` (the weights have changed) makes all entries old. An old entry can no longer be found, but keeps its
references and its key; the same content may be encoded again next to it.

Clients name contents: if an item's content has an entry with another number of embeddings, the call raises
`InvalidRequest` and changes nothing, so only the request with the wrong name fails.

Invariant: free slots + sizes of all entries = cache size; freeable slots = free slots + sizes of evictable entries.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from mmcached.engine.encoder.encoder_entry import EncoderEntry, all_entries
from mmcached.engine.steps.request import Request, ScheduledItem
from mmcached.engine.steps.step_log import StepLog
from mmcached.wire.engine_stats import EncoderCacheStats
from mmcached.wire.errors import InvalidRequest, LocalProtocolError


class EncoderCacheTable:
    """Encoder cache entries by content; sizes are in embeddings, and `input_id` is an item's index in its request.

    Attributes:
        num_free_slots: embeddings that fit without eviction.
        num_freeable_slots: embeddings that fit if all entries without reference are evicted.
    """

    _keeps_idle = True
    """Entries without reference stay until they are evicted."""

    def __init__(self, cache_size: int) -> None:
        self.cache_size = cache_size
        self.epoch = 0
        self.num_free_slots = self.num_freeable_slots = cache_size
        self._num_allocated = self._num_hits = self._num_evicted = 0
        self.reset()

    def _content(self, request: Request, input_id: int) -> str:
        """Return the content name by which items share an entry."""
        return request.features[input_id].mm_hash

    # ---- lookups

    def entry_key(self, request: Request, input_id: int) -> str:
        entry = self._held.get(request.request_id, {}).get(input_id)
        return entry.key if entry is not None else self._key(self._content(request, input_id))

    def has_cache(self, request: Request, input_id: int) -> bool:
        """Return whether there is an entry that the item refers to, or may refer to."""
        return self._entry(request, input_id) is not None

    def get_cached_num_encoder_embeds(self, request: Request, input_id: int) -> int | None:
        """Return the size of the item's entry, or None if there is none; never raises."""
        held = self._held.get(request.request_id, {})
        entry = held.get(input_id) or self._entries.get(self._content(request, input_id))
        return None if entry is None else entry.num_embeds

    def num_embeds_to_pin(self, request: Request, input_id: int) -> int:
        """Return the decrease of `num_freeable_slots` if the item refers to its entry."""
        entry = self._entry(request, input_id)
        return 0 if entry is None or entry.num_references else entry.num_embeds

    def can_allocate(
        self,
        request: Request,
        input_id: int,
        encoder_compute_budget: int | None = None,
        num_embeds_to_schedule: int = 0,
    ) -> bool:
        """Return whether an entry for the item fits besides `num_embeds_to_schedule` planned embeddings.

        `encoder_compute_budget` is the number of embeddings that may still be computed in this step; None for no limit.
        """
        num_embeds = request.features[input_id].num_embeds
        if encoder_compute_budget is not None and num_embeds > encoder_compute_budget:
            return False
        return num_embeds + num_embeds_to_schedule <= self.num_freeable_slots

    def get_cached_input_ids(self, request: Request) -> set[int]:
        return set(self._held.get(request.request_id, ()))

    # ---- references and entries

    def check_and_update_cache(self, request: Request, input_id: int) -> bool:
        """Refer to the item's entry and return True; return False if there is none. Idempotent."""
        held = self._held.get(request.request_id)
        if held is not None and input_id in held:
            return True
        entry = self._entries.get(self._content(request, input_id))
        if entry is None:
            return False
        if entry.num_embeds != request.features[input_id].num_embeds:
            raise self._other_size(request, input_id, entry)
        if not entry.num_references:
            del self._evictable[entry.content]
            self.num_freeable_slots -= entry.num_embeds
        entry.num_references += 1
        self._held.setdefault(request.request_id, {})[input_id] = entry
        self._num_hits += 1
        return True

    def allocate(self, request: Request, input_id: int) -> None:
        """Create the item's entry and refer to it, evicting as much as needed.

        Raises `LocalProtocolError`, with no change, if the item has an entry already or does not fit.
        """
        num_embeds, content = request.features[input_id].num_embeds, self._content(request, input_id)
        held = self._held.get(request.request_id, ())
        if content in self._entries or input_id in held or num_embeds > self.num_freeable_slots:
            raise self._refusal(request, input_id)
        while num_embeds > self.num_free_slots:
            self._drop(self._evictable.popitem(last=False)[1])
            self._num_evicted += 1
        entry = EncoderEntry(content, self._key(content), num_embeds, 1)
        self._entries[content] = entry
        self.num_free_slots -= num_embeds
        self.num_freeable_slots -= num_embeds
        self._held.setdefault(request.request_id, {})[input_id] = entry
        self._step.discard(entry.key)
        self._num_allocated += 1
        if self._step.is_open:
            self._reserved[entry.key] = entry, request.request_id, input_id

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        held = self._held.get(request.request_id)
        if held is None or input_id not in held:
            return
        entry = held.pop(input_id)
        if not held:
            del self._held[request.request_id]
        self._release(entry)

    def free(self, request: Request) -> None:
        for entry in self._held.pop(request.request_id, {}).values():
            self._release(entry)

    def take_freed(self) -> list[str]:
        """Return and clear the keys that workers must drop before they encode, except keys allocated again."""
        return self._step.take_notices()

    def new_epoch(self) -> int:
        """Make all entries old, also those of an open step, drop those without reference; return the new epoch."""
        for entry in self._evictable.values():
            self.num_free_slots += entry.num_embeds
            self._step.add(entry.key)
        for entry in self._entries.values():
            entry.is_old = True
        self._entries.clear()
        self._evictable.clear()
        self.epoch += 1
        return self.epoch

    def reset(self) -> None:
        """Clear all state, references and an open step included, without telling the workers."""
        self.num_free_slots = self.num_freeable_slots = self.cache_size
        self._entries: dict[str, EncoderEntry] = {}  # by content, of this epoch
        self._evictable: OrderedDict[str, EncoderEntry] = OrderedDict()  # entries without reference
        self._held: dict[int, dict[int, EncoderEntry]] = {}  # request -> item -> its entry; never an empty dict
        self._reserved: dict[str, tuple[EncoderEntry, int, int]] = {}  # by key: request and item that allocated it
        self._step: StepLog[str] = StepLog()

    # ---- steps

    def begin_step(self, step_id: int) -> None:
        """Open a step, in which allocations are RESERVED; raises `LocalProtocolError` if another step is open."""
        self._step.begin(step_id)

    def commit(self, step_id: int) -> None:
        """End a step that was computed: RESERVED becomes READY; raises `LocalProtocolError` if it is not open."""
        self._step.commit(step_id)
        self._reserved.clear()

    def withdraw(self, step_id: int) -> None:
        """End a step that was not computed: drop its reservations and send freed keys again; raises as `commit`."""
        self._step.withdraw(step_id)
        if not self._reserved:
            return
        for request_id, held in list(self._held.items()):
            for input_id in [input_id for input_id, entry in held.items() if entry.key in self._reserved]:
                self._release(held.pop(input_id))  # the last reference drops the entry
            if not held:
                del self._held[request_id]

    def reserved_inputs(self, requests: Mapping[int, Request]) -> list[ScheduledItem]:
        """Return the items that the open step must encode, in the order of reservation, one per entry.

        `requests` must have all requests that refer to an entry of the step.
        """
        found = []
        for key, (entry, *made_for) in self._reserved.items():
            request_id, input_id = self._reference(entry, *made_for)
            found.append(ScheduledItem(requests[request_id], input_id, key))
        return found

    # ---- inspection

    def holders(self) -> set[int]:
        return set(self._held)

    def ready_keys(self) -> set[str]:
        """Return the keys that every worker holds after a committed step."""
        return {entry.key for entry in self._all_entries()} - self._reserved.keys()

    def ready_contents(self) -> set[str]:
        return {content for content, entry in self._entries.items() if entry.key not in self._reserved}

    def lingering_keys(self) -> set[str]:
        """Return the keys without entry that a worker may still hold, since no committed step has dropped them."""
        return self._step.unconfirmed() - {entry.key for entry in self._all_entries()}

    def stats(self) -> EncoderCacheStats:
        return EncoderCacheStats(
            queries=self._num_allocated + self._num_hits,
            hits=self._num_hits,
            embeds_used=self.cache_size - self.num_free_slots,
            embeds_total=self.cache_size,
            evictions=self._num_evicted,
        )

    # ---- the table

    def _key(self, content: str) -> str:
        return f"{content}@{self.epoch}" if self.epoch or "@" in content else content

    def _entry(self, request: Request, input_id: int) -> EncoderEntry | None:
        held = self._held.get(request.request_id)
        if held is not None and input_id in held:
            return held[input_id]
        return self._find(request, input_id)

    def _find(self, request: Request, input_id: int) -> EncoderEntry | None:
        entry = self._entries.get(self._content(request, input_id))
        if entry is not None and entry.num_embeds != request.features[input_id].num_embeds:
            raise self._other_size(request, input_id, entry)
        return entry

    def _other_size(self, request: Request, input_id: int, entry: EncoderEntry) -> InvalidRequest:
        limit = f"an item with the same content has {entry.num_embeds}"
        return InvalidRequest(f"features[{input_id}].num_embeds", request.features[input_id].num_embeds, limit)

    def _refusal(self, request: Request, input_id: int) -> LocalProtocolError:
        item = f"item {input_id} of {request}"
        if self._entry(request, input_id) is not None:
            return LocalProtocolError(f"{item} is cached already: call check_and_update_cache")
        num_embeds = request.features[input_id].num_embeds
        return LocalProtocolError(f"{item}: {num_embeds} embeddings, {self.num_freeable_slots} freeable")

    def _all_entries(self) -> list[EncoderEntry]:
        return all_entries(self._entries, self._held)

    def _reference(self, entry: EncoderEntry, request_id: int, input_id: int) -> tuple[int, int]:
        """Return the given reference to an entry if it still exists, else any other."""
        if self._held.get(request_id, {}).get(input_id) is entry:
            return request_id, input_id
        references = ((request_id, held) for request_id, held in self._held.items())
        return next((req, item) for req, held in references for item, found in held.items() if found is entry)

    def _release(self, entry: EncoderEntry) -> None:
        """Remove a reference. With the last one an entry of the current epoch that no open step encodes becomes
        evictable, if idle entries are kept; any other entry is dropped.
        """
        entry.num_references -= 1
        if entry.num_references:
            return
        self.num_freeable_slots += entry.num_embeds
        if self._keeps_idle and not entry.is_old and entry.key not in self._reserved:
            self._evictable[entry.content] = entry
        else:
            self._reserved.pop(entry.key, None)
            self._drop(entry)

    def _drop(self, entry: EncoderEntry) -> None:
        if not entry.is_old:
            del self._entries[entry.content]
        self.num_free_slots += entry.num_embeds
        self._step.add(entry.key)
