"""Loads the towers of a checkpoint with Transformers, and runs them on one item at a time.

    checkpoint ── configuration with no text layers ──> model ── other parts removed ──> towers
    the model's output ── a family's parts ──> named tensors: embeddings, deepstack_0 …; or last_hidden_state …

The language model's weights are not read: a model without layers and words has no place for them. Nothing is
downloaded, and no code of a checkpoint is run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from mmcached.cache.checkpoints.checkpoint import FIELD, Checkpoint, check_packages
from mmcached.cache.store_keys import EMBEDDINGS
from mmcached.wire.errors import ConfigError
from mmcached.wire.vocabulary import Modality
from mmcached.worker.encoders.families import FAMILIES, Family, find_family

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PLAIN = Family({"last_hidden_state": "stacked", "pooler_output": "stacked"}, others=frozenset(), method="forward")
_TILED = Family({"pooler_output": "split"}, frozenset({"pixel_attention_mask"}), frozenset({"text_model"}))
_FAMILIES: Mapping[str, Family] = {
    **FAMILIES,
    "Dinov2Model": _PLAIN,
    "Siglip2VisionModel": _PLAIN,
    "Qwen2_5OmniThinkerModel": FAMILIES["Qwen2_5_VLModel"],
    "SmolVLMModel": _TILED,
    "Idefics3Model": _TILED,
    "LlavaNextModel": replace(FAMILIES["LlavaNextModel"], others=frozenset({"language_model"})),
    "InternVLModel": replace(FAMILIES["InternVLModel"], parts={"pooler_output": "tiles"}),
    "Siglip2Model": Family({"pooler_output": "stacked"}, others=FAMILIES["SiglipModel"].others),
}
"""Includes models that are only used here, where their inputs are known."""
_VIDEO: Mapping[str, Family] = {
    name: replace(_FAMILIES[name], method="get_video_features")
    for name in ("Qwen2VLModel", "Qwen2_5_VLModel", "Qwen3VLModel", "Qwen2_5OmniThinkerModel")
}
"""Models that also take frames of videos, with the same outputs as for images."""
_CLIPS: Mapping[str, Family] = {
    "VideoMAEModel": Family({"last_hidden_state": "stacked"}, others=frozenset(), method="forward"),
}
"""Models that take only clips, whole."""
_HEARING = Family({"pooler_output": "rows"}, method="get_audio_features")
_AUDIO: Mapping[str, Family] = {
    "WhisperEncoder": Family({"last_hidden_state": "stacked"}, others=frozenset(), method="forward"),
    "Qwen2_5OmniThinkerModel": _HEARING,
    "Qwen3OmniMoeThinkerModel": replace(_HEARING, others=frozenset({"language_model", "visual"})),
}
_THINKERS: Mapping[str, str] = {
    "Qwen2_5OmniModel": "Qwen2_5OmniThinkerForConditionalGeneration",
    "Qwen2_5OmniForConditionalGeneration": "Qwen2_5OmniThinkerForConditionalGeneration",
    "Qwen3OmniMoeForConditionalGeneration": "Qwen3OmniMoeThinkerForConditionalGeneration",
}
"""Models that also generate speech: the class of the part that encodes images and audio."""
_TEXT = ("language_model", "lm_head", "text_model", "text_projection", "embed_tokens", "decoder", "proj_out")
"""Substrings of the names of parameters that encoding does not need."""


def load_tower(checkpoint: Checkpoint, dtype: str, device: torch.device) -> tuple[Any, Mapping[Modality, Family]]:
    """Return a checkpoint's towers in evaluation mode, and the interface for each modality.

    Raises:
        ConfigError: Transformers is not installed, or cannot load it; or weights of a tower are missing, or of another
            shape.
    """
    check_packages()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(checkpoint.path, local_files_only=True)
        config = getattr(config, "thinker_config", config)
        name = _THINKERS.get(checkpoint.architecture, checkpoint.architecture)
        whole, report = getattr(transformers, name).from_pretrained(
            checkpoint.path,
            config=_without_text(config),
            dtype=_DTYPES.get(dtype, "auto"),
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # of the removed vocabulary; others are checked below
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        reason = f"cannot be loaded: {type(error).__name__}: {str(error)[:300]}"
        raise ConfigError(FIELD, str(checkpoint.path), reason) from error
    _check_report(report, checkpoint)
    model, families = _asked(whole, checkpoint)
    for name in frozenset.intersection(*(each.others for each in families.values())):
        if hasattr(model, name):
            delattr(model, name)
    return model.eval().requires_grad_(False).to(device), families


def _asked(whole: Any, checkpoint: Checkpoint) -> tuple[Any, Mapping[Modality, Family]]:
    families: dict[Modality, Family] = {}
    model = getattr(whole, "model", whole)
    if "image" in checkpoint.countings:
        model, families["image"] = find_family(whole, _FAMILIES)
    elif type(model).__name__ in _CLIPS:
        return model, {"video": _CLIPS[type(model).__name__]}
    elif not hasattr(model, "get_audio_features"):
        model = whole.get_encoder()
    name = type(model).__name__
    if name in _VIDEO:
        families["video"] = _VIDEO[name]
    if name in _AUDIO:
        families["audio"] = _AUDIO[name]
    return model, families


def ask(model: Any, family: Family, record: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the named outputs for the one item of a record, whose tensors are on the model's device."""
    with torch.inference_mode():
        output = getattr(model, family.method)(**record, return_dict=True)
    return dict(_named(family, output))


def _named(family: Family, output: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for part, form in family.parts.items():
        value = getattr(output, part)
        if form == "levels":
            for level, tensors in enumerate(value):
                yield f"{part.partition('_')[0]}_{level}", tensors[0]
        elif form == "rows":
            yield EMBEDDINGS, value
        elif form == "tiles":
            yield EMBEDDINGS, value.flatten(0, 1)
        elif value is not None:
            yield (EMBEDDINGS if family.method != "forward" and part == "pooler_output" else part), value[0]


def _without_text(config: Any) -> Any:
    if getattr(config, "decoder_layers", 0):  # Whisper
        config.decoder_layers, config.vocab_size, config.pad_token_id = 0, 1, None
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
