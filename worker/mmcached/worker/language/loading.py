"""Loads the language model of a checkpoint with Transformers.

Nothing is downloaded, no code of a checkpoint is run, and only safetensors are read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from mmcached.cache.checkpoints.language import FIELD, architecture_of
from mmcached.wire.errors import ConfigError

_REPORTED = 3
_TOWERS = ("vision_tower", "multi_modal_projector", "visual", "vision_model", "connector")
"""Parts of models that the encoder has loaded by itself, see `encoders.tower`."""


def load_language_model(path: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """Return the checkpoint's model, without its towers, in evaluation mode.

    Raises:
        ConfigError: Transformers cannot load it, or weights are missing or of another shape.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    name = architecture_of(path)
    try:
        model, report = getattr(transformers, name).from_pretrained(
            path,
            dtype=dtype,
            attn_implementation="sdpa",
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError, AttributeError, ImportError) as error:
        reason = f"cannot be loaded: {type(error).__name__}: {str(error)[:300]}"
        raise ConfigError(FIELD, str(path), reason) from error
    lacking = sorted([*report["missing_keys"], *(each[0] for each in report["mismatched_keys"])])
    if lacking or report.get("error_msgs"):
        found = ", ".join(lacking[:_REPORTED]) or str(report["error_msgs"])[:200]
        raise ConfigError(FIELD, str(path), f"lacks weights: {found}")
    for tower in _TOWERS:
        if hasattr(model.model, tower):
            delattr(model.model, tower)
    return model.eval().requires_grad_(False).to(device)
