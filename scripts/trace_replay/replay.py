"""A trace played on the real manager: which share of a service's prompt blocks it finds.

One token id per block of the trace, and a manager with `block_size=1`: that is the same as 512 tokens in blocks of 512.
The manager sees content through digests only, and each digest covers the digest before it, so ids that stand behind
equal ids get equal digests and others do not, whatever number of tokens a block stands for. The last-token rule gives
the same, too: of `n` blocks the first `n - 1` can be found, full or not, since
`(num_tokens - 1) // 512 == n - 1 == (n - 1) // 1`. A tail that is not full gets its slots, but is not published.

Requests run `num_running` at a time, first come, first served: the next one begins when the oldest one ends, or earlier
if there is room for it neither in free blocks nor in what can be evicted; then the oldest ones end until there is. One
at a time means that blocks are freed as soon as they are computed. A prompt larger than the pool is turned away. What
requests generate takes no slots: no trace says what it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mmcached.engine.kv.config import KVCacheConfig
from mmcached.engine.kv.manager import KVCacheManager
from mmcached.engine.steps.request import Request
from trace_replay.prompts import Prompt


class Replay:
    """Prompts as requests, which keep their digests from one run to the next."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self.prompts = prompts
        self._requests = [
            Request(number, "generate", prompt.block_ids, (), max_tokens=1) for number, prompt in enumerate(prompts)
        ]

    def run(self, num_blocks: int, eviction_policy: str, *, num_running: int) -> int:
        """Return how many blocks of the counted prompts a new manager finds.

        Args:
            num_blocks: of the pool, the null block not included.
        """
        config = KVCacheConfig.of_one_group(num_blocks + 1, block_size=1)
        manager = KVCacheManager(config, max_model_len=num_blocks, eviction_policy=eviction_policy)
        running: deque[Request] = deque()
        found = 0
        for prompt, request in zip(self.prompts, self._requests, strict=True):
            if request.num_tokens > num_blocks:
                continue
            while len(running) >= num_running:
                manager.free(running.popleft())
            hit, num_hit = manager.get_computed_blocks(request)
            num_new = request.num_tokens - num_hit
            # Published at once, but only as far as blocks are full.
            while manager.allocate_slots(request, num_new, num_hit, hit, delay_cache_blocks=True) is None:
                manager.free(running.popleft())
            manager.cache_blocks(request, prompt.num_full)
            running.append(request)
            if prompt.is_counted:
                found += num_hit
        for request in running:
            manager.free(request)
        manager.check_integrity()
        return found
