"""One plan at a time: order, leases, prefix hits, failures that leave nothing, equality with the oracle."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
import torch

from mmcached.client.device.stopwatch import Stopwatch
from mmcached.wire.config import ServiceConfig
from mmcached.wire.engine_stats import EncodedOfModality
from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.engine import ItemEmbedding, StepFailed, StepOutput
from mmcached.wire.messages.parts import Inline, RequestRows
from mmcached.wire.messages.worker import EmbedSpan, EmitEmbedding, EncodeItem, StepPlan
from mmcached.wire.model_config import ModelConfig
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.vocabulary import TOKEN_IDS
from mmcached.worker.steps.runner import ModelRunner
from tests.worker.integrity import check_runner
from tests.worker.oracle import (
    Image,
    IntArray,
    Item,
    Oracle,
    modality_of,
    num_embeds_of,
    random_image,
    random_sound,
    random_video,
)
from tests.worker.plans import EPOCH, INCARNATION, chunk, names_of, plan
from tests.worker.rings import inline_frames, item_store, record_of

MODEL = ModelConfig(
    seed=9,
    hidden_size=8,
    num_heads=2,
    encoder_width=12,
    patch_size=2,
    max_patches_per_image=9,
    audio_frame=3,
    encoder_layers=1,
)
CONFIG = ServiceConfig(model=MODEL, block_size=4, num_kv_blocks=40, max_model_len=64, world_size=2)
ORACLE = Oracle(MODEL)
IMAGES = [random_image(np.random.default_rng(seed), grid, 2) for seed, grid in enumerate([(2, 3), (1, 2), (3, 3)])]
_RNG = np.random.default_rng(3)
ITEMS: list[Item] = [*IMAGES, random_video(_RNG, (1, 4), 2), random_sound(_RNG, 5, 3)]
CPU = torch.device("cpu")
DEVICES = [
    CPU,
    pytest.param(
        torch.device("cuda"), marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    ),
]


def make_runner(rank: int = 0, config: ServiceConfig = CONFIG, device: torch.device = CPU) -> ModelRunner:
    return ModelRunner(config, rank=rank, device=device)


def run(runner: ModelRunner, step: StepPlan, frames: Sequence[Frame] = ()) -> tuple[StepOutput, list[Frame]]:
    answer, payload = runner.execute(step, frames)
    assert isinstance(answer, StepOutput), answer
    check_runner(runner)
    return answer, payload


def run_failing(runner: ModelRunner, step: StepPlan, frames: Sequence[Frame] = ()) -> StepFailed:
    answer, payload = runner.execute(step, frames)
    assert isinstance(answer, StepFailed)
    assert payload == []
    check_runner(runner)
    return answer


def tensor_of(part: RequestRows | ItemEmbedding, payload: Sequence[Frame]) -> IntArray:
    tensor = part.tensor if isinstance(part, ItemEmbedding) else part.rows.tensor
    assert tensor.dtype == "int32"
    return np.frombuffer(payload[tensor.frame], "<i4").reshape(tensor.shape).astype(np.int64)


def inline_item(key: str, item: Item, first_frame: int = 0) -> EncodeItem:
    where = Inline(first_frame, len(inline_frames(item)))
    return EncodeItem(key, key, num_embeds_of(item), where, modality=modality_of(item))


PROMPT = [256, 10, 20, 30, 40, 50, 60, 70, 80, 90]
NAMES = names_of(PROMPT, CONFIG.block_size)


# ---- what a plan makes


def test_an_answer_names_the_plan_it_is_for() -> None:
    runner = make_runner()
    output, payload = run(runner, plan(77, chunk(1, PROMPT, [1, 2, 3])))
    assert (output.engine_incarnation, output.worker_epoch, output.step) == (INCARNATION, EPOCH, 77)
    assert (output.sampled, output.rows, output.embeddings, payload) == ([], [], [], [])
    assert runner.stats().tokens_computed == len(PROMPT)


def test_sampled_tokens_and_hidden_rows_equal_the_oracle() -> None:
    output, payload = run(make_runner(), plan(1, chunk(1, PROMPT, [3, 1, 2], sample=True, hidden=True)))
    expected = ORACLE.hidden_states(PROMPT)
    assert [(sampled.request_id, sampled.token_id) for sampled in output.sampled] == [
        (1, ORACLE.next_token(expected[-1]))
    ]
    [rows] = output.rows
    assert (rows.request_id, rows.rows.first) == (1, 0)
    assert np.array_equal(tensor_of(rows, payload), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("item", [IMAGES[0], random_video(_RNG, (3, 2), 2), random_sound(_RNG, 6, 3)])
def test_items_are_encoded_kept_emitted_and_placed(item: Item, device: torch.device) -> None:
    runner = make_runner(device=device)
    embeddings = ORACLE.encode(item)
    frames = inline_frames(item)
    output, payload = run(runner, plan(1, encode=[inline_item("k", item)], emit=[EmitEmbedding(5, 2, "k")]), frames)
    [emitted] = output.embeddings
    assert (emitted.request_id, emitted.index) == (5, 2)
    assert np.array_equal(tensor_of(emitted, payload), embeddings)
    assert (runner.stats().items_encoded, runner.stats().embeds_encoded) == (1, 6)
    assert getattr(runner.stats().by_modality, modality_of(item)) == EncodedOfModality(encoded=1, embeds_encoded=6)
    assert (runner.stats().items_copied, runner.stats().bytes_copied) == (1, sum(map(len, frames)))
    assert (runner.stats().encoder_entries, runner.stats().encoder_bytes) == (1, embeddings.size * 4)

    placeholder = TOKEN_IDS[modality_of(item)]
    tokens = [256, *[placeholder] * 6, 1, *[placeholder] * 2]
    spans = [EmbedSpan("k", 1, 0, 6), EmbedSpan("k", 8, 3, 2)]
    output, payload = run(runner, plan(2, chunk(1, tokens, [1, 2, 3], spans=spans, hidden=True)))
    replaced = {1 + index: embeddings[index] for index in range(6)} | {8: embeddings[3], 9: embeddings[4]}
    assert np.array_equal(tensor_of(output.rows[0], payload), ORACLE.hidden_states(tokens, replaced))
    assert runner.stats().encode_latency.num == 1, "the second step encodes nothing"


def test_what_is_measured_of_one_embedding_is_what_is_kept_of_each() -> None:
    runner, image = make_runner(), IMAGES[2]
    measured = runner.measured
    assert runner.stats().encoder_entries == runner.stats().items_encoded == 0, "what was measured is not kept"
    run(runner, plan(1, encode=[inline_item("k", image)]), inline_frames(image))
    assert runner.stats().encoder_bytes == len(image.pixel_values) * measured.embedding_bytes


def test_an_item_encoded_among_others_has_the_same_bits() -> None:
    frames: list[Frame] = []
    items = []
    for index, item in enumerate(ITEMS):
        items.append(inline_item(f"k{index}", item, len(frames)))
        frames += inline_frames(item)
    together = make_runner()
    run(together, plan(1, encode=items), frames)
    for index, item in enumerate(ITEMS):
        alone = make_runner()
        run(alone, plan(1, encode=[inline_item("k", item)]), inline_frames(item))
        assert torch.equal(
            together.encoder_cache.get(f"k{index}")["embeddings"], alone.encoder_cache.get("k")["embeddings"]
        )


def test_output_names_what_the_encoder_cache_holds_behind_the_step_if_that_is_checked() -> None:
    checked = make_runner(config=msgspec.structs.replace(CONFIG, debug_check_workers=True))
    image, frames = IMAGES[1], inline_frames(IMAGES[1])
    output, _ = run(checked, plan(1, encode=[inline_item("old", image)]), frames)
    assert output.encoder_keys == ["old"]
    output, _ = run(checked, plan(2, encode=[inline_item("new", image)], freed=["old"]), frames)
    assert output.encoder_keys == ["new"]
    output, _ = run(make_runner(), plan(1, encode=[inline_item("k", image)]), frames)
    assert output.encoder_keys is None


def test_only_rank_0_returns_tensors_and_keeps_rows_and_digests_agree() -> None:
    image = IMAGES[0]
    step = plan(
        1,
        chunk(1, PROMPT, [1, 2, 3], sample=True, hidden=True),
        encode=[inline_item("k", image)],
        emit=[EmitEmbedding(5, 0, "k")],
    )
    runners = [make_runner(rank) for rank in (0, 1)]
    (first, payload), (second, nothing) = (run(runner, step, inline_frames(image)) for runner in runners)
    assert first.digest == second.digest
    assert first.sampled == second.sampled
    assert (len(first.rows), len(first.embeddings), len(payload)) == (1, 1, 2)
    assert (second.rows, second.embeddings, nothing) == ([], [], [])
    kept = [runner.stats().prefix_bytes for runner in runners]
    assert kept == [3 * CONFIG.block_size * MODEL.hidden_size * 4, 0]


def test_a_digest_covers_rows_that_nobody_asked_for_and_each_image() -> None:
    def digest(tokens: list[int], image: Image) -> bytes:
        step = plan(1, chunk(1, tokens, [1, 2, 3]), encode=[inline_item("k", image)])
        return run(make_runner(), step, inline_frames(image))[0].digest

    other = Image(255 - IMAGES[0].pixel_values, IMAGES[0].grid)
    digests = {digest(PROMPT, IMAGES[0]), digest([*PROMPT[:-1], 91], IMAGES[0]), digest(PROMPT, other)}
    assert len(digests) == 3


# ---- prefix hits


@pytest.mark.parametrize("first_row", [0, 3, 7])
def test_rows_before_a_chunk_come_from_the_store(first_row: int) -> None:
    runner = make_runner()
    run(runner, plan(1, chunk(1, PROMPT, [1, 2, 3], names=NAMES)))
    # The second request shares the blocks of the hit.
    step = plan(2, chunk(2, [7, 8], [1, 2, 4], computed=8, hidden=True, first_row=first_row, names=NAMES))
    output, payload = run(runner, step)
    [rows] = output.rows
    assert (rows.request_id, rows.rows.key, rows.rows.first) == (2, "hidden_states", first_row)
    assert np.array_equal(tensor_of(rows, payload), ORACLE.hidden_states([*PROMPT[:8], 7, 8])[first_row:])
    assert runner.stats().prefix_row_queries == runner.stats().prefix_row_hits == 8 - first_row


def test_each_layer_that_is_kept_has_rows_of_its_own() -> None:
    runner = make_runner(
        config=msgspec.structs.replace(CONFIG, model=msgspec.structs.replace(MODEL, num_layer_outputs=2))
    )
    keys = ["hidden_states.layer_1", "hidden_states.layer_0", "hidden_states"]
    first = chunk(1, PROMPT, [1, 2, 3], names=NAMES)
    wanted = chunk(2, [7], [1, 2, 4], computed=8, names=NAMES, hidden=True, first_row=0)
    run(runner, plan(1, first))
    output, payload = run(runner, plan(2, msgspec.structs.replace(wanted, row_keys=keys)))
    assert [made.rows.key for made in output.rows] == keys
    last, inner, whole = (tensor_of(made, payload) for made in output.rows)
    assert np.array_equal(last, whole), "two layers: the second one is the last"
    assert np.array_equal(whole, ORACLE.hidden_states([*PROMPT[:8], 7]))
    assert not np.array_equal(inner, whole)
    alone, frames = run(
        make_runner(config=runner._config),
        plan(1, msgspec.structs.replace(chunk(3, [*PROMPT[:8], 7], [1, 2, 3], hidden=True), row_keys=keys[1:2])),
    )
    assert np.array_equal(inner, tensor_of(alone.rows[0], frames))


def test_without_a_store_rows_of_a_prefix_are_a_contradiction() -> None:
    config = msgspec.structs.replace(CONFIG, enable_tensor_prefix_cache=False)
    runner = make_runner(config=config)
    run(runner, plan(1, chunk(1, PROMPT[:8], [1, 2])))
    output, _ = run(runner, plan(2, chunk(2, [5], [1, 2, 3], computed=8, hidden=True)))
    assert (output.rows[0].rows.first, runner.stats().prefix_bytes, output.prefix_report) == (8, 0, {})
    failed = run_failing(runner, plan(3, chunk(3, [5], [1, 2, 3], computed=8, hidden=True, first_row=0)))
    assert failed.error.code == InvariantError.code


# ---- leases


def test_items_are_read_in_place_and_nothing_is_leased_after_their_step() -> None:
    with item_store() as store:
        runner = make_runner()
        runner._items.store = store.contact
        items = [
            EncodeItem(f"k{index}", f"k{index}", num_embeds_of(item), store.put(f"k{index}", record_of(item)))
            for index, item in enumerate(ITEMS)
        ]
        run(runner, plan(4, encode=items[:2]))
        assert (runner.stats().items_viewed, runner.stats().items_copied) == (2, 0)
        assert runner.stats().bytes_viewed >= sum(image.pixel_values.nbytes for image in IMAGES[:2])
        assert store.num_leases == 0
        run(runner, plan(5, encode=items[2:]))
        assert store.num_leases == 0


def test_encoder_outputs_outlive_the_ring() -> None:
    with item_store() as store:
        runner = make_runner()
        runner._items.store = store.contact
        run(runner, plan(1, encode=[EncodeItem("k", "k", 6, store.put("k", record_of(IMAGES[0])))]))
        store.store.discard("k")
        store.put("other", {"pixel_values": np.full_like(IMAGES[0].pixel_values, 255), "grid": np.array([2, 3])})
    assert np.array_equal(runner.encoder_cache.get("k")["embeddings"].numpy(), ORACLE.encode(IMAGES[0]))


# ---- failures


def test_a_step_that_fails_keeps_nothing_and_leases_nothing() -> None:
    with item_store() as store:
        runner = make_runner()
        runner._items.store = store.contact
        items = [
            EncodeItem("good", "good", 6, store.put("good", record_of(IMAGES[0]))),
            EncodeItem("bad", "bad", 6, store.put("bad", {"words": "no image"})),
            EncodeItem("after", "after", 2, store.put("after", record_of(IMAGES[1]))),
        ]
        failed = run_failing(runner, plan(3, chunk(1, PROMPT, [1, 2, 3]), encode=items))
        assert (failed.engine_incarnation, failed.worker_epoch, failed.step) == (INCARNATION, EPOCH, 3)
        assert failed.error.code == "invalid_request"
        assert failed.error.details["field"] == "pixel_values"
        assert len(runner.encoder_cache) == 0
        assert store.num_leases == 0
        store.store.discard("good")
        missed = run_failing(runner, plan(3, encode=items[:1]))
        assert (missed.error.code, missed.error.details["mm_hashes"]) == ("cache_miss", ["good"])
    assert run_failing(runner, plan(4, chunk(1, [1], [1, 2, 3], computed=10))).error.code == "invariant_error"


def test_a_step_that_fails_after_computing_is_withdrawn() -> None:
    """The second chunk continues what was never computed, so the first is not computed either."""
    runner = make_runner()
    step = plan(1, chunk(1, PROMPT[:4], [1]), chunk(2, [1], [5, 6], computed=4))
    failed = run_failing(runner, step)
    assert failed.error.details == {"position": 0, "slot": 20}
    assert runner._pool.stats().slots_computed == 0
    assert run_failing(runner, plan(2, chunk(1, [1], [1, 2], computed=4))).error.details["position"] == 0
    assert runner.stats().prefix_bytes == 0
    assert runner.stats().tokens_computed == 0


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (plan(1, emit=[EmitEmbedding(1, 0, "nothing")]), "invariant_error"),
        (plan(1, chunk(1, [1], [1], spans=[EmbedSpan("nothing", 0, 0, 1)])), "invariant_error"),
        (plan(1, chunk(1, [1], [1], spans=[EmbedSpan("k", 0, 0, 2)])), "invariant_error"),
        (plan(1, chunk(1, [1, 2], [1], spans=[EmbedSpan("k", 0, 5, 2)])), "invariant_error"),
        (plan(1, chunk(1, [1], [0])), "invariant_error"),
        (plan(1, chunk(1, [1], [1]), chunk(2, [1], [1])), "invariant_error"),
        (plan(1, encode=[EncodeItem("k2", "k2", 7, Inline(0, 3))]), "invalid_request"),
        (plan(1, encode=[EncodeItem("k2", "k2", 6, Inline(0, 4))]), "remote_protocol_error"),
    ],
)
def test_what_cannot_be_done_is_a_typed_failure(step: StepPlan, code: str) -> None:
    runner, frames = make_runner(), inline_frames(IMAGES[0])
    assert len(frames) == 3
    run(runner, plan(0, encode=[inline_item("k", IMAGES[0])]), frames)
    assert run_failing(runner, step, frames).error.code == code
    assert "k2" not in runner.encoder_cache


def test_clear_forgets_kv_items_and_rows() -> None:
    runner = make_runner()
    step = plan(1, chunk(1, PROMPT[:8], [1, 2]), encode=[inline_item("k", IMAGES[0])])
    run(runner, step, inline_frames(IMAGES[0]))
    runner.clear()
    stats = runner.stats()
    assert (stats.encoder_entries, stats.encoder_bytes, stats.prefix_bytes) == (0, 0, 0)
    assert stats.tokens_computed == 8
    assert run_failing(runner, plan(2, chunk(1, [1], [1, 2, 3], computed=8))).error.code == "invariant_error"


# ---- errors that are not ours


@pytest.mark.parametrize(
    ("error", "is_retryable"),
    [(RuntimeError("shape"), False), (MemoryError(), True), (torch.OutOfMemoryError("no room"), True)],
)
def test_an_error_of_torch_fails_the_step_and_leaves_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_retryable: bool
) -> None:
    runner, image = make_runner(), IMAGES[0]
    prompt = chunk(1, PROMPT, [3, 1, 2], sample=True, hidden=True)
    step = plan(1, prompt, encode=[inline_item("k", image)])

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(runner._model.decoder, "sample", fail)
        failed = run_failing(runner, step, inline_frames(image))
    assert (failed.error.code, failed.error.retryable) == ("computation_failed", is_retryable)
    assert failed.error.details == {"error": type(error).__name__}
    assert runner.encoder_cache.keys() == []
    output, payload = run(runner, plan(2, prompt))
    assert np.array_equal(tensor_of(output.rows[0], payload), ORACLE.hidden_states(PROMPT))


def test_an_error_that_leaves_no_device_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner()

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(runner._model.decoder, "sample", fail)
    monkeypatch.setattr(runner, "_device", torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    monkeypatch.setattr(runner, "_check_chunks", lambda _: None)  # they would need the device
    monkeypatch.setattr("mmcached.worker.steps.item_outputs.Stopwatch", lambda _: Stopwatch(torch.device("cpu")))
    monkeypatch.setattr(runner._items.encoder, "encode", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        runner.execute(plan(1, encode=[inline_item("k", IMAGES[0])]), inline_frames(IMAGES[0]))
