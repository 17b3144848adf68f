"""Order, budgets, preemption, the encoder's window, and how steps end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mmcached.engine import Request, ScheduledStep, Scheduler
from mmcached.engine.encoder.encoder_budget import EncoderCacheScope
from mmcached.engine.scheduling.block_admission import BlockAdmission
from mmcached.wire.errors import ConfigError, InvalidRequest, LocalProtocolError, RemoteProtocolError
from mmcached.wire.messages.worker import EmbedSpan
from mmcached.wire.vocabulary import END_TOKEN_ID
from tests.engine.builders import encode, generate, image
from tests.engine.integrity import check_scheduler
from tests.engine.schedulers import schedule, scheduler_with


def commit(scheduler: Scheduler, step: ScheduledStep, token_id: int = 5) -> list[int]:
    """End a step, with one token for all; return the ids of the finished requests."""
    sampled = {chunk.request.request_id: token_id for chunk in step.chunks if chunk.sample}
    finished = scheduler.commit(step, sampled)
    check_scheduler(scheduler)
    return [request.request_id for request in finished]


def run(scheduler: Scheduler) -> ScheduledStep:
    step = schedule(scheduler)
    commit(scheduler, step)
    return step


def tokens(step: ScheduledStep) -> dict[int, int]:
    return {chunk.request.request_id: chunk.num_tokens for chunk in step.chunks}


def encoded(step: ScheduledStep) -> list[str]:
    return [key for _, _, key in step.encode]


# ---- order and token budget


def test_requests_are_served_in_order_with_their_whole_prompts() -> None:
    scheduler = scheduler_with([generate(number, 10 + number, max_tokens=3) for number in range(10)])
    step = schedule(scheduler)
    assert list(tokens(step).items()) == [(number, 10 + number) for number in range(10)]
    assert all(chunk.sample and chunk.start == 0 for chunk in step.chunks)
    assert (scheduler.num_running, scheduler.num_waiting) == (10, 0)
    commit(scheduler, step)
    assert list(tokens(schedule(scheduler)).values()) == [1] * 10


def test_prompts_are_computed_in_chunks() -> None:
    scheduler = scheduler_with([generate(0, 2500), generate(1, 30, max_tokens=9)])
    steps = [run(scheduler) for _ in range(3)]
    assert [tokens(step) for step in steps] == [{0: 1024}, {0: 1024}, {0: 452, 1: 30}]
    assert [step.chunks[0].start for step in steps] == [0, 1024, 2048]
    assert [step.chunks[0].sample for step in steps] == [False, False, True]
    assert len(steps[2].chunks[0].block_ids) == 157
    assert tokens(run(scheduler)) == {1: 1}


def test_no_more_than_max_num_seqs_run() -> None:
    scheduler = scheduler_with([generate(number, 10, max_tokens=2) for number in range(3)], max_num_seqs=2)
    assert list(tokens(run(scheduler))) == [0, 1]
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)
    assert list(tokens(run(scheduler))) == [0, 1]
    assert list(tokens(run(scheduler))) == [2]


def test_generation_ends_at_the_end_token_or_at_max_tokens() -> None:
    stops, runs_on = generate(0, 10, max_tokens=3), generate(1, 10, max_tokens=3)
    scheduler = scheduler_with([stops, runs_on])
    assert commit(scheduler, schedule(scheduler)) == []
    assert scheduler.commit(schedule(scheduler), {0: END_TOKEN_ID, 1: 7}) == [stops]
    assert commit(scheduler, schedule(scheduler), 8) == [1]
    assert (stops.output_token_ids, stops.finish_reason) == ([5, END_TOKEN_ID], "stop")
    assert (runs_on.output_token_ids, runs_on.finish_reason) == ([5, 7, 8], "length")
    assert stops.is_finished
    assert not scheduler.has_work()
    assert scheduler.schedule() is None
    assert scheduler.kv_cache_manager.usage == 0.0


# ---- the prefix cache


def test_a_committed_prefix_is_hit_and_counted_once() -> None:
    first, second = generate(0, range(70)), generate(1, [*range(64), 1, 2])
    scheduler = scheduler_with([first])
    run(scheduler)
    scheduler.add_request(second)
    (chunk,) = schedule(scheduler).chunks
    assert (chunk.start, chunk.num_tokens) == (64, 2)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 64)
    stats = scheduler.kv_cache_manager.stats()
    assert (stats.queries, stats.hits) == (136, 64)


def test_equal_prompts_in_one_step_are_computed_once() -> None:
    """The second takes over the full blocks that the first is going to write before anybody reads them."""
    scheduler = scheduler_with([generate(number, range(100), max_tokens=2) for number in range(2)])
    step = run(scheduler)
    assert tokens(step) == {0: 100, 1: 4}
    assert step.chunks[0].block_ids[:6] == step.chunks[1].block_ids[:6]
    assert step.chunks[0].block_ids[6] != step.chunks[1].block_ids[6]


# ---- preemption


def test_the_last_running_request_is_preempted_and_resumes() -> None:
    first, second = generate(0, 80, max_tokens=3), generate(1, 80, max_tokens=3)
    scheduler = scheduler_with([first, second], num_kv_blocks=11, max_model_len=160)
    assert tokens(run(scheduler)) == {0: 80, 1: 80}
    assert tokens(run(scheduler)) == {0: 1}
    assert (scheduler.num_preemptions, second.num_preemptions) == (1, 1)
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 1)
    assert second.output_token_ids == [5]
    hits_before = scheduler.kv_cache_manager.stats().hits
    run(scheduler)  # the first one ends
    (chunk,) = schedule(scheduler).chunks
    # Its last block was given to the other one; the rest of its prefix is still there, and its output is not lost.
    assert (chunk.request, chunk.start, chunk.num_tokens) == (second, 64, 17)
    assert second.num_cached_tokens == 0
    assert scheduler.kv_cache_manager.stats().hits == hits_before


def test_who_was_set_back_waits_until_all_of_it_fits() -> None:
    requests = [generate(0, 8, max_tokens=8), generate(1, 8, max_tokens=8)]
    limits: dict[str, Any] = {"block_size": 4, "num_kv_blocks": 5, "max_model_len": 16}
    scheduler = scheduler_with(requests, max_num_batched_tokens=12, enable_prefix_caching=False, **limits)
    steps = [tokens(run(scheduler)) for _ in range(4)]
    # Request 0 takes the last block, and request 1 sets itself back. Its former block would be enough to start anew at
    # once: work that is likely to be thrown away again.
    assert steps == [{0: 8, 1: 4}, {0: 1}, {0: 1}, {0: 1}]
    assert scheduler.num_preemptions == 1


def test_the_urgent_are_served_first_and_the_others_are_the_victims() -> None:
    requests = [generate(number, 16, max_tokens=3) for number in range(3)]
    requests[0].priority, requests[1].priority, requests[2].priority = 2, 1, 1
    scheduler = scheduler_with(requests, num_kv_blocks=3, max_model_len=32, scheduling_policy="priority")
    assert list(tokens(run(scheduler))) == [1, 2]
    assert tokens(run(scheduler)) == {1: 1}
    assert [request.num_preemptions for request in requests] == [0, 0, 1]
    ended = []
    while scheduler.has_work():
        ended += [chunk.request.request_id for chunk in run(scheduler).chunks if chunk.request.is_finished]
    assert ended == [1, 2, 0]


def test_without_priorities_nobody_is_urgent() -> None:
    requests = [generate(0, 16), generate(1, 16)]
    requests[0].priority = 9
    assert list(tokens(run(scheduler_with(requests)))) == [0, 1]


def test_a_request_that_was_set_back_comes_before_those_who_came_after_it() -> None:
    scheduler = scheduler_with([generate(0, 16, max_tokens=5), generate(1, 16, max_tokens=5)], max_num_seqs=2)
    step = scheduler.schedule()
    assert step is not None
    scheduler.add_request(generate(2, 16))
    scheduler.withdraw(step)
    assert list(tokens(run(scheduler))) == [0, 1]


# ---- admission


def test_a_prompt_is_admitted_if_all_of_it_fits_beside_what_the_others_lack() -> None:
    """The first has computed 32 of 96 tokens; what it lacks is not to be had by anybody else."""
    requests = [generate(0, 96), generate(1, 48), generate(2, 32)]
    limits: dict[str, Any] = {"num_kv_blocks": 9, "max_model_len": 128, "max_num_batched_tokens": 64}
    scheduler = scheduler_with(requests, long_prefill_token_threshold=32, **limits)
    assert tokens(run(scheduler)) == {0: 32}  # 6 of 8 blocks are spoken for: 48 tokens do not fit, and nobody passes
    assert tokens(run(scheduler)) == {0: 32}
    assert tokens(run(scheduler)) == {0: 32}
    assert tokens(run(scheduler)) == {1: 32, 2: 32}


def test_the_watermark_is_left_for_those_who_run() -> None:
    for watermark, admitted in ((0.0, [0, 1]), (0.1, [0])):
        scheduler = scheduler_with(
            [generate(0, 80, max_tokens=2), generate(1, 80)],
            num_kv_blocks=11,
            max_model_len=160,
            kv_watermark=watermark,
        )
        assert list(tokens(run(scheduler))) == admitted
    alone = scheduler_with([generate(0, 159)], num_kv_blocks=11, max_model_len=160, kv_watermark=0.5)
    assert tokens(run(alone)) == {0: 159}


def test_a_long_prompt_leaves_tokens_to_others_but_not_to_nobody() -> None:
    limits: dict[str, Any] = {"max_num_batched_tokens": 1024, "long_prefill_token_threshold": 400}
    together = scheduler_with([generate(number, 800) for number in range(3)], **limits)
    assert [list(tokens(run(together)).values()) for _ in range(3)] == [[400, 400, 224], [400, 400, 224], [352]]
    assert tokens(run(scheduler_with([generate(0, 2000)], **limits))) == {0: 1024}


def test_encode_requests_are_no_victims() -> None:
    requests = [generate(0, 16, max_tokens=3), generate(1, 16, max_tokens=3), encode(2, ("a", 4), ("b", 4))]
    limits: dict[str, Any] = {"num_kv_blocks": 3, "max_model_len": 32}
    scheduler = scheduler_with(requests, max_patches=4, max_num_encoder_input_tokens=4, **limits)
    first = run(scheduler)
    assert (tokens(first), [input_id for _, input_id, _ in first.emit]) == ({0: 16, 1: 16}, [0])
    second = run(scheduler)
    assert (tokens(second), [input_id for _, input_id, _ in second.emit]) == ({0: 1}, [1])
    assert (requests[1].num_preemptions, requests[2].num_preemptions) == (1, 0)


def test_a_step_that_only_sets_somebody_back_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first running request waits for encoder space that the last one holds, which finds no blocks itself.

    So it is if more are admitted than fit, and progress must not depend on who is admitted.
    """
    monkeypatch.setattr(BlockAdmission, "is_room_for", lambda *_: True)
    scheduler = scheduler_with(
        [encode(9, ("x", 3))],
        max_patches=4,
        block_size=1,
        num_kv_blocks=26,
        max_model_len=25,
        max_num_batched_tokens=25,
        max_num_encoder_input_tokens=4,
        encoder_cache_size=6,
    )
    run(scheduler)
    scheduler.add_request(generate(0, 3, [image("p", 0, 3)]))  # takes most of the step's encoder budget
    scheduler.add_request(generate(1, 24, [image("q", 20, 4)]))
    scheduler.add_request(generate(2, 20, [image("x", 0, 3)]))  # is cached, so it is had all the same
    assert tokens(run(scheduler)) == {0: 3, 1: 20, 2: 2}
    step = run(scheduler)
    assert (tokens(step), encoded(step), scheduler.num_preemptions) == ({1: 4}, ["q"], 1)


