"""KeySpec: what can be declared at all. What fits a declared key: `test_store`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmcached.wire.errors import ConfigError
from mmcached.worker.prefix_store import KeyKind, KeySpec


@pytest.mark.parametrize(
    ("kind", "shape", "dtype"),
    [
        ("per_token", None, torch.int8),
        ("per_token", (1,), None),
        ("per_token", None, None),
        ("per_request", None, None),
        ("per_token", (0,), torch.int8),
        ("global", (2, -1), torch.int8),
        ("list", (1,), None),
    ],
)
def test_what_cannot_be_declared(kind: KeyKind, shape: tuple[int, ...] | None, dtype: torch.dtype | None) -> None:
    with pytest.raises(ConfigError, match="k"):
        KeySpec("k", kind, shape, dtype)
    with pytest.raises(ConfigError, match="name"):
        KeySpec("", "per_token", (1,), torch.int8)


@pytest.mark.parametrize(
    ("name", "kind", "shape", "dtype", "field"),
    [
        ("k", "nonsense", (1,), torch.int8, "k.kind"),
        ("k", None, (1,), torch.int8, "k.kind"),
        ("k", "per_token", (1.5,), torch.int8, "k.shape"),
        ("k", "per_token", ("1",), torch.int8, "k.shape"),
        ("k", "per_token", (True,), torch.int8, "k.shape"),
        ("k", "per_token", 3, torch.int8, "k.shape"),
        ("k", "per_token", "12", torch.int8, "k.shape"),
        ("k", "per_token", [1], torch.int8, "k.shape"),
        ("k", "per_token", (1,), "int8", "k.dtype"),
        ("k", "per_token", (1,), 8, "k.dtype"),
        (7, "per_token", (1,), torch.int8, "name"),
        (None, "per_token", (1,), torch.int8, "name"),
    ],
)
def test_what_is_of_another_type_is_named(name: Any, kind: Any, shape: Any, dtype: Any, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KeySpec(name, kind, shape, dtype)
    assert caught.value.details["field"] == field


def test_only_rows_can_be_deferred() -> None:
    KeySpec("k", "per_token", (1,), torch.int8, "deferred")
    with pytest.raises(ConfigError, match=r"k\.copy"):
        KeySpec("k", "global", (1,), torch.int8, "deferred")
    with pytest.raises(ConfigError, match=r"k\.copy"):
        KeySpec("k", "per_token", (1,), torch.int8, "later")  # type: ignore[arg-type]


def test_what_was_kept_for_another_declaration_is_right_only_if_the_rest_is_equal() -> None:
    spec = KeySpec("k", "per_token", (1,), torch.int8)
    assert spec.has_rows_of(KeySpec("k", "per_token", (1,), torch.int8, "deferred"))
    for other in (None, KeySpec("k", "per_token", (1,), torch.uint8), KeySpec("k", "per_token", (2,), torch.int8)):
        assert not spec.has_rows_of(other)


def test_bytes_of_a_row() -> None:
    assert KeySpec("k", "per_token", (2, 3), torch.float64).nbytes == 48
    assert KeySpec("k", "per_token", (), torch.bfloat16).nbytes == 2
    assert KeySpec("k", "list", None, None).nbytes == 0
