"""Finds the modules of a language model's layers that have a row per token, in the heads of the safetensors files.

    layers.3, layers.3.self_attn, layers.3.mlp     width of the model
    layers.3.mlp.up_proj                           rows of its weight
    layers.3.input_layernorm                       width of the model; norms of heads have no row per token

Names are those of Transformers' decoder; tensors have a prefix before them, such as `model.language_model.`.
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

from mmcached.wire.errors import ConfigError

_WEIGHT = re.compile(r"(?:(?:model|language_model|text_model)\.)*(layers\.\d+)\.(?:(\w+)\.)?(\w+)\.weight")
_HEAD = struct.Struct("<Q")
_MAX_HEAD_BYTES = 100 << 20
"""The limit of the package safetensors."""


def row_widths(path: Path, hidden_size: int, *, field: str) -> dict[str, int]:
    """Return the width of the rows of each module, by name.

    Args:
        path: Folder of the checkpoint.
        field: The setting that an error names.

    Raises:
        ConfigError: A file cannot be read.
    """
    widths = {}
    for file in sorted(path.glob("*.safetensors")):
        for name, tensor in _head(file, field).items():
            found = _WEIGHT.fullmatch(name)
            if found is None:
                continue
            layer, parent, module = found.groups()
            widths[layer] = hidden_size
            if parent is not None:
                widths[f"{layer}.{parent}"] = hidden_size
                module = f"{parent}.{module}"
            shape = tensor.get("shape")
            if isinstance(shape, list) and (len(shape) == 2 or shape == [hidden_size]):
                widths[f"{layer}.{module}"] = shape[0]
    return widths


def _head(file: Path, field: str) -> dict[str, dict[str, Any]]:
    """Return the description of each tensor in a file."""
    try:
        with file.open("rb") as opened:
            (num_bytes,) = _HEAD.unpack(opened.read(_HEAD.size))
            if num_bytes > _MAX_HEAD_BYTES:
                raise ConfigError(field, str(file), f"has a head of {num_bytes} bytes, at most {_MAX_HEAD_BYTES}")
            head: dict[str, dict[str, Any]] = json.loads(opened.read(num_bytes))
            return {name: dict(tensor) for name, tensor in head.items()}
    except OSError as error:
        raise ConfigError(field, str(file), f"cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise ConfigError(field, str(file), "is not a file of safetensors") from error
