"""The digest of a tower has its weights and no others, wherever they lie; word embeddings where an item has some."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mmcached.integrations.vllm.tower import read_tower


class WordEmbedding(nn.Embedding):
    """As vLLM's VocabParallelEmbedding."""


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = WordEmbedding(8, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4)])


class Model(nn.Module):
    """A model as vLLM's are: it marks its language model, and encodes without it."""

    _language_model_names: tuple[str, ...] = ("language_model",)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.visual = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("cached", torch.zeros(1), persistent=False)
        self.language_model = Language()
        self.lm_head = nn.Linear(4, 8)

    def get_language_model(self) -> nn.Module:
        return self.language_model

    def embed_multimodal(self, **named: Any) -> Any:
        return self._process_image_input(named)

    def _process_image_input(self, named: Any) -> Any:
        return self.visual(named["pixel_values"])


class WithTimes(Model):
    """One that puts words into a video."""

    def _process_image_input(self, named: Any) -> Any:
        return [self._final(each) for each in (named, named)]

    def _final(self, named: Any) -> Any:
        return self.get_language_model()


class Qwen3VLForConditionalGeneration(WithTimes):
    """By its name vLLM's, whose images have no words."""


class Further(Qwen3VLForConditionalGeneration):
    """A subclass has its methods."""


class Unmarked(Model):
    _language_model_names = ()


class Worker:
    vllm_config = SimpleNamespace(ec_transfer_config=SimpleNamespace(engine_id="an engine"))

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def get_model(self) -> nn.Module:
        return self.model


def read(model: nn.Module) -> dict[str, Any]:
    return read_tower(Worker(model))


@torch.no_grad()
def changed(kind: type[Model], path: str) -> list[str]:
    """Return which digests change with a tensor of a model."""
    model = kind()
    before = read(model)
    model.get_parameter(path).view(-1)[-1].add_(1) if path in dict(model.named_parameters()) else model.get_buffer(
        path
    ).add_(1)
    after = read(model)
    return [name for name in ("tower", "words") if before[name] != after[name]]


@pytest.mark.parametrize(
    ("kind", "path", "digests"),
    [
        (Model, "visual.weight", ["tower"]),
        (Model, "visual.bias", ["tower"]),
        (Model, "scale", ["tower"]),
        (Model, "cached", []),
        (Model, "language_model.layers.0.weight", []),
        (Model, "language_model.embed_tokens.weight", []),
        (Model, "lm_head.weight", []),
        (WithTimes, "language_model.embed_tokens.weight", ["words"]),
        (WithTimes, "language_model.layers.0.weight", []),
        (Further, "language_model.embed_tokens.weight", ["words"]),
        (Unmarked, "language_model.layers.0.weight", ["tower"]),
    ],
)
def test_what_an_item_depends_on_changes_its_digest(kind: type[Model], path: str, digests: list[str]) -> None:
    assert changed(kind, path) == digests


@pytest.mark.parametrize(("kind", "wordless"), [(Model, True), (WithTimes, False), (Further, True)])
def test_which_items_have_words(kind: type[Model], wordless: bool) -> None:
    found = read(kind())
    assert found["is_image_wordless"] is wordless
    assert (found["words"] is None) is (kind is Model)


def test_equal_weights_have_one_digest_and_other_dtypes_another() -> None:
    assert read(Model()) == read(Model())
    assert read(Model())["device"]["type"] == "cpu"
    assert read(Model().to(torch.bfloat16))["tower"] != read(Model())["tower"]
    strided = Model()
    strided.visual.weight = nn.Parameter(strided.visual.weight.detach().t().contiguous().t())
    assert read(strided) == read(Model())


def test_a_rank_without_a_tower_has_no_digest() -> None:
    model = Model()
    del model.visual, model.scale
    assert read(model)["tower"] is None


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.float64])
def test_packed_weights_are_read(dtype: torch.dtype) -> None:
    model = Model()
    model.visual.weight = nn.Parameter(torch.zeros(4, 4).to(dtype), requires_grad=False)
    one = read(model)["tower"]
    model.visual.weight.view(torch.uint8)[0, 0] = 1
    assert read(model)["tower"] != one
