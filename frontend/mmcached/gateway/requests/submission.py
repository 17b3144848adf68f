"""Sends requests to engines with their items: chooses an engine, pins the items, builds the message.

    cached or processed items           ──┐
    items whose output an engine loads  ──┴──> which engine? ──> pins ──> AddRequest ──> mirror, figures

If no engine accepts a request now, nothing has changed: no pin, no mirror. The bytes that are pinned for the requests
    of
one engine are limited; further items travel as frames. So do the items of a request that is sent again: its engine
could not use them in the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmcached.gateway.caches.item_cache import ItemCache, OutgoingItem
from mmcached.gateway.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.gateway.processing.processor import GatewayItem
from mmcached.gateway.requests.encoder_outputs import EncoderOutputs, Patience
from mmcached.gateway.requests.engine_choice import EngineChoice
from mmcached.gateway.requests.inline_room import InlineRoom
from mmcached.gateway.requests.item_counts import ItemCounts
from mmcached.gateway.requests.open_requests import OpenRequest, RequestTable, Sent
from mmcached.gateway.requests.request_builder import build_prompt, build_request
from mmcached.gateway.requests.waits import Verb, Wait, Waits
from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.errors import PeerGone
from mmcached.wire.handle import Handle
from mmcached.wire.messages.frontend import Generate


class Submission:
    """Sends the requests of one frontend.

    Args:
        counts: Items by modality.

    Attributes:
        items: The cache of processed items.
        room: Limit of the bytes that travel as frames.
        num_beyond_quota: Number of items sent as frames because too many bytes were pinned for their engine.
    """

    def __init__(
        self,
        config: ServiceConfig,
        connections: EngineConnections,
        requests: RequestTable,
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
        self, request: OpenRequest, given: Mapping[str, GatewayItem], stored: Mapping[str, int], patience: Patience
    ) -> Sent | Verb[None]:
        """Send a request to an engine.

        Args:
            given: Items by key that the cache does not have.
            stored: Key and number of embeddings of items whose output the engine loads.
            patience: Limit of the wait for outputs that other engines encode.

        Returns:
            The request's share of its engine, to be given back; or a wait, after which it is to be called again. If it
            returns a wait, or raises, nothing has changed.

        Raises:
            InvalidRequest: With all placeholders the request is longer than the model accepts.
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
            self._count(request, missing, stored)
        except PeerGone:
            return self.engine()
        finally:
            names = {item.mm_hash for item in held}
            self.items.release([item for item in pinned if item.mm_hash not in names])
        self._engines.sent(chosen)
        self.room.take(inline_bytes := _inline_bytes(items))
        loaded_bytes = self._outputs.stored_bytes(request, stored)
        return Sent(engine, prompt.num_tokens, chosen.num_waiting, held, inline_bytes, loaded_bytes)

    def _count(self, request: OpenRequest, missing: set[str], stored: Mapping[str, int]) -> None:
        self.items.loaded(len(stored))
        found = {key: each.modality for each, key in request.items if key not in missing}
        self.items.count_saved(found, request.message.tenant)
        self._counts.sent(request.media, missing, but=() if self.items.counts_hits else stored)

    def give_back(self, request: OpenRequest) -> None:
        """Release the items and the room of a request; a request that no engine has changes nothing."""
        sent, request.sent = request.sent, None
        if sent is not None:
            sent.end()
            self.items.release(sent.pinned)
            self.room.give_back(sent.inline_bytes)

    @property
    def pinned_bytes(self) -> int:
        """Bytes of all pinned items, each item once."""
        return sum({item.payload: item.nbytes for item in self._pinned()}.values())

    def _pinned(self, engine: EngineConnection | None = None) -> list[OutgoingItem]:
        """Return the items that are pinned for the requests of one engine, or of all."""
        requests = self._requests if engine is None else self._requests.on_engine(engine)
        return [item for request in requests if request.sent is not None for item in request.sent.pinned]

    def _bounded(self, engine: EngineConnection, items: Sequence[OutgoingItem]) -> list[OutgoingItem]:
        """Return the items of a request, as frames beyond the bytes that may be pinned for its engine."""
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
    """Return the bytes of the items that travel as frames, each item once."""
    inline = {item.mm_hash: item.nbytes for item in items if isinstance(item.payload, list)}
    return sum(inline.values())
