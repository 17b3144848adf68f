"""A frontend without workers: the store works, and what a model would have to do is refused at once."""

from __future__ import annotations

import numpy as np

from mmcached.wire.config import GIB, MIB, ServiceConfig
from mmcached.wire.errors import InvalidRequest, error_from_wire
from mmcached.wire.handle import Handle
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as to_frontend
from tests.frontend.fake_peers import Bench, png

CONFIG = ServiceConfig(world_size=0, store_gb=4 * MIB / GIB, store_max_clients=2)


def test_what_needs_a_worker_is_refused_for_good(bench: Bench) -> None:
    generate = to_frontend.Generate(bench.client_id, 1, "look: <image>", 4, None, 60.0)
    encode = to_frontend.Encode(bench.client_id, 2, 60.0)
    for message in (generate, encode):
        bench.client.send(message, [png(1)])
        failed = bench.answer(to_client.Failed)
        assert failed.request_id == message.request_id
        error = error_from_wire(failed.error)
        assert isinstance(error, InvalidRequest)
        assert (error.details["field"], error.details["value"]) == ("world_size", 0)
        assert "this service is a store" in str(error.details["limit"])
        assert not error.retryable
    bench.client.send(to_frontend.GetProcessorInfo(3))
    no_encoder = error_from_wire(bench.answer(to_client.Failed).error)
    assert (no_encoder.code, no_encoder.retryable) == ("invalid_request", False)
    assert no_encoder.details["field"] == "world_size"
    stats = bench.stats()
    assert (stats.requests_open, stats.requests_failed, stats.processor.items_processed) == (0, 2, 0)


def test_a_probe_says_that_no_engine_was_reached_and_a_flush_is_done_in_one_turn(bench: Bench) -> None:
    client = bench.connect_client()
    assert client.put("key", {"x": np.arange(1000)}).is_stored
    bench.client.send(to_frontend.Probe(5, 10.0))
    bench.client.send(to_frontend.Flush(6))
    bench.pump(lambda: bench.frontend.stats().store.ring.chunks == 0)
    assert bench.client.wait(10.0), "no further turn was needed"
    assert bench.answer(to_client.Probed) == to_client.Probed(5, [], 0, [])
    assert bench.answer(to_client.Flushed) == to_client.Flushed(6)
    assert client.get("key").records == [None]


def test_a_new_epoch_refuses_what_was_computed_before_it(bench: Bench) -> None:
    client = bench.connect_client()
    epoch = client.hello().store_epoch
    bench.client.send(to_frontend.Flush(6, new_epoch=True))
    bench.answer(to_client.Flushed)
    client.send_put("key", {"x": np.arange(10)}, epoch=epoch)
    assert not client.answer(to_client.Stored).is_stored


def test_records_of_a_quarter_of_the_store_are_kept_and_there_is_no_other_ring(bench: Bench) -> None:
    client = bench.connect_client()
    record = {"x": np.arange(MIB - 4096, dtype=np.uint8)}
    assert client.put("large", record).is_stored
    answer = client.get("large")
    assert isinstance(answer.records[0], Handle)
    assert np.array_equal(client.read(answer)["x"], record["x"])
    too_large = client.put("too large", {"x": np.zeros(MIB + 1, np.uint8)})
    assert not too_large.is_stored
    assert "store_max_object_mb" in too_large.reason
    stats = bench.stats()
    assert (stats.items.capacity_bytes, stats.engines) == (0, [])
    assert stats.store.ring.data_bytes == 4 * MIB
