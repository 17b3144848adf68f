"""Known model classes of Transformers: how they take images, and the form of their outputs.

    patches of all images, concatenated, and a grid for each     Qwen; MiniCPM-V, for each tile
    tiles of each image, whose outputs are packed                LLaVA-NeXT, LLaVA-OneVision
    one row of a batch per image                                 all others; InternVL, per tile

A tile that the tower encodes apart from the image's other tiles is an image here.

    stacked   a tensor whose first dimension is the images
    split     a tensor for each image
    levels    for each level a tensor for each image
    rows      rows of all items, concatenated
    tiles     a tensor whose first dimension is the tiles of one image

A family is listed once it is tested: for other models it is unknown whether they process images independently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from mmcached.wire.errors import InvalidRequest

Form = Literal["stacked", "split", "levels", "rows", "tiles"]
GRIDS: Mapping[str, int] = {"image_grid_thw": 0, "target_sizes": -1}
"""Arguments with a row of sizes per image, and the dimension in which the patches of the images follow each other."""
FROM_CONFIG = ("vision_feature_layer", "vision_feature_select_strategy", "downsample_mode")
"""Arguments whose defaults are in the configuration."""


@dataclass(frozen=True, slots=True)
class Family:
    """Image interface of a class of models.

    Attributes:
        parts: attributes of the method's output that are kept, and the form of each.
        arguments: of the method, besides the pixels, on which the output for an image or tile depends.
        packing: arguments of the method that only decide which tiles an image has, and how their outputs are packed.
        others: children and parameters of the model on which the output does not depend.
        output: name of the method's output class, in the model's own module.
    """

    parts: Mapping[str, Form]
    arguments: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset({"language_model"})
    method: str = "get_image_features"
    output: str = "BaseModelOutputWithPooling"
    packing: frozenset[str] = frozenset()

    @property
    def grid(self) -> str | None:
        return next((name for name in GRIDS if name in self.arguments), None)


_QWEN = Family({"pooler_output": "split"}, frozenset({"image_grid_thw"}))
_MINICPM = Family({"pooler_output": "split"}, frozenset({"target_sizes", "downsample_mode"}))
_LAYERS = frozenset({"vision_feature_layer", "vision_feature_select_strategy"})
_PACKED = Family(
    {"pooler_output": "split"},
    _LAYERS,
    frozenset({"language_model", "image_newline"}),
    packing=frozenset({"image_sizes"}),
)
_CONTRASTIVE = frozenset({"text_model", "text_projection", "logit_scale", "logit_bias"})
_SIZED = frozenset({"interpolate_pos_encoding"})
_TOWER = Family({"last_hidden_state": "stacked", "pooler_output": "stacked"}, _SIZED, frozenset(), "forward")

FAMILIES: Mapping[str, Family] = {
    "LlavaModel": Family({"pooler_output": "split"}, _LAYERS),
    "Qwen2VLModel": _QWEN,
    "Qwen2_5_VLModel": _QWEN,
    "Qwen3VLModel": Family(
        {"pooler_output": "split", "deepstack_features": "levels"},
        frozenset({"image_grid_thw"}),
        output="BaseModelOutputWithDeepstackFeatures",
    ),
    "Gemma3Model": Family({"pooler_output": "stacked"}),
    "PaliGemmaModel": Family({"pooler_output": "stacked"}),
    "InternVLModel": Family({"pooler_output": "stacked"}, _LAYERS),
    "LlavaNextModel": _PACKED,
    "LlavaOnevisionModel": replace(_PACKED, packing=_PACKED.packing | {"vision_aspect_ratio", "batch_num_images"}),
    "MiniCPMV4_6Model": _MINICPM,
    "MiniCPMV4_7Model": _MINICPM,
    "CLIPModel": Family({"pooler_output": "stacked"}, _SIZED, _CONTRASTIVE),
    "SiglipModel": Family({"pooler_output": "stacked"}, _SIZED, _CONTRASTIVE),
    "CLIPVisionModel": _TOWER,
    "SiglipVisionModel": _TOWER,
}


def find_family(model: Any, families: Mapping[str, Family] = FAMILIES) -> tuple[Any, Family]:
    """Return the submodel that computes image features, and its family; raises `InvalidRequest` if it is unknown."""
    while hasattr(getattr(model, "model", None), "get_image_features"):
        model = model.model
    kind = type(model)
    family = families.get(kind.__name__) if kind.__module__.startswith("transformers.") else None
    if family is None:
        raise InvalidRequest("model", f"{kind.__module__}.{kind.__name__}", f"must be one of {', '.join(families)}")
    return model, family
