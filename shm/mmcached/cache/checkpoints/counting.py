"""The ways in which encoders make embeddings of an image, and the processor's tensors that they take.

one            the image as a whole                          CLIP, SigLIP, SigLIP 2
patches        each patch of the processed image             towers of their own, DINOv2, LLaVA
grid           each square of merged patches                 Qwen
constant       a number in the configuration                 Gemma 3
tiles          patches of each tile of a large image         SmolVLM, Idefics 3
crops          the same, where tiles are a batch             InternVL
packed         tiles as one area, without its margins        LLaVA-NeXT
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from mmcached.cache.store_keys import TOKENS
from mmcached.wire.errors import InvalidRequest

Settings = Mapping[str, Any]
PIXELS = "pixel_values"
GRID = "image_grid_thw"
SIZES = "image_sizes"
PATCHES = (PIXELS, "pixel_attention_mask", "spatial_shapes")
_MAX_PIXELS = 28 * 28 * 1280
_IMAGE_SIZE = 224
_PINPOINTS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


class Counting(Protocol):
    """One way of counting; tensors are arrays of numpy or torch."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the processor's tensors that the tower takes."""

    def count(self, model: Settings, tensors: Mapping[str, Any]) -> int:
        """Return the number of embeddings of an item with these tensors."""

    def largest(self, model: Settings, processor: Settings) -> int:
        """Return the number of embeddings of the largest item."""


