"""Versions of the libraries that decode clips, without importing them.

A library's output may differ between versions, so its name and version belong into the keys. A library of the operating
system (libsndfile, where the wheel of soundfile does not contain it) is not covered.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from mmcached.wire.vocabulary import Modality

EXTRAS: dict[Modality, str] = {"video": "video", "audio": "audio"}
"""The extra of mmcached with the decoder of a modality."""

_RECIPES = {"video": "2", "audio": "2"}
"""Versions of this package's own sampling, scaling and resampling."""

_OPENCV = ("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python")
"""The distributions with `cv2`; only one of them is to be installed."""

_OPENCV_MAJOR = 5
"""The first version that scales frames of varying size, and reports times of packets that are not decoded."""


def decoder_of(modality: Modality) -> str:
    """Return the libraries that decode a modality here, with versions; "" if one is not installed.

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
