"""The windows of a sound for a tower, and the number of their embeddings.

`Filled` (Whisper) pads a shorter sound with silence; `Chunked` (Qwen omni) cuts at whole chunks within the reach of
attention, and its last window may be shorter. A frame is a column of the log-mel spectrogram: one per `hop` samples, at
16,000 a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmcached.cache.checkpoints.counting import Settings
from mmcached.wire.errors import InvalidRequest

FEATURES = "input_features"
MASK = "feature_attention_mask"
_LEAST_FRAMES = 10
"""A shorter sound is padded with silence. Below three frames a tower makes no embedding; below eight torch 2.13 has
returned random numbers, in bfloat16 on a CPU (convolutions over one or two columns).
"""


@dataclass(frozen=True, slots=True)
class Filled:
    """Windows of one length; two frames become an embedding."""

    inputs: tuple[str, ...] = (FEATURES,)

    def count(self, model: Settings, tensors: Mapping[str, Any]) -> int:
        return _columns(tensors[FEATURES]) // 2

    def largest(self, model: Settings, processor: Settings) -> int:
        return int(model.get("max_source_positions", 1500))

    def window(self, model: Settings, processor: Settings) -> int:
        return 2 * self.largest(model, processor) * hop_of(processor)

    def frames(self, num_samples: int, model: Settings, processor: Settings) -> tuple[int, int]:
        """Return the number of samples after padding, and the number of valid frames."""
        window = self.window(model, processor)
        return window, window // hop_of(processor)


@dataclass(frozen=True, slots=True)
class Chunked:
    """Windows of whole chunks, each of which is convolved alone.

    Attributes:
        num_halvings: Number of halvings of the frames.
        has_pairs: The last halving drops an unpaired frame.
        n_window: Half the frames of a chunk, if the configuration has none.
        reach: Name of the setting with the reach of attention in frames; "": one chunk.
        is_followed: The sound is followed by silence, not by its mirror image.
    """

    num_halvings: int
    has_pairs: bool
    n_window: int
    reach: str = ""
    is_followed: bool = False
    inputs: tuple[str, ...] = (FEATURES, MASK)

    def count(self, model: Settings, tensors: Mapping[str, Any]) -> int:
        return self._rows(_columns(tensors[FEATURES]), 2 * self._n_window(model))

    def largest(self, model: Settings, processor: Settings) -> int:
        return self._rows(self._reach(model), 2 * self._n_window(model))

    def window(self, model: Settings, processor: Settings) -> int:
        return self._reach(model) * hop_of(processor)

    def frames(self, num_samples: int, model: Settings, processor: Settings) -> tuple[int, int]:
        hop = hop_of(processor)
        num_samples = max(num_samples, _LEAST_FRAMES * hop)
        if not self.is_followed:
            return num_samples, num_samples // hop
        return num_samples + 2 * int(processor.get("n_fft", 400)), -(-num_samples // hop)

    def _n_window(self, model: Settings) -> int:
        return int(_audio(model).get("n_window", self.n_window))

    def _reach(self, model: Settings) -> int:
        chunk = 2 * self._n_window(model)
        return max(1, int(_audio(model).get(self.reach, chunk)) // chunk) * chunk

    def _rows(self, num_frames: int, chunk: int) -> int:
        whole, rest = divmod(num_frames, chunk)
        return whole * self._halved(chunk) + self._halved(rest)

    def _halved(self, num: int) -> int:
        for _ in range(self.num_halvings):
            num = (num + 1) // 2
        return num // 2 if self.has_pairs else num


def hop_of(processor: Settings) -> int:
    """Return the samples from one frame to the next."""
    return int(processor.get("hop_length", 160))


def _audio(model: Settings) -> Settings:
    audio: Settings = model.get("audio_config") or model
    return audio


def _columns(features: Any) -> int:
    if len(features) != 1:
        raise InvalidRequest(FEATURES, f"{len(features)} sounds", "must be of one window")
    return int(features.shape[-1])