# ---- requests that turn out not to be servable


def test_an_item_with_the_key_of_another_size_fails_its_own_request_only() -> None:
    """A content key stands for one output; who brings it with another size has no right to that."""
    first, other = generate(0, 30, [image("a", 2, 10)], max_tokens=3), generate(1, 20, [image("a", 2, 8)])
    late = generate(2, 40, [image("b", 2, 4), image("a", 20, 9)], max_tokens=3)
    scheduler = scheduler_with([first, other, late], max_patches=16, max_num_batched_tokens=44)
    assert tokens(run(scheduler)) == {0: 30, 2: 14}
    ((refused, error),) = scheduler.take_failed()
    assert refused is other
    assert error.details["field"] == "features[0].num_embeds"
    assert tokens(run(scheduler)) == {0: 1}
    assert [request.request_id for request, _ in scheduler.take_failed()] == [2]
    assert scheduler.take_failed() == []
    while scheduler.has_work():
        run(scheduler)
    assert (first.is_finished, scheduler.kv_cache_manager.usage) == (True, 0.0)


def test_if_all_are_refused_there_is_no_step() -> None:
    first, other = generate(0, 30, [image("a", 2, 10)]), generate(1, 20, [image("a", 2, 8)])
    scheduler = scheduler_with([first], max_patches=16)
    run(scheduler)
    scheduler.add_request(other)
    assert scheduler.schedule() is None
    assert not scheduler.has_work()
    assert [request for request, _ in scheduler.take_failed()] == [other]


