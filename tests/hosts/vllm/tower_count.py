"""Counts what a vLLM worker gives to its vision tower, whatever a connector says about it.

`--worker-extension-cls tests.hosts.vllm.tower_count.TowerCount` brings it into each worker process, where it is asked
through `/collective_rpc`. The items that vLLM encodes to size its caches when it starts take another way, and do not
count.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

encoded: list[str] = []
"""Identifiers, one for each time that an item has been encoded."""
_batch_items = GPUModelRunner._batch_mm_inputs_from_scheduler


def _batch_and_note(runner: Any, scheduler_output: Any) -> Any:
    batch = _batch_items(runner, scheduler_output)
    encoded.extend(batch[0])
    return batch


GPUModelRunner._batch_mm_inputs_from_scheduler = _batch_and_note


class TowerCount:
    """A method more of the worker."""

    def items_encoded(self) -> list[str]:
        """Return the identifiers of all items encoded so far."""
        return encoded
