"""Decodes a picture to pixels or tensors in a decoder process, and checks its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mmcached.gateway.processing.confined_decoder import ConfinedDecoder
from mmcached.pictures import messages as said
from mmcached.pictures.settings import PictureSettings
from mmcached.shm.store.tensor_bytes import NUMPY_ITEMSIZES, TensorType
from mmcached.wire.errors import RemoteProtocolError
from mmcached.wire.sockets.frames import Frame


@dataclass(frozen=True, slots=True)
class Pixels:
    """A scaled picture: rows of pixels, 3 bytes each; `seconds` is how long its decoder took."""

    width: int
    height: int
    data: bytes
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class DecodedTensors:
    """Output tensors of an image processor for one picture, by name, owned; `seconds` as for `Pixels`."""

    arrays: Mapping[str, npt.NDArray[Any]]
    seconds: float = field(default=0.0, compare=False)


class Decoder(ConfinedDecoder):
    """Decodes pictures; replaces its process when needed."""

    def __init__(self, settings: PictureSettings) -> None:
        super().__init__("mmcached.pictures.decoder", settings, said.FromDecoder)
        self._settings = settings

    def process(
        self,
        data: Frame,
        *,
        is_wanted: Callable[[], bool],
        before_pixels: Callable[[int], AbstractContextManager[None]],
    ) -> Pixels | DecodedTensors:
        """Decode a picture, and scale or process it.

        Args:
            data: The file.
            is_wanted: Called repeatedly while the process works.
            before_pixels: Context of the decoding; called with the number of pixels.
        Raises:
            MmcachedError: The file is refused; the error calls it "image".
            DecoderDiedError: The process has ended.
            NotWantedError: `is_wanted` returned False.
        """
        with self.with_file(data):
            self.tell(said.Decode(len(data)))
            answer = self.receive(is_wanted)
            if not isinstance(answer, said.ImageOpened):
                self.fail(answer, 0)
            with before_pixels(answer.pixels):
                self.tell(said.GoOn())
                made = self.receive(is_wanted, answer.pixels)
                if isinstance(made, said.ImageProcessed) and self._settings.processor_folder:
                    return self._tensors_of(made)
                if not isinstance(made, said.ImageScaled):
                    self.fail(made, answer.pixels)
                return self._pixels_of(made)

    def _pixels_of(self, made: said.ImageScaled) -> Pixels:
        side, limit = self._settings.patch_size, self._settings.max_patches
        if made.width % side or made.height % side or made.width * made.height > limit * side**2:
            self.refuse(made)
        data = bytearray(made.width * made.height * 3)
        self.read_into(data, 0, made)
        return Pixels(made.width, made.height, bytes(data), self.take_worked_s())

    def _tensors_of(self, made: said.ImageProcessed) -> DecodedTensors:
        """Read the tensors from the result's memory; at most as much as a decoder may allocate."""
        try:
            kinds = [TensorType.checked(form.dtype, list(form.shape), form.name) for form in made.tensors]
        except RemoteProtocolError:
            self.refuse(made)
        are_plain = all(kind.nbytes and kind.dtype in NUMPY_ITEMSIZES for kind in kinds)
        if not are_plain or sum(kind.nbytes for kind in kinds) > self._settings.memory_bytes:
            self.refuse(made)
        arrays, place = {}, 0
        for form, kind in zip(made.tensors, kinds, strict=True):
            data = bytearray(kind.nbytes)
            self.read_into(data, place, made)
            arrays[form.name] = np.frombuffer(data, kind.dtype).reshape(kind.shape)
            place += kind.nbytes
        self.free_made()
        return DecodedTensors(arrays, self.take_worked_s())
