"""Calls both halves of the connector as vLLM does, step by step, without vLLM: no budget, no preemption but what a test
asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mmcached.client import Client
from mmcached.client.device.devices import Device, Host
from mmcached.integrations.vllm.claims import EngineClaims
from mmcached.integrations.vllm.contact import ReconnectingClient
from mmcached.integrations.vllm.keys import Sharing
from mmcached.integrations.vllm.leases import Leases
from mmcached.integrations.vllm.messages import StepOrders, StepReport
from mmcached.integrations.vllm.scheduler_side import SchedulerSide
from mmcached.integrations.vllm.worker_side import WorkerSide

PREFIX = "encoder/test/"
ROWS, WIDTH = 4, 3
DEADLINE_S = 30.0


def item(number: int) -> str:
    """Return an identifier of the kind that vLLM makes of a picture's content."""
    return f"{number:064x}"


def embedding(name: str, num_rows: int = ROWS) -> torch.Tensor:
    return torch.full((num_rows, WIDTH), float(int(name[-8:], 16)))


@dataclass
class Place:
    offset: int
    length: int


@dataclass
class Feature:
    identifier: str
    mm_position: Place
    modality: str = "image"
    mm_hash: str | None = None
    data: Any = "pixels"


@dataclass
class Request:
    """One item after the other from position 0 on, each of `num_rows` positions."""

    request_id: str
    names: list[str]
    num_rows: int = ROWS
    data: Any = "pixels"
    mm_features: list[Feature] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mm_features = [
            Feature(name, Place(index * self.num_rows, self.num_rows), data=self.data)
            for index, name in enumerate(self.names)
        ]

    def get_num_encoder_embeds(self, index: int) -> int:
        return self.mm_features[index].mm_position.length


@dataclass
class Output:
    """What a scheduler has decided."""

    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    scheduled_encoder_inputs: dict[str, list[int]] = field(default_factory=dict)
    free_encoder_mm_hashes: list[str] = field(default_factory=list)


