"""Requests go to the ready engine that has the fewest open."""

from __future__ import annotations

from pathlib import Path

from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend_from_engines as to_frontend
from tests.clock import Clock
from tests.frontend.fake_peers import Bench
from tests.frontend.integrity import check_frontend

CONFIG = ServiceConfig(mm_processor_cache_gb=0, store_gb=0)


def test_the_ready_engine_with_the_fewest_open_requests_is_chosen(run_dir: Path) -> None:
    with Bench(run_dir, CONFIG, Clock()) as bench:
        unready = bench.add_engine(digest=CONFIG.digest(), index=2)
        bench.from_frontend(unready, to_engine.Greeted)
        engines = [bench.connect_engine(), bench.connect_engine(index=1)]
        bench.pump(lambda: len(bench.stats().engines) == 2)
        numbers = []
        for number, engine in enumerate((*engines, *engines)):
            bench.generate(number, [])
            numbers.append(bench.from_frontend(engine, to_engine.AddRequest).request_id)
        for number in numbers[1::2]:  # both of the second engine's
            engines[1].channel.send(to_frontend.RequestGenerated(number, [5], "length", 0))
            bench.answer(to_client.Generated)
        for number in (4, 5):
            bench.generate(number, [])
            bench.from_frontend(engines[1], to_engine.AddRequest)
        check_frontend(bench.frontend)
        assert not unready.backlog
