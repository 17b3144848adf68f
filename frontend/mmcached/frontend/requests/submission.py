"""Sends requests to engines, with their items: chooses an engine, has the items pinned, builds the message.

    items that are cached, or were processed ──┐
    items whose output an engine loads ────────┴──> which engine? ──> pins ──> AddRequest ──> mirrors and books move

A request that no engine takes now has moved nothing: no pin, no mirror. One that is sent again has its items sent as
frames: its engine could not use them in the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mmcached.frontend.caches.item_cache import ItemCache, OutgoingItem
from mmcached.frontend.engines.engine_connections import EngineConnections
from mmcached.frontend.requests.encoder_outputs import EncoderOutputs
from mmcached.frontend.requests.engine_choice import EngineChoice
from mmcached.frontend.requests.inline_items import InlineItems
from mmcached.frontend.requests.item_counts import ItemCounts
from mmcached.frontend.requests.item_pins import ItemPins
from mmcached.frontend.requests.open_requests import OpenRequest, OpenRequests
from mmcached.frontend.requests.request_builder import build_request
from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.errors import PeerGone
from mmcached.wire.handle import Handle
from mmcached.wire.messages.engine import AddRequest
from mmcached.wire.sockets.frames import Frame

if TYPE_CHECKING:  # a service without workers imports nothing that processes images
    from mmcached.frontend.processing.processor import Processed


class Submission:
    """What goes to engines.

    Args:
        counts: of items by modality.
    Attributes:
        items: the cache of processed items.
        inline: how much travels beside the store.
        pins: what lies in the store for open requests.
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
    ) -> None:
        self._config = config
        self._connections = connections
        self._requests = requests
        self._outputs = outputs
        self._counts = counts
        self._engines = EngineChoice(config, connections, requests)
        self.items = items
        self.inline = InlineItems(config.limits.max_inline_items_mb * MIB)
        self.pins = ItemPins(items, config.ring_reader_quota_bytes)

    @property
    def is_possible(self) -> bool:
        """Whether an engine is ready."""
        return self._engines.is_possible

    def submit(self, request: OpenRequest, given: Mapping[str, Processed], stored: Mapping[str, int]) -> bool:
        """Send a request; return False if no engine is there, or it has to wait. Nothing has moved then, nor if this
        raises.

        Args:
            given: items by key, as far as the cache does not have them.
            stored: key -> number of embeddings, of items whose output the engine loads.
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
            chosen = self._engines.choose(request, items)
            if chosen is None or self._outputs.has_to_wait(request, chosen.connection.incarnation, stored):
                return False
            if self.inline.has_to_wait(request.number, _inline_bytes(items)):
                return False
            items = self.pins.bounded(chosen.connection.incarnation, items)
            message, payload = self._message(request, items)
            self._connections.send(chosen.connection, message, payload)
            held = [item for item in items if isinstance(item.payload, Handle)]
            self.items.sent([item for item in items if not item.has_output])
            self.items.loaded(len(stored))
            self._counts.sent(request.media, missing, but=() if self.items.counts_hits else stored)
        except PeerGone:
            return False
        finally:
            names = {item.mm_hash for item in held}
            self.items.release([item for item in pinned if item.mm_hash not in names])
        self.pins.sent(request.number, chosen.connection.incarnation, held)
        self.inline.sent(request.number, _inline_bytes(items))
        self._engines.sent(chosen)
        self._requests.move(request, chosen.connection.incarnation, chosen.num_waiting)
        self._outputs.sent(request, chosen.connection, stored)
        return True

    def leave(self, number: int) -> None:
        """Let go of what a request has with an engine; an unknown one changes nothing."""
        self.inline.leave(number)
        self.pins.leave(number)

    def numbers(self) -> set[int]:
        """Return the requests of which something is noted."""
        return self.inline.numbers() | self.pins.numbers()

    def _message(self, request: OpenRequest, items: Sequence[OutgoingItem]) -> tuple[AddRequest, list[Frame]]:
        add, payload = build_request(
            request.number,
            request.message,
            request.token_ids,
            items,
            request.media,
            mirror_seq=self.items.next_mirror_seq,
            store_epoch=self._outputs.store_epoch,
            takes_keys=request.takes_keys and self._config.limits.output_wait_s > 0,
            traceparent="" if request.span is None else request.span.traceparent,
            config=self._config,
        )
        request.num_prompt_tokens = len(add.prompt_token_ids)
        return add, payload


def _inline_bytes(items: Sequence[OutgoingItem]) -> int:
    """Return the bytes of items that travel as frames; each travels once."""
    inline = {item.mm_hash: item.nbytes for item in items if isinstance(item.payload, list)}
    return sum(inline.values())
