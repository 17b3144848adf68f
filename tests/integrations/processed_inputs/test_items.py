"""An item is made once per host, whoever asks for what of it; and who asks for its counts reads no pixels."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from mmcached.cache.fingerprints import fingerprint
from mmcached.client import Claim, Client
from mmcached.integrations.processed_inputs import ProcessedItem, ProcessedItems, name_of
from mmcached.integrations.processed_inputs.items import NUM_QUICK, POLL_S, ProcessingTimes, keys_of
from tests.client.services import StoreService

PROCESSOR: dict[str, object] = {"class": "Halver", "version": "1.0", "config": {"size": 448}, "kwargs": {}}
DEADLINE_S = 30.0
PIXELS = torch.arange(1 << 16, dtype=torch.float32)
ITEM = name_of(b"a picture")


def process() -> ProcessedItem:
    return ProcessedItem({"grid": [1, 32, 32], "num_placeholders": 256}, {"pixel_values": PIXELS})


def never() -> ProcessedItem:
    raise AssertionError("it was there")


def keys(processor: dict[str, object] = PROCESSOR) -> tuple[str, str]:
    return keys_of(fingerprint(processor), ITEM)


@pytest.fixture
def client(run_dir: Path) -> Iterator[Client]:
    with StoreService(run_dir), Client(run_dir, fail_open=False) as client:
        yield client


def test_another_process_finds_counts_and_pixels(client: Client, run_dir: Path) -> None:
    first = ProcessedItems(client, PROCESSOR)
    made = first.get_or_process(ITEM, process)
    with Client(run_dir, fail_open=False) as other:
        found = ProcessedItems(other, PROCESSOR).get_or_process(ITEM, never)
    assert found.counts == made.counts == process().counts
    assert torch.equal(found.pixels["pixel_values"], PIXELS)
    assert first.num_processed == 1


def test_counts_are_had_without_pixels(client: Client) -> None:
    items = ProcessedItems(client, PROCESSOR)
    items.get_or_process(ITEM, process)
    client.drop(keys()[1])
    assert items.get_or_process_counts(ITEM, never) == process().counts


def test_evicted_pixels_are_made_again(client: Client) -> None:
    items = ProcessedItems(client, PROCESSOR)
    items.get_or_process(ITEM, process)
    client.drop(keys()[1])
    assert torch.equal(items.get_or_process(ITEM, process).pixels["pixel_values"], PIXELS)
    assert items.num_processed == 2
    assert client.contains_many(list(keys())) == [True, True]


def test_what_is_not_there_is_none(client: Client) -> None:
    assert ProcessedItems(client, PROCESSOR).find(ITEM) is None


@pytest.mark.parametrize(
    "other",
    [
        PROCESSOR | {"class": "Doubler"},
        PROCESSOR | {"version": "1.1"},
        PROCESSOR | {"config": {"size": 336}},
        PROCESSOR | {"kwargs": {"do_resize": False}},
    ],
    ids=["class", "version", "config", "kwargs"],
)
def test_another_processor_shares_nothing(client: Client, other: dict[str, object]) -> None:
    ProcessedItems(client, PROCESSOR).get_or_process(ITEM, process)
    assert ProcessedItems(client, other).find(ITEM) is None


def test_who_wants_counts_and_who_wants_all_make_it_once(client: Client, run_dir: Path) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def slowly() -> ProcessedItem:
        has_begun.set()
        assert may_end.wait(DEADLINE_S)
        return process()

    with ExitStack() as stack:
        clients = [stack.enter_context(Client(run_dir, fail_open=False)) for _ in range(4)]
        all_items = [ProcessedItems(each, PROCESSOR) for each in clients]
        pool = stack.enter_context(ThreadPoolExecutor(len(clients)))
        asked = [pool.submit(all_items[0].get_or_process_counts, ITEM, slowly)]
        assert has_begun.wait(DEADLINE_S)
        asked.append(pool.submit(all_items[1].get_or_process_counts, ITEM, slowly))
        whole = [pool.submit(items.get_or_process, ITEM, slowly) for items in all_items[2:]]
        may_end.set()
        assert all(each.result(DEADLINE_S) == process().counts for each in asked)
        assert all(torch.equal(each.result(DEADLINE_S).pixels["pixel_values"], PIXELS) for each in whole)
        assert sum(items.num_processed for items in all_items) == 1


def test_short_times_are_those_of_all_last_items() -> None:
    times = ProcessingTimes()
    for _ in range(NUM_QUICK - 1):
        times.note(POLL_S / 2)
    assert not times.are_short, "too few items"
    times.note(POLL_S / 2)
    assert times.are_short
    times.note(POLL_S)
    for _ in range(NUM_QUICK - 1):
        assert not times.are_short
        times.note(POLL_S / 2)
    assert not times.are_short
    times.note(POLL_S / 2)
    assert times.are_short


def test_an_item_is_found_or_claimed(client: Client, run_dir: Path) -> None:
    claim = ProcessedItems(client, PROCESSOR).find_or_claim(ITEM)
    assert isinstance(claim, Claim)
    assert claim.is_exclusive
    with Client(run_dir, fail_open=False) as other:
        late = ProcessedItems(other, PROCESSOR, timeout_s=0.0).find_or_claim(ITEM)
        assert isinstance(late, Claim)
        assert not late.is_exclusive, "it has waited as long as it may"
        claim.drop()
        ProcessedItems(client, PROCESSOR).get_or_process(ITEM, process)
        found = ProcessedItems(other, PROCESSOR).find_or_claim(ITEM)
        assert isinstance(found, ProcessedItem)
        client.drop(keys()[1])
        lost = ProcessedItems(other, PROCESSOR).find_or_claim(ITEM)
        assert isinstance(lost, Claim)
        assert lost.key == keys()[1]


def test_without_a_service_everybody_makes_it(run_dir: Path) -> None:
    with Client(run_dir, timeout_s=0.2, connect_timeout_s=0.2) as client:
        items = ProcessedItems(client, PROCESSOR)
        assert torch.equal(items.get_or_process(ITEM, process).pixels["pixel_values"], PIXELS)
        assert items.get_or_process_counts(ITEM, process) == process().counts
        assert items.num_processed == 2


def test_what_cannot_be_made_keeps_nobody_waiting(client: Client) -> None:
    items = ProcessedItems(client, PROCESSOR)

    def fail() -> ProcessedItem:
        raise OSError("no picture")

    with pytest.raises(OSError, match="no picture"):
        items.get_or_process(ITEM, fail)
    assert items.get_or_process(ITEM, process).counts == process().counts
