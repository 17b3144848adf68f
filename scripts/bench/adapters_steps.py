"""Drives an encoder-cache connector of vLLM through the calls of one step, the scheduler's half and the worker's.

Nothing else of an engine runs: what is measured is the connector. Its configuration is a whole one, of a checkpoint on
disk. An item is a tensor of 4.7 MiB, as of an image of 2,300 tokens in a small model.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
from vllm.engine.arg_utils import EngineArgs

NUM_ROWS, WIDTH = 2304, 1070
"""Of an item in bfloat16: 4.7 MiB."""
FOUND_S = 30.0
_numbers = itertools.count()


class Missing(Exception):
    """An item is not in the store."""


class Request:
    """What a scheduler's half looks at: a request of one item."""

    def __init__(self, name: str) -> None:
        self.request_id = f"request {next(_numbers)}"
        place = SimpleNamespace(offset=0, length=NUM_ROWS)
        self.mm_features = [
            SimpleNamespace(data=None, modality="image", identifier=name, mm_hash=name, mm_position=place)
        ]

    def get_num_encoder_embeds(self, index: int) -> int:
        return NUM_ROWS


class Connector:
    """Both halves of a connector, as one engine has them.

    Args:
        transfer: vLLM's `ec_transfer_config`.
    """

    def __init__(self, checkpoint: Path, transfer: dict[str, Any]) -> None:
        arguments = EngineArgs(model=str(checkpoint), dtype="bfloat16", max_model_len=4096, ec_transfer_config=transfer)
        config = arguments.create_engine_config()
        self._scheduler = ECConnectorFactory.create_connector(config, ECConnectorRole.SCHEDULER)
        self._worker = ECConnectorFactory.create_connector(config, ECConnectorRole.WORKER)
        self._forgotten: list[str] = []

    def look_up_us(self, name: str) -> float:
        """Return how long the scheduler looks for an item, us; what it takes is given back."""
        request = Request(name)
        started = time.perf_counter_ns()
        self._scheduler.ensure_cache_available(request, 0)
        found = self._scheduler.has_cache_item(name)
        taken = time.perf_counter_ns() - started
        self._plan()
        if not found:
            raise Missing(f"item {name} is not there, or no more: the store is too small")
        return taken / 1000

    def load(self, name: str) -> torch.Tensor:
        """Look an item up and load it in a step of both halves; the engine forgets it with the next step."""
        request, cache = Request(name), dict[str, torch.Tensor]()
        self._scheduler.ensure_cache_available(request, 0)
        if not self._scheduler.has_cache_item(name):
            raise Missing(f"item {name} is gone: the store is too small")
        self._scheduler.update_state_after_alloc(request, 0)
        plan = self._plan(request)
        self._worker.bind_connector_metadata(plan)
        self._worker.start_load_caches(cache)
        report = self._worker.build_connector_worker_meta()
        self._worker.clear_connector_metadata()
        self._scheduler.update_connector_output(SimpleNamespace(ec_connector_worker_meta=report))
        self._forgotten.append(name)
        return cache[name]

    def save_us(self, name: str, output: torch.Tensor) -> float:
        """Encode an item in a step; return for how long saving keeps the step, us. Others can find it afterwards."""
        request, cache = Request(name), {name: output}
        self._scheduler.ensure_cache_available(request, 0)
        self._scheduler.update_state_after_alloc(request, 0)
        plan = self._plan(request, encoded={request.request_id: [0]})
        self._worker.bind_connector_metadata(plan)
        started = time.perf_counter_ns()
        self._worker.save_caches(cache, name)
        taken = time.perf_counter_ns() - started
        self._worker.clear_connector_metadata()
        self._forgotten.append(name)
        self._plan()
        self._wait_until_found(name, plan)
        return taken / 1000

    def _wait_until_found(self, name: str, plan: Any) -> None:
        give_up = time.monotonic() + FOUND_S
        while True:
            self._report(plan)
            try:
                self.look_up_us(name)
                return
            except Missing:
                if time.monotonic() > give_up:
                    raise
            time.sleep(0.001)

    def _plan(self, *requests: Request, encoded: dict[str, list[int]] | None = None) -> Any:
        """Return what the scheduler's half makes of a step: as much of vLLM's own output as connectors look at."""
        output = SimpleNamespace(
            scheduled_encoder_inputs=encoded or {},
            free_encoder_mm_hashes=self._forgotten,
            num_scheduled_tokens={request.request_id: NUM_ROWS for request in requests},
        )
        self._forgotten = []
        return self._scheduler.build_connector_meta(output)

    def _report(self, plan: Any) -> None:
        self._worker.bind_connector_metadata(plan)
        report = self._worker.build_connector_worker_meta()
        self._worker.clear_connector_metadata()
        if report is not None:
            self._scheduler.update_connector_output(SimpleNamespace(ec_connector_worker_meta=report))

    def close(self) -> None:
        self._scheduler.shutdown()
        self._worker.shutdown()


def new_name() -> str:
    """Return a name as vLLM makes it of an item's content."""
    return secrets.token_hex(32)


def new_output() -> torch.Tensor:
    return torch.randn(NUM_ROWS, WIDTH).bfloat16()


@contextmanager
def connector(checkpoint: Path, transfer: dict[str, Any]) -> Iterator[Connector]:
    """Make a connector that has found its store."""
    made = Connector(checkpoint, {"ec_role": "ec_both", **transfer})
    try:
        yield made
    finally:
        made.close()
