"""Encoder outputs in the store: what is loaded, who waits for whom, and what ends a wait. Engines are the test's."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from mmcached.cache.store_keys import output_key, store_key
from mmcached.gateway.requests.encoder_outputs import GRACE_S
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages.parts import Feature
from mmcached.wire.saved_stats import SavedStats
from mmcached.wire.stats import TenantStats
from tests.clock import Clock
from tests.doubles.engine import WireEngine
from tests.frontend.fake_peers import Bench, FakeClient, png
from tests.frontend.integrity import check_frontend

CONFIG = ServiceConfig(mm_processor_cache_gb=1 / 1024, mm_shm_inline_max_kb=0, store_gb=1 / 1024)
FINGERPRINT = "f" * 32
NUM_EMBEDS = 3
"""Not what the encoder would make of a picture: so it can only come from the store."""
TICK_S = 1e-6


class Host:
    """Two engines behind one frontend, and whoever saves what they encode."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.engines = [bench.connect_engine(index=index, encoder_fingerprint=FINGERPRINT) for index in range(2)]
        self.saver: FakeClient = bench.connect_client(is_reader=False)
        self._request_ids = iter(range(1, 1000))

    def ask(self, image: bytes, *, tenant: str = "", image_id: str | None = None) -> None:
        bench = self.bench
        ids: list[str | None] = [] if image_id is None else [image_id]
        generate = to_frontend.Generate(
            bench.client_id, next(self._request_ids), "see <image>", 4, None, 60.0, tenant, ids
        )
        bench.client.send(generate, [image])

    def asked(self, image: bytes, **options: str) -> tuple[WireEngine, to_engine.AddRequest, Feature]:
        """Ask, and return which engine was sent what."""
        self.ask(image, **options)
        return self.sent()

    def sent(self) -> tuple[WireEngine, to_engine.AddRequest, Feature]:
        def has_come() -> bool:
            for engine in self.engines:
                engine.receive()
            return any(engine.backlog for engine in self.engines)

        self.bench.pump(has_come)
        engine = next(engine for engine in self.engines if engine.backlog)
        add, _ = engine.backlog.pop(0)
        assert isinstance(add, to_engine.AddRequest)
        return engine, add, add.features[0]

    def waits(self) -> bool:
        """Whether, after all that was sent, a request is open that no engine has been sent."""
        stats = self.bench.stats(after=to_client.Generated)
        return bool(stats.requests_open) and not any(engine.backlog for engine in self.engines)

    def save(self, feature: Feature, tenant: str = "", fingerprint: str = FINGERPRINT, *, cost_s: float = 0.0) -> None:
        record = {"embeddings": np.zeros((NUM_EMBEDS, 64), np.int32)}
        key = output_key(fingerprint, feature.mm_hash)
        assert self.saver.put(key, record, tenant=tenant, cost_s=cost_s).is_stored

    def answer(self, engine: WireEngine, add: to_engine.AddRequest) -> None:
        engine.channel.send(from_engine.RequestGenerated(add.request_id, [5], "length", 0))
        self.bench.answer(to_client.Generated)


@pytest.fixture
def host(bench: Bench) -> Host:
    return Host(bench)


def test_an_image_whose_output_is_stored_is_not_processed(host: Host) -> None:
    engine, add, feature = host.asked(png(1))
    assert not feature.has_output
    assert add.store_epoch
    host.save(feature)
    processed = host.bench.stats().processor
    _, again, loaded = host.asked(png(1))
    assert (loaded.has_output, loaded.payload, loaded.num_embeds) == (True, None, NUM_EMBEDS)
    assert again.prompt_token_ids.count(258) == NUM_EMBEDS
    assert loaded.mm_hash == feature.mm_hash
    after = host.bench.stats().processor
    assert after.items_processed == processed.items_processed
    assert after.hits == processed.hits + 1
    host.answer(engine, add)


def test_hits_of_items_and_outputs_save_seconds_of_their_modality(host: Host, clock: Clock) -> None:
    """The put of an output does not say its modality; the request does for which it was encoded."""
    saved = host.bench.frontend.store.records.saved
    engine, add, feature = host.asked(png(1), tenant="a")
    assert saved.stats() == SavedStats()
    host.answer(engine, add)
    clock.now += GRACE_S + 1
    host.asked(png(1), tenant="a")
    processing = saved.stats()
    assert processing.processor_us == processing.image.processor_us > 0
    assert {"a": TenantStats(saved_us=processing.processor_us)} == saved.by_tenant()
    host.save(feature, "a", cost_s=1.5)
    host.save(feature, "b", cost_s=2.5)  # no request of this tenant has asked for it
    for tenant in ("a", "b"):
        host.bench.frontend.store.records.get(tenant, output_key(FINGERPRINT, feature.mm_hash))
    found = saved.stats()
    assert (found.image.encoder_us, found.other.encoder_us) == (1_500_000, 2_500_000)
    assert found.processor_us == processing.processor_us


