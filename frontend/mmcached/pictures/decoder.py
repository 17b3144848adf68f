"""Runs the decoder: a process that makes pixels, or tensors, of one image file after the other, and may be killed.

    python -m mmcached.pictures.decoder SOCKET FILE PIXELS SETTINGS      three descriptors, and JSON

It lives as long as its frontend: it ends when the socket is closed, and is killed when the frontend is. It has no
threads, opens no path that a file names, and keeps nothing of a file when it is done.
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
from mmcached.pictures.confinement import confine, cpu_limit
from mmcached.pictures.grid import scaled_size
from mmcached.pictures.images import Size, as_it_is, decode_image
from mmcached.pictures.processor import PictureProcessor
from mmcached.pictures.settings import PictureSettings
from mmcached.wire.errors import InvalidRequest, InvariantError, error_to_wire
from mmcached.wire.messages.parts import TensorForm

_FIELD = "image"


class DecoderLoop:
    """Answers a frontend's messages until it is gone; reads files from one descriptor, writes pixels to another."""

    def __init__(
        self,
        channel: socket.socket,
        file: int,
        pixels: int,
        settings: PictureSettings,
        processor: PictureProcessor | None = None,
    ) -> None:
        self._channel = channel
        self._file = file
        self._pixels = pixels
        self._settings = settings
        self._processor = processor
        self._decoder: msgspec.msgpack.Decoder[said.ToDecoder] = msgspec.msgpack.Decoder(said.ToDecoder)

    def run(self) -> None:
        self._tell(said.Ready())
        answer: said.FromDecoder | None = None
        while not isinstance(answer, said.OutOfMemory):  # what is left of the memory may be in pieces
            message = self._receive()
            if isinstance(message, said.Decode):
                with cpu_limit(self._settings.cpu_s):
                    answer = self._answer(message)
                self._tell(answer)

    def _answer(self, message: said.Decode) -> said.FromDecoder:
        try:
            return self._make(message.num_bytes)
        except InvalidRequest as error:
            return said.Refused(error_to_wire(error))
        except MemoryError:
            return said.OutOfMemory()
        except Exception as error:
            return said.Failed(f"{type(error).__name__}: {error}"[:1000])

    def _make(self, num_bytes: int) -> said.Made | said.Processed:
        image = decode_image(
            _read(self._file, num_bytes),
            self._settings,
            field=_FIELD,
            scaled_size=self._scaled_size if self._processor is None else as_it_is,
            before_pixels=self._wait_for_room,
        )
        if self._processor is not None:
            return self._process(image, self._processor)
        _write(self._pixels, image.tobytes())
        return said.Made(*image.size)

    def _process(self, image: Image.Image, processor: PictureProcessor) -> said.Processed:
        forms, place = [], 0
        for name, array in processor.tensors(image).items():
            _write(self._pixels, array.tobytes(), place)
            forms.append(TensorForm(name, array.dtype.name, array.shape))
            place += array.nbytes
        return said.Processed(forms)

    def _scaled_size(self, size: Size) -> Size:
        return scaled_size(size, self._settings.patch_size, self._settings.max_patches)

    def _wait_for_room(self, pixels: int) -> None:
        self._tell(said.Opened(pixels))
        message = self._receive()
        if not isinstance(message, said.GoOn):
            raise InvariantError(f"{message} where GoOn was due")

    def _tell(self, message: said.FromDecoder) -> None:
        try:
            self._channel.send(msgspec.msgpack.encode(message))
        except OSError:
            sys.exit()  # the frontend is gone

    def _receive(self) -> said.ToDecoder:
        packet = self._channel.recv(said.MAX_MESSAGE_BYTES)
        if not packet:
            sys.exit()  # the frontend is gone
        return self._decoder.decode(packet)


def _read(file: int, num_bytes: int) -> bytes:
    with open(file, "rb", closefd=False) as reader:
        reader.seek(0)
        return reader.read(num_bytes)


def _write(file: int, data: bytes | memoryview, place: int = 0) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.pwrite(file, rest, place + len(data) - len(rest)) :]


def main(arguments: list[str]) -> None:
    channel, file, pixels = map(int, arguments[:3])
    settings = msgspec.json.decode(arguments[3], type=PictureSettings)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the frontend, which ends this process
    processor = None
    if settings.processor_folder:
        os.environ["OMP_NUM_THREADS"] = "1"  # before torch comes: each decoder works on one core
        processor = PictureProcessor(Path(settings.processor_folder))
    confine(settings.memory_bytes)
    DecoderLoop(socket.socket(fileno=channel), file, pixels, settings, processor).run()


if __name__ == "__main__":
    main(sys.argv[1:])
