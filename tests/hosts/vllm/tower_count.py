"""Writes down what a vLLM worker gives to its vision tower, whatever a connector says about it.

`--worker-extension-cls tests.hosts.vllm.tower_count.TowerCount` brings it into each worker process, and the variable
`TOWER_COUNT_FILE` says into which file it writes: asked through `/collective_rpc`, an engine would count the call as a
change of its weights. The items that vLLM encodes to size its caches when it starts take another way, and do not count.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from tests.hosts.vllm.servers import TOWER_FILE

STEP_ITEMS = "_batch_mm_inputs_from_scheduler"
"""The runner's method that says what the tower is given in a step; identifiers come first."""
_step_items = getattr(GPUModelRunner, STEP_ITEMS)


def _note_step_items(runner: Any, scheduler_output: Any) -> Any:
    items = _step_items(runner, scheduler_output)
    with Path(os.environ[TOWER_FILE]).open("a") as file:
        file.writelines(f"{identifier}\n" for identifier in items[0])
    return items


setattr(GPUModelRunner, STEP_ITEMS, _note_step_items)


class TowerCount:
    """More methods of the worker."""

    model_runner: Any

    @torch.inference_mode()
    def scale_tower(self) -> None:
        """Change the weights of the tower, as a user's own method does."""
        for parameter in self.model_runner.model.visual.parameters():
            parameter.mul_(1.5)

    @torch.inference_mode()
    def scale_decoder(self) -> None:
        """Change the weights of the language model, words included, as a step of training does."""
        for parameter in self.model_runner.model.language_model.parameters():
            parameter.mul_(1.25)
