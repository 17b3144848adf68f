"""Frontend between a fake client and fake engines: admission, leases at every end of a request, misses, deaths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from mmcached.cache.store_keys import ITEMS_TENANT
from mmcached.client.store.tokens import checked_token
from mmcached.frontend.connections.rings import warn_of_small_shm
from mmcached.frontend.flushes import FLUSH_TIMEOUT_S
from mmcached.frontend.server import CHECK_INTERVAL_S
from mmcached.gateway.requests.request_verbs import MAX_RESENDS
from mmcached.shm import encode
from mmcached.shm.segment.segment import HostCalls
from mmcached.wire.config import ServiceConfig
from mmcached.wire.engine_stats import EngineStats, WorkerStats
from mmcached.wire.errors import ServiceUnavailable, error_from_wire
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages.parts import Inline, StoredItem, StreamedTokens, TensorForm
from mmcached.wire.paths import RunDir
from mmcached.wire.process.turns import REST_S
from mmcached.wire.stats import RoleName
from mmcached.wire.vocabulary import IMAGE_TOKEN_ID
from tests.cli.fake_view import page_of
from tests.clock import Clock, Sleeper
from tests.doubles.engine import WireEngine, checksum
from tests.frontend.fake_peers import Bench, png
from tests.present import present
from tests.shm.rings import Taking
from tests.wire.examples import ENCODER, ERROR

CONFIG = ServiceConfig(
    mm_processor_cache_gb=1 / 1024,
    mm_shm_cache_max_object_size_mb=1,
    mm_shm_inline_max_kb=0,
    max_num_requests=3,
    store_gb=0,
)
TICK_S = 0.01


@pytest.mark.parametrize("has_engine", [False, True])
def test_a_ring_without_room_is_inline_mode_until_there_is_room(
    run_dir: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, has_engine: bool
) -> None:
    room = [0]
    monkeypatch.setattr(
        "mmcached.frontend.connections.rings.HostCalls", lambda: HostCalls(shm_free_bytes=lambda: room[0])
    )
    config = msgspec.structs.replace(CONFIG, store_gb=1 / 1024)
    with Bench(run_dir, config, clock) as bench:
        client = bench.connect_client(is_reader=False)
        assert client.hello().store_ring is None
        assert not client.put("a", {"n": 1}).is_stored
        assert client.get("a").records == [None]
        engine = None
        if has_engine:
            engine = bench.connect_engine()
            bench.generate(1, [png(1)])
            add = bench.from_frontend(engine, to_engine.AddRequest)
            assert isinstance(add.features[0].payload, Inline)
        clock.now += 10
        assert bench.stats().items.capacity_bytes == 0, "tried again in vain"
        room[0] = 1 << 30
        clock.now += 10
        bench.pump(lambda: bench.frontend.stats().items.capacity_bytes > 0)
        assert client.register()
        assert client.put("a", {"n": 1}).is_stored
        assert client.read(client.get("a")) == {"n": 1}
        engine = engine or bench.connect_engine()
        bench.generate(3, [png(1)])
        assert isinstance(bench.from_frontend(engine, to_engine.AddRequest).features[0].payload, StoredItem)
        assert bench.stats().items.pinned_bytes > 0


def test_a_shm_without_room_for_a_second_set_is_told_at_the_start() -> None:
    config = ServiceConfig(mm_processor_cache_gb=0.25, store_gb=0.25)
    assert warn_of_small_shm(config, 1000 << 20)
    assert not warn_of_small_shm(config, 1024 << 20)


def failure(bench: Bench) -> str:
    return bench.answer(to_client.Failed).error.code


def test_without_a_ready_engine_a_request_waits_and_nothing_is_pinned(bench: Bench) -> None:
    bench.generate(1, [png(1)])
    assert bench.stats().requests_open == 1
    assert bench.stats().items.pinned_bytes == 0
    engine = bench.connect_engine()
    assert len(bench.from_frontend(engine, to_engine.AddRequest).features) == 1


def test_what_an_engine_says_of_a_former_frontends_request_is_not_taken_for_one_that_waits(bench: Bench) -> None:
    """Both frontends number from 1, and the engine goes on with the former one's until it knows of the new one."""
    bench.generate(1, [])
    assert bench.stats().requests_open == 1
    engine = bench.add_engine(digest=CONFIG.digest())
    bench.from_frontend(engine, to_engine.Greeted)
    number = 1
    engine.channel.send(from_engine.TokensCommitted([StreamedTokens(number, 0, [9])]))
    engine.channel.send(from_engine.RequestGenerated(number, [9], "length", 0))
    engine.channel.send(from_engine.RequestFailed(number, ERROR))
    ready = bench.connect_engine(index=1)
    add = bench.from_frontend(ready, to_engine.AddRequest)
    ready.channel.send(from_engine.RequestGenerated(add.request_id, [5], "length", 0))
    assert bench.answer(to_client.Generated).token_ids == [5]


