"""An answer that names what it brings: its outputs are in the store when it goes to the client, or come inline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmcached.cache.store_keys import output_key
from mmcached.gateway.requests.encoder_outputs import EncoderOutputs
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ErrorInfo
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages.parts import RowsWanted, SavedRows, Tensor
from tests.clock import Clock
from tests.doubles.engine import WireEngine
from tests.frontend.fake_peers import Bench, FakeClient, png

CONFIG = ServiceConfig(mm_processor_cache_gb=1 / 1024, mm_shm_inline_max_kb=0, store_gb=1 / 1024)
FINGERPRINT = "f" * 32
TENSOR = Tensor(0, "int32", (1,))
TICK_S = 1e-6


class Desk:
    """A client that takes keys, an engine that names what it is asked for, and whoever saves that."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.engine = bench.connect_engine(encoder_fingerprint=FINGERPRINT)
        self.saver: FakeClient = bench.connect_client(is_reader=False)
        self._request_ids = iter(range(1, 1000))

    def ask(self, *images: bytes, image_id: str | None = None, takes_keys: bool = True) -> None:
        ids: list[str | None] = [] if image_id is None else [image_id] * len(images)
        encode = to_frontend.Encode(self.bench.client_id, next(self._request_ids), 60.0, "", ids, takes_keys)
        self.bench.client.send(encode, list(images))

    def sent(self, engine: WireEngine | None = None) -> to_engine.AddRequest:
        return self.bench.from_frontend(engine or self.engine, to_engine.AddRequest)

    def asked(self, *images: bytes) -> tuple[to_engine.AddRequest, list[str]]:
        """Ask; return what the engine was sent, and the keys of its outputs."""
        self.ask(*images)
        add = self.sent()
        return add, [output_key(FINGERPRINT, feature.mm_hash) for feature in add.features]

    def name(self, add: to_engine.AddRequest, *outputs: str | dict[str, Tensor]) -> None:
        """Answer, as the engine does."""
        payload = [b"four"] if any(isinstance(output, dict) for output in outputs) else []
        self.engine.channel.send(from_engine.RequestEncoded(add.request_id, list(outputs)), payload)

    def save(self, key: str) -> None:
        assert self.saver.put(key, {"embeddings": np.zeros((3, 64), np.int32)}).is_stored

    def answer(self) -> to_client.Encoded:
        return self.bench.answer(to_client.Encoded)

    def wait(self, add: to_engine.AddRequest) -> None:
        """Return when a request waits for what its answer names; nobody has heard of it then."""
        assert self.bench.stats().requests_open  # all that the engine has sent was read
        self.engine.receive()
        assert not self.engine.backlog
        assert not self.bench.client.wait(0)


@pytest.fixture
def desk(bench: Bench) -> Desk:
    return Desk(bench)


@pytest.mark.parametrize("is_saved_first", [False, True])
def test_an_answer_goes_when_the_store_has_what_it_names(desk: Desk, is_saved_first: bool) -> None:
    add, (key, other) = desk.asked(png(1), png(2))
    assert add.takes_keys
    if is_saved_first:
        desk.save(key)
        desk.save(other)
        desk.name(add, key, other)
    else:
        desk.name(add, key, other)
        desk.wait(add)
        desk.save(other)
        desk.wait(add)  # for the other
        desk.save(key)
    assert desk.answer().outputs == [key, other]
    assert desk.bench.frontend.stats().requests_done == 1


