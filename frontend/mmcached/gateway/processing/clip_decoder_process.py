"""Plans and decodes the slices of a clip in a decoder process, and checks its answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from math import prod

import msgspec
import numpy as np

from mmcached.clips import messages as said
from mmcached.clips.settings import ClipSettings
from mmcached.gateway.processing.confined_decoder import ConfinedDecoder, DecoderDiedError
from mmcached.gateway.processing.slice_processor import DecodedSlice, SlicePlace
from mmcached.wire.messages.parts import ClipOptions
from mmcached.wire.sockets.frames import Frame

MAX_FILES = 1000
"""Files that one process decodes before it is replaced: OpenCV 5.0.0 leaks some kilobytes of each."""


class ClipDecoder(ConfinedDecoder):
    """Decodes clips of one modality; replaces its process when needed."""

    def __init__(self, settings: ClipSettings) -> None:
        super().__init__("mmcached.clips.decoder", settings, said.FromDecoder)
        self._settings = settings
        self._num_files = 0

    def start(self, is_wanted: Callable[[], bool]) -> None:
        super().start(is_wanted)
        self._num_files = 0

    @contextmanager
    def with_file(self, data: Frame) -> Iterator[None]:
        """Write a file to the shared memory until the end of the block; replace a process after `MAX_FILES` files."""
        try:
            with super().with_file(data):
                yield
        finally:
            self._num_files += 1
            if self._num_files >= MAX_FILES:
                self.close()

    def plan(self, data: Frame, options: ClipOptions, is_wanted: Callable[[], bool]) -> list[SlicePlace]:
        """Return the places of the slices of a clip.

        Args:
            data: The file.
            is_wanted: Called repeatedly while the process works.
        Raises:
            MmcachedError: The file is refused; the error calls it "video" or "audio".
            DecoderDiedError: The process has ended.
            NotWantedError: `is_wanted` returned False.
        """
        with self.with_file(data):
            self.tell(said.PlanClip(len(data), options))
            answer = self.receive(is_wanted)
            if not isinstance(answer, said.ClipPlanned):
                self.fail(answer, 0)
            written = bytearray(answer.num_bytes)
            self.read_into(written, 0, answer)
            self.free_made()
            try:
                pieces = said.PIECES.decode(written)
            except msgspec.MsgspecError:
                self.refuse(answer)
            return [SlicePlace(*msgspec.structs.astuple(piece)) for piece in pieces]

    def slices(
        self,
        data: Frame,
        options: ClipOptions,
        wanted: Sequence[int],
        *,
        is_wanted: Callable[[], bool],
        before_pixels: Callable[[int], AbstractContextManager[None]],
    ) -> Generator[DecodedSlice]:
        """Yield slices of a clip; each is decoded when it is requested.

        Args:
            wanted: Their indices in the plan.
            before_pixels: Context of the decoding; called with the number of pixels of a frame.
        Raises:
            MmcachedError, DecoderDiedError, NotWantedError: As for `plan`.
        """
        with self.with_file(data):
            self.tell(said.OpenFile(len(data), options))
            answer = self.receive(is_wanted)
            if not isinstance(answer, said.ClipOpened):
                self.fail(answer, 0)
            with before_pixels(answer.pixels):
                for index in wanted:
                    self.tell(said.DecodeSlice(index))
                    made = self.receive(is_wanted, answer.pixels)
                    if not isinstance(made, said.SliceMade):
                        self.fail(made, answer.pixels)
                    try:
                        yield self._slice_of(made, index)
                    except GeneratorExit:
                        with suppress(DecoderDiedError):
                            self.tell(said.CloseFile())
                        raise
                    finally:
                        self.free_made()  # nothing is written there until the next one is asked for
                self.tell(said.CloseFile())

    def _slice_of(self, made: said.SliceMade, index: int) -> DecodedSlice:
        settings, shape = self._settings, made.shape
        if settings.modality == "video":
            name, dtype, limit = "frames", "uint8", settings.num_frames * 3 * settings.max_scaled_pixels
            is_possible = len(shape) == 4 and (shape[0], shape[3]) == (settings.num_frames, 3)
            is_possible = is_possible and not shape[1] % settings.side and not shape[2] % settings.side
        else:
            name, dtype, limit = "samples", "float32", settings.window_samples
            is_possible = len(shape) == 1
        if not is_possible or prod(shape) > limit:
            self.refuse(made)
        data = bytearray(prod(shape) * np.dtype(dtype).itemsize)
        self.read_into(data, 0, made)
        arrays = {name: np.frombuffer(data, dtype).reshape(shape)}
        return DecodedSlice(index, made.start_s, made.end_s, arrays, self.take_worked_s())