def test_a_request_that_waits_for_an_engine_waits_no_longer_than_it_may(bench: Bench, clock: Clock) -> None:
    bench.generate(1, [], timeout_s=5.0)
    assert bench.stats().requests_open == 1
    clock.now += 6
    failed = bench.answer(to_client.Failed)
    assert (failed.request_id, failed.error.code) == (1, "deadline_exceeded")
    assert "no engine was ready" in failed.error.message
    bench.connect_engine()
    assert bench.stats().requests_open == 0


def test_request_names_its_items_in_the_store_which_stay_there_until_it_has_ended(
    bench: Bench, engine: WireEngine
) -> None:
    bench.generate(7, [png(1), png(2), png(1)])
    add = bench.from_frontend(engine, to_engine.AddRequest)
    payloads = [feature.payload for feature in add.features]
    assert all(isinstance(payload, StoredItem) for payload in payloads)
    assert payloads[0] == payloads[2] != payloads[1]
    assert add.prompt_token_ids[add.features[1].offset] == IMAGE_TOKEN_ID
    items = bench.stats().items
    assert items.entries == 2
    assert 0 < items.pinned_bytes <= items.used_bytes
    engine.channel.send(from_engine.RequestGenerated(add.request_id, [5], "length", 3))
    bench.answer(to_client.Generated)
    assert bench.stats().items.pinned_bytes == 0


def test_an_engine_for_which_too_much_is_pinned_gets_the_rest_as_frames(run_dir: Path, clock: Clock) -> None:
    config = msgspec.structs.replace(CONFIG, ring_reader_quota_gb=150_000 / (1 << 30))
    with Bench(run_dir, config, clock) as bench:
        engine = bench.connect_engine()
        shown = [png(index, (200, 200)) for index in range(3)]  # each 63 patches of 3 KiB at most
        for number in (1, 2):
            bench.generate(number, shown)
            add = bench.from_frontend(engine, to_engine.AddRequest)
            stored = [feature.nbytes for feature in add.features if isinstance(feature.payload, StoredItem)]
            assert 0 < sum(stored) <= 150_000 < sum(feature.nbytes for feature in add.features)
        stats = bench.stats()
        assert stats.items_beyond_quota == 2 * (3 - len(stored))
        assert stats.items.pinned_bytes <= 150_000


def test_a_request_that_took_too_long_is_in_the_slow_log(run_dir: Path, clock: Clock) -> None:
    with Bench(run_dir, msgspec.structs.replace(CONFIG, slow_log_ms=5000.0), clock) as bench:
        engine = bench.connect_engine()
        for number, wait_s in ((1, 1.0), (2, 5.0)):
            bench.generate(number, [])
            add = bench.from_frontend(engine, to_engine.AddRequest)
            clock.now += wait_s
            with capture_logs() as logs:
                engine.channel.send(from_engine.RequestGenerated(add.request_id, [5], "length", 3))
                bench.answer(to_client.Generated)
        (slow,) = bench.frontend.stats().slow_log.last
        assert (slow.what, slow.number) == ("request", add.request_id)
        assert slow.took_ns > 5 * 10**9
        (line,) = (line for line in logs if line["event"] == "slow request")
        assert (line["request_id"], line["kind"], line["num_files"]) == (add.request_id, "generate", 0)


