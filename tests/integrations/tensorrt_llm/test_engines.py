"""Processes with a model of TensorRT-LLM's mixin and one store: nothing encoded twice, right rows, ranks that agree."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmcached.cache.name_files import differences, known_names
from tests.docs.pages import code
from tests.house import REPOSITORY
from tests.integration.lone_frontend import LoneFrontend
from tests.integrations.tensorrt_llm.conftest import SOURCE, EngineProcess
from tests.integrations.tensorrt_llm.engine_child import Engine
from tests.present import present

NewEngine = Callable[..., Engine]
NewProcess = Callable[..., EngineProcess]


def test_the_second_process_encodes_only_what_is_new(new_engine: NewEngine, new_process: NewProcess) -> None:
    alone, first, second = new_engine(installs=False), new_process(), new_engine()
    one = first.do("step", 1, 2)
    assert one["encoded"] == [1, 2]
    assert second.step(1, 2) == {"rows": one["rows"], "encoded": []}
    assert second.step(2, 3, 1)["encoded"] == [3]
    assert second.found() == 2, "TensorRT-LLM's own cache is asked first"
    assert alone.step(1, 2) == one
    assert second.step(2, 3, 1)["rows"] == alone.step(2, 3, 1)["rows"]


def test_an_output_that_the_own_cache_has_no_room_for_is_found_again(new_engine: NewEngine) -> None:
    engine = new_engine(cache_bytes=16)
    one = engine.step(1)
    assert engine.step(1) == one | {"encoded": []}


def test_the_pages_file_installs_the_adapter(
    new_engine: NewEngine, new_process: NewProcess, site: Path, store: LoneFrontend
) -> None:
    (block,) = code(REPOSITORY / "docs" / "hosts" / "tensorrt-llm.md", "py")
    file = site / "sitecustomize.py"
    file.write_text(block.replace("install()", f"install({str(store.directory.path)!r})", 1))
    try:
        one = new_process(installs=None).do("step", 1)
    finally:
        file.unlink()
    assert new_engine().step(1) == one | {"encoded": []}


def test_a_killed_store_changes_no_answer(new_engine: NewEngine, store: LoneFrontend) -> None:
    first, second, alone = new_engine(), new_engine(), new_engine(installs=False)
    for engine in (first, second):
        engine.step(1)
    store.kill()
    for engine in (first, second):
        assert engine.step(1, 5)["rows"] == alone.step(1, 5)["rows"]
    store.start()
    first.step(7)
    assert second.step(1, 5, 7)["rows"] == alone.step(1, 5, 7)["rows"]


def test_a_store_killed_within_a_step_changes_no_answer(new_engine: NewEngine, store: LoneFrontend) -> None:
    """Killed after the look-up, while a new item is encoded beside a known one."""
    first, second, alone = new_engine(), new_engine(), new_engine(installs=False)
    first.step(1)
    model: Any = second.model
    encode = model.encode_multimodal_inputs

    def kill_and_encode(multimodal_params: Any) -> Any:
        if store.process.poll() is None:
            store.kill()
        return encode(multimodal_params)

    model.encode_multimodal_inputs = kill_and_encode
    assert second.step(1, 5) == alone.step(1, 5) | {"encoded": [5]}
    assert store.process.poll() is not None
    assert second.step(5, 6)["rows"] == alone.step(5, 6)["rows"]
    store.start()
    assert first.step(1, 5, 7)["rows"] == alone.step(1, 5, 7)["rows"]


def test_an_engine_starts_without_a_store(new_engine: NewEngine, store: LoneFrontend) -> None:
    store.kill()
    engine, alone = new_engine(), new_engine(installs=False)
    assert engine.step(1, 2) == alone.step(1, 2)
    store.start()


@pytest.mark.parametrize(
    ("shape", "dtype", "value"),
    [
        ([3, 8], "float32", 0.0),
        ([2, 16], "float32", 0.0),
        ([3, 16], "bfloat16", 0.0),
        ([3, 16], "int64", 0.0),
        ([1, 3, 16], "float32", 0.0),
        ([3, 16], "float32", float("nan")),
    ],
    ids=["narrow", "rows", "bfloat16", "int64", "rank 3", "nan"],
)
def test_a_record_that_the_model_cannot_take_is_replaced(
    new_engine: NewEngine, shape: list[int], dtype: str, value: float
) -> None:
    """It comes from a program of the same user that puts wrong records under right keys."""
    first, second, third = new_engine(), new_engine(), new_engine(installs=False)
    assert first.put_record(1, shape, dtype, value)
    assert first.step(1) == third.step(1)
    assert second.step(1) == third.step(1) | {"encoded": []}


def test_a_key_of_another_form_is_a_miss(new_engine: NewEngine) -> None:
    assert new_engine().get_other_key()


def test_written_weights_have_another_name(new_engine: NewEngine) -> None:
    """An update of the language model does not matter; after one of the tower equal towers share again."""
    first, second, third = new_engine(), new_engine(), new_engine()
    names = [first.name()]
    first.step(1)
    first.write("llm", 2.0)
    assert second.step(1)["encoded"] == []
    first.write("mm_encoder", 2.0)
    first.forget()
    changed = first.step(1)
    assert changed["encoded"] == [1], "what the former weights gave is not found"
    names.append(first.name())
    assert names[0] != names[1] is not None
    first.step(2)
    assert third.step(2)["encoded"] == [2], "what new weights gave is nothing for others"
    second.write("mm_encoder", 2.0)
    second.forget()
    second.step(9)
    assert second.step(2)["encoded"] == []


@pytest.mark.parametrize(
    ("options", "row"),
    [
        ({"seed": 1}, "weights"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"attn_backend": "TRTLLM"}, "attention"),
        ({"quant_config": "FP8"}, "quantization"),
        ({"use_cuda_graph": True}, "compilation"),
    ],
)
def test_other_settings_have_other_names(
    new_engine: NewEngine, store: LoneFrontend, options: dict[str, Any], row: str
) -> None:
    names = [present(new_engine(**each).name()) for each in ({}, {}, options)]
    assert len(set(names)) == 2
    rows = known_names(store.directory.path)
    assert row in {part.partition(".")[0] for part, _, _ in differences(rows[names[0]], rows[names[2]])}


def test_other_files_of_the_processor_have_other_names(new_engine: NewEngine, checkpoint: Path) -> None:
    first = new_engine().name()
    (checkpoint / "preprocessor_config.json").write_text('{"size": 9}')
    assert new_engine().name() != first


def test_a_checkpoint_that_is_elsewhere_is_not_shared(new_engine: NewEngine) -> None:
    engine = new_engine(checkpoint="nobody/nothing")
    assert engine.name() is None
    assert engine.step(1)["encoded"] == [1]


def test_a_model_without_a_cache_shares_nothing(new_engine: NewEngine) -> None:
    engine = new_engine(cache_bytes=0)
    assert engine.step(1)["encoded"] == [1]
    assert engine.step(1)["encoded"] == [1]


def test_a_cache_that_also_keeps_reserved_outputs_is_left_alone(
    new_engine: NewEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With TensorRT-LLM pull request 17876 the scheduler reserves room in the cache and puts with other arguments."""
    from tensorrt_llm._torch.models import modeling_multimodal_mixin as mixin

    class ReservingCache(mixin.TensorLRUCache):
        def put(self, key: Any, value: Any, *, expected_state: Any = None) -> bool:
            return bool(super().put(key, value))

    engine = new_engine()
    monkeypatch.setattr(mixin, "TensorLRUCache", ReservingCache)
    one = engine.step(1)
    assert engine.model.cache.put(("image", (2,), 1, ""), engine.model.mm_encoder.weight, expected_state="reserved")
    assert engine.name() is None
    assert "encoder outputs are not shared" in caplog.text
    assert new_engine().step(1) == one


