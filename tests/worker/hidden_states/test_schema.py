"""KeySpec: what can be declared at all. What fits a declared key: `by_content/test_store`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmcached.wire.errors import ConfigError
from mmcached.worker.hidden_states import KeySpec


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "field"),
    [
        *(
            ("k", shape, torch.int8, "k.shape")
            for shape in (None, (0,), (2, -1), (1.5,), ("1",), (True,), 3, "12", [1])
        ),
        *(("k", (1,), dtype, "k.dtype") for dtype in (None, "int8", 8)),
        *((name, (1,), torch.int8, "name") for name in ("", 7, None)),
    ],
)
def test_what_cannot_be_declared_is_named(name: Any, shape: Any, dtype: Any, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KeySpec(name, shape, dtype)
    assert caught.value.details["field"] == field


def test_bytes_of_a_row() -> None:
    assert KeySpec("k", (2, 3), torch.float64).row_nbytes == 48
    assert KeySpec("k", (), torch.bfloat16).row_nbytes == 2