@runtime_checkable
class Tiled(Counting, Protocol):
    """A way of counting for a tower that encodes each tile of an image apart from the others."""

    def tiles(self, tensors: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the tensors of each tile as those of an image of one tile, in order, in the memory of the item's."""

    def per_tile(self, model: Settings) -> int:
        """Return the number of embeddings that the tower makes of a tile."""


@dataclass(frozen=True, slots=True)
class One:
    inputs: tuple[str, ...] = (PIXELS,)

    def count(self, model: Settings, tensors: Mapping[str, Any]) -> int:
        _check_alone(tensors)
        return 1

    def largest(self, model: Settings, processor: Settings) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Patches:
    """Patches of an image of any size.

    Attributes:
        num_others: Rows without a patch, such as the class token's.
        patch_size: Default if the configuration has none.
    """

    num_others: int
    patch_size: int
    inputs: tuple[str, ...] = (PIXELS,)

    def count(self, model: Settings, tensors: Mapping[str, Any]) -> int:
        _check_alone(tensors)
        height, width = tensors[PIXELS].shape[-2:]
        return self._of(model, int(height), int(width))

    def largest(self, model: Settings, processor: Settings) -> int:
        return self._of(model, *_processed_size(_vision(model), processor))

    def _of(self, model: Settings, height: int, width: int) -> int:
        side = int(_vision(model).get("patch_size", self.patch_size))
        return (height // side) * (width // side) + self.num_others


@dataclass(frozen=True, slots=True)
class Llava:
    """Patches of the configured tower, with or without its class token."""

    inputs: tuple[str, ...] = (PIXELS,)

    def count(self, model: Settings, tensors: Mapping[str, Any]) -> int:
        return self._patches(model).count(model, tensors)

    def largest(self, model: Settings, processor: Settings) -> int:
        return self._patches(model).largest(model, processor)

    def _patches(self, model: Settings) -> Patches:
        has_class_token = _vision(model).get("model_type", "clip_vision_model") == "clip_vision_model"
        is_cut = model.get("vision_feature_select_strategy", "default") == "default"
        return Patches(has_class_token - is_cut, 14)


@dataclass(frozen=True, slots=True)
class Padded:
    inputs: tuple[str, ...] = PATCHES

    def count(self, model: Settings, tensors: Mapping[str, Any]) -> int:
        _check_alone(tensors)
        return int(tensors[PIXELS].shape[1])

    def largest(self, model: Settings, processor: Settings) -> int:
        return int(processor.get("max_num_patches", 256))


@dataclass(frozen=True, slots=True)
class Grid:
    """Squares of patches of an image that keeps its aspect ratio."""

    patch_size: int
    inputs: tuple[str, ...] = (PIXELS, GRID)

    def count(self, model: Settings, tensors: Mapping[str, Any]) -> int:
        return squares_of(tensors[GRID], GRID) // merged_side(model) ** 2

    def largest(self, model: Settings, processor: Settings) -> int:
        side = int(_vision(model).get("patch_size", self.patch_size)) * merged_side(model)
        size = processor.get("size") or {}
        max_pixels = processor.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels") or _MAX_PIXELS
        return max(1, int(max_pixels) // side**2)


@dataclass(frozen=True, slots=True)
class Constant:
    setting: str
    default: int
    inputs: tuple[str, ...] = (PIXELS,)

    def count(self, model: Settings, tensors: Mapping[str, Any]) -> int:
        _check_alone(tensors)
        return self.largest(model, {})

    def largest(self, model: Settings, processor: Settings) -> int:
        return int(model.get(self.setting, self.default))


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of an image, and an overview if there are several.

    Attributes:
        has_text: Whether tokens of text around the tiles, as in a prompt, are counted as embeddings.
    """

    inputs: tuple[str, ...] = (PIXELS, "pixel_attention_mask")
    has_text: bool = False

    def count(self, model: Settings, tensors: Mapping[str, Any]) -> int:
        _check_alone(tensors)
        return len(tensors[TOKENS]) if self.has_text else int(tensors[PIXELS].shape[1]) * self.per_tile(model)

    def largest(self, model: Settings, processor: Settings) -> int:
        """Return the number for a square image, with text: two tokens for a tile, one for a line, four at the end."""
        longest = (processor.get("size") or {}).get("longest_edge", 4 * 364)
        side = (processor.get("max_image_size") or {}).get("longest_edge", 364)
        lines = -(-int(longest) // int(side)) if processor.get("do_image_splitting", True) else 1
        num_tiles = lines**2 + (lines > 1)
        return num_tiles * (self.per_tile(model) + 2 * self.has_text) + self.has_text * (lines + 4)

    def tiles(self, tensors: Mapping[str, Any]) -> list[dict[str, Any]]:
        names = [name for name in self.inputs if name != TOKENS]
        places = range(int(tensors[PIXELS].shape[1]))
        return [{name: tensors[name][:, place : place + 1] for name in names} for place in places]

    def per_tile(self, model: Settings) -> int:
        vision = _vision(model)
        rows = int(vision.get("image_size", 224)) // int(vision.get("patch_size", 32))
        return rows**2 // int(model.get("scale_factor", 2)) ** 2


@dataclass(frozen=True, slots=True)
class Crops:
    """Tiles of an image as images of one batch, and an overview if there are several."""

    inputs: tuple[str, ...] = (PIXELS,)

    def count(self, model: Settings, tensors: Mapping[str, Any]) -> int:
        return int(tensors[PIXELS].shape[0]) * self.per_tile(model)

    def largest(self, model: Settings, processor: Settings) -> int:
        num_tiles = int(processor.get("max_patches", 12))
        return (num_tiles + (num_tiles > 1)) * self.per_tile(model)

    def tiles(self, tensors: Mapping[str, Any]) -> list[dict[str, Any]]:
        pixels = tensors[PIXELS]
        return [{PIXELS: pixels[place : place + 1]} for place in range(int(pixels.shape[0]))]

    def per_tile(self, model: Settings) -> int:
        vision = _vision(model)
        height, width = _two(vision.get("image_size", 448))
        rows, columns = _two(vision.get("patch_size", 14))
        return int((height // rows) * (width // columns) * float(model.get("downsample_ratio", 0.5)) ** 2)


@dataclass(frozen=True, slots=True)
class Packed:
    """The whole image, reduced, as the first tile; then its other tiles, joined: lines of patches, each with an end.

    Patches of the margins with which the image was filled up to whole tiles do not count.
    """

    inputs: tuple[str, ...] = (PIXELS, SIZES)

    def count(self, model: Settings, tensors: Mapping[str, Any]) -> int:
        _check_alone(tensors)
        height, width = (int(side) for side in tensors[SIZES].reshape(-1).tolist())
        lines, places = self._best(model, height, width)
        side = self._side(model)
        num_tiles, num_expected = int(tensors[PIXELS].shape[1]), 1 + lines * places
        if num_tiles != num_expected:
            limit = f"{num_expected} by image_grid_pinpoints of the model: its processor must have the same"
            raise InvalidRequest(PIXELS, f"{num_tiles} tiles", limit)
        lines, places = lines * side, places * side
        # Rounded as Transformers does it, which is not symmetric.
        if width / height > places / lines:
            lines -= (lines - int(round(height * (places / width), 7))) // 2 * 2
        else:
            places -= (places - int(round(width * (lines / height), 7))) // 2 * 2
        return self.per_tile(model) + lines * (places + 1)

    def largest(self, model: Settings, processor: Settings) -> int:
        side, tile = self._side(model), int(_vision(model).get("image_size", 336))
        return self.per_tile(model) + max(
            height // tile * side * (width // tile * side + 1) for height, width in self._pinpoints(model)
        )

    def tiles(self, tensors: Mapping[str, Any]) -> list[dict[str, Any]]:
        places = range(int(tensors[PIXELS].shape[1]))
        return [{PIXELS: tensors[PIXELS][:, place : place + 1]} for place in places]

    def per_tile(self, model: Settings) -> int:
        return self._side(model) ** 2

    def _best(self, model: Settings, height: int, width: int) -> tuple[int, int]:
        """Return how many tiles an image of a size has in a column and in a row, as Transformers chooses."""

        def used(size: tuple[int, int]) -> tuple[int, int]:
            scale = min(size[1] / width, size[0] / height)
            area = min(int(width * scale) * int(height * scale), width * height)
            return area, area - size[0] * size[1]  # much of the image, then little else; the first of several

        tile = int(_vision(model).get("image_size", 336))
        rows, columns = max(self._pinpoints(model), key=used)
        return rows // tile, columns // tile

    @staticmethod
    def _side(model: Settings) -> int:
        vision = _vision(model)
        return int(vision.get("image_size", 336)) // int(vision.get("patch_size", 14))

    @staticmethod
    def _pinpoints(model: Settings) -> list[tuple[int, int]]:
        return [(height, width) for height, width in model.get("image_grid_pinpoints") or _PINPOINTS]


def squares_of(grid: Any, name: str) -> int:
    """Return the number of patches of a grid (1, 3). Raises InvalidRequest with its name if it is of several items."""
    sizes = [int(size) for size in grid.reshape(-1).tolist()]
    if len(sizes) != 3:
        raise InvalidRequest(name, str(sizes), "must be of one image")
    return sizes[0] * sizes[1] * sizes[2]


def merged_side(model: Settings) -> int:
    """Return the number of patches on a side of the square that becomes one embedding."""
    return int(_vision(model).get("spatial_merge_size", 2))


def _vision(model: Settings) -> Settings:
    vision: Settings = model.get("vision_config") or model
    return vision


def _two(sides: Any) -> tuple[int, int]:
    """Return height and width; a number is both."""
    height, width = (sides, sides) if isinstance(sides, int) else sides
    return int(height), int(width)


def _check_alone(tensors: Mapping[str, Any]) -> None:
    num_pictures = int(tensors[PIXELS].shape[0])
    if num_pictures != 1:
        raise InvalidRequest(PIXELS, f"{num_pictures} images", "the processor must return one image for one")


def _processed_size(vision: Settings, processor: Settings) -> tuple[int, int]:
    """Return height and width of a processed image, as far as they are fixed."""
    is_cropped = processor.get("do_center_crop", "crop_size" in processor)
    size = processor.get("crop_size" if is_cropped else "size") or vision.get("image_size", _IMAGE_SIZE)
    if isinstance(size, Mapping):
        side = size.get("shortest_edge", _IMAGE_SIZE)
        return int(size.get("height", side)), int(size.get("width", side))
    return (int(size), int(size)) if isinstance(size, int) else (int(size[0]), int(size[1]))
