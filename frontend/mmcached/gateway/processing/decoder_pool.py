"""Decodes pictures in processes, for threads that wait for them. Any thread may call `decode`."""

from __future__ import annotations

from functools import partial

from mmcached.gateway.processing.decoder_process import DecodedTensors, Decoder, Pixels
from mmcached.gateway.processing.decoder_set import DecoderSet, Terms
from mmcached.gateway.processing.pixel_budget import PixelBudget
from mmcached.gateway.processing.pool import IsWanted
from mmcached.pictures.settings import PictureSettings
from mmcached.wire.errors import CorruptImage, ImageTooLarge
from mmcached.wire.sockets.frames import Frame

BYTES_PER_PIXEL = 20
"""More than any codec takes for a picture, with its conversion to RGB: measured, see docs/decisions/021."""

PROCESSED_BYTES_PER_PIXEL = 70
"""More than Transformers' image processors take for a picture that they do not enlarge; Qwen's: 64."""


class DecoderPool:
    """A set of picture decoders."""

    def __init__(self, num_decoders: int, settings: PictureSettings, budget: PixelBudget) -> None:
        self._budget = budget
        self._decoders = DecoderSet([Decoder(settings) for _ in range(num_decoders)])
        per_pixel = PROCESSED_BYTES_PER_PIXEL if settings.processor_folder else BYTES_PER_PIXEL
        self._terms = Terms(
            what="picture",
            field="image",
            too_large=ImageTooLarge,
            corrupt=CorruptImage,
            cpu_s=settings.cpu_s,
            memory_bytes=settings.memory_bytes,
            needed_bytes=lambda pixels: pixels * per_pixel,
        )

    def decode(self, data: Frame, is_wanted: IsWanted) -> Pixels | DecodedTensors:
        """Return the scaled pixels of a file, or its tensors.

        Raises:
            MmcachedError: The file is refused; the error calls it "image".
            NotWantedError: `is_wanted` returned False.
        """
        before_pixels = partial(self._budget.room_for, is_wanted=is_wanted)

        def process(decoder: Decoder) -> Pixels | DecodedTensors:
            return decoder.process(data, is_wanted=is_wanted, before_pixels=before_pixels)

        return self._decoders.use(process, self._terms, is_wanted)

    def close(self) -> None:
        """End all processes."""
        self._decoders.close()
