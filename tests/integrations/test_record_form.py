"""A record is checked in every respect in which a false one can differ; the right one passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mmcached.integrations.record_form import PartForm, RecordForm

ROWS, WIDTH = 6, 8
EMBEDDINGS = PartForm((WIDTH,), torch.bfloat16, ROWS)
FORM = RecordForm({"embeds": EMBEDDINGS, "levels": (EMBEDDINGS, EMBEDDINGS), "pooled": None})


def embeddings(rows: int = ROWS, width: int = WIDTH, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.ones(rows, width).to(dtype)


def record(**changed: Any) -> dict[str, Any]:
    return {"embeds": embeddings(), "levels": [embeddings(), embeddings()], "pooled": None} | changed


def with_element(value: float, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    tensor = embeddings(dtype=dtype)
    tensor[-1, -1] = value
    return tensor


def test_the_record_of_a_model_has_the_form_that_is_taken_from_it() -> None:
    assert FORM.check(record()) is None
    assert PartForm.of(embeddings()) == EMBEDDINGS
    assert FORM.check(record(levels=(embeddings(), embeddings()))) is None


@pytest.mark.parametrize(
    ("false", "reason"),
    [
        (record(embeds=embeddings(width=WIDTH // 2)), "embeds: shape [6, 4] instead of [6, 8]"),
        (record(embeds=embeddings()[None]), "embeds: shape [1, 6, 8] instead of [6, 8]"),
        (record(embeds=embeddings().flatten()), "embeds: shape [48] instead of [6, 8]"),
        (record(embeds=torch.tensor(1.0)), "embeds: shape [] instead of [6, 8]"),
        (record(embeds=embeddings(ROWS - 1)), "embeds: shape [5, 8] instead of [6, 8]"),
        (record(embeds=embeddings(ROWS + 1)), "embeds: shape [7, 8] instead of [6, 8]"),
        (record(embeds=embeddings(dtype=torch.int64)), "embeds: dtype torch.int64 instead of torch.bfloat16"),
        (record(embeds=embeddings(dtype=torch.float32)), "embeds: dtype torch.float32 instead of torch.bfloat16"),
        (record(embeds=embeddings(dtype=torch.float16)), "embeds: dtype torch.float16 instead of torch.bfloat16"),
        (
            record(embeds=embeddings(dtype=torch.float8_e4m3fn)),
            "embeds: dtype torch.float8_e4m3fn instead of torch.bfloat16",
        ),
        (record(embeds=with_element(float("nan"))), "embeds: elements that are not finite"),
        (record(embeds=with_element(float("-inf"))), "embeds: elements that are not finite"),
        (record(levels=[embeddings(), with_element(float("inf"))]), "levels: elements that are not finite"),
        (record(levels=[embeddings()]), "levels: no list of 2 tensors"),
        (record(levels=embeddings()), "levels: no list of 2 tensors"),
        (record(levels=[embeddings(), "embeds"]), "levels: str instead of a tensor"),
        (record(embeds=[embeddings()]), "embeds: list instead of a tensor"),
        (record(embeds=np.ones((ROWS, WIDTH))), "embeds: ndarray instead of a tensor"),
        (record(embeds=None), "embeds: NoneType instead of a tensor"),
        (record(pooled=embeddings()), "pooled: Tensor instead of None"),
        (record(more=None), "parts ['embeds', 'levels', 'more', 'pooled'] instead of ['embeds', 'levels', 'pooled']"),
        ({"embeds": embeddings()}, "parts ['embeds'] instead of ['embeds', 'levels', 'pooled']"),
        ([embeddings()], "list instead of a record"),
    ],
)
def test_a_false_record_is_told_by_its_first_wrong_part(false: Any, reason: str) -> None:
    assert FORM.check(false) == reason


def test_any_size_is_right_where_none_is_asked_for() -> None:
    form = PartForm((WIDTH,), torch.bfloat16, None)
    assert form.check(embeddings(ROWS + 1)) is None
    assert form.check(embeddings(width=1)) == "shape [6, 1] instead of ['any', 8]"
    form = PartForm((None, 3), torch.float32, 1)
    assert form.check(torch.zeros(1, 5, 3)) is None
    assert form.check(torch.zeros(1, 5)) == "shape [1, 5] instead of [1, 'any', 3]"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2])
def test_elements_are_finite_or_not_whatever_their_sum(dtype: torch.dtype) -> None:
    form = PartForm((WIDTH,), dtype, ROWS)
    largest = torch.full((ROWS, WIDTH), torch.finfo(dtype).max, dtype=torch.float64).to(dtype)
    assert form.check(largest) is None, "their sum overflows"
    for value in ("nan", "inf", "-inf"):
        assert form.check(with_element(float(value), dtype)) == "elements that are not finite"
    opposed = torch.zeros(ROWS, WIDTH)
    opposed[0, 0], opposed[1, 0] = torch.inf, -torch.inf
    assert form.check(opposed.to(dtype)) == "elements that are not finite"
    assert PartForm((WIDTH,), dtype, None).check(embeddings(0, dtype=dtype)) is None


def test_numbers_that_are_not_floating_point_are_finite() -> None:
    assert PartForm((WIDTH,), torch.int64, ROWS).check(embeddings(dtype=torch.int64)) is None