# ---- the encoder's window


def test_chunks_end_before_an_item_that_cannot_be_encoded_now() -> None:
    requests = [generate(n, 800, [image(f"image {n}", 100, 600)], max_tokens=5) for n in range(3)]
    scheduler = scheduler_with(requests, encoder_cache_size=1024)
    first, second = run(scheduler), run(scheduler)
    assert (tokens(first), encoded(first)) == ({0: 800, 1: 100, 2: 100}, ["image 0"])
    assert (tokens(second), encoded(second)) == ({0: 1, 1: 700}, ["image 1"])
    assert scheduler.num_running == 3
    assert second.freed_keys == ["image 0"]


def test_spans_say_which_rows_go_where() -> None:
    request = generate(0, 30, [image("a", 2, 10), image("b", 12, 9)])
    scheduler = scheduler_with([request], max_patches=16, max_num_batched_tokens=8)
    spans = [run(scheduler).chunks[0].spans for _ in range(4)]
    assert spans == [
        [EmbedSpan("a", 2, 0, 6)],
        [EmbedSpan("a", 0, 6, 4), EmbedSpan("b", 4, 0, 4)],
        [EmbedSpan("b", 0, 4, 5)],
        (),
    ]


@pytest.mark.parametrize(("scope", "num_encoded"), [("shared", 1), ("request", 3)])
def test_equal_images_of_several_requests_in_one_step(scope: EncoderCacheScope, num_encoded: int) -> None:
    requests = [generate(0, 20, [image("a", 1, 4)]), encode(1, ("a", 4)), generate(2, 20, [image("a", 3, 4)])]
    scheduler = scheduler_with(requests, encoder_cache_scope=scope)
    step = schedule(scheduler)
    assert len(step.encode) == num_encoded
    assert len(step.chunks) == 2
    assert {key for _, _, key in step.emit} <= set(encoded(step))
    assert commit(scheduler, step) == [0, 2, 1]


