"""How often what has happened in a world, so that a set of worlds can show that it is about something.

Knows nothing of right or wrong.
"""

from __future__ import annotations

from collections import Counter

from mmcached.engine import Request
from mmcached.engine.hidden_states.kept_rows import KeptRows
from mmcached.engine.scheduling.step import ScheduledStep
from mmcached.wire.messages.engine import StepOutput
from tests.world.rank import Rank


class Tally:
    """Counts into `seen`.

    Args:
        block_size: of the KV cache.
    """

    def __init__(self, block_size: int) -> None:
        self.seen: Counter[str] = Counter()
        self._block_size = block_size

    def count_clamps(self, rows: KeptRows) -> None:
        usable_prefix = rows.usable_prefix

        def counted(request: Request, num_kv_hit_tokens: int) -> int:
            num_usable = usable_prefix(request, num_kv_hit_tokens)
            self.seen["clamped hits"] += num_usable < num_kv_hit_tokens
            return num_usable

        rows.usable_prefix = counted  # type: ignore[method-assign]

    def count_step(self, step: ScheduledStep) -> None:
        block_size = self._block_size
        written = {
            block_id
            for chunk in step.chunks
            for block_id in list(chunk.block_ids)[chunk.start // block_size : -(-chunk.end // block_size)]
        }
        for chunk in step.chunks:
            if written & set(list(chunk.block_ids)[: chunk.start // block_size]):
                self.seen["same-step hits"] += 1
                self.seen["same-step hits that want rows"] += chunk.request.rows is not None
        self.seen["encoded"] += len(step.encode)
        self.seen["encoder keys freed"] += len(step.freed_keys)
        self.seen["emitted"] += len(step.emit)
        self.seen["chunks of items"] += sum(bool(chunk.spans) for chunk in step.chunks)

    def count_output(self, step: ScheduledStep, output: StepOutput) -> None:
        self.seen["rows missing"] += len(output.missing)
        starts = {chunk.request.request_id: chunk.start for chunk in step.chunks}
        self.seen["answers from the store"] += sum(made.rows.first < starts[made.request_id] for made in output.rows)
        self.seen["sampled"] += len(output.sampled)

    def count_rows(self, rank: Rank) -> None:
        if rank.store is not None:
            stats = rank.store.stats()
            self.seen["row evictions"] += stats.evictions
            self.seen["rows without room"] += stats.dropped
            self.seen["copies"] += stats.copies
            self.seen["copies waited for"] += stats.read_waits
