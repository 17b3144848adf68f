"""vLLM's own scheduler, encoder cache manager and runner wrappers with our connector in them; no model, no device."""

from __future__ import annotations

import itertools
import random
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmcached.client import Client
from mmcached.integrations.vllm.keys import key_of
from mmcached.integrations.vllm.weights import tower_of
from tests.client.services import StoreService

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.hosts.vllm.engine_parts import (
        HAS_FIGURES,
        ROWS,
        TOWER,
        WIDTH,
        Engine,
        encoded,
        item,
        make_checkpoint,
        request,
    )

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

DEADLINE_S = 60.0
A, B, C = item(1), item(2), item(3)
NewEngine = Callable[..., Engine]
STORE = {"store_gb": 0.0625, "store_max_object_mb": 8}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture
def store(run_dir: Path) -> Iterator[StoreService]:
    with StoreService(run_dir, **STORE) as service:
        yield service


@pytest.fixture
def client(store: StoreService, run_dir: Path) -> Iterator[Client]:
    with Client(run_dir, fail_open=False) as client:
        yield client


@pytest.fixture
def new_engine(checkpoint: Path, run_dir: Path) -> Iterator[NewEngine]:
    engines: list[Engine] = []

    def make(*values: Any, **named: Any) -> Engine:
        engines.append(Engine(checkpoint, *values, run_dir=str(run_dir), **named))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def joined(engine: Engine) -> Engine:
    """Wait until an engine shares."""
    give_up = time.monotonic() + DEADLINE_S
    while not engine.connector.is_sharing:
        assert time.monotonic() < give_up, "the engine does not join the store"
    return engine


def settled(engine: Engine, client: Client, *names: str) -> None:
    """Wait until items have been saved by an engine."""
    keys = [engine_prefix(engine) + name for name in names]
    give_up = time.monotonic() + DEADLINE_S
    while not all(client.contains_many(keys)):
        assert time.monotonic() < give_up, "nothing is saved"


def change_weights(engine: Engine, tower: str) -> None:
    tower_of(engine.config.ec_transfer_config.engine_id).set_rows(TOWER | {"tower": tower})


def ask_until_saved(engine: Engine, client: Client, name: str) -> None:
    """Ask about an item until it is saved: an engine's worker joins the store later than its scheduler."""
    give_up = time.monotonic() + DEADLINE_S
    for number in itertools.count():
        engine.forget()
        engine.answer(request(f"until saved {number}", name))
        if client.contains_many([engine_prefix(engine) + name])[0]:
            return
        assert time.monotonic() < give_up, "nothing is saved"


