"""Pools of decoders of clips, and what they make of a file."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from mmcached.gateway.processing.clip_decoders import ClipDecoderPool
from mmcached.gateway.processing.pixel_budget import PixelBudget
from mmcached.gateway.processing.pool import IsWanted
from mmcached.gateway.processing.slice_processor import DecodedSlice
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages.parts import ClipOptions
from tests.clips.files import sound, video

DEADLINE_S = 60.0


@contextmanager
def pool_of(num_decoders: int = 1, budget: PixelBudget | None = None, **limits: Any) -> Iterator[ClipDecoderPool]:
    """Make a pool; its processes start when they are needed.

    Args:
        limits: that differ from a service's.
    """
    pool = ClipDecoderPool(num_decoders, ServiceConfig(limits=LimitsConfig(**limits)), budget or PixelBudget(1 << 30))
    try:
        yield pool
    finally:
        pool.close()


def wanted_until_deadline() -> IsWanted:
    give_up = time.monotonic() + DEADLINE_S
    return lambda: time.monotonic() < give_up


def options_of(modality: Literal["video", "audio"], **options: Any) -> ClipOptions:
    if modality == "video" and not {"fps", "num_frames"} & set(options):
        options["num_frames"] = 8
    return ClipOptions(modality, **options)


def decoded(
    pool: ClipDecoderPool, data: bytes, modality: Literal["video", "audio"] = "video", **options: Any
) -> list[DecodedSlice]:
    """Return all slices of a clip."""
    clip, is_wanted = options_of(modality, **options), wanted_until_deadline()
    places = pool.plan(data, clip, is_wanted)
    slices = list(pool.decode(data, clip, range(len(places)), is_wanted))
    assert [each.index for each in slices] == list(range(len(places)))
    return slices


def outcome(
    pool: ClipDecoderPool, data: bytes, modality: Literal["video", "audio"] = "video", **options: Any
) -> list[DecodedSlice] | MmcachedError:
    """Return all slices of a clip, or what it is refused with."""
    try:
        return decoded(pool, data, modality, **options)
    except MmcachedError as error:
        return error


def warm_up(pool: ClipDecoderPool) -> None:
    """Start one decoder of each modality."""
    assert decoded(pool, video(2))
    assert decoded(pool, sound(0.1), "audio")


def pids(but: Collection[int] = ()) -> list[int]:
    """Return the living decoders of clips of this process, but those that are named."""
    found = (int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _is_decoder(entry))
    return sorted(pid for pid in found if pid not in but)


def _is_decoder(process: Path) -> bool:
    with contextlib.suppress(OSError):  # it has ended meanwhile
        state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
        is_mine = int(parent) == os.getpid() and state != "Z"
        return is_mine and b"mmcached.clips.decoder" in (process / "cmdline").read_bytes()
    return False
