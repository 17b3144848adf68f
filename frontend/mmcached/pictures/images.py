"""Decodes an image file to RGB; invalid, damaged and too large files are refused before memory is spent on them.

    bytes -> structure -> header -> limits -> pixels -> RGB -> scaled -> upright

Only the formats in `FORMATS` are tried, because some of Pillow's decoders start other programs. Size, format and
structure are checked before anything is decoded. A JPEG that will be scaled down is decoded at a half, a quarter or an
eighth of its size where that leaves twice the wanted one. Other modes are converted to RGB in strips, and images are
turned upright after scaling, so at most two whole images are in memory at a time. Warnings of the decoder are
suppressed: only errors matter here.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Each by its name: Pillow, asked for a format that it has not preloaded, would load all plugins.
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from mmcached.pictures.settings import PictureSettings
from mmcached.pictures.structure import check_structure
from mmcached.wire.errors import CorruptImage, ImageTooLarge, MmcachedError

FORMATS = tuple(
    plugin.format
    for plugin in (
        PngImagePlugin.PngImageFile,
        JpegImagePlugin.JpegImageFile,
        WebPImagePlugin.WebPImageFile,
        GifImagePlugin.GifImageFile,
        BmpImagePlugin.BmpImageFile,
        TiffImagePlugin.TiffImageFile,
    )
)

Size = tuple[int, int]

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
_ON_ITS_SIDE = (5, 6, 7, 8)
_PLAIN_MODES = ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV")
_TEXT_LIMIT = 120
_STRIP_PIXELS = 1 << 16
_OUT_OF_MEMORY = "out of memory"
"""Part of Pillow's OSError message for a codec without memory."""
_DRAFT_GAP = 2
"""A JPEG is decoded at no less than this multiple of the wanted width and height, and scaled from there."""


def as_it_is(size: Size) -> Size:
    """Return the size unchanged."""
    return size


def decode_image(
    data: bytes,
    settings: PictureSettings,
    *,
    field: str = "image",
    scaled_size: Callable[[Size], Size] = as_it_is,
    before_pixels: Callable[[int], None] = lambda pixels: None,
) -> Image.Image:
    """Return the image in mode RGB, upright (EXIF orientation applied), scaled; of an animation the first frame.

    Transparency goes over white, 16-bit greys lose their low byte, colour profiles are ignored.

    Args:
        settings: Limits; Pillow's own limit of pixels (178,956,970) holds too.
        field: Name of this image in errors.
        scaled_size: Returns the wanted size for the size of the upright image, in pixels.
        before_pixels: Called with the number of pixels after all checks, before decoding.

    Raises:
        ImageTooLarge: A limit is exceeded; nothing was decoded.
        CorruptImage: Not one of `FORMATS`, damaged, or in a pixel format that cannot be converted to RGB.
        MemoryError: There was no memory left, whatever the file.
    """
    check_structure(data, max_jpeg_scans=settings.max_jpeg_scans, max_parts=settings.max_parts, field=field)
    # The warning filters are process-wide; a decoder has one thread.
    with warnings.catch_warnings(action="ignore"), _typed_errors(len(data), field), _opened(data) as image:
        _check_sides(image.size, settings, field)
        before_pixels(image.width * image.height)
        full = _load(image, scaled_size)
        # Read after loading: a PNG may have it behind its pixels, a TIFF is upright by then.
        orientation = _orientation(image)
        wanted = _turned(orientation, scaled_size(_turned(orientation, full)))
        rgb = _to_rgb(image, field)
        small = rgb if rgb.size == wanted else rgb.resize(wanted, Image.Resampling.BICUBIC)
        transpose = _ORIENTATION_TO_TRANSPOSE.get(orientation)
        return small if transpose is None else small.transpose(transpose)


def _opened(data: bytes) -> ImageFile.ImageFile:
    return Image.open(io.BytesIO(data), formats=FORMATS)


@contextmanager
def _typed_errors(num_bytes: int, field: str) -> Iterator[None]:
    try:
        yield
    except (MmcachedError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        raise ImageTooLarge(field, _shorten(error), "more pixels than Pillow decodes") from None
    except UnidentifiedImageError:
        raise CorruptImage(field, f"{num_bytes} bytes", f"is not a file of {', '.join(FORMATS)}") from None
    except Exception as error:
        if _OUT_OF_MEMORY in str(error):
            raise MemoryError from error
        # Decoders raise many errors for damaged files: besides OSError also SyntaxError, ValueError, IndexError,
        # struct.error, zlib.error and more. All of them are the file's fault, and the process goes on.
        reason = f"cannot be decoded: {type(error).__name__}: {_shorten(error)}"
        raise CorruptImage(field, f"{num_bytes} bytes", reason) from error


def _check_sides(size: Size, settings: PictureSettings, field: str) -> None:
    width, height = size
    pixels = f"{width} x {height} pixels"
    if width * height > settings.max_pixels:
        raise ImageTooLarge(field, pixels, f"at most {settings.max_pixels} pixels")
    if width * height == 0:
        raise CorruptImage(field, pixels, "has no pixels")
    if max(size) > settings.max_aspect_ratio * min(size):
        raise ImageTooLarge(field, pixels, f"one side at most {settings.max_aspect_ratio} times the other")


def _load(image: ImageFile.ImageFile, scaled_size: Callable[[Size], Size]) -> Size:
    """Decode the pixels, at no more than the needed resolution; return the full size as stored."""
    if not isinstance(image, JpegImagePlugin.JpegImageFile):
        image.load()
        return image.size
    full = image.size
    orientation = _orientation(image)
    width, height = _turned(orientation, scaled_size(_turned(orientation, full)))
    image.draft(None, (_DRAFT_GAP * width, _DRAFT_GAP * height))
    image.load()
    return full


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:
        return 1  # a valid image with damaged metadata


def _turned(orientation: int, size: Size) -> Size:
    """Convert between the size of the upright image and the size as stored."""
    width, height = size
    return (height, width) if orientation in _ON_ITS_SIDE else size


def _to_rgb(image: Image.Image, field: str) -> Image.Image:
    """Convert in strips, so that no third buffer of the image's size is needed."""
    to_rgb = _conversion(image, field)
    if to_rgb is None:
        return image
    width, height = image.size
    rgb = Image.new("RGB", (width, height))
    rows = max(1, _STRIP_PIXELS // width)
    for top in range(0, height, rows):
        strip = image.crop((0, top, width, min(height, top + rows)))
        rgb.paste(to_rgb(strip), (0, top))
    return rgb


def _conversion(image: Image.Image, field: str) -> Callable[[Image.Image], Image.Image] | None:
    """Return the conversion of a strip to RGB; None if the image is RGB."""
    if image.mode.startswith("I;16"):
        return _high_bytes
    if image.has_transparency_data:
        return _over_white
    if image.mode not in _PLAIN_MODES:
        raise CorruptImage(field, image.mode, "this pixel format has no meaning as RGB; send 8-bit colours or greys")
    return None if image.mode == "RGB" else lambda strip: strip.convert("RGB")


def _high_bytes(strip: Image.Image) -> Image.Image:
    is_big_endian = strip.mode == "I;16B" or (strip.mode == "I;16N" and sys.byteorder == "big")
    return Image.frombytes("L", strip.size, strip.tobytes()[0 if is_big_endian else 1 :: 2]).convert("RGB")


def _over_white(strip: Image.Image) -> Image.Image:
    white = Image.new("RGBA", strip.size, "white")
    return Image.alpha_composite(white, strip.convert("RGBA")).convert("RGB")


def _shorten(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= _TEXT_LIMIT else text[:_TEXT_LIMIT] + "…"
