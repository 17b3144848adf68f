"""Sends requests to engines, with their items: chooses an engine, has the items leased, builds the message.

    items that are cached, or were processed ──┐
    items whose output an engine loads ────────┴──> which engine? ──> leases ──> AddRequest ──> mirrors and books move

A request that no engine takes now has moved nothing: no lease, no pin, no mirror.
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
from mmcached.frontend.requests.open_requests import OpenRequest, OpenRequests
from mmcached.frontend.requests.request_builder import build_request
from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.errors import PeerGone
from mmcached.wire.handle import LeaseId
from mmcached.wire.messages.engine import AddRequest
from mmcached.wire.sockets.frames import Frame

if TYPE_CHECKING:  # a service without workers imports nothing that processes images
    from mmcached.frontend.processing.processor import Processed


class Submission:
    """What goes to engines.

    Args:
        counts: of items by modality.
    Attributes:
        items: the cache of processed items; another one when there is room for its ring.
        inline: how much travels beside the ring.
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

        def make(routed: Sequence[OutgoingItem], leases: Sequence[LeaseId | None]) -> tuple[AddRequest, list[Frame]]:
            return self._message(request, routed, leases)

        try:
            wanted = [key for key in request.keys if key not in stored]
            missing = set(self.items.missing(wanted))
            resolved = iter(self.items.resolve(wanted, given))
            items = [
                OutgoingItem(key, 0, stored[key], None, has_output=True) if key in stored else next(resolved)
                for key in request.keys
            ]
            chosen = self._engines.choose(request, items)
            if chosen is None or self._outputs.has_to_wait(request, chosen.connection.incarnation, stored):
                return False
            if self.inline.has_to_wait(request.number, _inline_bytes(items)):
                return False
            routed = self._connections.send_with_leases(chosen.connection, items, make)
            self.items.sent([item for item in routed if not item.has_output])
            self.items.loaded(len(stored))
            self._counts.sent(request.media, missing, but=() if self.items.counts_hits else stored)
        except PeerGone:
            return False
        finally:
            self.items.release()
        self.inline.sent(request.number, _inline_bytes(routed))
        self._engines.sent(chosen)
        self._requests.move(request, chosen.connection.incarnation, chosen.num_waiting)
        self._outputs.sent(request, chosen.connection, stored)
        return True

    def _message(
        self, request: OpenRequest, items: Sequence[OutgoingItem], leases: Sequence[LeaseId | None]
    ) -> tuple[AddRequest, list[Frame]]:
        add, payload = build_request(
            request.number,
            request.message,
            request.token_ids,
            items,
            request.media,
            leases=leases,
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
