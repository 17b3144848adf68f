"""Block admission lets a waiting request run if its blocks fit beside those that running requests still need.

    free blocks  ≥  all its tokens, behind its hit  +  what running requests lack for theirs  +  watermark

So a prompt that is computed chunk by chunk never takes what another one was admitted for. A request that is alone gets
what there is: `check_request` has seen to it that this is enough. Knows nothing of encoders or token budgets.
"""

from __future__ import annotations

from mmcached.engine.kv.blocks import KVCacheBlocks
from mmcached.engine.kv.kv_cache import KVCache
from mmcached.engine.scheduling.request_queue import RequestQueue
from mmcached.engine.steps.request import Request
from mmcached.wire.config import ServiceConfig


class BlockAdmission:
    """Admits requests to one step, after running requests were served."""

    def __init__(self, config: ServiceConfig, kv: KVCache, running: RequestQueue) -> None:
        self._kv = kv
        self._running = running
        self._most_new_tokens = config.max_num_batched_tokens
        self._num_spare = int(config.kv_watermark * config.num_kv_blocks)
        for request in running:
            self.admitted(request)

    def is_room_for(self, request: Request, hit: KVCacheBlocks) -> bool:
        """Return whether a request that holds nothing may be admitted behind its prefix hit."""
        return not self._running or self._kv.can_admit(
            request, hit, most_new_tokens=self._most_new_tokens, num_spare_blocks=self._num_spare
        )

    def admitted(self, request: Request) -> None:
        """Count what a running request lacks for the tokens that it has."""
        if request.kind == "generate":
            self._num_spare += self._kv.num_lacking_blocks(request, request.num_tokens, self._most_new_tokens)