class Pair:
    """Two ranks of one model in processes of their own, which get the same requests."""

    def __init__(self, new_process: NewProcess, meeting: Path) -> None:
        self.ranks = [new_process(meeting=str(meeting), rank=rank) for rank in range(2)]

    def do(self, command: str, *values: Any) -> Any:
        """Return what both ranks answer, which is the same."""
        for rank in self.ranks:
            rank.begin(command, *values)
        one, two = (rank.answer() for rank in self.ranks)
        assert one == two
        return one


def test_ranks_agree_on_what_is_found(
    new_engine: NewEngine, new_process: NewProcess, store: LoneFrontend, tmp_path: Path
) -> None:
    """The encoder of the ranks is a collective: a rank that encodes alone would wait for the other in vain."""
    alone = new_engine(installs=False)
    pair = Pair(new_process, tmp_path / "meeting")
    one = pair.do("step", 1, 2)
    assert one == alone.step(1, 2)
    pair.do("forget")
    assert pair.do("step", 1, 2) == one | {"encoded": []}
    assert new_engine().step(1)["encoded"] == [1], "one rank computes with other kernels"

    pair.do("forget")
    pair.ranks[1].do("lose_the_store", True)
    assert pair.do("step", 2, 1)["encoded"] == [1, 2], "what one rank does not find all encode"
    assert pair.do("step", 1, 2) == one | {"encoded": []}, "both have them in their own caches now"
    pair.ranks[1].do("lose_the_store", False)

    store.kill()
    assert pair.do("step", 1, 3)["rows"] == alone.step(1, 3)["rows"]
    store.start()
    pair.do("forget")
    assert pair.do("step", 1, 4)["rows"] == alone.step(1, 4)["rows"]

    name = pair.do("name")
    pair.do("forget")
    pair.ranks[0].do("write", "mm_encoder", 2.0)
    for rank in pair.ranks:
        rank.begin("step", 1)
    assert [rank.answer()["encoded"] for rank in pair.ranks] == [[1], [1]], "a write in one rank is one of all"
    assert pair.do("name") not in (name, None)


def test_ranks_with_requests_of_their_own_do_not_meet(new_engine: NewEngine) -> None:
    first, second = (new_engine(attention_dp=True, is_collective=False, rank=rank) for rank in range(2))
    one = second.step(1)
    assert one["encoded"] == [1]
    assert first.step(1) == one | {"encoded": []}


@pytest.mark.skipif(SOURCE not in os.environ, reason=f"{SOURCE} does not name a checkout of TensorRT-LLM")
def test_the_tests_ran_with_tensorrt_llms_own_files(new_engine: NewEngine) -> None:
    from tensorrt_llm._torch.models.modeling_multimodal_mixin import MultimodalModelMixin

    assert hasattr(MultimodalModelMixin, "partition_encoder_cache")
    engine = new_engine()
    engine.step(1)
    assert engine.model.cache.stats().insertions == 1
