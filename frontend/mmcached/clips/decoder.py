"""The decoder process for clips: makes slices of one file after the other, and may be killed.

    python -m mmcached.clips.decoder SOCKET FILE MADE SETTINGS      three descriptors, and JSON

It ends when the socket is closed, and is killed with its frontend. It has no threads, opens no path that a file names,
and keeps nothing of a file afterwards. Libraries' messages on stderr are dropped, so that bad files cannot fill a
service's log.
"""

import os

from mmcached.wire.process.death import arm_from_environment

if __name__ == "__main__":
    # Before any heavy import: a parent killed while its child still imports must not leave an orphan.
    arm_from_environment()
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ |= {"OPENCV_LOG_LEVEL": "SILENT", "OPENCV_FFMPEG_LOGLEVEL": "-8"}

import signal
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from mmcached.clips import messages as said
from mmcached.clips.in_place import Contents, contents_of
from mmcached.clips.sampling import Piece
from mmcached.clips.settings import ClipSettings
from mmcached.pictures.confinement import confine
from mmcached.pictures.loop import DecoderLoop
from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.parts import ClipOptions


class DecodableClip(Protocol):
    pieces: list[Piece]

    @property
    def pixels(self) -> int: ...
    def decode(self, piece: Piece) -> npt.NDArray[Any]: ...
    def close(self) -> None: ...


OpenClip = Callable[[Contents, ClipOptions, ClipSettings], DecodableClip]


class ClipLoop(DecoderLoop):
    """Makes slices of clips; `open_clip` opens one without decoding it."""

    def __init__(
        self, channel: socket.socket, file: int, made: int, settings: ClipSettings, open_clip: OpenClip
    ) -> None:
        super().__init__(channel, file, made, hears=said.ToDecoder, cpu_s=settings.cpu_s)
        self._settings = settings
        self._open_clip = open_clip

    def make(self, message: said.ToDecoder) -> said.ClipPlanned | None:
        if isinstance(message, said.CloseFile):
            return None  # of a file that was refused meanwhile
        if not isinstance(message, said.PlanClip | said.OpenFile):
            raise InvariantError(f"{message} where a file was due")
        data = contents_of(self._file, message.num_bytes)
        with closing(self._open_clip(data, message.options, self._settings)) as clip:
            if isinstance(message, said.OpenFile):
                self._make_slices(clip)
                return None
            said.check_num_slices(self._settings.modality, len(clip.pieces))
            pieces = msgspec.msgpack.encode(clip.pieces)
        self.write_made(pieces)
        return said.ClipPlanned(len(pieces))

    def _make_slices(self, clip: DecodableClip) -> None:
        self.tell(said.ClipOpened(clip.pixels))
        while isinstance(message := self.receive(), said.DecodeSlice):
            piece = clip.pieces[message.index]
            made = np.ascontiguousarray(clip.decode(piece))
            self.write_made(made.reshape(-1).view(np.uint8).data)
            self.tell(said.SliceMade(made.shape, piece.start_s, piece.end_s))
        if not isinstance(message, said.CloseFile):
            raise InvariantError(f"{message} where DecodeSlice or CloseFile was due")


def opener(modality: str) -> OpenClip:
    if modality == "video":
        from mmcached.clips.video import OpenVideo

        return OpenVideo
    from mmcached.clips.audio import Sound

    return Sound


def main(arguments: list[str]) -> None:
    channel, file, made = map(int, arguments[:3])
    settings = msgspec.json.decode(arguments[3], type=ClipSettings)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the frontend, which ends this process
    open_clip = opener(settings.modality)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    confine(settings.memory_bytes)
    ClipLoop(socket.socket(fileno=channel), file, made, settings, open_clip).run()


if __name__ == "__main__":
    main(sys.argv[1:])
