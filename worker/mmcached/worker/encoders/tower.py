"""Loads the vision part of a checkpoint with Transformers, and asks it for one picture at a time.

    checkpoint ── configuration with no text layers ──> model ── its other parts removed ──> what is asked for images
    the model's output ── a family's parts ──> named tensors: embeddings, deepstack_0 …; or last_hidden_state …

The language model's weights are not read: a model without layers and words has no place for them. Nothing is fetched,
and no code of a checkpoint is run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from mmcached.cache.checkpoints.checkpoint import FIELD, Checkpoint, check_packages
from mmcached.cache.store_keys import EMBEDDINGS
from mmcached.wire.errors import ConfigError
from mmcached.worker.encoders.families import FAMILIES, Family, find_family

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PLAIN = Family({"last_hidden_state": "stacked", "pooler_output": "stacked"}, others=frozenset(), method="forward")
_FAMILIES: Mapping[str, Family] = {
    **FAMILIES,
    "Dinov2Model": _PLAIN,
    "Siglip2VisionModel": _PLAIN,
    "Siglip2Model": Family({"pooler_output": "stacked"}, others=FAMILIES["SiglipModel"].others),
}
"""With those that are only asked here: it is known what they are given."""
_TEXT = ("language_model", "lm_head", "text_model", "text_projection", "embed_tokens")
"""Parts of names of parameters that no picture needs."""


def load_tower(checkpoint: Checkpoint, dtype: str, device: torch.device) -> tuple[Any, Family]:
    """Return a checkpoint's vision part in evaluation mode, and its family.

    Args:
        dtype: as `EncoderConfig` has it.
    Raises:
        ConfigError: Transformers is not installed, or cannot load it; or weights of the vision part are missing, or of
            another shape.
    """
    check_packages()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(checkpoint.path, local_files_only=True)
        whole, report = getattr(transformers, checkpoint.architecture).from_pretrained(
            checkpoint.path,
            config=_without_text(config),
            dtype=_DTYPES.get(dtype, "auto"),
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # of words, of which there are none now; others are looked for below
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        reason = f"cannot be loaded: {type(error).__name__}: {str(error)[:300]}"
        raise ConfigError(FIELD, str(checkpoint.path), reason) from error
    _check_report(report, checkpoint)
    model, family = find_family(whole, _FAMILIES)
    for name in family.others:
        if hasattr(model, name):
            delattr(model, name)
    return model.eval().requires_grad_(False).to(device), family


def ask(model: Any, family: Family, record: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the named outputs for the one picture of a record, whose tensors are on the model's device."""
    with torch.inference_mode():
        output = getattr(model, family.method)(**record, return_dict=True)
    return dict(_named(family, output))


def _named(family: Family, output: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for part, form in family.parts.items():
        value = getattr(output, part)
        if form == "levels":
            for level, tensors in enumerate(value):
                yield f"{part.partition('_')[0]}_{level}", tensors[0]
        elif value is not None:
            yield (EMBEDDINGS if family.method != "forward" and part == "pooler_output" else part), value[0]


def _without_text(config: Any) -> Any:
    text = getattr(config, "text_config", None)
    if text is not None:
        text.num_hidden_layers = 0
        text.vocab_size = 1
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            setattr(text, name, None)
        if getattr(text, "layer_types", None) is not None:
            text.layer_types = []
    return config


def _check_report(report: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    wrong = [*report["missing_keys"], *(mismatch[0] for mismatch in report["mismatched_keys"])]
    wrong = sorted(name for name in wrong if not any(part in name for part in _TEXT))
    if wrong or report.get("error_msgs"):
        found = ", ".join(wrong[:3]) or str(report["error_msgs"])[:200]
        raise ConfigError(FIELD, str(checkpoint.path), f"lacks weights of its vision part: {found}")
