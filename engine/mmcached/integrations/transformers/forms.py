"""Computes the form of an image's features from the model's configuration, before anything is encoded.

A record of another form is not given to the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from mmcached.integrations.record_form import PartForm, RecordForm
from mmcached.integrations.transformers.splitting import Picture
from mmcached.worker.encoders.families import Family

Sizes = Mapping[str, tuple[int, ...] | list[tuple[int, ...]] | None]
"""For each part of one image, as in `splitting.Parts`: sizes of a tensor, of each of a list of tensors, or None."""

_CLASS_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0}
"""Number of rows of a LLaVA tower beside those of the patches."""
_LEFT_TO_AUTOCAST = frozenset({"Gemma3Model", "CLIPVisionModel", "SiglipVisionModel"})
"""Models that do not end with a matrix product: under autocast their dtype depends on the device."""


def form_of(model: Any, picture: Picture, dtype: torch.dtype | None) -> RecordForm | None:
    """Return the form of an image's features; None if the configuration does not determine it.

    Args:
        dtype: Dtype of the model's parameters, as `dtype_of` returns it.
    """
    kind = type(model).__name__
    device = picture.pixels.device.type
    if torch.is_autocast_enabled(device):
        dtype = None if kind in _LEFT_TO_AUTOCAST else torch.get_autocast_dtype(device)
    sizes = SIZES[kind](model.config, picture)
    if dtype is None or sizes is None:
        return None

    def form(size: tuple[int, ...]) -> PartForm:
        return PartForm(size[1:], dtype, size[0])

    return RecordForm(
        {
            name: tuple(map(form, size)) if isinstance(size, list) else None if size is None else form(size)
            for name, size in sizes.items()
        }
    )


def dtype_of(model: torch.nn.Module, family: Family) -> torch.dtype | None:
    """Return the dtype of the parameters that image features depend on; None if they have several."""
    dtypes = {
        value.dtype
        for name, value in model.named_parameters()
        if name.split(".")[0] not in family.others and value.is_floating_point()
    }
    return dtypes.pop() if len(dtypes) == 1 else None


def _num_patches(config: Any, picture: Picture) -> int:
    *_, height, width = picture.pixels.shape
    size = config.patch_size
    rows, columns = size if isinstance(size, (list, tuple)) else (size, size)
    return int(height // rows * (width // columns))


def _llava(config: Any, picture: Picture) -> Sizes | None:
    vision = config.vision_config
    num_class_tokens = _CLASS_TOKENS.get(vision.model_type)
    if num_class_tokens is None:
        return None
    num_cut = int(picture.arguments["vision_feature_select_strategy"] == "default")
    rows = _num_patches(vision, picture) + num_class_tokens - num_cut
    return {"pooler_output": (rows, config.text_config.hidden_size)}


def _qwen_rows(config: Any, picture: Picture) -> int:
    return len(picture.pixels) // int(config.vision_config.spatial_merge_size) ** 2


def _qwen2(config: Any, picture: Picture) -> Sizes:
    return {"pooler_output": (_qwen_rows(config, picture), config.vision_config.hidden_size)}


def _qwen2_5(config: Any, picture: Picture) -> Sizes:
    return {"pooler_output": (_qwen_rows(config, picture), config.vision_config.out_hidden_size)}


def _qwen3(config: Any, picture: Picture) -> Sizes:
    size = _qwen_rows(config, picture), config.vision_config.out_hidden_size
    return {"pooler_output": size, "deepstack_features": [size for _ in config.vision_config.deepstack_visual_indexes]}


def _gemma3(config: Any, picture: Picture) -> Sizes:
    return {"pooler_output": (1, config.mm_tokens_per_image, config.text_config.hidden_size)}


def _paligemma(config: Any, picture: Picture) -> Sizes:
    vision = config.vision_config
    return {"pooler_output": (1, _num_patches(vision, picture), vision.projection_dim)}


def _internvl(config: Any, picture: Picture) -> Sizes:
    rows = round(_num_patches(config.vision_config, picture) * config.downsample_ratio**2)
    return {"pooler_output": (1, rows, config.text_config.hidden_size)}


def _minicpm(config: Any, picture: Picture) -> Sizes | None:
    height, width = picture.arguments["target_sizes"][0].tolist()
    if picture.arguments["downsample_mode"] != "4x":
        if config.vision_config.insert_layer_id < 0:
            return None  # the model mistakes the sizes of its merged patches, so a tile depends on those before it
        height, width = height // 2, width // 2
    rows, columns = config.merge_kernel_size
    for _ in range(config.merger_times):
        height, width = height // rows, width // columns
    return {"pooler_output": (height * width, config.text_config.hidden_size)}


def _clip(config: Any, picture: Picture) -> Sizes:
    return {"pooler_output": (1, config.projection_dim)}


def _siglip(config: Any, picture: Picture) -> Sizes:
    return {"pooler_output": (1, config.vision_config.hidden_size)}


def _clip_tower(config: Any, picture: Picture) -> Sizes:
    width = config.hidden_size
    return {"last_hidden_state": (1, _num_patches(config, picture) + 1, width), "pooler_output": (1, width)}


def _siglip_tower(config: Any, picture: Picture) -> Sizes:
    width = config.hidden_size
    pooled = (1, width) if getattr(config, "vision_use_head", True) else None
    return {"last_hidden_state": (1, _num_patches(config, picture), width), "pooler_output": pooled}


SIZES: Mapping[str, Callable[[Any, Picture], Sizes | None]] = {
    "LlavaModel": _llava,
    "Qwen2VLModel": _qwen2,
    "Qwen2_5_VLModel": _qwen2_5,
    "Qwen3VLModel": _qwen3,
    "Gemma3Model": _gemma3,
    "PaliGemmaModel": _paligemma,
    "InternVLModel": _internvl,
    "LlavaNextModel": _llava,
    "LlavaOnevisionModel": _llava,
    "MiniCPMV4_6Model": _minicpm,
    "MiniCPMV4_7Model": _minicpm,
    "CLIPModel": _clip,
    "SiglipModel": _siglip,
    "CLIPVisionModel": _clip_tower,
    "SiglipVisionModel": _siglip_tower,
}
"""By model class, as `families.FAMILIES`."""
