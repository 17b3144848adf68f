"""The decoder process: turns image files into pixels or tensors, one file after the other, and may be killed.

    python -m mmcached.pictures.decoder SOCKET FILE PIXELS SETTINGS      three descriptors, and JSON

It ends when the socket is closed, and is killed with its frontend. It has no threads, opens no path that a file names,
and keeps nothing of a file afterwards.
"""

from mmcached.wire.process.death import arm_from_environment

if __name__ == "__main__":
    # Before any heavy import: a parent killed while its child still imports must not leave an orphan.
    arm_from_environment()

import os
import signal
import socket
import sys
from pathlib import Path

import msgspec
from PIL import Image

from mmcached.pictures import messages as said
from mmcached.pictures.confinement import confine
from mmcached.pictures.grid import scaled_size
from mmcached.pictures.images import Size, as_it_is, decode_image
from mmcached.pictures.loop import DecoderLoop
from mmcached.pictures.processor import PictureProcessor
from mmcached.pictures.settings import PictureSettings
from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.parts import TensorForm

_FIELD = "image"


class PictureLoop(DecoderLoop):
    def __init__(
        self,
        channel: socket.socket,
        file: int,
        made: int,
        settings: PictureSettings,
        processor: PictureProcessor | None = None,
    ) -> None:
        super().__init__(channel, file, made, hears=said.ToDecoder, cpu_s=settings.cpu_s)
        self._settings = settings
        self._processor = processor

    def make(self, message: said.ToDecoder) -> said.ImageScaled | said.ImageProcessed:
        if not isinstance(message, said.Decode):
            raise InvariantError(f"{message} where Decode was due")
        image = decode_image(
            os.pread(self._file, message.num_bytes, 0),
            self._settings,
            field=_FIELD,
            scaled_size=self._scaled_size if self._processor is None else as_it_is,
            before_pixels=self._wait_for_room,
        )
        if self._processor is not None:
            return self._process(image, self._processor)
        self.write_made(image.tobytes())
        return said.ImageScaled(*image.size)

    def _process(self, image: Image.Image, processor: PictureProcessor) -> said.ImageProcessed:
        forms, place = [], 0
        for name, array in processor.tensors(image).items():
            self.write_made(array.tobytes(), place)
            forms.append(TensorForm(name, array.dtype.name, array.shape))
            place += array.nbytes
        return said.ImageProcessed(forms)

    def _scaled_size(self, size: Size) -> Size:
        return scaled_size(size, self._settings.patch_size, self._settings.max_patches)

    def _wait_for_room(self, pixels: int) -> None:
        self.tell(said.ImageOpened(pixels))
        message = self.receive()
        if not isinstance(message, said.GoOn):
            raise InvariantError(f"{message} where GoOn was due")


def main(arguments: list[str]) -> None:
    channel, file, pixels = map(int, arguments[:3])
    settings = msgspec.json.decode(arguments[3], type=PictureSettings)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the frontend, which ends this process
    processor = None
    if settings.processor_folder:
        os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: each decoder uses one core
        processor = PictureProcessor(Path(settings.processor_folder))
    confine(settings.memory_bytes)
    PictureLoop(socket.socket(fileno=channel), file, pixels, settings, processor).run()


if __name__ == "__main__":
    main(sys.argv[1:])
