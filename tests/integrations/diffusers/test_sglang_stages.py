"""What decides an output of SGLang's stages is in its key, and a record that describes none is a miss."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch

from mmcached.integrations.diffusers.output_trees import NotDescribed, check_record, record_of
from mmcached.integrations.diffusers.sglang_stages import _add, _described
from mmcached.worker.encoders.content import Content


def digest(*args: Any, **kwargs: Any) -> str:
    content = Content()
    for name, part in (("args", args), ("kwargs", kwargs)):
        _add(content, name, part)
    return content.hexdigest()


def test_the_number_of_a_device_is_in_no_key() -> None:
    assert digest("a cat", device="cuda:0") == digest("a cat", device="cuda:1")
    assert digest("a cat", device="cuda:0") != digest("a cat", device="cpu")


def test_a_prompt_that_reads_like_a_device_is_a_prompt() -> None:
    assert len({digest(prompt, device="cuda") for prompt in ("cuda", "cuda:0", "cuda:1")}) == 3


class Task(Enum):
    TEXT = 1
    IMAGE = 2


def first(text: str, length: int = 4) -> str:
    return text[:length]


def longer(text: str, *, length: int = 4) -> str:
    return text[:length]


@dataclass
class Configuration:
    task: Task = Task.TEXT
    shift: torch.Tensor = field(default_factory=lambda: torch.zeros(2))
    prepare: Any = first
    more: Any = None


def _with_default(length: int) -> Any:
    def prepare(text: str, length: int = length) -> str:
        return text[:length]

    return prepare


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Configuration(), Configuration(task=Task.IMAGE)),
        (Configuration(), Configuration(shift=torch.ones(2))),
        (Configuration(), Configuration(prepare=longer)),
        (Configuration(prepare=_with_default(1)), Configuration(prepare=_with_default(2))),
        (Configuration(prepare=functools.partial(first, length=1)), Configuration(prepare=first)),
    ],
    ids=["choice", "tensor", "function", "default", "partial"],
)
def test_configurations_that_differ_have_other_descriptions(one: Configuration, other: Configuration) -> None:
    assert _described(one) != _described(other)


def test_a_configuration_with_a_value_of_an_unknown_kind_has_no_description() -> None:
    with pytest.raises(NotDescribed, match="PosixPath"):
        _described(Configuration(more=Path("weights")))


@pytest.mark.parametrize(
    "record",
    [
        None,
        {},
        {"tensors": 5, "tree": ["plain", 1]},
        {"tensors": [5], "tree": ["plain", 1]},
        {"tensors": [], "tree": ["tensor", 0]},
        {"tensors": [], "tree": ["object", "sys", "exit", []]},
        {"tensors": [], "tree": []},
        {"tensors": [torch.tensor([float("nan")])], "tree": ["tensor", 0]},
    ],
    ids=str,
)
def test_a_record_that_describes_no_output_is_a_miss(record: Any) -> None:
    assert check_record(record) is not None


def test_a_record_of_an_output_is_none() -> None:
    assert check_record(record_of((torch.zeros(2), "text"))) is None