def test_answer_goes_to_the_client_that_asked_with_its_own_number(bench: Bench, engine: WireEngine) -> None:
    bench.generate(41, [])
    add = bench.from_frontend(engine, to_engine.AddRequest)
    for _ in range(2):  # the second is for nobody
        engine.channel.send(from_engine.RequestGenerated(add.request_id, [5, 6], "length", 3))
    answer = bench.answer(to_client.Generated)
    assert answer == to_client.Generated(41, [5, 6], "length", len(add.prompt_token_ids), 3, text="\5\6")
    stats = bench.stats()
    assert (stats.requests_open, stats.requests_done) == (0, 1)


def test_one_bad_image_pins_nothing_and_the_good_ones_are_not_processed_again(bench: Bench, engine: WireEngine) -> None:
    bench.generate(1, [png(1), b"broken"])
    failed = bench.answer(to_client.Failed)
    assert failed.error.code == "corrupt_image"
    assert failed.error.details["field"] == "images[1]"
    assert bench.stats().items.pinned_bytes == 0
    bench.generate(2, [png(1)])
    bench.from_frontend(engine, to_engine.AddRequest)
    stats = bench.stats()
    assert stats.processor.items_processed == 1
    assert stats.items.pinned_bytes > 0
    bench.frontend.poll(0)


def test_items_that_do_not_fit_between_pinned_ones_travel_inline(bench: Bench, engine: WireEngine) -> None:
    """The ring is full of pinned items: the request is served all the same, nothing waits."""
    wide = (256, 256)  # 64 patches of 3 KiB
    inline = 0
    for shade in range(3):
        bench.generate(shade + 1, [png(10 * shade + index, wide) for index in range(3)])
        add = bench.from_frontend(engine, to_engine.AddRequest)
        inline += sum(isinstance(feature.payload, Inline) for feature in add.features)
        named = [f.payload.first_frame + f.payload.num_frames for f in add.features if isinstance(f.payload, Inline)]
        assert max(named, default=0) == len(bench.payload)
    assert inline > 0
    stats = bench.stats()
    assert stats.processor.inline_items == stats.processor.inline_fallbacks == inline
    assert stats.items.refusals == inline


def test_miss_is_sent_again_a_bounded_number_of_times(bench: Bench, engine: WireEngine) -> None:
    bench.generate(9, [png(1)])
    for _ in range(MAX_RESENDS + 1):
        add = bench.from_frontend(engine, to_engine.AddRequest)
        is_first = bench.stats().resends == 0
        assert isinstance(add.features[0].payload, StoredItem if is_first else Inline)
        assert (bench.stats().items.pinned_bytes > 0) == is_first
        engine.channel.send(from_engine.RequestMissed(add.request_id, [add.features[0].mm_hash]))
    failed = bench.answer(to_client.Failed)
    assert failed.request_id == 9
    assert error_from_wire(failed.error).retryable
    assert bench.stats().resends == MAX_RESENDS + 1


def test_deadline_ends_the_request_here_and_in_the_engine(bench: Bench, engine: WireEngine, clock: Clock) -> None:
    bench.generate(1, [], timeout_s=5.0)
    add = bench.from_frontend(engine, to_engine.AddRequest)
    clock.now += 6
    assert failure(bench) == "deadline_exceeded"
    assert bench.from_frontend(engine, to_engine.AbortRequest).request_id == add.request_id


@pytest.mark.parametrize("how", ["cancel", "bye", "death"])
def test_client_that_goes_ends_its_requests_in_the_engine(bench: Bench, engine: WireEngine, how: str) -> None:
    bench.generate(1, [])
    add = bench.from_frontend(engine, to_engine.AddRequest)
    match how:
        case "cancel":
            bench.client.send(to_frontend.Cancel(bench.client_id, 1))
        case "bye":
            bench.client.send(to_frontend.ClientBye(bench.client_id))
        case "death":
            bench.client_dies()
    assert bench.from_frontend(engine, to_engine.AbortRequest).request_id == add.request_id
    assert bench.stats().requests_open == 0


def test_cancel_of_another_client_changes_nothing(bench: Bench, engine: WireEngine) -> None:
    bench.generate(1, [])
    bench.from_frontend(engine, to_engine.AddRequest)
    bench.client.send(to_frontend.Cancel("f" * 32, 1))
    bench.client.send(to_frontend.ClientBye("f" * 32))
    assert bench.stats().requests_open == 1


