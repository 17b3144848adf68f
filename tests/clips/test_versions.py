"""A decoder is named with the versions of all its packages, or not at all."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from mmcached.clips import versions
from mmcached.clips.versions import decoder_of


def test_names_have_versions() -> None:
    assert [each.split()[0] for each in decoder_of("video").split(", ")] == [
        "opencv-python-headless",
        "pillow",
        "recipe",
    ]
    assert [each.split()[0] for each in decoder_of("audio").split(", ")] == ["soundfile", "scipy", "recipe"]


def test_a_decoder_lacks_none_of_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "scipy":
            raise PackageNotFoundError(name)
        return "5"

    monkeypatch.setattr(versions, "version", version)
    assert (decoder_of("video"), decoder_of("audio")) == ("opencv-python-headless 5, pillow 5, recipe 2", "")


def test_nothing_is_imported_for_it() -> None:
    code = (
        "import sys; from mmcached.clips.versions import decoder_of; decoder_of('video'), decoder_of('audio');"
        "sys.exit(any(name in sys.modules for name in ('cv2', 'scipy', 'soundfile', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_an_opencv_that_is_too_old_decodes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda name: "4.13.0")
    assert decoder_of("video") == ""
