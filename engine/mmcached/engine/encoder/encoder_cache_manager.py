"""The per-request encoder cache manager shares nothing, and drops what is freed at once.

For models whose encoder outputs depend on more than the item, and for encoder-decoder models, which use each once.

Source: vLLM 0.9's EncoderCacheManager, whose calls work here. Differences: freeing what is not held changes nothing
(there it inflated the free slots); `allocate` refuses what is there already, or does not fit; a freed item that was
allocated again is not sent; `cached` and `freed` are copies.
"""

from __future__ import annotations

from mmcached.engine.encoder.encoder_cache_table import EncoderCacheTable
from mmcached.engine.steps.request import Request


class EncoderCacheManager(EncoderCacheTable):
    """Entries by request and item index."""

    _keeps_idle = False

    def _content(self, request: Request, input_id: int) -> str:
        return f"{request.request_id}:{input_id}"

    @property
    def cached(self) -> dict[int, set[int]]:
        """Indexes of the items that have an entry, by request."""
        return {request_id: set(held) for request_id, held in self._held.items()}

    @property
    def freed(self) -> list[tuple[int, int]]:
        """Request id and index of the items that have been dropped, and not been sent."""
        return [_request_and_item(key) for key in self._step.pending()]

    def get_freed_ids(self) -> list[tuple[int, int]]:
        """Return and clear `freed`; vLLM's name for `take_freed`."""
        return [_request_and_item(key) for key in self.take_freed()]


def _request_and_item(key: str) -> tuple[int, int]:
    content, _, _ = key.partition("@")
    request_id, _, input_id = content.partition(":")
    return int(request_id), int(input_id)