def test_items_are_not_split_if_they_may_not_be() -> None:
    scheduler = scheduler_with(
        [generate(0, 1200, [image("a", 400, 800)])], max_patches=800, disable_chunked_mm_input=True
    )
    assert [tokens(run(scheduler)) for _ in range(2)] == [{0: 400}, {0: 800}]
    with pytest.raises(ConfigError):
        scheduler_with(max_patches=800, disable_chunked_mm_input=True, max_num_batched_tokens=100)


def test_an_item_that_does_not_fit_behind_others_waits_for_a_step_of_its_own() -> None:
    requests = [generate(0, 1400, max_tokens=9), generate(1, 900, [image("a", 0, 800)])]
    scheduler = scheduler_with(requests, max_patches=800, disable_chunked_mm_input=True, max_num_batched_tokens=900)
    assert [tokens(run(scheduler)) for _ in range(4)] == [{0: 900}, {0: 500}, {0: 1, 1: 899}, {0: 1, 1: 1}]


def test_duplicates_that_may_not_be_split_stop_the_chunk_and_are_found_later() -> None:
    request = generate(0, 1352, [image("a", 100, 576), image("a", 776, 576)])
    scheduler = scheduler_with([request], disable_chunked_mm_input=True)
    first, second = run(scheduler), run(scheduler)
    assert (tokens(first), encoded(first)) == ({0: 776}, ["a"])
    assert (tokens(second), encoded(second)) == ({0: 576}, [])


def test_a_prefix_hit_inside_an_item_needs_the_item() -> None:
    def request_with(request_id: int, changed: int) -> Request:
        token_ids = list(range(60))
        token_ids[changed] = 99
        return generate(request_id, token_ids, [image("a", 10, 30)])

    scheduler = scheduler_with([request_with(0, 50)], max_patches=30, encoder_cache_size=30)
    run(scheduler)
    for request_id, changed, start in ((1, 51, 48), (2, 45, 32)):
        scheduler.add_request(encode(10 + request_id, ("b", 30)))
        run(scheduler)  # evicts "a"; the prefix is still cached
        scheduler.add_request(request_with(request_id, changed))
        step = run(scheduler)
        (chunk,) = step.chunks
        assert chunk.start == start
    assert (encoded(step), step.freed_keys) == (["a"], ["b"])
    assert chunk.spans == [EmbedSpan("a", 0, 22, 8)]


# ---- "encode" requests