def test_an_output_of_unknown_modality_gets_that_of_a_request_that_loads_it(host: Host) -> None:
    """As after a restart of the frontend, or from another host."""
    _, _, feature = host.asked(png(1))
    host.save(feature, cost_s=1.5)
    key, records = output_key(FINGERPRINT, feature.mm_hash), host.bench.frontend.store.records
    records.saved.learn(store_key("", key), "", key, 1.5)
    assert host.asked(png(1))[2].has_output
    records.get("", key)
    saved = records.saved.stats().image
    assert saved.encoder_us == 1_500_000
    assert saved.processor_us > 0, "its picture was not processed, either"


def test_another_engines_request_waits_for_the_one_that_encodes(host: Host) -> None:
    first, _, feature = host.asked(png(1))
    host.ask(png(1))
    assert host.waits()
    assert host.bench.gateway.requests.outputs.num_waits == 1
    host.save(feature)
    second, _, loaded = host.sent()
    assert second is not first
    assert loaded.has_output


def test_who_waits_for_several_is_woken_once(host: Host) -> None:
    """A film has hundreds, and at each waking all of them are looked for."""
    images = [png(shade) for shade in range(1, 9)]
    for number in range(2):
        prompt = "<image>" * len(images)
        generate = to_frontend.Generate(host.bench.client_id, number, prompt, 4, None, 60.0, "")
        host.bench.client.send(generate, images)
    _, add, _ = host.sent()
    assert host.waits()
    for feature in add.features:
        host.save(feature)
    _, again, _ = host.sent()
    assert all(feature.has_output for feature in again.features)
    assert host.bench.gateway.requests.outputs.num_waits == 1


def test_nobody_waits_for_an_engine_that_has_the_output_in_its_own_cache(host: Host, clock: Clock) -> None:
    """It encodes nothing, so it saves nothing; the record of before has left the store."""
    first, add, feature = host.asked(png(1))
    host.answer(first, add)
    clock.now += GRACE_S
    for engine in host.engines:
        engine.channel.send(from_engine.CacheChanged(True, [], [], [feature.mm_hash]))
    host.bench.stats()
    second, _, _ = host.asked(png(1))
    host.ask(png(1))
    assert not host.waits()
    third, _, _ = host.sent()
    assert third is not second


def test_requests_of_one_engine_share_what_it_encodes_without_waiting(run_dir: Path, clock: Clock) -> None:
    with Bench(run_dir, CONFIG, clock) as bench:
        engine = bench.connect_engine(encoder_fingerprint=FINGERPRINT)
        for request_id in (1, 2):
            bench.generate(request_id, [png(1)])
            assert not bench.from_frontend(engine, to_engine.AddRequest).features[0].has_output


def test_who_waits_goes_on_a_moment_after_the_other_has_ended_without_a_put(host: Host, clock: Clock) -> None:
    first, add, _ = host.asked(png(1))
    host.ask(png(1))
    assert host.waits()
    host.answer(first, add)
    assert host.waits(), "the put may come behind the answer"
    clock.now += GRACE_S
    _, _, feature = host.sent()
    assert not feature.has_output


def test_an_engine_that_dies_lets_the_next_who_waits_encode(host: Host, clock: Clock) -> None:
    first, _, _ = host.asked(png(1))
    host.ask(png(1))
    assert host.waits()
    host.engines.remove(first)
    host.bench.engine_dies(first)
    clock.now += 1  # it is noticed
    host.bench.answer(to_client.Failed)
    clock.now += 1
    assert not host.sent()[2].has_output


def test_nobody_waits_longer_than_he_may(host: Host, clock: Clock) -> None:
    first, _, _ = host.asked(png(1))
    host.ask(png(1))
    assert host.waits()
    clock.now += CONFIG.limits.output_wait_s + 1
    second, _, feature = host.sent()
    assert second is not first
    assert not feature.has_output


