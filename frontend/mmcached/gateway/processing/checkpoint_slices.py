"""Makes the item of a slice of a clip for a checkpoint's tower, as Transformers' processor does for that slice alone.

    all frames of a video     -> {"pixel_values": uint8 (1, num_frames, 3, height, width)}, for towers of whole clips
    two frames of a video     -> {"pixel_values_videos": uint8 (num_patches, 3 * 2 * patch_size**2),
                                  "video_grid_thw": int64 (1, 3)}
    a window of a sound       -> {"input_features": float32 (1, num_bands, num_frames),
                                  "feature_attention_mask": int64 (1, num_frames), for towers that take it}

Video frames arrive scaled. Pixels stay uint8, a quarter of the size: the encoder normalises them. Needs neither torch
nor Transformers.

Invariant: the same slice and the same settings give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmcached.cache.checkpoints.checkpoint import Checkpoint
from mmcached.cache.checkpoints.frames import GRID, PIXELS, FrameGrid, WholeClip
from mmcached.cache.checkpoints.sounds import FEATURES, MASK, Chunked, Filled, hop_of
from mmcached.cache.fingerprints import fingerprint
from mmcached.gateway.processing.mel import log_mel
from mmcached.gateway.processing.processor import GatewayItem
from mmcached.shm.store.codec import encode
from mmcached.wire.errors import CorruptClip, InvalidRequest, InvariantError
from mmcached.wire.messages.parts import ClipOptions
from mmcached.wire.vocabulary import Modality

_VERSION = 1
"""Increase it with every change, here or of the sizes of frames, that gives other bytes for some slice."""

Arrays = Mapping[str, npt.NDArray[Any]]


class CheckpointSlices:
    """Turns slices into items. Stateless: any thread may call it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def settings(self, modality: Modality) -> str:
        """Return all settings of the result beside the slice as text; "" for a modality that the towers do not take."""
        if modality not in self._checkpoint.countings:
            return ""
        parts = {
            "kind": "hf",
            "version": _VERSION,
            "processor": self._checkpoint.processors[modality],
            "model": self._checkpoint.model,  # the number of embeddings follows from it
            "numpy": np.__version__,
        }
        return fingerprint(parts)

    def check(self, options: ClipOptions, field: str) -> None:
        """Raise `InvalidRequest`, naming the option, for a clip that the tower cannot take."""
        counting = self._checkpoint.countings[options.modality]
        if isinstance(counting, (FrameGrid, WholeClip)) and not counting.is_sliceable:
            num_frames = counting.num_frames(self._checkpoint.model)
            if options.num_frames != num_frames:
                limit = f"must be {num_frames}: the tower looks at all frames together"
                raise InvalidRequest(f"{field}.num_frames", options.num_frames or "none", limit)

    def item(self, arrays: Arrays, modality: Modality) -> GatewayItem:
        """Return the item of a decoded slice.

        Raises:
            CorruptClip: A sample is not a number.
            InvariantError: A decoder has returned anything other than a slice.
        """
        counting, settings = self._checkpoint.countings[modality], self._checkpoint.processors[modality]
        if isinstance(counting, FrameGrid):
            record = cut_frames(arrays["frames"], counting, settings)
        elif isinstance(counting, WholeClip):
            record = crop_frames(arrays["frames"], counting, settings)
        elif isinstance(counting, (Filled, Chunked)):
            record = self._listen(arrays["samples"], counting, settings)
        else:
            raise InvariantError(f"a clip was decoded for {type(counting).__name__}")
        return GatewayItem(encode(record), self._checkpoint.num_embeds(modality, record))

    def _listen(
        self, samples: npt.NDArray[np.float32], counting: Filled | Chunked, settings: Mapping[str, Any]
    ) -> dict[str, npt.NDArray[Any]]:
        if not np.isfinite(samples).all():
            raise CorruptClip("audio", "a sample that is no number", "a sound has finite samples")
        length, num_frames = counting.frames(len(samples), self._checkpoint.model, settings)
        if len(samples) > length:
            raise InvariantError(f"a decoder made a window of {len(samples)} samples, of {length} at most")
        features = log_mel(
            np.pad(samples, (0, length - len(samples))),
            num_bands=int(settings.get("feature_size", 80)),
            n_fft=int(settings.get("n_fft", 400)),
            hop=hop_of(settings),
        )[None, :, :num_frames]
        made: dict[str, npt.NDArray[Any]] = {
            FEATURES: np.ascontiguousarray(features),
            MASK: np.ones((1, num_frames), np.int64),
        }
        return {name: made[name] for name in counting.inputs}


def cut_frames(frames: npt.NDArray[Any], counting: FrameGrid, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of two frames, uint8 (2, height, width, 3).

    Raises:
        InvariantError: The sides are not multiples of a merged patch.
    """
    patch, merge = counting.patches(settings)
    num_frames, height, width, _ = frames.shape
    if frames.dtype != np.uint8 or num_frames != 2 or height % (patch * merge) or width % (patch * merge):
        raise InvariantError(f"a decoder made {num_frames} frames of {width} x {height} {frames.dtype}")
    rows, columns = height // patch, width // patch
    squares = frames.reshape(num_frames, rows // merge, merge, patch, columns // merge, merge, patch, 3)
    # Square by square, the patches of each; of a patch each colour, of a colour both frames.
    patches = squares.transpose(1, 4, 2, 5, 7, 0, 3, 6).reshape(rows * columns, -1)
    return {PIXELS: patches, GRID: np.array([[1, rows, columns]], np.int64)}


def crop_frames(frames: npt.NDArray[Any], counting: WholeClip, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of the centre of frames, uint8 (num_frames, height, width, 3).

    Raises:
        InvariantError: The frames are too small.
    """
    high, wide = counting.crop(settings)
    _, height, width, _ = frames.shape
    if frames.dtype != np.uint8 or height < high or width < wide:
        raise InvariantError(f"a decoder made frames of {width} x {height} {frames.dtype}, {wide} x {high} are needed")
    top, left = (height - high) // 2, (width - wide) // 2
    middle = frames[:, top : top + high, left : left + wide].transpose(0, 3, 1, 2)
    return {counting.inputs[0]: np.ascontiguousarray(middle)[None]}
