"""Names the libraries that decode clips, with their versions, without importing one of them.

What a library makes of a file may differ from one version to the next, so its name and version belong into the keys.
A library that the operating system brings (libsndfile, where the wheel of soundfile has none inside) is not seen.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from mmcached.wire.vocabulary import Modality

EXTRAS: dict[Modality, str] = {"video": "video", "audio": "audio"}
"""The extra of mmcached that brings what decodes a modality."""

_RECIPES = {"video": "2", "audio": "2"}
"""Counts what this package itself does differently: sampling, scaling, resampling."""

_OPENCV = ("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python")
"""The distributions that bring `cv2`; only one of them is to be installed."""

_OPENCV_MAJOR = 5
"""The first that scales frames of another size within a file, and tells times of packets that are not decoded."""


def decoder_of(modality: Modality) -> str:
    """Return what decodes a modality here, with versions; "" if a part of it is not installed.

    >>> decoder_of("image")
    ''
    """
    match modality:
        case "video":
            opencv = next(filter(None, (_found(name, major=_OPENCV_MAJOR) for name in _OPENCV)), "")
            parts = [opencv, _found("pillow")]  # which scales frames
        case "audio":
            parts = [_found("soundfile"), _found("scipy")]
        case _:
            return ""
    return ", ".join([*parts, f"recipe {_RECIPES[modality]}"]) if all(parts) else ""


def _found(name: str, *, major: int = 0) -> str:
    try:
        found = version(name)
    except PackageNotFoundError:
        return ""
    return f"{name} {found}" if int(found.partition(".")[0]) >= major else ""
