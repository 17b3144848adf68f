"""What a worker saves of what it has encoded, and what it takes for an output; the store is the test's."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from mmcached.cache.store_keys import output_key
from mmcached.client import Client
from mmcached.client.device.devices import device_of
from mmcached.wire.config import ServiceConfig
from mmcached.wire.engine_stats import EncodedOfModality
from mmcached.wire.errors import CacheMiss
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages.engine import ItemSaved
from mmcached.wire.messages.parts import SavedRows, StoredOutput, TensorForm
from mmcached.wire.messages.worker import EmitEmbedding, EncodeItem, StepPlan
from mmcached.worker import stored_outputs
from mmcached.worker.encoders.encoder import MeasuredForm
from mmcached.worker.payloads import StoreContact
from mmcached.worker.steps.runner import ModelRunner
from mmcached.worker.stored_outputs import StoredOutputs
from tests.worker.oracle import random_image
from tests.worker.plans import chunk, plan
from tests.worker.rings import inline_frames
from tests.worker.steps.test_runner import CONFIG, CPU, inline_item, run, run_failing, tensor_of

IMAGE = random_image(np.random.default_rng(0), (2, 3), 2)
NUM_EMBEDS = 6


class Store:
    """In the place of a client: what was put, by key; `open` takes a key for a token."""

    def __init__(self) -> None:
        self.records: dict[str, Any] = {}
        self.options: dict[str, Any] = {}

    def contains_many(self, keys: list[str], **options: object) -> list[bool]:
        return [key in self.records for key in keys]

    def is_verifying(self) -> bool:
        return False

    def put(self, key: str, record: object, **options: object) -> bool:
        self.records[key], self.options[key] = record, options
        return True

    def get_or_compute(self, key: str, fn: Callable[[], Any], **options: object) -> Any:
        if key not in self.records:
            self.records[key] = fn()
        return self.records[key]

    def open(self, token: str, **options: object) -> SimpleNamespace | None:
        return SimpleNamespace(record=self.records[token]) if token in self.records else None

    def close(self) -> None:
        pass


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr("mmcached.worker.steps.item_outputs.contact", lambda run_dir, **options: store)
    return store


def runner_with_store(rank: int = 0, world_size: int = 1, **limits: float) -> ModelRunner:
    of_test = msgspec.convert({"min_shared_encode_ms": 0.0} | limits, LimitsConfig)
    config = msgspec.structs.replace(CONFIG, world_size=world_size, limits=of_test)
    return ModelRunner(config, rank=rank, device=CPU, run_dir=Path("/nowhere"))


def item(key: str = "a", store_epoch: int = 5) -> EncodeItem:
    inline = inline_item(key, IMAGE)
    return EncodeItem(inline.key, inline.mm_hash, inline.num_embeds, inline.payload, "t", store_epoch)


def fail_to_connect() -> Client:
    raise AssertionError("nothing is asked")


def key_of(runner: ModelRunner, mm_hash: str = "a") -> str:
    return output_key(runner.encoder_fingerprint, mm_hash)


def save_all(runner: ModelRunner, number: int | None = None) -> None:
    """Have saved what the last step has encoded, and wait until that many outputs are; else all that was encoded."""
    waiting = runner.stats().items_encoded if number is None else number
    runner.save_outputs()
    deadline = time.monotonic() + 30.0
    while runner.stats().outputs_saved < waiting:
        assert time.monotonic() < deadline, "it is never saved"


def load(token: str, num_embeds: int = NUM_EMBEDS) -> StepPlan:
    stored = EncodeItem("b", "a", num_embeds, StoredOutput(token))
    return plan(1, encode=[stored], emit=[EmitEmbedding(1, 0, "b")])


def test_what_one_worker_has_encoded_another_loads_bit_for_bit(store: Store) -> None:
    with runner_with_store() as first, runner_with_store() as second:
        step = plan(1, encode=[item()], emit=[EmitEmbedding(1, 0, "a")])
        output, payload = run(first, step, inline_frames(IMAGE))
        wanted = tensor_of(output.embeddings[0], payload)
        assert store.records == {}, "not before the step is answered"
        save_all(first)
        key = key_of(first)
        assert (store.options[key]["tenant"], store.options[key]["store_epoch"]) == ("t", 5)
        store.records[key] = {name: tensor.clone() for name, tensor in store.records[key].items()}
        output, payload = run(second, load(key))
        assert np.array_equal(tensor_of(output.embeddings[0], payload), wanted)
        assert (second.stats().items_encoded, second.stats().items_loaded) == (0, 1)
        assert second.stats().by_modality.image == EncodedOfModality(loaded=1, embeds_loaded=NUM_EMBEDS)
        store.records[key]["embeddings"].zero_()
        output, payload = run(second, plan(2, emit=[EmitEmbedding(1, 0, "b")]))
        assert np.array_equal(tensor_of(output.embeddings[0], payload), wanted), "it owns its bytes"


def named(key: str = "a") -> EmitEmbedding:
    return EmitEmbedding(1, 0, key, "a", "t", 5)


def test_a_large_output_is_saved_and_named_instead_of_returned(store: Store) -> None:
    with runner_with_store(max_inline_output_kb=0) as runner:
        output, payload = run(runner, plan(1, encode=[item()], emit=[named()]), inline_frames(IMAGE))
        assert (output.embeddings, payload) == ([], [])
        assert output.saved == [ItemSaved(1, 0, key_of(runner))]
        save_all(runner, 1)
        wanted = runner.encoder_cache.get("a")["embeddings"]
        assert torch.equal(store.records[key_of(runner)]["embeddings"], wanted)
        assert (store.options[key_of(runner)]["tenant"], store.options[key_of(runner)]["store_epoch"]) == ("t", 5)
        store.records.clear()
        output, _ = run(runner, plan(2, emit=[named()]))
        assert len(output.saved) == 1, "it was encoded before, and has gone from the store"
        save_all(runner, 2)
        assert runner.stats().items_encoded == 1


@pytest.mark.parametrize(
    "why", ["it is small", "there is no room for it", "nobody takes keys", "a rank behind the first"]
)
def test_an_output_that_is_not_named(store: Store, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"max_inline_output_kb": 64 if why == "it is small" else 0}
    if why == "there is no room for it":
        monkeypatch.setattr(stored_outputs, "MAX_UNSAVED_BYTES", 0)
    rank = int(why == "a rank behind the first")
    with runner_with_store(rank, 1 + rank, **limits) as runner:
        emit = EmitEmbedding(1, 0, "a") if why == "nobody takes keys" else named()
        output, payload = run(runner, plan(1, encode=[item()], emit=[emit]), inline_frames(IMAGE))
    assert output.saved == []
    assert len(output.embeddings) == len(payload) == 1 - rank


def test_large_rows_are_saved_and_named_instead_of_returned(store: Store) -> None:
    wanted = chunk(1, [256, 10, 20, 30], [1], hidden=True, sample=True)
    with runner_with_store(max_inline_output_kb=0) as runner:
        output, payload = run(runner, plan(1, wanted))
        returned = tensor_of(output.rows[0], payload)
    named_chunk = msgspec.structs.replace(wanted, rows_name="rows/7", tenant="t", store_epoch=5)
    with runner_with_store(max_inline_output_kb=0) as runner:
        output, payload = run(runner, plan(1, named_chunk))
        assert (output.rows, payload) == ([], [])
        (saved,) = output.saved_rows
        assert saved.rows == SavedRows("hidden_states", 0, "rows/7/0/0-4", "int32", returned.shape)
        deadline = time.monotonic() + 30.0
        while saved.rows.name not in store.records:
            assert time.monotonic() < deadline, "they are never saved"
        assert runner.stats().outputs_saved == 0, "they are no output"
    assert np.array_equal(store.records[saved.rows.name]["rows"].numpy(), returned)
    assert (store.options[saved.rows.name]["tenant"], store.options[saved.rows.name]["store_epoch"]) == ("t", 5)
    with runner_with_store() as runner:
        output, payload = run(runner, plan(1, named_chunk))
        assert np.array_equal(tensor_of(output.rows[0], payload), returned), "they are small"
        assert output.saved_rows == []


def test_of_two_ranks_one_encodes_and_both_say_the_same(store: Store) -> None:
    with runner_with_store(0, 2) as first, runner_with_store(1, 2) as second:
        digests = {run(each, plan(1, encode=[item()]), inline_frames(IMAGE))[0].digest for each in (first, second)}
        assert len(digests) == 1
        assert [each.stats().items_encoded for each in (first, second)] == [1, 0]
        assert [each.stats().items_loaded for each in (first, second)] == [0, 1]


def test_what_takes_no_time_every_rank_encodes_and_one_saves(store: Store) -> None:
    with (
        runner_with_store(0, 2, min_shared_encode_ms=6e4) as first,
        runner_with_store(1, 2, min_shared_encode_ms=6e4) as second,
    ):
        for runner, mm_hash in ((first, "a"), (second, "b")):
            run(runner, plan(1, encode=[item(mm_hash)]), inline_frames(IMAGE))
        assert len(store.records) == 2, "how long it takes, nobody knew"
        for runner in (first, second):
            for step, mm_hash in ((2, "c"), (3, "d")):
                run(runner, plan(step, encode=[item(mm_hash)]), inline_frames(IMAGE))
                runner.save_outputs()
            save_all(runner, 1)
            assert (runner.stats().items_encoded, runner.stats().items_loaded) == (3, 0)
        assert store.records.keys() == {key_of(first, each) for each in "abcd"}


def test_what_takes_no_time_in_one_modality_may_take_long_in_another() -> None:
    outputs = StoredOutputs(ServiceConfig(), StoreContact(fail_to_connect), "", device_of("cpu", max_pinned_bytes=0))
    image, video = item("a"), msgspec.structs.replace(item("b"), modality="video")
    assert (outputs.is_shared(image), outputs.is_shared(video)) == (True, True), "nobody knows"
    outputs.encoded(video, 0.0)
    assert (outputs.is_shared(image), outputs.is_shared(video)) == (True, False)
    outputs.encoded(image, 60.0)
    assert (outputs.is_shared(image), outputs.is_shared(video)) == (True, False)


def test_a_rank_that_finds_something_else_in_the_place_of_an_output_encodes(store: Store) -> None:
    with runner_with_store(1, 2) as runner:
        store.records[key_of(runner)] = {"embeddings": torch.zeros(2, 2)}
        run(runner, plan(1, encode=[item()]), inline_frames(IMAGE))
        assert (runner.stats().items_encoded, runner.stats().items_loaded) == (1, 0)


def test_a_step_that_failed_saves_nothing(store: Store) -> None:
    with runner_with_store() as runner:
        lost = EncodeItem("b", "b", NUM_EMBEDS, StoredOutput("nowhere"))
        failed = run_failing(runner, plan(1, encode=[item(), lost]), inline_frames(IMAGE))
        assert failed.error.details["mm_hashes"] == ["b"]
        runner.save_outputs()
        assert runner.encoder_cache.keys() == []
    assert store.records == {}


FORGED: dict[str, Any] = {
    "gone": None,
    "no tensors": {"embeddings": "six"},
    "another name": {"embedding": torch.zeros(NUM_EMBEDS, 8, dtype=torch.int32)},
    "one more": {"embeddings": torch.zeros(NUM_EMBEDS, 8, dtype=torch.int32), "more": torch.zeros(1)},
    "another dtype": {"embeddings": torch.zeros(NUM_EMBEDS, 8, dtype=torch.int64)},
    "another width": {"embeddings": torch.zeros(NUM_EMBEDS, 9, dtype=torch.int32)},
    "another length": {"embeddings": torch.zeros(NUM_EMBEDS + 1, 8, dtype=torch.int32)},
}


@pytest.mark.parametrize("what", FORGED)
def test_a_record_that_is_no_output_of_this_encoder_is_missed(store: Store, what: str) -> None:
    if FORGED[what] is not None:
        store.records["t"] = FORGED[what]
    with runner_with_store() as runner:
        failed = run_failing(runner, load("t"))
    assert failed.error.code == CacheMiss.code
    assert failed.error.details["mm_hashes"] == ["a"]


@pytest.mark.parametrize("number", [torch.nan, torch.inf, 3e38])
def test_a_record_whose_numbers_are_not_finite_is_missed(store: Store, number: float) -> None:
    embeddings = torch.ones(NUM_EMBEDS, 8)
    embeddings[0, 0] = embeddings[-1, -1] = number
    store.records["t"] = {"embeddings": embeddings}
    with runner_with_store() as runner:
        form, of_floats = runner._items.measured.form, TensorForm("embeddings", "float32", (-1, 8))
        runner._items.measured = MeasuredForm(msgspec.structs.replace(form, outputs=[of_floats]), 32)
        if number == 3e38:  # the sum of finite numbers may overflow
            run(runner, load("t"))
        else:
            failed = run_failing(runner, load("t"))
            assert failed.error.code == CacheMiss.code