def test_who_waits_for_several_is_woken_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A film has hundreds, and at each waking all of them are looked for."""
    waits, wait = list[Any](), EncoderOutputs.wait

    def noted(*said: Any) -> Any:
        waits.append(said)
        return wait(*said)

    monkeypatch.setattr(EncoderOutputs, "wait", noted)
    add, keys = desk.asked(*(png(shade) for shade in range(1, 9)))
    desk.name(add, *keys)
    desk.wait(add)
    for key in keys:
        desk.save(key)
    assert desk.answer().outputs == keys
    assert len(waits) == 1


def test_what_the_engine_has_in_its_own_cache_is_named_too(desk: Desk) -> None:
    add, (key,) = desk.asked(png(1))
    desk.engine.channel.send(from_engine.CacheChanged(True, [], [], [add.features[0].mm_hash]))
    desk.engine.channel.send(from_engine.RequestFailed(add.request_id, ErrorInfo("request_aborted", "gone", True, {})))
    desk.bench.answer(to_client.Failed)
    desk.bench.gateway.requests.outputs.check(float("inf"))  # that request's put does not come any more
    again, _ = desk.asked(png(1))
    desk.name(again, key)
    desk.wait(again)
    desk.save(key)
    assert desk.answer().outputs == [key]


def test_what_is_inline_waits_for_what_is_named(desk: Desk) -> None:
    add, (key, _) = desk.asked(png(1), png(2))
    desk.name(add, key, {"embeddings": TENSOR})
    desk.wait(add)
    desk.save(key)
    assert desk.answer().outputs == [key, {"embeddings": TENSOR}]


@pytest.mark.parametrize("why", ["refused", "late", "refused before the answer", "forgotten"])
def test_what_is_not_kept_is_asked_for_inline(desk: Desk, clock: Clock, why: str) -> None:
    add, (key,) = desk.asked(png(1))
    if why != "refused before the answer":
        desk.name(add, key)
        desk.wait(add)
    if why == "late":
        clock.now += CONFIG.limits.output_wait_s + 1
    elif why == "forgotten":
        desk.bench.client.send(to_frontend.Flush(99, True))
    else:
        desk.saver.send_put(key, {"embeddings": np.zeros(1)}, epoch=add.store_epoch - 1)
        assert not desk.saver.answer(to_client.Stored).is_stored
    if why == "refused before the answer":
        desk.name(add, key)
    again = desk.sent() if why != "forgotten" else _behind_flush(desk)
    assert (again.request_id, again.takes_keys) == (add.request_id, False)
    desk.name(again, {"embeddings": TENSOR})
    assert desk.answer().outputs == [{"embeddings": TENSOR}]
    desk.save(key)
    desk.bench.stats()


def _behind_flush(desk: Desk) -> to_engine.AddRequest:
    """Return the request that is sent on a flush, which may come on either side of it."""
    found: list[to_engine.AddRequest] = []

    def has_come() -> bool:
        desk.engine.receive()
        found.extend(message for message, _ in desk.engine.backlog if isinstance(message, to_engine.AddRequest))
        desk.engine.backlog.clear()
        return bool(found)

    desk.bench.pump(has_come)
    return found[0]


def test_an_engine_that_names_what_was_to_come_inline_ends_the_request(desk: Desk, clock: Clock) -> None:
    add, (key,) = desk.asked(png(1))
    desk.name(add, key)
    desk.wait(add)
    clock.now += CONFIG.limits.output_wait_s + 1
    desk.name(desk.sent(), key)
    failed = desk.bench.answer(to_client.Failed)
    assert (failed.error.code, failed.error.retryable) == ("request_aborted", True)


def test_the_death_of_the_engine_behind_its_answer_costs_nothing(desk: Desk, clock: Clock) -> None:
    add, (key,) = desk.asked(png(1))
    desk.name(add, key)
    desk.wait(add)
    desk.bench.engine_dies(desk.engine)
    clock.now += 1
    desk.save(key)
    assert desk.answer().outputs == [key]


def test_a_deadline_ends_the_wait(desk: Desk, clock: Clock) -> None:
    add, (key,) = desk.asked(png(1))
    desk.name(add, key)
    desk.wait(add)
    clock.now += 61
    desk.bench.answer(to_client.Failed)
    desk.save(key)
    assert desk.bench.frontend.stats().requests_open == 0


def test_the_death_of_the_client_ends_the_wait(desk: Desk, clock: Clock) -> None:
    add, (key,) = desk.asked(png(1))
    desk.name(add, key)
    desk.wait(add)
    desk.bench.client_dies()
    clock.now += 1
    desk.bench.pump(lambda: not desk.bench.frontend.stats().requests_open)
    desk.save(key)


def test_what_is_all_in_the_store_needs_no_engine(desk: Desk) -> None:
    _, (key,) = desk.asked(png(1))
    desk.save(key)
    desk.ask(png(1), png(1))
    assert desk.answer().outputs == [key, key]
    assert desk.bench.frontend.stats().requests_open == 1, "the one that has it encoded"


def test_who_has_waited_for_another_engine_is_answered_without_his_own(desk: Desk) -> None:
    second = desk.bench.connect_engine(index=1, encoder_fingerprint=FINGERPRINT)
    _, (key,) = desk.asked(png(1))
    desk.ask(png(1))
    assert desk.bench.stats().requests_open == 2
    desk.save(key)
    assert desk.answer().outputs == [key]
    for engine in (desk.engine, second):
        engine.receive()
        assert not engine.backlog


@pytest.mark.parametrize("why", ["named", "inline"])
def test_what_its_client_names_or_wants_inline_goes_to_an_engine(desk: Desk, why: str) -> None:
    _, (key,) = desk.asked(png(1))
    desk.save(key)
    desk.ask(png(1), image_id="cat" if why == "named" else None, takes_keys=why == "named")
    assert desk.sent().features[0].has_output == (why == "inline")


def test_without_time_to_wait_nothing_is_named(run_dir: Path, clock: Clock) -> None:
    config = ServiceConfig(store_gb=1 / 1024, limits=LimitsConfig(output_wait_s=0))
    with Bench(run_dir, config, clock) as bench:
        desk = Desk(bench)
        assert not desk.asked(png(1))[0].takes_keys


ROWS = SavedRows("hidden_states", 0, "rows/7", "int32", (5, 64))


def _generated(desk: Desk) -> to_engine.AddRequest:
    """Ask for rows, and let the engine name some."""
    wanted = to_frontend.Generate(desk.bench.client_id, 900, "tell", 4, RowsWanted(), 60.0, takes_keys=True)
    desk.bench.client.send(wanted, [])
    add = desk.sent()
    assert add.takes_keys
    return add


def _name_rows(desk: Desk, add: to_engine.AddRequest) -> None:
    answer = from_engine.RequestGenerated(add.request_id, [5], "length", 0, saved_rows=[ROWS])
    desk.engine.channel.send(answer)


def test_rows_go_to_their_client_by_name_when_the_store_has_them(desk: Desk) -> None:
    add = _generated(desk)
    _name_rows(desk, add)
    desk.wait(add)
    desk.save(ROWS.name)
    answer = desk.bench.answer(to_client.Generated)
    assert (answer.saved_rows, answer.token_ids) == ([ROWS], [5])


def test_rows_that_came_before_the_answer_are_not_waited_for(desk: Desk) -> None:
    add = _generated(desk)
    desk.save(ROWS.name)
    _name_rows(desk, add)
    assert desk.bench.answer(to_client.Generated).saved_rows == [ROWS]


@pytest.mark.parametrize("why", ["refused", "refused before the answer", "late"])
def test_rows_that_are_not_kept_are_generated_again_inline(desk: Desk, clock: Clock, why: str) -> None:
    add = _generated(desk)
    if why != "refused before the answer":
        _name_rows(desk, add)
        desk.wait(add)
    if why == "late":
        clock.now += CONFIG.limits.output_wait_s + 1
    else:
        desk.saver.send_put(ROWS.name, {"rows": np.zeros(1)}, epoch=add.store_epoch - 1)
        assert not desk.saver.answer(to_client.Stored).is_stored
    if why == "refused before the answer":
        _name_rows(desk, add)
    again = desk.sent()
    assert (again.request_id, again.takes_keys) == (add.request_id, False)
    desk.engine.channel.send(from_engine.RequestGenerated(add.request_id, [5], "length", 0))
    assert desk.bench.answer(to_client.Generated).saved_rows == []
