"""A saved output costs its share of the time that the encoder took in its step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from mmcached.cache.store_keys import store_key
from mmcached.client.device.devices import Host, Other
from mmcached.integrations.encoding_time import EncodingTime
from tests.client.services import StoreService
from tests.integrations.vllm.steps import PREFIX, Request, Steps, item
from tests.present import present

A, B, C = item(1), item(2), item(3)
NewEngine = Callable[..., Steps]


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("mmcached.client.device.stopwatch.time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def costs(store: StoreService, *names: str) -> list[float]:
    found: list[float] = []
    saved = store.desk.records.saved
    store.call(lambda: found.extend(saved.cost_s(store_key("", PREFIX + name)) for name in names))
    return found


def test_the_time_of_a_step_is_divided_by_rows(store: StoreService, new_engine: NewEngine, clock: Clock) -> None:
    engine = new_engine(single_flight=False)
    engine.while_encoding = lambda: clock.pass_by(6.0)
    engine.run(*present(engine.schedule(Request("r1", [A, B]), Request("r2", [C], num_rows=16))))
    engine.settle(A, B, C)
    assert costs(store, A, B, C) == [1.0, 1.0, 4.0]


def test_items_that_are_not_saved_have_their_share(store: StoreService, new_engine: NewEngine, clock: Clock) -> None:
    engine = new_engine()
    engine.while_encoding = lambda: clock.pass_by(3.0)
    request = Request("r1", [A, B, C])
    request.mm_features[0].mm_hash = request.mm_features[2].mm_hash = "a client's own name"
    engine.run(*present(engine.schedule(request)))
    engine.settle(B)
    assert engine.clients[0].keys("*") == [PREFIX + B]
    assert costs(store, B) == [1.0]


def test_loads_and_earlier_steps_cost_nothing(store: StoreService, new_engine: NewEngine, clock: Clock) -> None:
    one, two = new_engine(), new_engine(device=lambda: SlowLoads(clock))
    one.step(Request("r1", [A]))
    one.settle(A)
    assert costs(store, A) == [0.0]
    two.while_encoding = lambda: clock.pass_by(2.0)
    assert two.step(Request("r2", [A, B])) == [B]
    two.settle(B)
    clock.pass_by(50.0)
    assert two.step(Request("r3", [C])) == [C]
    two.settle(C)
    assert costs(store, A, B, C) == [0.0, 2.0, 2.0]


class SlowLoads(Host):
    """Loads take a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def load(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        self._clock.pass_by(60.0)
        return super().load(tensors)


def test_an_output_that_is_saved_again_has_no_cost(store: StoreService, new_engine: NewEngine, clock: Clock) -> None:
    engine = new_engine(role="ec_producer")
    engine.while_encoding = lambda: clock.pass_by(2.0)
    engine.step(Request("r1", [A]))
    assert costs(store, A) == [2.0]
    assert engine.clients[0].drop(PREFIX + A)
    engine.step(Request("r2", [A, B]))
    engine.settle(A, B)
    assert costs(store, A, B) == [0.0, 2.0]


def test_a_device_that_cannot_be_timed_says_nothing(store: StoreService, new_engine: NewEngine, clock: Clock) -> None:
    engine = new_engine(device=lambda: Other(torch.device("cpu")))
    engine.while_encoding = lambda: clock.pass_by(2.0)
    engine.step(Request("r1", [A]))
    engine.settle(A)
    assert costs(store, A) == [0.0]


class Busy:
    """A stopwatch of a device that is not done."""

    num_stops = 0
    is_done = False

    def stop(self) -> None:
        self.num_stops += 1

    def is_over(self) -> bool:
        return self.is_done

    def seconds(self) -> float:
        assert self.is_done
        return 8.0


def test_nobody_waits_for_the_device() -> None:
    watch = Busy()
    encoding = EncodingTime(watch)  # type: ignore[arg-type]
    shares = []
    for num_rows in (1, 3):
        encoding.add(num_rows)
        shares.append(encoding.share(num_rows))
    assert watch.num_stops == 1, "at the first output: copies follow"
    assert [share() for share in shares] == [0.0, 0.0]
    watch.is_done = True
    assert [share() for share in shares] == [2.0, 6.0]
