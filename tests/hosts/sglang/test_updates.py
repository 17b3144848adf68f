"""SGLang's engines share by the weights that their tower has: after updates, and while weights change."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers import mm_schedule
from sglang.srt.models.gemma3_mm import Gemma3ForConditionalGeneration
from sglang.srt.models.llava import LlavaForConditionalGeneration
from sglang.srt.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration

from mmcached.cache.name_files import differences, known_names
from mmcached.integrations.sglang import tower
from mmcached.integrations.sglang.engine_cache import clear_after_flush, clear_after_update
from mmcached.integrations.sglang.tower import language_names, note_runner, tower_digest
from tests.hosts.sglang.test_engine_cache import Engine


class Model(torch.nn.Module):
    """A model as SGLang's are, with few weights."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = torch.nn.Linear(3, 3)
        self.model = torch.nn.Linear(3, 3)
        self.lm_head = torch.nn.Linear(3, 3)
        with torch.no_grad():
            for value in self.parameters():
                value.fill_(1.0)

    def get_image_feature(self, items: Any) -> Any:
        return self.visual(items)


class Worded(Model):
    """Its items have word embeddings."""

    def get_image_feature(self, items: Any) -> Any:
        return self._with_words(items)

    def _with_words(self, items: Any) -> Any:
        return self.model(items)


class Runner:
    """SGLang's model runner, as far as the adapter knows it."""

    is_draft_worker = False
    startup_weight_load: object = None

    def __init__(self, model: Model) -> None:
        self.model = model


class Served:
    """An engine with a model, and what the scheduler has of it."""

    def __init__(self, new_engine: Callable[..., Engine], model: Model) -> None:
        self.runner = Runner(model)
        note_runner(None, self.runner)
        self.engine = new_engine()
        self.manager = SimpleNamespace(_session=None, offload_tags=set())

    def update(self, part: str = "", by: float = 1.0) -> None:
        """Change a part of the weights, as `update_weights_from_disk` does."""
        if part:
            with torch.no_grad():
                getattr(self.runner.model, part).weight[0, 0] += by
        self.tell()

    def tell(self) -> None:
        mm_schedule.embedding_cache = self.engine.cache
        clear_after_update(SimpleNamespace(success=True), self.manager, object())


@pytest.fixture
def new_served(environment: None, published: Callable[..., None]) -> Iterator[Callable[..., Served]]:
    published(dtype="float32")
    made: list[Served] = []

    def make(model: Model | None = None) -> Served:
        made.append(Served(Engine, model or Model()))
        return made[-1]

    yield make
    mm_schedule.embedding_cache = None
    tower._RUNNERS.clear()
    for served in made:
        served.engine.cache.close()


def test_after_an_update_of_the_language_model_sharing_goes_on(new_served: Callable[..., Served]) -> None:
    one, other = new_served(), new_served()
    one.engine.step(1)
    for part in ("model", "lm_head"):
        one.update(part)
        one.engine.step(1)
    other.engine.step(1)
    assert (one.engine.encoded, other.engine.encoded) == ([1], [])


def test_after_an_update_of_the_tower_those_with_equal_weights_share(new_served: Callable[..., Served]) -> None:
    one, other = new_served(), new_served()
    one.engine.step(1)
    one.update("visual")
    one.engine.step(1)
    other.engine.step(1)
    assert (one.engine.encoded, other.engine.encoded) == ([1, 1], []), "the other has the former weights"
    other.update("visual")
    other.engine.step(1)
    assert other.engine.encoded == []
    one.update("visual", by=-1.0)
    one.engine.step(1)
    assert one.engine.encoded == [1, 1], "back to the former weights"
    rows = list(known_names(Path(os.environ["MMCACHED_RUN_DIR"])).values())
    assert [part for part, _, _ in differences(*rows)] == ["weights.tower"]


def test_word_embeddings_count_where_items_have_some(new_served: Callable[..., Served]) -> None:
    one = new_served(Worded())
    one.engine.step(1)
    one.update("lm_head")
    one.engine.step(1)
    one.update("model")
    one.engine.step(1)
    assert one.engine.encoded == [1, 1]


def test_a_flush_changes_no_name(new_served: Callable[..., Served]) -> None:
    one = new_served()
    one.engine.step(1)
    mm_schedule.embedding_cache = one.engine.cache
    clear_after_flush(True, SimpleNamespace(weight_updater=one.manager))
    one.engine.step(1)
    assert one.engine.encoded == [1]


@pytest.mark.parametrize("changing", ["session", "released"])
def test_nothing_is_shared_while_weights_change(new_served: Callable[..., Served], changing: str) -> None:
    one, other = new_served(), new_served()
    one.engine.step(1)
    if changing == "session":
        one.manager._session = object()
    else:
        one.manager.offload_tags.add("weights")
    one.update("visual")
    one.engine.step(1, 2)
    assert one.engine.encoded == [1, 1, 2]
    other.engine.step(2)
    assert other.engine.encoded == [2], "nothing was saved"
    one.manager._session = None
    one.manager.offload_tags.clear()
    one.tell()
    one.engine.step(3)
    other.update("visual")
    other.engine.step(3)
    assert other.engine.encoded == [2]


def test_a_tower_that_cannot_be_read_shares_nothing(
    new_served: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = new_served(), new_served()
    with monkeypatch.context() as broken:
        broken.setattr(one.runner.model, "state_dict", lambda **named: 1 / 0)
        one.tell()
        one.engine.step(1)
    other.engine.step(1)
    assert (one.engine.encoded, other.engine.encoded) == ([1], [1])
    one.tell()
    one.engine.step(1)
    assert one.engine.encoded == [1], "after the next update it is read again"


def test_a_name_that_an_operator_gave_is_of_the_weights_at_start(
    new_served: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMCACHED_NAMESPACE", "mine")
    one, other = new_served(), new_served()
    one.engine.step(1)
    other.engine.step(1)
    assert other.engine.encoded == []
    one.update("visual")
    one.engine.step(1)
    assert one.engine.encoded == [1, 1]


def test_weights_that_load_beside_the_start_are_read_when_they_are_there(new_served: Callable[..., Served]) -> None:
    one, other = new_served(), new_served()
    one.runner.startup_weight_load = object()
    one.engine.cache.clear()
    one.engine.step(1)
    other.engine.step(1)
    assert other.engine.encoded == [1]
    one.runner.startup_weight_load = None
    one.engine.step(2)
    other.engine.step(2)
    assert other.engine.encoded == [1]


def test_a_draft_model_is_not_the_engines() -> None:
    note_runner(None, SimpleNamespace(is_draft_worker=True))
    assert tower.known_runner() is None


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        (Qwen2_5_VLForConditionalGeneration, False),
        (LlavaForConditionalGeneration, True),
        (Gemma3ForConditionalGeneration, False),
    ],
)
def test_of_sglangs_own_models_the_language_model_counts_where_features_name_it(kind: type, counts: bool) -> None:
    assert ("model" in language_names(kind) or "language_model" in language_names(kind)) or counts
    assert "visual" not in language_names(kind)


def test_every_byte_of_the_tower_counts() -> None:
    model = Model()
    before = tower_digest(model)
    with torch.no_grad():
        model.visual.bias[2] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    assert tower_digest(model) != before
