"""Per-request encoder cache manager: shares no entries, and drops freed entries at once.

For models whose encoder outputs depend on more than the item, and for encoder-decoder models, which use each output
once.

Source: vLLM 0.9's EncoderCacheManager. Differences: freeing an item without entry changes nothing (there it inflated
the free slots); `allocate` refuses an item that has an entry, or does not fit; an item that was freed and allocated
again is not sent as freed; `cached` and `freed` are copies.
"""

from __future__ import annotations

from mmcached.engine.encoder.encoder_cache_table import EncoderCacheTable
from mmcached.engine.steps.request import Request


class EncoderCacheManager(EncoderCacheTable):
    """Encoder cache manager with entries by request and item index."""

    _keeps_idle = False

    def _content(self, request: Request, input_id: int) -> str:
        return f"{request.request_id}:{input_id}"

    @property
    def cached(self) -> dict[int, set[int]]:
        return {request_id: set(held) for request_id, held in self._held.items()}

    @property
    def freed(self) -> list[tuple[int, int]]:
        """Request ids and item indices of dropped entries that were not sent to the workers yet."""
        return [_request_and_item(key) for key in self._step.pending()]

    def get_freed_ids(self) -> list[tuple[int, int]]:
        """Return and clear `freed`; vLLM's name for `take_freed`."""
        return [_request_and_item(key) for key in self.take_freed()]


def _request_and_item(key: str) -> tuple[int, int]:
    content, _, _ = key.partition("@")
    request_id, _, input_id = content.partition(":")
    return int(request_id), int(input_id)