def test_a_put_that_is_refused_ends_the_wait(host: Host) -> None:
    _, add, feature = host.asked(png(1))
    host.ask(png(1))
    assert host.waits()
    key = output_key(FINGERPRINT, feature.mm_hash)
    host.saver.send_put(key, {"embeddings": np.zeros(1)}, epoch=add.store_epoch - 1)
    assert not host.saver.answer(to_client.Stored).is_stored
    assert not host.sent()[2].has_output


def test_new_weights_end_the_wait_and_all_that_was_stored(host: Host) -> None:
    _, add, feature = host.asked(png(1))
    host.save(feature)
    host.asked(png(2))
    host.ask(png(2))
    assert host.waits()
    host.bench.client.send(to_frontend.Flush(99, True))
    for engine in host.engines:
        host.bench.from_frontend(engine, to_engine.FlushEngine)
    assert not host.sent()[2].has_output
    _, new, encoded = host.asked(png(1))
    assert not encoded.has_output
    assert new.store_epoch == add.store_epoch + 1


def test_a_request_whose_output_is_gone_is_sent_again_with_pixels(host: Host) -> None:
    _, _, feature = host.asked(png(1))
    host.save(feature)
    engine, add, loaded = host.asked(png(1))
    assert loaded.has_output
    engine.channel.send(from_engine.RequestMissed(add.request_id, []))
    _, again, encoded = host.sent()
    assert again.request_id == add.request_id
    assert not encoded.has_output
    assert encoded.num_embeds != NUM_EMBEDS


@pytest.mark.parametrize(
    ("tenant", "fingerprint"), [("another", FINGERPRINT), ("", "e" * 32)], ids=["tenant", "encoder"]
)
def test_an_output_of_another(host: Host, tenant: str, fingerprint: str) -> None:
    _, _, feature = host.asked(png(1))
    host.save(feature, tenant, fingerprint)
    host.ask(png(1))
    assert host.waits(), "it is of no use"


def test_a_record_that_is_no_output_is_not_one(host: Host) -> None:
    _, _, feature = host.asked(png(1))
    for shape in ((0, 64), (1 << 12, 1), ()):
        record = {"embeddings": np.zeros(shape, np.int8)}
        key = output_key(FINGERPRINT, feature.mm_hash)
        assert host.saver.put(key, record).is_stored
        engine, add, encoded = host.asked(png(1))
        assert not encoded.has_output
        host.answer(engine, add)
        host.saver.channel.send(to_frontend.DropRecord(77, key))
        host.saver.answer(to_client.Stored)


def test_an_image_that_its_client_names_is_always_encoded(host: Host) -> None:
    """After a flush the name may stand for another image, while the output of before is on its way."""
    _, _, feature = host.asked(png(1), image_id="cat")
    name, _, _ = feature.mm_hash.partition(":")
    for mm_hash in (feature.mm_hash, name):
        host.save(msgspec.structs.replace(feature, mm_hash=mm_hash))
    assert not host.asked(png(1), image_id="cat")[2].has_output


def test_without_a_store_nothing_is_saved(run_dir: Path, clock: Clock) -> None:
    config = msgspec.structs.replace(CONFIG, store_gb=0)
    with Bench(run_dir, config, clock) as bench:
        engine = bench.connect_engine(encoder_fingerprint=FINGERPRINT)
        bench.generate(1, [png(1)])
        assert bench.from_frontend(engine, to_engine.AddRequest).store_epoch == 0


def test_a_request_loads_no_more_than_its_engine_may_lease(run_dir: Path, clock: Clock) -> None:
    """Of what is beyond, it gets pixels at once, and not after an attempt."""
    config = msgspec.structs.replace(CONFIG, store_client_quota_gb=2**-19)  # two outputs, and not three
    with Bench(run_dir, config, clock) as bench:
        host = Host(bench)
        images = [png(shade) for shade in (1, 2, 3)]
        for image in images:
            engine, add, feature = host.asked(image)
            host.save(feature)
            host.answer(engine, add)
        asked = []
        for number in (11, 12, 13):
            prompt = "<image>" * 3
            bench.client.send(to_frontend.Generate(bench.client_id, number, prompt, 4, None, 60.0), images)
            engine, add, _ = host.sent()
            asked.append((engine, add))
            assert [each.has_output for each in add.features] == [number != 13] * 2 + [False], "each engine has as many"
        assert asked[0][0] is not asked[1][0]
        host.answer(*asked[0])
        bench.client.send(to_frontend.Generate(bench.client_id, 14, "<image>" * 3, 4, None, 60.0), images)
        assert [each.has_output for each in host.sent()[1].features] == [True, True, False], "one has given back"
        check_frontend(bench.frontend)