def test_dead_engine_fails_its_requests_and_unpins_their_items(bench: Bench, engine: WireEngine) -> None:
    bench.generate(1, [png(1)])
    bench.from_frontend(engine, to_engine.AddRequest)
    assert bench.stats().items.pinned_bytes > 0
    engine.close()
    bench.engines.remove(engine)
    failed = bench.answer(to_client.Failed)
    assert failed.error.code == "request_aborted"
    assert failed.error.retryable
    assert bench.stats().items.pinned_bytes == 0
    bench.generate(2, [png(1)])
    assert bench.stats().requests_open == 1, "it was sent nowhere, so it waits"
    again = bench.connect_engine()
    assert isinstance(bench.from_frontend(again, to_engine.AddRequest).features[0].payload, StoredItem)


def test_for_an_engine_whose_connection_is_gone_nothing_is_pinned(bench: Bench, engine: WireEngine) -> None:
    """The message cannot be queued: nothing stays pinned for ever, and the request waits."""
    bench.generate(1, [png(1)])
    add = bench.from_frontend(engine, to_engine.AddRequest)
    engine.channel.send(from_engine.RequestGenerated(add.request_id, [5], "length", 3))
    bench.answer(to_client.Generated)
    engine.channel.close()
    bench.engines.remove(engine)
    bench.generate(2, [png(1)])
    bench.pump(lambda: not bench.gateway.connections.ready())
    stats = bench.stats()
    assert (stats.requests_open, stats.items.pinned_bytes, stats.engines) == (1, 0, [])


def test_a_message_that_cannot_be_built_leaves_nothing_pinned(bench: Bench) -> None:
    """With one token for its image the prompt fits; with all placeholders it does not."""
    bench.connect_engine()
    wide = png(1, (256, 256))
    max_tokens = CONFIG.max_model_len - 2
    bench.client.send(to_frontend.Generate(bench.client_id, 2, "<image>", max_tokens, None, 60.0), [wide])
    assert failure(bench) == "invalid_request"
    stats = bench.stats()
    assert (stats.items.puts, stats.items.pinned_bytes) == (1, 0)


@pytest.mark.parametrize("how", ["generate", "put", "claim", "claim many", "drop"])
def test_under_the_tenant_of_processed_items_clients_can_do_nothing_but_look(
    bench: Bench, engine: WireEngine, how: str
) -> None:
    bench.generate(1, [png(1)])
    add = bench.from_frontend(engine, to_engine.AddRequest)
    key, tenant, client_id = add.features[0].mm_hash, ITEMS_TENANT, bench.client_id
    match how:
        case "generate":
            bench.client.send(to_frontend.Generate(client_id, 2, "hello", 1, None, 60.0, tenant))
        case "put":
            bench.client.send(to_frontend.PutRecord(client_id, 2, key, 0, tenant), encode({"n": 1}).frames())
        case "claim":
            bench.client.send(to_frontend.ClaimRecord(client_id, 2, key, 1.0, tenant))
        case "claim many":
            bench.client.send(to_frontend.ClaimRecords(client_id, 2, [key], tenant))
        case "drop":
            bench.client.send(to_frontend.DropRecord(2, key, tenant))
    failed = bench.answer(to_client.Failed)
    assert (failed.request_id, failed.error.code, failed.error.details["field"]) == (2, "invalid_request", "tenant")
    assert bench.stats().items.entries == 1


def test_a_flush_while_a_request_is_open_leaves_its_item_to_who_reads_it(bench: Bench) -> None:
    reader = bench.connect_client()
    assert reader.entry is not None
    assert reader.ring is not None
    engine = bench.connect_engine()
    bench.generate(1, [png(1)])
    payload = bench.from_frontend(engine, to_engine.AddRequest).features[0].payload
    assert isinstance(payload, StoredItem)
    token = checked_token(payload.token)
    place = present(reader.ring.look.find_generation(token.slot, token.generation))
    assert reader.entry.take_beside(Taking(place), reader.ring.look)
    before = bytes(reader.ring.view(place))
    bench.client.send(to_frontend.Flush(6))
    flush = bench.from_frontend(engine, to_engine.FlushEngine)
    engine.channel.send(from_engine.EngineFlushed(flush.token))
    bench.answer(to_client.Flushed)
    assert bench.stats().items.entries == 0
    for number in range(2, 5):  # what comes next finds no room where it lies
        bench.client.send(to_frontend.Encode(bench.client_id, number + 10, 60.0), [png(10 * number, (256, 256))])
        bench.from_frontend(engine, to_engine.AddRequest)
        assert bytes(reader.ring.view(place)) == before
        bench.client.send(to_frontend.Cancel(bench.client_id, number + 10))
        bench.from_frontend(engine, to_engine.AbortRequest)


