"""Loads the demo's photographs, with a crop and a smaller size of each: the user's, or the scikit-image wheel's."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from PIL import Image

from mmcached.wire.errors import InvalidRequest
from mmcached.wire.extras import how_to_install

PHOTO_NAMES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "hubble_deep_field.jpg", "retina.jpg")
"""Colour photographs of the scikit-image wheel whose licence (public domain or CC0) its loaders state."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


@dataclass(frozen=True, slots=True)
class Photo:
    name: str
    data: bytes


def load_photos(directory: Path | None) -> list[Photo]:
    """Return the photographs with a centre crop and a smaller size of each.

    Args:
        directory: The user's images; None for those of scikit-image.

    Raises:
        InvalidRequest: There are none, or scikit-image is not installed.
    """
    photos = _bundled() if directory is None else photos_in(directory)
    return [variant for photo in photos for variant in (photo, *_variants(photo))]


def photos_in(directory: Path) -> list[Photo]:
    """Return the images in a directory, by name; InvalidRequest if there are none."""
    paths = sorted(path for path in directory.glob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise InvalidRequest("--images", str(directory), f"holds no file that ends in one of {', '.join(SUFFIXES)}")
    return _read(paths)


def _bundled() -> list[Photo]:
    try:
        data = Path(str(metadata.distribution("scikit-image").locate_file("skimage/data")))
    except metadata.PackageNotFoundError:
        fix = f"is not installed: {how_to_install('demo')}, or give --images DIR"
        raise InvalidRequest("photographs", "scikit-image", fix) from None
    return _read([data / name for name in PHOTO_NAMES])


def _read(paths: Sequence[Path]) -> list[Photo]:
    return [Photo(path.name, path.read_bytes()) for path in paths]


def _variants(photo: Photo) -> list[Photo]:
    with Image.open(io.BytesIO(photo.data)) as opened:
        image = opened.convert("RGB")
    width, height = image.size
    crop = image.crop((width // 4, height // 4, width - width // 4, height - height // 4))
    small = image.resize((max(1, width // 3), max(1, height // 3)))
    return [Photo(f"{photo.name} (crop)", _png(crop)), Photo(f"{photo.name} (small)", _png(small))]


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
