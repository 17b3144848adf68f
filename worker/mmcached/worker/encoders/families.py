"""Known model classes of Transformers: how they take images, and the form of their outputs.

    patches of all images, concatenated, and a grid for each     Qwen
    one row of a batch per image                                 all others

    stacked   a tensor whose first dimension is the images
    split     a tensor for each image
    levels    for each level a tensor for each image
    rows      rows of all items, concatenated

A family is listed once it is tested: for other models it is unknown whether they process images independently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mmcached.wire.errors import InvalidRequest

Form = Literal["stacked", "split", "levels", "rows"]
GRID = "image_grid_thw"
FROM_CONFIG = ("vision_feature_layer", "vision_feature_select_strategy")
"""Arguments whose defaults are in the configuration."""


@dataclass(frozen=True, slots=True)
class Family:
    """Image interface of a class of models.

    Attributes:
        parts: attributes of the method's output that are kept, and the form of each.
        arguments: of the method, besides the pixels, on which the output depends.
        others: children and parameters of the model on which the output does not depend.
        output: name of the method's output class, in the model's own module.
    """

    parts: Mapping[str, Form]
    arguments: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset({"language_model"})
    method: str = "get_image_features"
    output: str = "BaseModelOutputWithPooling"

    @property
    def has_grid(self) -> bool:
        return GRID in self.arguments


_QWEN = Family({"pooler_output": "split"}, frozenset({GRID}))
_LAYERS = frozenset(FROM_CONFIG)
_CONTRASTIVE = frozenset({"text_model", "text_projection", "logit_scale", "logit_bias"})
_SIZED = frozenset({"interpolate_pos_encoding"})
_TOWER = Family({"last_hidden_state": "stacked", "pooler_output": "stacked"}, _SIZED, frozenset(), "forward")

FAMILIES: Mapping[str, Family] = {
    "LlavaModel": Family({"pooler_output": "split"}, _LAYERS),
    "Qwen2VLModel": _QWEN,
    "Qwen2_5_VLModel": _QWEN,
    "Qwen3VLModel": Family(
        {"pooler_output": "split", "deepstack_features": "levels"},
        frozenset({GRID}),
        output="BaseModelOutputWithDeepstackFeatures",
    ),
    "Gemma3Model": Family({"pooler_output": "stacked"}),
    "PaliGemmaModel": Family({"pooler_output": "stacked"}),
    "InternVLModel": Family({"pooler_output": "stacked"}, _LAYERS),
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
