"""Requests that want rows: how far a hit serves them, what workers are told, and what follows if rows are missing."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mmcached.engine import Request, ScheduledStep, Scheduler
from mmcached.engine.hidden_states.listed_rows import Report
from mmcached.wire.errors import InvalidRequest, RemoteProtocolError
from mmcached.wire.messages.engine import RowsMissing
from mmcached.wire.messages.parts import RowsWanted
from mmcached.wire.model_config import ModelConfig
from tests.engine.builders import generate
from tests.engine.integrity import check_scheduler
from tests.engine.schedulers import schedule, scheduler_with

KEY, INNER = "hidden_states", "hidden_states.layer_0"
PROMPT = list(range(1000, 1040))  # two blocks and a half


class PlainStore:
    """What rank 0 would report: it keeps every row that it is given a name for, in so many blocks."""

    def __init__(self, keys: Iterable[str] = (KEY,)) -> None:
        self.keys = list(keys)
        self.names: dict[int, list[bytes]] = {}
        self.released: list[int] = []

    def run(self, step: ScheduledStep) -> Report:
        self.released += step.released
        for request_id in step.released:
            self.names.pop(request_id, None)
        report: Report = {}
        for chunk in step.chunks:
            names = self.names.setdefault(chunk.request.request_id, [])
            assert chunk.new_hashes.first_block == len(names) or not chunk.new_hashes.block_hashes, (
                "names come without a gap"
            )
            names += chunk.new_hashes.block_hashes
            for index in range(chunk.start // 16, len(names)):
                num_rows = min(16, chunk.end - index * 16)
                if num_rows > 0:
                    report = {**report, names[index]: dict.fromkeys(self.keys, num_rows)}
        return report


def wants(
    request_id: int, *, prompt: list[int] = PROMPT, rows: RowsWanted | None = None, max_tokens: int = 1
) -> Request:
    request = generate(request_id, prompt, max_tokens=max_tokens)
    request.rows = rows or RowsWanted()
    request.num_rows_delivered = request.rows.first_wanted
    return request


def commit(
    scheduler: Scheduler, step: ScheduledStep, report: Report | None = None, missing: Iterable[RowsMissing] = ()
) -> list[int]:
    sampled = {chunk.request.request_id: 5 for chunk in step.chunks if chunk.sample}
    finished = scheduler.commit(step, sampled, report, list(missing))
    check_scheduler(scheduler)
    return [request.request_id for request in finished]


def run(scheduler: Scheduler, store: PlainStore) -> ScheduledStep:
    step = schedule(scheduler)
    commit(scheduler, step, store.run(step))
    return step


def start_of(step: ScheduledStep, request_id: int) -> int:
    [start] = [chunk.start for chunk in step.chunks if chunk.request.request_id == request_id]
    return start


# ---- how far a hit serves


@pytest.mark.parametrize(
    ("rows", "keys", "start"),
    [
        ({KEY: 0}, [KEY], 16),
        ({KEY: 9}, [KEY], 16),
        ({KEY: 16}, [KEY], 32),
        ({KEY: 16}, [INNER], 16),
        ({KEY: 16}, [KEY, INNER], 16),
    ],
)
def test_a_hit_serves_as_far_as_the_store_has_full_blocks_of_all_keys(
    rows: dict[str, int], keys: list[str], start: int
) -> None:
    model = ModelConfig(num_layer_outputs=1, max_patches_per_image=600)
    scheduler = scheduler_with([generate(1, PROMPT)], model=model)
    step = schedule(scheduler)
    hashes = step.chunks[0].new_hashes.block_hashes
    commit(scheduler, step, {hashes[0]: {KEY: 16, INNER: 16}, hashes[1]: rows})
    scheduler.add_request(wants(2, rows=RowsWanted(keys)))
    step = schedule(scheduler)
    assert start_of(step, 2) == start
    assert step.chunks[0].request.num_cached_tokens == start
    assert commit(scheduler, step) == [2]


def test_a_hit_without_rows_is_no_hit_for_who_wants_them_and_one_for_the_others() -> None:
    scheduler = scheduler_with([generate(1, PROMPT)])
    commit(scheduler, schedule(scheduler), {})
    for request in (wants(2), generate(3, PROMPT)):
        scheduler.add_request(request)
    step = schedule(scheduler)
    assert (start_of(step, 2), start_of(step, 3)) == (0, 32)


@pytest.mark.parametrize(("first", "start"), [(0, 0), (15, 0), (16, 16), (31, 16), (32, 32), (39, 32)])
@pytest.mark.parametrize("enabled", [True, False])
def test_rows_that_the_client_has_need_not_be_in_the_store(enabled: bool, first: int, start: int) -> None:
    scheduler = scheduler_with([generate(1, PROMPT)], enable_tensor_prefix_cache=enabled)
    commit(scheduler, schedule(scheduler), {})
    scheduler.add_request(wants(2, rows=RowsWanted(first=first, delivery="delta")))
    assert start_of(schedule(scheduler), 2) == start


def test_equal_prompts_in_one_step_share_their_rows_too() -> None:
    scheduler, store = scheduler_with([wants(1), wants(2)]), PlainStore()
    step = run(scheduler, store)
    assert (start_of(step, 1), start_of(step, 2)) == (0, 32)


def test_without_a_store_nothing_is_named_and_rows_are_computed() -> None:
    scheduler, store = scheduler_with([wants(1), wants(2)], enable_tensor_prefix_cache=False), PlainStore()
    step = run(scheduler, store)
    assert [(chunk.start, list(chunk.new_hashes.block_hashes)) for chunk in step.chunks] == [(0, []), (0, [])]


# ---- what the workers are told


def test_blocks_are_named_as_they_fill_and_requests_released_as_they_end() -> None:
    scheduler, store = scheduler_with([generate(1, 14, max_tokens=20), generate(2, 20)]), PlainStore()
    named = []
    while scheduler.has_work():
        step = run(scheduler, store)
        named.append({chunk.request.request_id: len(chunk.new_hashes.block_hashes) for chunk in step.chunks})
    assert named[0] == {1: 0, 2: 1}
    assert [index for index, step_named in enumerate(named) if step_named.get(1)] == [2, 18]
    scheduler.add_request(generate(3, 5))
    assert schedule(scheduler).released == [1]
    assert store.released == [2]


def test_who_was_set_back_is_released_and_named_anew() -> None:
    requests = [wants(1, prompt=PROMPT[:30], max_tokens=30), wants(2, prompt=list(range(30)), max_tokens=30)]
    scheduler, store = scheduler_with(requests, num_kv_blocks=6, max_model_len=80, kv_watermark=0.0), PlainStore()
    while not scheduler.num_preemptions:
        step = run(scheduler, store)
    while 2 not in store.released:
        step = run(scheduler, store)
    while 2 not in [chunk.request.request_id for chunk in step.chunks]:
        step = run(scheduler, store)
    [chunk] = [chunk for chunk in step.chunks if chunk.request.request_id == 2]
    assert chunk.new_hashes.first_block == 0
    while scheduler.has_work():
        run(scheduler, store)


def test_what_was_brought_before_a_preemption_is_not_wanted_again() -> None:
    victim = wants(2, prompt=list(range(30)), max_tokens=30)
    scheduler = scheduler_with(
        [wants(1, prompt=PROMPT[:30], max_tokens=30), victim], num_kv_blocks=6, max_model_len=80, kv_watermark=0.0
    )
    while not scheduler.num_preemptions:
        commit(scheduler, schedule(scheduler), {})
        delivered = victim.num_rows_delivered
    assert delivered > 30
    assert victim.num_computed_tokens == 0
    while victim.num_computed_tokens == 0:
        assert victim.num_rows_delivered == delivered
        step = schedule(scheduler)
        commit(scheduler, step, {})
    # The store has nothing, and what is wanted begins behind the hit.
    assert start_of(step, 2) in (16, 32)


# ---- missing rows


def test_a_request_that_lacks_rows_starts_over_and_counts_on_the_store_no_further() -> None:
    scheduler, store = scheduler_with([generate(1, PROMPT)]), PlainStore()
    run(scheduler, store)
    other = generate(3, 8, max_tokens=4)
    lacking = wants(2, max_tokens=2)
    for request in (lacking, other):
        scheduler.add_request(request)
    step = schedule(scheduler)
    assert start_of(step, 2) == 32
    commit(scheduler, step, {}, [RowsMissing(2, KEY, 20, 32)])
    assert (lacking.num_computed_tokens, lacking.num_tokens, lacking.num_rows_delivered) == (0, len(PROMPT), 0)
    assert other.num_tokens == 9, "nobody else notices"
    step = schedule(scheduler)
    assert start_of(step, 2) == 16
    assert 2 in step.released
    commit(scheduler, step, store.run(step))
    assert lacking.num_tokens == len(PROMPT) + 1


def test_a_request_that_was_aborted_in_flight_and_lacks_rows_ends() -> None:
    scheduler, store = scheduler_with([generate(1, PROMPT)]), PlainStore()
    run(scheduler, store)
    scheduler.add_request(wants(2))
    step = schedule(scheduler)
    scheduler.abort(2)
    assert commit(scheduler, step, {}, [RowsMissing(2, KEY, 20, 32), RowsMissing(99, KEY, 0, 1)]) == []
    assert not scheduler.has_work()
    assert not scheduler.tensor_prefix_index.holders()


def test_a_report_that_cannot_be_changes_nothing() -> None:
    scheduler = scheduler_with([generate(1, PROMPT)])
    step = schedule(scheduler)
    with pytest.raises(RemoteProtocolError):
        commit(scheduler, step, {b"name": {KEY: 17}})
    assert commit(scheduler, step, {}) == [1]


# ---- steps and epochs


def test_nothing_of_a_withdrawn_step_is_found_and_what_is_gone_is_believed() -> None:
    scheduler, store = scheduler_with([generate(1, PROMPT)]), PlainStore()
    run(scheduler, store)
    scheduler.add_request(wants(2, prompt=list(range(40))))
    step = schedule(scheduler)
    gone = store.names[1][0]
    scheduler.withdraw(step, {**store.run(step), gone: {}})
    assert scheduler.tensor_prefix_index.stats().blocks == 1, "of the two that were listed"
    scheduler.add_request(wants(3))
    step = schedule(scheduler)
    assert (start_of(step, 2), start_of(step, 3)) == (0, 0)


@pytest.mark.parametrize("is_in_flight", [False, True])
def test_a_new_epoch_makes_everything_unreachable_and_requests_go_on(is_in_flight: bool) -> None:
    runs_on = wants(1, prompt=PROMPT, max_tokens=9)
    scheduler, store = scheduler_with([runs_on]), PlainStore()
    run(scheduler, store)
    step = schedule(scheduler) if is_in_flight else None
    scheduler.caches.new_epoch()
    if step is not None:
        assert step.row_epoch == 0
        commit(scheduler, step, store.run(step))
    assert scheduler.tensor_prefix_index.stats().blocks == 0
    for request in (wants(2), generate(3, PROMPT)):
        scheduler.add_request(request)
    step = schedule(scheduler)
    assert step.row_epoch == 1
    assert (start_of(step, 2), start_of(step, 3)) == (0, 32), "3 shares what 2 computes in this very step"
    assert start_of(step, 1) > len(PROMPT) - 1
    commit(scheduler, step, PlainStore().run(step))
    while scheduler.has_work():
        commit(scheduler, schedule(scheduler), {})
    assert runs_on.num_tokens == len(PROMPT) + 9


# ---- refused at admission


@pytest.mark.parametrize(
    ("rows", "field", "limit"),
    [
        (RowsWanted(["hidden_states", "nothing"]), "rows.keys", "hidden_states"),
        (RowsWanted(["hidden_states", "hidden_states"]), "rows.keys", "each once"),
        (RowsWanted(first=40, delivery="delta"), "rows.first", "40"),
    ],
)
def test_rows_that_cannot_be_given_are_refused(rows: RowsWanted, field: str, limit: str) -> None:
    scheduler = scheduler_with()
    with pytest.raises(InvalidRequest, match=limit) as caught:
        scheduler.add_request(wants(1, rows=rows))
    assert caught.value.details["field"] == field
    assert not scheduler.has_work()
