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
STEP_ITEMS = "_batch_mm_inputs_from_scheduler"
"""The runner's method that says what the tower is given in a step; identifiers come first."""
_step_items = getattr(GPUModelRunner, STEP_ITEMS)


def _note_step_items(runner: Any, scheduler_output: Any) -> Any:
    items = _step_items(runner, scheduler_output)
    encoded.extend(items[0])
    return items


setattr(GPUModelRunner, STEP_ITEMS, _note_step_items)


class TowerCount:
    """A method more of the worker."""

    def items_encoded(self) -> list[str]:
        """Return the identifiers of all items encoded so far."""
        return encoded
