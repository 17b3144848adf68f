"""Sends requests to engines, with their items: chooses an engine, has the items pinned, builds the message.

    items that are cached, or were processed ──┐
    items whose output an engine loads ────────┴──> which engine? ──> pins ──> AddRequest ──> mirrors and books move

A request that no engine takes now has moved nothing: no pin, no mirror. What one engine's requests have pinned is
bounded; items beyond that travel as frames. So do the items of a request that is sent again: its engine could not use
them in the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mmcached.gateway.caches.item_cache import ItemCache, OutgoingItem
from mmcached.gateway.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.gateway.requests.encoder_outputs import EncoderOutputs, Patience
from mmcached.gateway.requests.engine_choice import EngineChoice
from mmcached.gateway.requests.inline_room import InlineRoom
from mmcached.gateway.requests.item_counts import ItemCounts
from mmcached.gateway.requests.open_requests import OpenRequest, OpenRequests, Sent
from mmcached.gateway.requests.request_builder import build_prompt, build_request
from mmcached.gateway.requests.waits import Verb, Wait, Waits
from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.errors import PeerGone
from mmcached.wire.handle import Handle
from mmcached.wire.messages.frontend import Generate

if TYPE_CHECKING:  # a service without workers imports nothing that processes images
    from mmcached.gateway.processing.processor import Processed


class Submission:
    """What goes to engines.

    Args:
        counts: of items by modality.
    Attributes:
        items: the cache of processed items.
        room: how much travels beside the store.
        num_beyond_quota: items that travelled as frames because their engine's requests had too much pinned.
    """

    def __init__(
        self,
        config: ServiceConfig,
        connections: EngineConnections,
        requests: OpenRequests,
        outputs: EncoderOutputs,
        *,
        items: ItemCache,
        counts: ItemCounts,
        waits: Waits[OpenRequest],
    ) -> None:
        self._config = config
        self._connections = connections
        self._requests = requests
        self._outputs = outputs
        self._counts = counts
        self._engines = EngineChoice(config, connections)
        self._quota_bytes = config.ring_reader_quota_bytes
        self.items = items
        self.room = InlineRoom(config.limits.max_inline_items_mb * MIB, waits)
        self.num_beyond_quota = 0

    def engine(self) -> Verb[None]:
        """Wait until an engine is ready."""
        while not self._connections.ready():
            yield Wait({self._connections})

    def submit(
        self, request: OpenRequest, given: Mapping[str, Processed], stored: Mapping[str, int], patience: Patience
    ) -> Sent | Verb[None]:
        """Send a request; return what it has with its engine then, to be given back, or what it has to wait for first.

        If it has to wait, nothing has moved, nor if this raises.

        Args:
            given: items by key, as far as the cache does not have them.
            stored: key -> number of embeddings, of items whose output the engine loads.
            patience: how long it waits for outputs that other engines encode.
        Raises:
            InvalidRequest: it is longer, with all placeholders, than the model takes.
        """
        wanted = [key for key in request.keys if key not in stored]
        missing = set(self.items.missing(wanted))
        pinned = self.items.resolve(wanted, given)
        held: list[OutgoingItem] = []
        try:
            resolved = iter(self.items.inline(pinned) if request.num_resends else pinned)
            items = [
                OutgoingItem(key, 0, stored[key], None, has_output=True) if key in stored else next(resolved)
                for key in request.keys
            ]
            prompt = build_prompt(request, items, self._config)
            chosen = self._engines.choose(prompt, is_generated=isinstance(request.message, Generate))
            if chosen is None:
                return self.engine()
            engine = chosen.engine
            if (owner := self._outputs.made_elsewhere(request, engine, stored, patience)) is not None:
                return self._outputs.wait(owner, patience)
            if not self.room.has_room(request.number, _inline_bytes(items)):
                return self.room.wait(request.number)
            items = self._bounded(engine, items)
            message, payload = build_request(
                request,
                prompt,
                items,
                mirror_seq=self.items.next_mirror_seq,
                store_epoch=self._outputs.store_epoch,
                takes_keys=request.takes_keys and self._config.limits.output_wait_s > 0,
            )
            self._connections.send(engine, message, payload)
            held = [item for item in items if isinstance(item.payload, Handle)]
            self.items.sent([item for item in items if not item.has_output])
            self.items.loaded(len(stored))
            self._counts.sent(request.media, missing, but=() if self.items.counts_hits else stored)
        except PeerGone:
            return self.engine()
        finally:
            names = {item.mm_hash for item in held}
            self.items.release([item for item in pinned if item.mm_hash not in names])
        self._engines.sent(chosen)
        self.room.take(inline_bytes := _inline_bytes(items))
        loaded_bytes = self._outputs.stored_bytes(request, stored)
        return Sent(engine, prompt.num_tokens, chosen.num_waiting, held, inline_bytes, loaded_bytes)

    def give_back(self, request: OpenRequest) -> None:
        """Let go of what a request has with an engine; of one that no engine has, nothing."""
        sent, request.sent = request.sent, None
        if sent is not None:
            sent.end()
            self.items.release(sent.pinned)
            self.room.give_back(sent.inline_bytes)

    @property
    def pinned_bytes(self) -> int:
        """Bytes that are pinned, of each item once."""
        return sum({item.payload: item.nbytes for item in self._pinned()}.values())

    def _pinned(self, engine: EngineConnection | None = None) -> list[OutgoingItem]:
        """Return the items that are pinned, those for the requests of one engine or all."""
        requests = self._requests if engine is None else self._requests.on_engine(engine)
        return [item for request in requests if request.sent is not None for item in request.sent.pinned]

    def _bounded(self, engine: EngineConnection, items: Sequence[OutgoingItem]) -> list[OutgoingItem]:
        """Return the items of a request, those as frames that an engine has no room for."""
        if self._quota_bytes is None:
            return list(items)
        pinned = {item.mm_hash: item.nbytes for item in self._pinned(engine)}
        bounded = []
        for item in items:
            if isinstance(item.payload, Handle) and item.mm_hash not in pinned:
                if sum(pinned.values()) + item.nbytes > self._quota_bytes:
                    self.num_beyond_quota += 1
                    bounded += self.items.inline([item])
                    continue
                pinned[item.mm_hash] = item.nbytes
            bounded.append(item)
        return bounded


def _inline_bytes(items: Sequence[OutgoingItem]) -> int:
    """Return the bytes of items that travel as frames; each travels once."""
    inline = {item.mm_hash: item.nbytes for item in items if isinstance(item.payload, list)}
    return sum(inline.values())
