"""The known classes of models: the modalities of each, and how their embeddings are counted.

An architecture is listed once it is tested.
"""

from __future__ import annotations

from collections.abc import Mapping

from mmcached.cache.checkpoints.counting import (
    PATCHES,
    Constant,
    Counting,
    Crops,
    Grid,
    Llava,
    One,
    Packed,
    Padded,
    Patches,
    Tiles,
)
from mmcached.cache.checkpoints.frames import FrameGrid, WholeClip
from mmcached.cache.checkpoints.sounds import Chunked, Filled
from mmcached.cache.store_keys import TOKENS
from mmcached.wire.vocabulary import Modality

_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_HALF = (0.5, 0.5, 0.5)
_QWEN2: Mapping[Modality, Counting] = {
    "image": Grid(14),
    "video": FrameGrid(14, mean=_CLIP_MEAN, std=_CLIP_STD, min_pixels=128 * 28 * 28, max_pixels=768 * 28 * 28),
}
_QWEN3: Mapping[Modality, Counting] = {
    "image": Grid(16),
    "video": FrameGrid(
        16, mean=_HALF, std=_HALF, min_pixels=128 * 32 * 32, max_pixels=768 * 32 * 32, num_sharing=2, max_squares=768
    ),
}
_OMNI2: Mapping[Modality, Counting] = {
    **_QWEN2,
    "audio": Chunked(num_halvings=1, has_pairs=True, n_window=100, is_followed=True),
}
# Its images have DeepStack levels and its sounds do not: a service's outputs have one form.
_OMNI3: Mapping[Modality, Counting] = {
    "audio": Chunked(num_halvings=3, has_pairs=False, n_window=50, reach="n_window_infer")
}

ARCHITECTURES: Mapping[str, Mapping[Modality, Counting]] = {
    "CLIPModel": {"image": One()},
    "SiglipModel": {"image": One()},
    "Siglip2Model": {"image": One(PATCHES)},
    "CLIPVisionModel": {"image": Patches(1, 32)},
    "SiglipVisionModel": {"image": Patches(0, 16)},
    "Siglip2VisionModel": {"image": Padded()},
    "Dinov2Model": {"image": Patches(1, 14)},
    "LlavaForConditionalGeneration": {"image": Llava()},
    "Qwen2VLForConditionalGeneration": _QWEN2,
    "Qwen2_5_VLForConditionalGeneration": _QWEN2,
    "Qwen3VLForConditionalGeneration": _QWEN3,
    "Qwen2_5OmniModel": _OMNI2,
    "Qwen2_5OmniForConditionalGeneration": _OMNI2,
    "Qwen2_5OmniThinkerForConditionalGeneration": _OMNI2,
    "Qwen3OmniMoeForConditionalGeneration": _OMNI3,
    "Qwen3OmniMoeThinkerForConditionalGeneration": _OMNI3,
    "VideoMAEModel": {"video": WholeClip()},
    "WhisperModel": {"audio": Filled()},
    "WhisperForConditionalGeneration": {"audio": Filled()},
    "Gemma3ForConditionalGeneration": {"image": Constant("mm_tokens_per_image", 256)},
    "SmolVLMForConditionalGeneration": {"image": Tiles()},
    "Idefics3ForConditionalGeneration": {"image": Tiles()},
    "InternVLForConditionalGeneration": {"image": Crops()},
    "LlavaNextForConditionalGeneration": {"image": Packed()},
}
"""By the architecture name in a checkpoint's configuration."""
_TILED: Mapping[Modality, Counting] = {"image": Tiles((*Tiles().inputs, TOKENS), has_text=True)}
IN_PROMPTS: Mapping[str, Mapping[Modality, Counting]] = {
    "SmolVLMForConditionalGeneration": _TILED,
    "Idefics3ForConditionalGeneration": _TILED,
}
"""Of architectures whose items are counted differently as parts of prompts."""
