"""Admits a waiting request if its KV blocks fit besides those that running requests still need.

    free blocks  ≥  its tokens after the hit  +  missing blocks of running requests  +  watermark

So chunked prefills never take blocks reserved for another request. If no request is running, the check is skipped: the
empty pool suffices (`check_request`).
"""

from __future__ import annotations

from mmcached.engine.kv.blocks import KVCacheBlocks
from mmcached.engine.kv.kv_cache import KVCache
from mmcached.engine.scheduling.request_queue import RequestQueue
from mmcached.engine.steps.request import Request
from mmcached.wire.config import ServiceConfig


class BlockAdmission:
    def __init__(self, config: ServiceConfig, kv: KVCache, running: RequestQueue) -> None:
        self._kv = kv
        self._running = running
        self._most_new_tokens = config.max_num_batched_tokens
        self._num_spare = int(config.kv_watermark * config.num_kv_blocks)
        for request in running:
            self.admitted(request)

    def is_room_for(self, request: Request, hit: KVCacheBlocks) -> bool:
        """Return whether a request without blocks may be admitted after its prefix hit."""
        return not self._running or self._kv.can_admit(
            request, hit, most_new_tokens=self._most_new_tokens, num_spare_blocks=self._num_spare
        )

    def admitted(self, request: Request) -> None:
        """Count the blocks that a running request still lacks for its tokens."""
        if request.kind == "generate":
            self._num_spare += self._kv.num_lacking_blocks(request, request.num_tokens, self._most_new_tokens)
