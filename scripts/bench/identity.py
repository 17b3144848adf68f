"""Measures what it costs vLLM's connector to know a tower by its weights: reading all of them, and a look for writes.

The tower has the shapes of SigLIP-so400m: 27 layers, 400 million parameters in bfloat16. Its weights are read as a
worker of vLLM reads them, once at start and once after each change; CPU seconds are those of all threads. A look is
what each step does that loads or saves an item, and no other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from mmcached.integrations.vllm.tower import read_tower
from mmcached.integrations.watched_writes import is_written
from scripts.bench import harness
from scripts.bench.harness import Bound, Row, cpu_ns, row

WIDTH, MLP_WIDTH, DEPTH = 1152, 4304, 27
WANTED, COPY = "reach", "a copy of the bytes"
READ, LOOK = "read the weights, CPU", "look for writes, CPU"
READ_S, LOOK_US = 0.5, 100.0
ROUNDS, QUICK_ROUNDS = 10, 3
CALLS = 1000
ENGINE = "an engine"
BOUNDS = [
    Bound("reach", READ, "412 M, bfloat16", WANTED, 1.0),
    Bound("reach", LOOK, "326 tensors", WANTED, 1.0),
]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, MLP_WIDTH), nn.Linear(MLP_WIDTH, WIDTH)


class Model(nn.Module):
    """A tower, as one of vLLM's models has it."""

    _language_model_names: tuple[str, ...] = ("language_model",)

    def __init__(self) -> None:
        super().__init__()
        self.visual = nn.ModuleDict({"patches": nn.Linear(3 * 14 * 14, WIDTH)})
        self.visual["layers"] = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.language_model = nn.Linear(1, 1)

    def embed_multimodal(self) -> None:
        """Name nothing of the language model."""


def measure(num_rounds: int) -> Iterator[Row]:
    model = Model().to(torch.bfloat16)
    config = SimpleNamespace(ec_transfer_config=SimpleNamespace(engine_id=ENGINE))
    worker = SimpleNamespace(get_model=lambda: model, vllm_config=config)
    weights = list(model.visual.parameters())
    reads = [_cpu_s(lambda: read_tower(worker)) for _ in range(1 + num_rounds)][1:]
    copies = [_cpu_s(lambda: [value.clone() for value in weights]) for _ in range(num_rounds)]
    looks = [cpu_ns(lambda: [is_written(ENGINE) for _ in range(CALLS)]) / CALLS / 1000 for _ in range(num_rounds)]
    params = f"{sum(value.numel() for value in weights) / 1e6:.0f} M, bfloat16"
    read_s = statistics.median(reads)
    yield row(READ, params, read_s, "s", peer=WANTED, peer_value=READ_S)
    yield row(READ, params, read_s, "s", peer=COPY, peer_value=statistics.median(copies))
    yield row(LOOK, f"{len(weights)} tensors", statistics.median(looks), "us", peer=WANTED, peer_value=LOOK_US)


def _cpu_s(call: Callable[[], Any]) -> float:
    started = time.process_time()
    result = call()
    taken = time.process_time() - started
    del result
    return taken


if __name__ == "__main__":
    harness.main("identity", ["tower"], lambda stack: {"tower": measure}, rounds=(ROUNDS, QUICK_ROUNDS), bounds=BOUNDS)
