"""A router leaves an engine that answers nothing, whatever its caches have."""

from __future__ import annotations

from mmcached.gateway.engines.routing import Candidate, Router


def test_an_engine_that_has_the_prompt_and_has_stopped_gets_few_of_many_requests() -> None:
    router = Router("cache_aware")
    num_open = 0
    for _ in range(100):
        stopped = Candidate(0, num_open=num_open, num_uncached=0)
        chosen = router.choose([stopped, Candidate(1, num_uncached=300)])
        router.pass_turn(chosen.index)
        num_open += chosen.index == 0
    assert 1 <= num_open <= 25
