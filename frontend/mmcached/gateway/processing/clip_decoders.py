"""Opens and decodes clips in processes, for threads that wait for them; any thread may call.

A decoder that dies while it decodes a clip loses only the current slice: another decoder goes on with that slice. A
process imports the decoder of one modality, so a service that gets no sounds has no process for sounds.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Literal, get_args

from mmcached.cache.checkpoints.checkpoint import frame_sizes, frames_of_slice, window_samples
from mmcached.clips.settings import ClipSettings
from mmcached.gateway.processing.clip_decoder_process import ClipDecoder
from mmcached.gateway.processing.confined_decoder import DecoderDiedError
from mmcached.gateway.processing.decoder_set import DecoderSet, Terms
from mmcached.gateway.processing.pixel_budget import PixelBudget
from mmcached.gateway.processing.pool import IsWanted
from mmcached.gateway.processing.slice_processor import DecodedSlice, SlicePlace
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ClipTooLarge, CorruptClip
from mmcached.wire.messages.parts import ClipOptions
from mmcached.wire.sockets.frames import Frame

BYTES_PER_PIXEL = 70
"""More than FFmpeg takes for a frame, with its conversion to RGB: up to 22 were measured, and H.264 and H.265 may refer
to 16 earlier frames, of 3 bytes per pixel if samples have more than eight bits.
"""

ClipModality = Literal["video", "audio"]


class ClipDecoderPool:
    """A set of clip decoders for each modality."""

    def __init__(self, num_decoders: int, config: ServiceConfig, budget: PixelBudget) -> None:
        self._budget = budget
        self._decoders: dict[ClipModality, DecoderSet[ClipDecoder]] = {}
        self._terms: dict[ClipModality, Terms] = {}
        for modality in get_args(ClipModality):
            settings = ClipSettings.from_config(
                config,
                modality,
                sizes=frame_sizes(config),
                num_frames=frames_of_slice(config),
                window_samples=window_samples(config),
            )
            self._decoders[modality] = DecoderSet([ClipDecoder(settings) for _ in range(num_decoders)])
            self._terms[modality] = Terms(
                what=modality,
                field=modality,
                too_large=ClipTooLarge,
                corrupt=CorruptClip,
                cpu_s=settings.cpu_s,
                memory_bytes=settings.memory_bytes,
                needed_bytes=lambda pixels: pixels * BYTES_PER_PIXEL,
            )

    def plan(self, data: Frame, options: ClipOptions, is_wanted: IsWanted) -> Sequence[SlicePlace]:
        """Return the places of the slices of a clip, in order; decodes nothing.

        Raises:
            MmcachedError: The file is refused; the error calls it "video" or "audio".
            NotWantedError: `is_wanted` returned False.
        """

        def plan(decoder: ClipDecoder) -> list[SlicePlace]:
            return decoder.plan(data, options, is_wanted)

        return self._decoders[options.modality].use(plan, self._terms[options.modality], is_wanted)

    def decode(
        self, data: Frame, options: ClipOptions, wanted: Sequence[int], is_wanted: IsWanted
    ) -> Generator[DecodedSlice]:
        """Yield slices of a clip in the order of `wanted`; each is decoded when it is requested.

        Args:
            wanted: Indices in the clip's plan.
        Raises:
            MmcachedError, NotWantedError: As for `plan`.
        """
        before_pixels = partial(self._budget.room_for, is_wanted=is_wanted)
        num_made = num_deaths = 0
        while num_made < len(wanted):
            with self._decoders[options.modality].living(is_wanted) as decoder:
                rest = wanted[num_made:]
                slices = decoder.slices(data, options, rest, is_wanted=is_wanted, before_pixels=before_pixels)
                try:
                    with closing(slices):
                        for each in slices:
                            num_made += 1
                            yield each
                    return
                except DecoderDiedError as died:
                    num_deaths += 1
                    error = self._terms[options.modality].blame(died, num_deaths)
            if error is not None:
                raise error

    def close(self) -> None:
        """End all processes."""
        for decoders in self._decoders.values():
            decoders.close()
