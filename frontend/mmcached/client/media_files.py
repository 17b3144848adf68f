"""Reads the encoded files that a caller passes: bytes, or the path of a regular file. Decodes nothing.

A string is refused: it may hold anything, and a server that passed on a user's string would read files for that user. A
path is trusted, but only a regular file within the size limit is read: a FIFO would block, and a device never ends.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mmcached.wire.errors import EmptyImage, InvalidRequest

ImageLike = bytes | bytearray | memoryview | os.PathLike[str]
"""An encoded image, video or sound file: its bytes, or its path."""
MAX_FILE_BYTES = 1 << 30
"""More than a service takes by default (`max_image_bytes`, `limits.max_clip_mb`); it checks its own limit again."""


def read_images(images: Sequence[ImageLike | None], image_ids: Sequence[str | None] = ()) -> list[bytes]:
    """Return the encoded bytes of each image, empty for an image that is named by its id only.

    Args:
        image_ids: One per image, or empty.

    Raises:
        InvalidRequest: An image is neither bytes nor a path, cannot be read, or has neither file nor id; names its
            index.
        EmptyImage: An image has an id, and a file without bytes, which would look like the id alone.
    """
    data = []
    for index, image in enumerate(images):
        has_id = bool(image_ids) and image_ids[index] is not None
        content = b"" if image is None and has_id else read_required(image, f"images[{index}]")
        if image is not None and has_id and not content:
            raise EmptyImage(f"images[{index}]", 0, "an image has bytes; None asks for what is cached under the id")
        data.append(content)
    return data


def read_required(file: ImageLike | None, field: str) -> bytes:
    """Return the bytes of a file that has no other name; as `read_file`, which gets no None."""
    if file is None:
        raise InvalidRequest(field, "None", "a file, or a name under which it is known")
    return read_file(file, field)


def read_file(file: ImageLike, field: str) -> bytes:
    """Return the bytes of an encoded file.

    Raises:
        InvalidRequest: It is neither bytes nor a path, or cannot be read.
    """
    if isinstance(file, bytes | bytearray | memoryview):
        if len(file) > MAX_FILE_BYTES:
            raise InvalidRequest(field, len(file), f"a file has at most {MAX_FILE_BYTES} bytes")
        return bytes(file)
    if isinstance(file, os.PathLike):
        return _read(file, field)
    limit = "bytes of an encoded file, or its pathlib.Path; a string is not taken for a path: Path(...)"
    shown = repr(file)[:80] if isinstance(file, str) else type(file).__name__
    raise InvalidRequest(field, shown.encode(errors="backslashreplace").decode(), limit)


def stat_regular(path: os.PathLike[str], field: str) -> os.stat_result:
    """Return the status of a regular file, without opening it.

    Raises:
        InvalidRequest: There is no regular file at the path.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise InvalidRequest(field, _shown(path), f"cannot be read: {_reason(error)}") from error
    _check_regular(path, status, field)
    return status


@contextmanager
def open_regular(path: os.PathLike[str], field: str) -> Iterator[tuple[int, os.stat_result]]:
    """Return a context with the descriptor of a regular file, and its status.

    Raises:
        InvalidRequest: The file cannot be opened, is not regular, or is too large.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise InvalidRequest(field, _shown(path), f"cannot be read: {_reason(error)}") from error
    try:
        status = os.fstat(fd)
        _check_regular(path, status, field)
        yield fd, status
    finally:
        os.close(fd)


def read_open(fd: int, status: os.stat_result, path: os.PathLike[str], field: str) -> bytes:
    """Return the bytes of a file of `open_regular`; a file that grows meanwhile is cut, not followed."""
    try:
        with open(fd, "rb", closefd=False) as file:
            return file.read(status.st_size)
    except OSError as error:
        raise InvalidRequest(field, _shown(path), f"cannot be read: {_reason(error)}") from error


def _read(path: os.PathLike[str], field: str) -> bytes:
    with open_regular(path, field) as (fd, status):
        return read_open(fd, status, path, field)


def _check_regular(path: os.PathLike[str], status: os.stat_result, field: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidRequest(field, _shown(path), "not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise InvalidRequest(field, status.st_size, f"a file has at most {MAX_FILE_BYTES} bytes")


def _shown(path: os.PathLike[str]) -> str:
    return os.fsdecode(path).encode(errors="backslashreplace").decode()


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
