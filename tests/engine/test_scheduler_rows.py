"""Requests that want rows: how far a hit serves them, what workers are told, and what follows if rows are missing."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mmcached.engine import Request, ScheduledStep, Scheduler
from mmcached.engine.hidden_states.listed_rows import Report
from mmcached.wire.errors import InvalidRequest
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


def test_without_a_store_nothing_is_named_and_rows_are_computed() -> None:
    scheduler, store = scheduler_with([wants(1), wants(2)], enable_tensor_prefix_cache=False), PlainStore()
    step = run(scheduler, store)
    assert [(chunk.start, list(chunk.new_hashes.block_hashes)) for chunk in step.chunks] == [(0, []), (0, [])]


# ---- what the workers are told


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


# ---- steps and epochs


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
