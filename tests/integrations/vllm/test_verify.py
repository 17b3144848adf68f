"""`mmcached verify` with vLLM's connector: the scheduler has a found item encoded, and the worker compares it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mmcached.frontend.store import verification
from mmcached.integrations.vllm.records import record_of
from mmcached.wire.stats import StoreStats
from tests.client.services import StoreService
from tests.integration.processes import eventually
from tests.integrations.vllm.steps import PREFIX, Request, Steps, embedding, item

A, B = item(1), item(2)
NewEngine = Callable[..., Steps]


@pytest.fixture(autouse=True)
def lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a verification last for a whole test, on however busy a machine."""
    monkeypatch.setattr(verification, "VERIFY_S", 600.0)


def counted(store: StoreService, verified: int) -> StoreStats:
    def look() -> StoreStats:
        found: list[StoreStats] = []
        store.call(lambda: found.append(store.desk.stats()))
        return found[0]

    return eventually(look, lambda now: now.verified == verified, f"{verified} verified hits")


@pytest.mark.parametrize("single_flight", [True, False])
def test_a_record_that_differs_is_found_and_ends_the_sharing(
    store: StoreService, new_engine: NewEngine, single_flight: bool
) -> None:
    one, two = new_engine(single_flight=single_flight), new_engine(single_flight=single_flight)
    assert one.step(Request("r1", [A, B])) == [A, B]
    one.settle(A, B)
    client = one.clients[0]
    client.verify(1.0)
    assert two.step(Request("r2", [A, B])) == [A, B], "encoded again, and used"
    assert counted(store, 2).different == 0
    two.forget(A, B)
    assert client.put(PREFIX + B, record_of(embedding(A)), overwrite=True)
    assert two.step(Request("r3", [A, B])) == [A, B]
    assert counted(store, 4).different == 1
    assert client.keys(PREFIX + "*") == []
    client.verify(0.0)
    for number in range(2):
        two.forget(A, B)
        assert two.step_when_free(Request(f"r4.{number}", [A, B])) == [A, B], "nothing is shared under this name"
    assert store.leases == 0


def test_an_item_without_pixels_is_loaded(store: StoreService, new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine()
    one.step(Request("r1", [A]))
    one.settle(A)
    one.clients[0].verify(1.0)
    assert two.step(Request("r2", [A], data=None)) == []
    assert torch.equal(two.caches[0][A], embedding(A))


def test_an_engine_that_only_loads_recomputes_nothing(store: StoreService, new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine(role="ec_consumer")
    one.step(Request("r1", [A]))
    one.settle(A)
    one.clients[0].verify(1.0)
    assert two.step(Request("r2", [A])) == []


def test_the_last_bits_may_differ_where_a_name_is_not_exact(store: StoreService, new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine()
    assert one.clients[0].put("encoder/" + "0" * 32 + "/" + A, record_of(embedding(A)))
    two.prefix = lambda modality: "encoder/" + "0" * 32 + "/"
    two.scheduler._prefix = two.prefix
    one.clients[0].verify(1.0)
    rounded = embedding(A) * (1 + 2**-12)
    assert one.clients[0].put("encoder/" + "0" * 32 + "/" + A, record_of(rounded), overwrite=True)
    assert two.step(Request("r2", [A])) == [A]
    assert counted(store, 1).different == 0
