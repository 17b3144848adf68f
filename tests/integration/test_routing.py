"""Conversations over two engines: each turn finds what the turns before have computed, if it goes where that was."""

from __future__ import annotations

from tests.integration.local_service import scratch_service
from tests.integration.processes import small_config
from tests.integration.workloads import photo

NUM_CONVERSATIONS, NUM_TURNS = 3, 4


def play(policy: str) -> tuple[int, int, list[int], list[list[int]]]:
    """Return cached tokens, images encoded, requests by engine, and the tokens of all answers."""
    config = small_config(world_size=1, data_parallel_size=2, routing_policy=policy)
    answers = []
    num_cached = 0
    with scratch_service(config) as (_, client):
        before = client.stats().engines
        prompts = [f"{index}: what is in <image>? " for index in range(NUM_CONVERSATIONS)]
        for _ in range(NUM_TURNS):
            for index in range(NUM_CONVERSATIONS):
                answer = client.generate(prompts[index], [photo(index)], 8)
                num_cached += answer.num_cached_tokens
                answers.append(answer.tokens)
                prompts[index] += "".join(f" {token}" for token in answer.tokens) + ", and what else? "
        engines = client.stats().engines
    encoded = sum(worker.items_encoded for engine in engines for worker in engine.workers)
    encoded -= sum(worker.items_encoded for engine in before for worker in engine.workers)
    finished = [new.requests_finished - old.requests_finished for old, new in zip(before, engines, strict=True)]
    return num_cached, encoded, finished, answers


def test_cache_aware_routing_finds_more_than_turns_do_and_answers_are_the_same() -> None:
    cached, encoded, finished, answers = play("cache_aware")
    cached_in_turns, encoded_in_turns, _, answers_in_turns = play("round_robin")
    assert cached > cached_in_turns
    assert (encoded, encoded_in_turns) == (NUM_CONVERSATIONS, 2 * NUM_CONVERSATIONS)
    assert all(finished), "both work"
    assert answers == answers_in_turns
