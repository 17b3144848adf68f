"""Encoder actors in this process: each can be told to be late, to die, to lie, or to compute otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mmcached.integrations.ray.encoder_actor import EncoderActor
from mmcached.wire.config import ServiceConfig
from mmcached.wire.model_config import ModelConfig
from mmcached.worker.encoders.actor_table import Answer, Lost
from mmcached.worker.encoders.pieces import Bytes1D, cut, join, num_pieces

MODEL = ModelConfig(hidden_size=8, num_heads=2, encoder_width=12, patch_size=2, max_patches_per_image=9)


class FakeCall:
    """A call that is over when it is let go on.

    Args:
        make: gives the answer, or raises `Lost`.
    """

    def __init__(self, make: Callable[[], Any], *, is_held: bool = False) -> None:
        self._make = make
        self.is_held = is_held
        self.timeouts: list[float] = []

    def is_over(self) -> bool:
        return not self.is_held

    def result(self, timeout_s: float) -> Any:
        self.timeouts.append(timeout_s)
        if self.is_held:
            raise Lost("no answer in time")
        return self._make()


class FakeActor:
    """An actor.

    Attributes:
        is_dead: true if it answers nothing more.
        is_slow: true if calls to encode stay open until their `is_held` is taken away.
        calls: those to encode.
        change: what becomes of an answer before it is sent.
    """

    def __init__(self, name: str, model: ModelConfig = MODEL) -> None:
        self.name = name
        self.is_dead = False
        self.is_slow = False
        self.calls: list[FakeCall] = []
        self.change: Callable[[Answer], Answer] = lambda answer: answer
        self._actor = EncoderActor(msgspec.to_builtins(ServiceConfig(model=model, device="cpu")))

    def describe(self) -> FakeCall:
        return FakeCall(self._alive(lambda: asyncio.run(self._actor.describe())))

    def encode(self, record: Bytes1D, num_embeds: int, output_bytes: int) -> FakeCall:
        number = num_pieces(output_bytes)

        def answer() -> Answer:
            head, *pieces = asyncio.run(self._actor.encode(num_embeds, number, *cut(record, 1)))
            return self.change((*head, join(pieces)))

        make = self._alive(answer)
        self.calls.append(FakeCall(make, is_held=self.is_slow))
        return self.calls[-1]

    def _alive(self, make: Callable[[], Any]) -> Callable[[], Any]:
        def answer() -> Any:
            if self.is_dead:
                raise Lost(f"{self.name} has died")
            return make()

        return answer


class FakeCluster:
    """A cluster.

    Attributes:
        found: actors that there are.
        is_unreachable: true if it cannot be asked.
    """

    def __init__(self, *found: FakeActor) -> None:
        self.found = list(found)
        self.is_unreachable = False
        self.num_closed = 0
        self.num_looks = 0

    def actors(self) -> Sequence[FakeActor]:
        self.num_looks += 1
        if self.is_unreachable:
            raise Lost("the cluster does not answer")
        return self.found

    def close(self) -> None:
        self.num_closed += 1
