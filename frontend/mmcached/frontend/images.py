"""Decode an image file to RGB, and refuse what is no image, damaged or too large: typed, before memory is spent on it.

    bytes -> limits -> header -> limits -> pixels -> upright -> RGB

Only the formats in `FORMATS` are tried, because Pillow can also be talked into starting other programs. The size is
checked on the header. Warnings of the decoder are not let out: what matters here is an error.

Knows nothing of models, patches or caches.
"""

from __future__ import annotations

import io
import threading
import warnings
from types import TracebackType

import numpy as np
from PIL import Image, UnidentifiedImageError

from mmcached.wire.errors import CorruptImage, EmptyImage, ImageTooLarge

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")

_ORIENTATION_TAG = 0x0112
_ORIENTATION_TO_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_PLAIN_MODES = ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV")
_TEXT_LIMIT = 120


def decode_image(data: bytes, *, max_pixels: int, max_bytes: int, field: str = "image") -> Image.Image:
    """Return the picture in mode RGB, upright (EXIF orientation applied); of an animation the first frame.

    Transparency goes over white, 16-bit greys lose their low byte, colour profiles are ignored.

    Args:
        data: the file.
        max_pixels: limit of width x height; Pillow's own limit (178,956,970) holds beside it.
        max_bytes: limit of the file's size.
        field: how errors call this image.

    Raises:
        EmptyImage: no bytes.
        ImageTooLarge: a limit is exceeded; nothing was decoded.
        CorruptImage: not one of `FORMATS`, damaged, or in a pixel format without a meaning as RGB.
    """
    check_file(data, max_bytes=max_bytes, field=field)
    try:
        with _silence, Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_pixels(image, max_pixels, field)
            image.load()
            return _to_rgb(_upright(image), field)
    except (CorruptImage, ImageTooLarge):
        raise
    except Image.DecompressionBombError as error:
        raise ImageTooLarge(field, _shorten(error), "more pixels than Pillow decodes") from None
    except UnidentifiedImageError:
        raise CorruptImage(field, f"{len(data)} bytes", f"is not a file of {', '.join(FORMATS)}") from None
    except Exception as error:
        # Decoders meet damaged files in every way there is: besides OSError also SyntaxError, ValueError, IndexError,
        # struct.error, zlib.error and more. Whatever it is, the file is to blame, and the process goes on.
        reason = f"cannot be decoded: {type(error).__name__}: {_shorten(error)}"
        raise CorruptImage(field, f"{len(data)} bytes", reason) from error


def check_file(data: bytes, *, max_bytes: int, field: str = "image") -> None:
    """Refuse what can be refused without looking into the file.

    Raises:
        EmptyImage, ImageTooLarge: see `decode_image`.
    """
    if not data:
        raise EmptyImage(field, 0, "an image has bytes")
    if len(data) > max_bytes:
        raise ImageTooLarge(field, f"{len(data)} bytes", f"at most {max_bytes} bytes")


def _check_pixels(image: Image.Image, max_pixels: int, field: str) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise ImageTooLarge(field, f"{width} x {height} pixels", f"at most {max_pixels} pixels")
    if width * height == 0:
        raise CorruptImage(field, f"{width} x {height} pixels", "has no pixels")


def _upright(image: Image.Image) -> Image.Image:
    """Apply the orientation. Read after loading: a PNG may state it behind its pixels, a TIFF is upright by then."""
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:
        return image  # a good picture with a damaged description
    transpose = _ORIENTATION_TO_TRANSPOSE.get(orientation)
    return image if transpose is None else image.transpose(transpose)


def _to_rgb(image: Image.Image, field: str) -> Image.Image:
    if image.mode.startswith("I;16"):
        grey = np.asarray(image).astype(np.uint16) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        white = Image.new("RGBA", coloured.size, "white")
        return Image.alpha_composite(white, coloured).convert("RGB")
    if image.mode not in _PLAIN_MODES:
        raise CorruptImage(field, image.mode, "this pixel format has no meaning as RGB; send 8-bit colours or greys")
    return image if image.mode == "RGB" else image.convert("RGB")  # which would copy it


def _shorten(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= _TEXT_LIMIT else text[:_TEXT_LIMIT] + "…"


class _Silence:
    """Ignores warnings while any thread is inside.

    `warnings.catch_warnings` alone is not enough: the filters belong to the process, and two threads that save and
    restore them in turn can leave the process silent for ever. So the first one in saves, the last one out restores.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_inside = 0
        self._saved = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if self._num_inside == 0:
                self._saved = warnings.catch_warnings()
                self._saved.__enter__()
                warnings.simplefilter("ignore")
            self._num_inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._num_inside -= 1
            if self._num_inside == 0:
                self._saved.__exit__(kind, error, trace)


_silence = _Silence()