def test_items_are_emitted_in_order_as_the_budget_allows() -> None:
    request = encode(0, ("a", 4), ("b", 3), ("a", 4), ("c", 4), ("d", 1))
    scheduler = scheduler_with([request], max_patches=4, max_num_encoder_input_tokens=8, encoder_cache_size=9)
    first = schedule(scheduler)
    assert first.emit == [(request, 0, "a"), (request, 1, "b"), (request, 2, "a")]
    assert (encoded(first), first.chunks, first.request_ids()) == (["a", "b"], [], [0])
    assert commit(scheduler, first) == []
    assert (request.num_emitted, scheduler.encoder_cache_manager.holders()) == (3, set())
    second = schedule(scheduler)
    assert [input_id for _, input_id, _ in second.emit] == [3, 4]
    # Only as much is evicted as needed. "b" was released after the first "a", but "a" has come again after it.
    assert second.freed_keys == ["b"]
    assert commit(scheduler, second) == [0]
    assert scheduler.kv_cache_manager.stats().queries == 0


# ---- nobody starves


@pytest.mark.parametrize(
    ("name", "offset", "num_embeds", "num_tokens", "large_offset"),
    [
        ("small {}", 0, 2, 2, 1),  # a later request always holds half of an item, the next would take what is freed
        ("popular", 0, 2, 2, 1),
        ("small {}", 1, 3, 4, 0),  # they would pass the large one, and take the encoder first
    ],
)
def test_later_items_do_not_keep_a_large_one_out(
    name: str, offset: int, num_embeds: int, num_tokens: int, large_offset: int
) -> None:
    large = generate(1, 5, [image("large", large_offset, 4)])
    first = generate(0, 4, [image(name.format("first"), 2, 2)], max_tokens=99)
    scheduler = scheduler_with([first, large], max_patches=4, encoder_cache_size=4, max_num_batched_tokens=3)
    for number in range(16):
        item = image(name.format(number), offset, num_embeds)
        scheduler.add_request(generate(10 + number, num_tokens, [item], skip_reading_prefix_cache=True))
        run(scheduler)
    assert large.is_finished


def test_requests_without_items_pass_one_that_waits_for_the_encoder() -> None:
    requests = [
        generate(0, 4, [image("a", 0, 4)]),
        generate(1, 4, [image("b", 0, 4)]),
        generate(2, 4),
        generate(3, 4, [image("c", 1, 3)]),
    ]
    scheduler = scheduler_with(requests, max_patches=4, encoder_cache_size=4)
    assert tokens(run(scheduler)) == {0: 4, 2: 4}
    assert tokens(run(scheduler)) == {1: 4, 3: 1}


# ---- how steps end


def test_one_step_at_a_time() -> None:
    scheduler = scheduler_with([generate(0, 10, max_tokens=9)])
    step = schedule(scheduler)
    with pytest.raises(LocalProtocolError, match="step 0 is in flight"):
        scheduler.schedule()
    commit(scheduler, step)
    for end in (lambda: scheduler.commit(step, {0: 5}), lambda: scheduler.withdraw(step)):
        with pytest.raises(LocalProtocolError, match="not in flight"):
            end()
    assert schedule(scheduler).step_id == step.step_id + 1


@pytest.mark.parametrize("sampled", [{}, {0: 5}, {0: 5, 1: 5, 2: 5}])
def test_a_wrong_set_of_tokens_is_refused_and_changes_nothing(sampled: dict[int, int]) -> None:
    requests = [generate(0, 10), generate(1, 10), generate(2, 2000)]
    scheduler = scheduler_with(requests)
    step = schedule(scheduler)
    with pytest.raises(RemoteProtocolError, match="sampled"):
        scheduler.commit(step, sampled)
    assert [request.num_computed_tokens for request in requests] == [0, 0, 0]
    assert scheduler.commit(step, {0: 5, 1: 5}) == requests[:2]


def test_a_withdrawn_step_leaves_nothing_and_is_done_again() -> None:
    requests = [generate(0, 40, [image("a", 1, 4)], max_tokens=9), encode(1, ("b", 4), ("b", 4)), generate(2, 40)]
    scheduler = scheduler_with(requests)
    step = schedule(scheduler)
    assert encoded(step) == ["a", "b"]
    scheduler.withdraw(step)
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 3)
    assert scheduler.kv_cache_manager.stats().blocks_cached == 0
    again = schedule(scheduler)
    assert (tokens(again), encoded(again)) == (tokens(step), encoded(step))
    assert list(tokens(again)) == [0, 2]
    assert commit(scheduler, again) == [2, 1]