class Steps:
    """One engine of one or more ranks: what its scheduler and its runners do, around the connector.

    Attributes:
        caches: of the ranks.
        is_written: whether weights were loaded in a rank's process without a word to the scheduler.
        num_forgotten: how often the scheduler had the tower read again.
        encoded: what rank 0 was told to encode, in order.
        while_encoding: what happens while a rank's encoder runs.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        num_ranks: int = 1,
        role: str = "ec_both",
        single_flight: bool = True,
        prefix: Callable[[str], str] = lambda modality: PREFIX,
        has_named: bool = False,
        claim_wait_s: float = DEADLINE_S,
        max_waiting_bytes: int = 1 << 20,
        window: int = 1000,
        device: Callable[[], Device] = Host,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.prefix = prefix
        self.is_written = False
        self.num_forgotten = 0
        self.contact = ReconnectingClient(
            lambda: Client(run_dir, fail_open=False, connect_timeout_s=0.2),
            lambda client: None,
            call_timeout_s=5.0,
            retry_s=0.01,
        )
        self.leases = Leases(num_ranks, 8)
        can_save = role != "ec_consumer"
        self.claims = EngineClaims(self.contact, claim_wait_s) if single_flight and can_save else None
        self.scheduler = SchedulerSide(
            self.contact,
            prefix,
            Sharing(is_possible=True, has_named=has_named),
            self.leases,
            self.claims,
            is_exact=lambda: True,
            forget_tower=self._forget_tower,
            can_save=can_save,
            is_encode_only=role == "ec_producer",
            window=window,
            can_be_encoded=lambda feature: feature.data is not None,
            width_of=lambda modality: WIDTH,
            dtype=dtype,
            wait_s=0.0,
        )
        self.clients = [Client(run_dir, connect_timeout_s=0.2, counts_hits=False) for _ in range(num_ranks)]
        self._failures: list[list[bool]] = []
        self.workers = [
            WorkerSide(
                client,
                device(),
                dtype,
                max_waiting_bytes=max_waiting_bytes if can_save and rank == 0 else 0,
                agree=list,
                is_written=lambda: self.is_written,
                is_encode_only=role == "ec_producer",
                call_timeout_s=5.0,
            )
            for rank, client in enumerate(self.clients)
        ]
        self.caches: list[dict[str, Any]] = [{} for _ in range(num_ranks)]
        self.encoded: list[str] = []
        self.while_encoding: Callable[[], object] = lambda: None
        self._requests: dict[str, Request] = {}

    def _forget_tower(self) -> None:
        self.num_forgotten += 1

    def is_available(self, *requests: Request, num_computed_tokens: int = 0) -> bool:
        """Say whether requests can be scheduled, in the first pass in which it is known who encodes what."""
        while False in [self.scheduler.ensure_available(request, num_computed_tokens) for request in requests]:
            if self.claims is None or not self.claims.num_asked:
                return False
            self.plan(Output())  # the test's own deadline ends it
        return True

    def schedule(self, *requests: Request) -> tuple[Output, StepOrders] | None:
        """Schedule requests for one step; None if one of them must wait for another engine."""
        self._requests.update({request.request_id: request for request in requests})
        if not self.is_available(*requests):
            self.plan(Output())
            return None
        output, local = Output(), self.caches[0]
        allocated: set[str] = set()
        for request in requests:
            output.num_scheduled_tokens[request.request_id] = 1
            for index, name in enumerate(request.names):
                if name in local or name in allocated:
                    continue
                if not self.scheduler.has_item(name):
                    output.scheduled_encoder_inputs.setdefault(request.request_id, []).append(index)
                self.scheduler.allocated(request, index)
                allocated.add(name)
        return output, self.plan(output)

    def plan(self, output: Output) -> StepOrders:
        """End a pass of the scheduler."""
        plan = self.scheduler.plan(output)
        self.scheduler.end_pass(plan, output)
        return plan

    def run(self, output: Output, plan: StepOrders) -> StepReport | None:
        """Have all ranks do a step; return what they report together, and have the scheduler take it."""
        merged: StepReport | None = None
        for rank, worker in enumerate(self.workers):
            cache = self.caches[rank]
            worker.load(plan, cache)
            worker.publish(plan, cache)
            worker.begin_encoding(plan)
            if output.scheduled_encoder_inputs:
                self.while_encoding()
            for request_id, indices in output.scheduled_encoder_inputs.items():
                for index in indices:
                    request = self._requests[request_id]
                    name = request.names[index]
                    if rank == 0:
                        self.encoded.append(name)
                    cache[name] = embedding(name, request.num_rows)
                    worker.save(plan, cache, name)
            report = worker.end_step(plan)
            if report is not None:
                merged = report if merged is None else merged.aggregate(report)
        if merged is not None:
            self.scheduler.reported(merged)
        return merged

    def step(self, *requests: Request) -> list[str]:
        """Schedule requests and do the step; return what was encoded."""
        before = len(self.encoded)
        scheduled = self.schedule(*requests)
        assert scheduled is not None, "a request must wait"
        self.run(*scheduled)
        for name in {name for request in requests for name in request.names}:
            for cache in self.caches:
                assert torch.equal(cache[name], embedding(name)), "what the encoder says, wherever it comes from"
        return self.encoded[before:]

    def step_when_free(self, request: Request) -> list[str]:
        """As `step`, once nobody else encodes what the request needs: that a claim was dropped is told, not asked."""
        while (scheduled := self.schedule(request)) is None:
            pass  # the test's own deadline ends it
        before = len(self.encoded)
        self.run(*scheduled)
        return self.encoded[before:]

    def settle(self, *keys: str) -> None:
        """Wait until items have records."""
        while not all(self.clients[0].contains_many([PREFIX + key for key in keys])):
            pass  # the test's own deadline ends it

    def forget(self, *names: str) -> None:
        """Have the engine evict items, and say so."""
        for cache in self.caches:
            for name in names:
                cache.pop(name, None)
        self.plan(Output(free_encoder_mm_hashes=list(names)))

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.scheduler.close()