def test_admission_is_bounded_and_numbers_are_used_once(bench: Bench) -> None:
    bench.connect_engine()
    bench.generate(1, [])
    bench.generate(1, [])
    assert failure(bench) == "remote_protocol_error"
    bench.generate(2, [])
    bench.generate(3, [])
    bench.generate(4, [])
    assert failure(bench) == "service_unavailable"


def test_draining_refuses_new_requests_and_ends_with_the_last(bench: Bench, engine: WireEngine) -> None:
    bench.generate(1, [])
    add = bench.from_frontend(engine, to_engine.AddRequest)
    bench.frontend.drain()
    assert not bench.frontend.is_drained
    bench.generate(2, [])
    assert failure(bench) == "service_unavailable"
    engine.channel.send(from_engine.RequestGenerated(add.request_id, [5], "stop", 0))
    bench.answer(to_client.Generated)
    assert bench.frontend.is_drained


def test_engine_with_another_configuration_is_refused_with_the_reason(bench: Bench) -> None:
    bench.connect_engine()
    stranger = bench.add_engine(digest="0123456789abcdef")
    refused = bench.from_frontend(stranger, to_engine.Refused)
    assert refused.error.code == "config_error"
    assert "0123456789abcdef" in refused.error.message
    assert len(bench.stats().engines) == 1