def test_aborting_waits_for_the_step_that_writes_the_blocks() -> None:
    requests = [generate(0, 40, max_tokens=9), generate(1, 40, max_tokens=9), generate(2, 40), encode(3, ("a", 4))]
    scheduler = scheduler_with(requests, max_num_seqs=2)
    run(scheduler)
    step = schedule(scheduler)
    used = scheduler.kv_cache_manager.stats().blocks_used
    for request_id in (0, 2, 77):
        scheduler.abort(request_id)
        scheduler.abort(request_id)
    assert scheduler.kv_cache_manager.stats().blocks_used == used
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)
    assert commit(scheduler, step) == []
    assert scheduler.num_running == 1
    assert [request.is_finished for request in requests] == [True, False, True, False]
    scheduler.abort(1)
    scheduler.abort(3)
    assert not scheduler.has_work()
    assert scheduler.kv_cache_manager.usage == 0.0
    assert scheduler.kv_cache_manager.stats().blocks_cached == 4  # what was computed is true, whoever asked for it


def test_aborted_requests_end_with_a_withdrawn_step() -> None:
    scheduler = scheduler_with([generate(0, 40), generate(1, 40), encode(2, ("a", 4))])
    step = schedule(scheduler)
    scheduler.abort(0)
    scheduler.abort(2)
    scheduler.withdraw(step)
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 1)
    assert tokens(schedule(scheduler)) == {1: 40}


@pytest.mark.parametrize("is_in_flight", [True, False])
def test_reset_forgets_everything_but_the_requests(is_in_flight: bool) -> None:
    requests = [generate(number, 40, [image("a", 1, 4)], max_tokens=9) for number in range(3)]
    scheduler = scheduler_with(requests, max_num_seqs=2)
    run(scheduler)
    run(scheduler)
    step = schedule(scheduler) if is_in_flight else None
    scheduler.reset()
    if step is not None:
        with pytest.raises(LocalProtocolError):
            scheduler.commit(step, {0: 5, 1: 5})
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 3)
    assert scheduler.kv_cache_manager.stats().blocks_cached == 0
    assert scheduler.encoder_cache_manager.stats().embeds_used == 0
    again = schedule(scheduler)
    assert (tokens(again), encoded(again)) == ({0: 42, 1: 42}, ["a"])
    assert requests[0].output_token_ids == [5, 5]
    assert again.freed_keys == []


# ---- what is never taken in


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (generate(0, []), "prompt_token_ids"),
        (generate(0, 10, max_tokens=0), "max_tokens"),
        (generate(0, 10, max_tokens=91), "prompt_token_ids + max_tokens"),
        (generate(0, 20, [image("a", 0, 9)]), "features[0].num_embeds"),
        (generate(0, 10, [image("a", 50, 3)]), "features[0].offset"),
        (generate(0, 10, [msgspec.structs.replace(image("a", 1, 3), length=4)]), "features[0].length"),
        (generate(0, 20, [image("a", 5, 4), image("b", 1, 4)]), "features[1].offset"),
        (generate(0, 20, [image("a", 1, 4), image("b", 4, 4)]), "features[1].offset"),
        (generate(0, 20, [image("a", 1, 4), image("a", 5, 3)]), "features[1].num_embeds"),
        (encode(0), "features"),
        (encode(0, ("a", 8), ("b", 9)), "features[1].num_embeds"),
        (encode(0, ("a", 0)), "features[0].num_embeds"),
    ],
)
def test_requests_that_could_never_be_served_are_refused(request_: Request, field: str) -> None:
    scheduler = scheduler_with(max_patches=4, max_num_encoder_input_tokens=8, encoder_cache_size=10, max_model_len=100)
    with pytest.raises(InvalidRequest) as caught:
        scheduler.add_request(request_)
    assert caught.value.details["field"] == field
    assert not scheduler.has_work()


def test_an_id_in_use_is_refused() -> None:
    scheduler = scheduler_with([generate(0, 10)])
    with pytest.raises(LocalProtocolError, match="request 0: id is in use"):
        scheduler.add_request(generate(0, 5))
    run(scheduler)
    scheduler.add_request(generate(0, 5))


def test_a_model_without_images_takes_no_items() -> None:
    scheduler = scheduler_with(is_multimodal_model=False)
    with pytest.raises(InvalidRequest):
        scheduler.add_request(encode(0, ("a", 1)))
    scheduler.add_request(generate(1, 10))
    assert tokens(run(scheduler)) == {1: 10}