def engine_prefix(engine: Engine) -> str:
    """Return what an engine's keys begin with; a step that saves shows it."""
    engine.connector.ensure_cache_available(probe := request("prefix", name := item(random.getrandbits(64))), 0)
    engine.connector.update_state_after_alloc(probe, 0)
    plan = engine.connector.build_connector_meta(
        SimpleNamespace(
            num_scheduled_tokens={"prefix": 1}, scheduled_encoder_inputs={"prefix": [0]}, free_encoder_mm_hashes=[name]
        )
    )
    return str(plan.saves[name]).removesuffix(name)


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_what_one_engine_has_encoded_the_other_loads(
    store: StoreService, client: Client, new_engine: NewEngine, runner: str
) -> None:
    one, two = joined(new_engine(runner)), joined(new_engine(runner))
    assert one.answer(request("r1", A, B)) == [A, B]
    settled(one, client, A, B)
    assert two.answer(request("r2", A, C)) == [C]
    assert torch.equal(two.worker.cache[A], encoded(A))
    assert store.leases == 0
    figures = two.figures()
    assert not HAS_FIGURES or (figures["hits/image"], figures["loads"], figures["encodes/image"]) == (1, 1, 1)


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize(
    "embeds",
    [
        torch.zeros(ROWS, WIDTH // 2),
        torch.zeros(ROWS - 1, WIDTH),
        torch.zeros(1, ROWS, WIDTH),
        torch.zeros(ROWS, WIDTH, dtype=torch.int64),
        torch.full((ROWS, WIDTH), torch.nan),
    ],
    ids=["narrow", "short", "rank 3", "int64", "nan"],
)
def test_a_record_that_the_model_cannot_take_is_an_encode(
    client: Client, new_engine: NewEngine, runner: str, embeds: torch.Tensor
) -> None:
    engine = joined(new_engine(runner))
    assert client.put(engine_prefix(engine) + A, {"embeds": embeds})
    assert engine.answer(request("r1", A, B)) == [A, B]


def test_such_a_record_under_a_name_fails_its_request_alone(client: Client, new_engine: NewEngine) -> None:
    engine = joined(new_engine(encoder="my-encoder", share_named_items=True))
    assert client.put(key_of("my-encoder", "cat"), {"embeds": torch.zeros(ROWS, WIDTH // 2)})
    nothing = {"image_embeds": SimpleNamespace(data=None)}
    engine.scheduler.add_request(request("r1", "cat", data=nothing))
    engine.scheduler.add_request(request("r2", A))
    assert finish_reasons(engine) == {"r1": "error", "r2": "length"}


def finish_reasons(engine: Engine) -> dict[str, str]:
    """Answer all requests to their ends; return how each of them has ended."""
    finished: dict[str, str] = {}
    while engine.scheduler.has_requests():
        for outputs in engine.run(engine.schedule()).values():
            finished |= {each.request_id: str(each.finish_reason) for each in outputs.outputs if each.finish_reason}
    return finished


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_a_load_that_fails_is_an_encode(client: Client, new_engine: NewEngine, runner: str) -> None:
    """The lease ends too early, as with an executor that brings one rank's report only, and the record goes."""
    one, two = joined(new_engine()), joined(new_engine(runner, lease_steps=1))
    one.answer(request("r1", A))
    settled(one, client, A)
    output = two.schedule_when_known(request("r2", A, B))
    assert output.scheduled_encoder_inputs == {"r2": [1]}
    two.schedule()
    client.flush()
    two.run(output)
    assert sorted(two.worker.encoded) == [A, B]
    assert two.answer() == []
    assert two.figures()["load_failures"] == HAS_FIGURES


def test_a_record_that_is_dropped_after_the_look_up_is_loaded(client: Client, new_engine: NewEngine) -> None:
    one, two = joined(new_engine()), joined(new_engine())
    one.answer(request("r1", A))
    settled(one, client, A)
    output = two.schedule(request("r2", A))
    client.flush()
    two.run(output)
    assert two.answer() == []


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_at_random(store: StoreService, client: Client, new_engine: NewEngine, runner: str, is_async: bool) -> None:
    """Two engines with little room for items and tokens: chunks, preemption, aborts, evictions, flushes, resets.

    Each step's runner finds all that it gathers, and it is the right thing; in the end no lease is out.
    """
    draw = random.Random(f"{runner} {is_async}")
    little = {"budget": 64, "num_blocks": 40, "cache_rows": 3 * 24, "is_async": is_async}
    engines = [joined(new_engine(runner, **little)) for _ in range(2)]
    open_requests: list[tuple[Engine, str]] = []
    for number in range(120):
        engine = draw.choice(engines)
        names = [item(draw.randrange(12)) for _ in range(draw.randrange(4))]
        engine.scheduler.add_request(request(f"q{number}", *names, num_rows=24))
        open_requests.append((engine, f"q{number}"))
        for _ in range(draw.randrange(6)):
            draw.choice(engines).turn()
        match draw.randrange(12):
            case 0:
                who, request_id = open_requests.pop(draw.randrange(len(open_requests)))
                who.abort(request_id)
            case 1:
                client.flush()
            case 2 if not is_async:
                engine.finish()
                change_weights(engine, f"{number}")
                engine.scheduler.reset_encoder_cache()
                engine.worker.cache.clear()
    for engine in engines:
        engine.finish()
    assert all(engine.scheduler.get_num_unfinished_requests() == 0 for engine in engines)
    for engine in engines:
        engine.schedule()
    assert store.leases == 0
    figures = engines[0].figures()
    assert not HAS_FIGURES or min(figures["hits/image"], figures["loads"], figures["encodes/image"]) > 0


def test_an_unknown_item_without_pixels_fails_its_request_alone(store: StoreService, new_engine: NewEngine) -> None:
    engine = joined(new_engine())
    nothing = {"image_embeds": SimpleNamespace(data=None)}
    engine.scheduler.add_request(request("r1", item(9), data=nothing))
    engine.scheduler.add_request(request("r2", A))
    assert finish_reasons(engine) == {"r1": "error", "r2": "length"}
    assert engine.worker.encoded == [A]


def test_names_that_say_nothing_of_the_content_are_not_shared(store: StoreService, new_engine: NewEngine) -> None:
    """Without a hasher each engine has its `renderer0-mm-0-image-0`; a client's names are what the client says."""
    one, two = joined(new_engine(share_named_items=True)), joined(new_engine())
    for name in ("renderer0-mm-0-image-0", "my-cat"):
        assert one.answer(request("r1" + name, name)) == [name]
        assert two.answer(request("r2" + name, name)) == [name]
    three = joined(new_engine(share_named_items=True))
    assert three.answer(request("r3", "renderer0-mm-0-image-0", "my-cat")) == ["renderer0-mm-0-image-0"]


def test_new_weights_hide_what_was_encoded_with_the_old(client: Client, new_engine: NewEngine) -> None:
    one, two = joined(new_engine()), joined(new_engine())
    one.answer(request("r1", A))
    settled(one, client, A)
    change_weights(two, "other")
    two.scheduler.reset_encoder_cache()
    two.worker.cache.clear()
    assert two.answer(request("r2", A)) == [A]
    settled(two, client, A)
    three = joined(new_engine())
    assert three.answer(request("r3", A)) == [], "another engine's weights have not changed"
    change_weights(three, "other")
    three.forget()
    assert three.answer(request("r4", A)) == [], "it has the weights of the second engine now"


def test_another_checkpoint_shares_nothing(
    client: Client, run_dir: Path, tmp_path: Path, new_engine: NewEngine
) -> None:
    one = joined(new_engine())
    one.answer(request("r1", A))
    settled(one, client, A)
    other = make_checkpoint(tmp_path / "other")
    (other / "preprocessor_config.json").write_text("{}")
    engine = Engine(other, run_dir=str(run_dir))
    try:
        assert joined(engine).answer(request("r2", A)) == [A]
    finally:
        engine.close()


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_roles(client: Client, new_engine: NewEngine, runner: str) -> None:
    producer = joined(new_engine(runner, role="ec_producer"))
    consumer = joined(new_engine(runner, role="ec_consumer"))
    output = producer.schedule_when_known(request("r1", A))
    producer.run(output)
    assert producer.worker.encoded == [A]
    assert consumer.answer(request("r2", A, B)) == [B]
    assert joined(new_engine(runner)).answer(request("r3", A, B)) == [B], "a consumer saves nothing"


def test_a_service_that_comes_and_goes_ends_nothing(run_dir: Path, new_engine: NewEngine) -> None:
    engine = new_engine()
    assert engine.answer(request("r1", A)) == [A]
    engine.forget()
    with StoreService(run_dir, **STORE), Client(run_dir) as client:
        joined(engine)
        assert engine.answer(request("r2", B)) == [B]
        ask_until_saved(engine, client, B)
    engine.forget()
    assert engine.answer(request("r3", B, C))[-1] == C
    engine.forget()
    with StoreService(run_dir, **STORE), Client(run_dir) as client:
        joined(engine)
        assert engine.answer(request("r4", C)) == [C]
        ask_until_saved(engine, client, C)
        engine.forget()
        assert engine.answer(request("r5", C)) == []


@pytest.mark.skipif(not HAS_FIGURES, reason="this vLLM shows no figures of connectors")
def test_figures_are_on_vllms_metrics_page(store: StoreService, new_engine: NewEngine) -> None:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

    registry = CollectorRegistry()

    def counter(**named: Any) -> Counter:
        return Counter(registry=registry, **named)

    engine = joined(new_engine())
    connector = type(engine.connector)
    prom = connector.build_prom_metrics(
        engine.config, {Counter: counter, Gauge: Gauge, Histogram: Histogram}, ["engine"], {0: ["0"]}
    )
    engine.answer(request("r1", A))
    prom.observe(connector.build_ec_connector_stats(dict(engine.figures())).data, 0)
    page = generate_latest(registry).decode()
    assert 'vllm:mmcached_ec_encodes_total{engine="0",modality="image"} 1.0' in page
    assert 'vllm:mmcached_ec_queries_total{engine="0",modality="image"} 1.0' in page
    assert 'vllm:mmcached_ec_lookups_total{engine="0"} 1.0' in page, "the former name, for one more release"