def test_a_living_engine_that_is_dropped_may_come_again(
    bench: Bench, engine: WireEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says cannot be booked: its connection is closed, and it begins anew."""
    bench.generate(1, [])
    bench.from_frontend(engine, to_engine.AddRequest)
    with monkeypatch.context() as patch:
        patch.setattr(bench.gateway.connections, "make_ready", lambda *_: 1 / 0)
        engine.channel.send(from_engine.EngineReady(1))
        assert bench.answer(to_client.Failed).error.code == "request_aborted"
    bench.engine_dies(engine)
    again = bench.connect_engine()
    bench.generate(2, [])
    bench.from_frontend(again, to_engine.AddRequest)


def test_another_process_of_the_same_engine_takes_over_once_the_former_is_dead(bench: Bench) -> None:
    bench.connect_engine()
    bench.generate(1, [])
    bench.from_frontend(bench.engines[0], to_engine.AddRequest)
    usurper = bench.add_engine(digest=CONFIG.digest(), index=0)
    assert "it lives" in bench.from_frontend(usurper, to_engine.Refused).error.message
    assert bench.stats().requests_open == 1, "the present engine keeps its place and its requests"
    bench.engine_dies(bench.engines[0])
    bench.from_frontend(bench.add_engine(digest=CONFIG.digest(), index=0), to_engine.Greeted)
    failed = bench.answer(to_client.Failed)
    assert (failed.request_id, failed.error.code) == (1, "request_aborted")
    assert failed.error.retryable


def test_engine_that_connects_anew_begins_anew(bench: Bench, engine: WireEngine) -> None:
    """A connection is closed by a death, or by the frontend: what was under way over it is lost, and ends at once."""
    bench.generate(1, [png(1)])
    add = bench.from_frontend(engine, to_engine.AddRequest)
    former = bench.gateway.connections.ready()[0].incarnation
    engine.connect_anew()
    assert bench.from_frontend(engine, to_engine.Greeted).session != former
    assert bench.answer(to_client.Failed).error.code == "request_aborted"
    engine.channel.send(from_engine.RequestGenerated(add.request_id, [5], "length", 0))
    stats = bench.stats()
    assert (stats.requests_open, stats.items.pinned_bytes) == (0, 0)


def test_processor_info_is_what_an_engine_has_said_when_it_was_ready(bench: Bench) -> None:
    bench.client.send(to_frontend.GetProcessorInfo(5))
    assert bench.answer(to_client.Failed).error.code == ServiceUnavailable.code
    bench.connect_engine(encoder=ENCODER)
    bench.client.send(to_frontend.GetProcessorInfo(6))
    forms = bench.answer(to_client.ProcessorInfo).forms
    assert (forms.kind, forms.inputs, forms.outputs) == (ENCODER.kind, ENCODER.inputs, ENCODER.outputs)
    assert forms.rows == [TensorForm("hidden_states", "int32", (-1, CONFIG.model.hidden_size))]


def test_clients_are_told_which_encoder_it_is_and_what_another_has_made_is_forgotten(
    run_dir: Path, clock: Clock
) -> None:
    with Bench(run_dir, replace(CONFIG, store_gb=1 / 1024), clock) as bench:
        reader = bench.connect_client()
        first = reader.hello()
        bench.connect_engine(encoder_fingerprint="one")
        welcome = reader.answer(to_client.Welcome)
        assert (welcome.encoder_fingerprint, welcome.store_epoch) == ("one", first.store_epoch)
        assert reader.put("encoder/one/item", {"embeddings": 4}).is_stored
        bench.connect_engine(index=1, encoder_fingerprint="one")
        bench.connect_engine(index=2, encoder_fingerprint="another")
        welcome = reader.answer(to_client.Welcome)
        assert welcome.encoder_fingerprint == "another", "nothing was said of the second: it is the same"
        assert welcome.store_epoch == first.store_epoch + 1
        assert reader.get("encoder/one/item").records == [None]


def test_probe_is_answered_when_all_workers_agree_and_no_lease_is_left(bench: Bench) -> None:
    reader = bench.connect_client()
    assert reader.entry is not None
    assert reader.ring is not None
    engine = bench.connect_engine()
    bench.client.send(to_frontend.Probe(5, 10.0))
    probe = bench.from_frontend(engine, to_engine.ProbeEngine)
    assert isinstance(probe.payload, StoredItem)
    token = checked_token(probe.payload.token)
    place = present(reader.ring.look.find_generation(token.slot, token.generation))
    lease = Taking(place)
    assert reader.entry.take_beside(lease, reader.ring.look)
    read = checksum(bench.frontend.store.announcement, probe.payload)
    engine.channel.send(from_engine.EngineProbed(probe.token, [read, read]))
    assert bench.stats().items.entries == 1, "it is leased still"
    reader.entry.end(lease)
    assert bench.answer(to_client.Probed) == to_client.Probed(5, [0], 2, [])
    assert bench.stats().items.entries == 0, "nothing of the probe is left"


@pytest.mark.parametrize(
    ("answer", "mentions"), [("wrong", "worker 0 of engine 0"), (None, "engine 0"), ("", "engine 0 lacks a worker")]
)
def test_probe_that_fails_says_where(
    bench: Bench, engine: WireEngine, clock: Clock, answer: str | None, mentions: str
) -> None:
    bench.client.send(to_frontend.Probe(5, 10.0))
    probe = bench.from_frontend(engine, to_engine.ProbeEngine)
    if answer is None:
        clock.now += 11
    else:
        engine.channel.send(from_engine.EngineProbed(probe.token, [answer] if answer else []))
    failed = bench.answer(to_client.Failed)
    assert failed.request_id == 5
    assert mentions in failed.error.message
    assert failed.error.retryable


def test_who_asks_again_and_again_is_answered_though_one_probe_never_is(
    bench: Bench, engine: WireEngine, clock: Clock
) -> None:
    bench.client.send(to_frontend.Probe(1, 10.0))
    lost = bench.from_frontend(engine, to_engine.ProbeEngine)
    clock.now += 6  # before the first one's time is over, so that somebody always waits
    bench.client.send(to_frontend.Probe(2, 10.0))
    assert bench.stats().items.entries == 1
    clock.now += 6
    bench.client.send(to_frontend.Probe(3, 10.0))
    assert bench.answer(to_client.Failed).request_id == 1
    probe = bench.from_frontend(engine, to_engine.ProbeEngine)
    assert probe.token > lost.token
    engine.channel.send(from_engine.EngineProbed(probe.token, ["wrong"]))
    failed = bench.answer(to_client.Failed)
    assert failed.request_id == 2
    assert "worker 0 of engine 0" in failed.error.message


def test_a_flush_that_an_engine_never_answers_does_not_keep_the_next_one_from_beginning(
    bench: Bench, engine: WireEngine, clock: Clock
) -> None:
    bench.client.send(to_frontend.Flush(1))
    lost = bench.from_frontend(engine, to_engine.FlushEngine)
    clock.now += FLUSH_TIMEOUT_S + 1
    assert bench.answer(to_client.Failed).request_id == 1
    bench.client.send(to_frontend.Flush(2))
    flush = bench.from_frontend(engine, to_engine.FlushEngine)
    assert flush.token > lost.token
    engine.channel.send(from_engine.EngineFlushed(flush.token))
    assert bench.answer(to_client.Flushed).request_id == 2


def test_flush_forgets_here_and_is_answered_when_every_engine_has(bench: Bench, engine: WireEngine) -> None:
    bench.generate(1, [png(1)])
    add = bench.from_frontend(engine, to_engine.AddRequest)
    bench.client.send(to_frontend.Flush(6))
    flush = bench.from_frontend(engine, to_engine.FlushEngine)
    assert bench.stats().items.entries == 0
    engine.channel.send(from_engine.EngineFlushed(flush.token))
    assert bench.answer(to_client.Flushed).request_id == 6
    engine.channel.send(from_engine.RequestGenerated(add.request_id, [5], "length", 0))
    bench.answer(to_client.Generated)


def test_figures_are_the_pages_for_each_engine_that_is_ready(run_dir: Path, clock: Clock) -> None:
    roles = [RoleName("engine"), RoleName("engine", 1), *(RoleName("worker", 0, rank) for rank in (1, 0))]
    RunDir(run_dir).create()
    with page_of(run_dir, *roles) as (_, writers), Bench(run_dir, CONFIG, clock) as bench:
        for number, (role, writer) in enumerate(writers.items(), 1):
            writer.publish(EngineStats(steps=number) if role.kind == "engine" else WorkerStats(items_encoded=number))
        assert bench.stats().engines == []
        bench.connect_engine()
        workers = [WorkerStats(items_encoded=4), WorkerStats(items_encoded=3)]
        assert bench.stats().engines == [EngineStats(steps=1, workers=workers)]
        bench.connect_engine(index=1)
        bench.pump(lambda: len(bench.stats().engines) == 2)
        assert bench.stats().engines[1] == EngineStats(steps=2)


def test_at_rest_it_turns_to_look_alive_and_while_anything_is_open_at_each_check(
    bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.connect_engine()
    clock.tick_s = 0.0
    bench.frontend.poll(0)

    def turns_of_a_minute() -> int:
        sleeper, end = Sleeper(clock), clock.now + 60
        with monkeypatch.context() as patch:
            patch.setattr(bench.frontend, "_poller", sleeper)
            while clock.now < end:
                bench.frontend.poll(REST_S)
        return sleeper.num_waits

    turns_of_a_minute()  # what came before has its checks
    assert turns_of_a_minute() <= 60 / REST_S + 2
    monkeypatch.setattr(type(bench.frontend.store), "has_open", True)
    assert turns_of_a_minute() >= 60 / CHECK_INTERVAL_S - 8


def test_what_was_found_at_rest_counts_before_what_is_said_next(
    bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put evicts by it."""
    client = bench.connect_client(is_reader=False)
    clock.tick_s = 0.0
    for _ in range(3):
        clock.now += REST_S
        bench.frontend.poll(0)
    store, calls = bench.frontend.store, []
    monkeypatch.setattr(store.records, "poll_hits", lambda: calls.append("hits"))
    handle = store.handle

    def note(*arguments: Any) -> None:
        calls.append("message")
        handle(*arguments)

    monkeypatch.setattr(store, "handle", note)
    client.get("k")
    assert calls[:2] == ["hits", "message"]
