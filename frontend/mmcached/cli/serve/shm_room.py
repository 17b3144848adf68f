"""Checks that the ring of a service fits into /dev/shm, before any process is started.

Configured sizes are used as they are, and refused if they do not fit. Default sizes shrink: in a small /dev/shm, such
as a container's 64 MiB, processor cache and store share the free room.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from mmcached.cli.config.fields import DEFAULT
from mmcached.shm.ring.service_layout import service_layout
from mmcached.shm.segment.headroom import require_room
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.shm.segment.nursery_files import nurseries_of
from mmcached.shm.segment.ring_notes import noted_rings
from mmcached.shm.segment.segment import HostCalls
from mmcached.wire.config import GIB, MIB, ServiceConfig

SHARE = 0.45
"""Share of the free room for both together: a new frontend's ring must fit while its predecessor's is still mapped."""


def rings_bytes(config: ServiceConfig) -> int:
    """Return the bytes of the ring in /dev/shm, with one client and all engines and workers."""
    layout = service_layout(config)
    if layout is None:
        return 0
    of_readers = (1 + config.num_engines * (1 + config.world_size)) * layout.entry_bytes
    return layout.created_bytes + of_readers + config.store_nursery_bytes


def noted_bytes(home: Path) -> int:
    """Return the bytes of the rings that are noted in a run directory."""
    noted = 0
    for note in noted_rings(home):
        nurseries = map(note.ring.nursery_name, nurseries_of(note.ring))
        for name in (note.ring.ctl_name, note.ring.data_name, *nurseries):
            with contextlib.suppress(OSError):
                noted += 512 * (SHM_DIR / name.lstrip("/")).lstat().st_blocks
    return noted


def host_without(home: Path) -> HostCalls:
    """Return the host as it will be without the rings that the next frontend of a run directory adopts or removes."""
    noted, host = noted_bytes(home), HostCalls()

    def headroom_bytes() -> int | None:
        free = host.headroom_bytes()
        return None if free is None else free + noted

    return HostCalls(shm_free_bytes=lambda: host.shm_free_bytes() + noted, headroom_bytes=headroom_bytes)


def require_room_for(config: ServiceConfig, host: HostCalls | None = None) -> None:
    host = host or HostCalls()
    require_room(rings_bytes(config), shm_free_bytes=host.shm_free_bytes(), headroom_bytes=host.headroom_bytes())


def fitted(
    config: ServiceConfig, origins: Mapping[str, str], host: HostCalls | None = None
) -> tuple[ServiceConfig, str]:
    """Shrink default sizes if there is not enough room.

    Args:
        origins: Origin of each setting, as in `LoadedConfig`.

    Returns:
        The configuration, and a note about the change, "" without one.
    """
    host = host or HostCalls()
    headroom = host.headroom_bytes()
    free = host.shm_free_bytes() if headroom is None else min(headroom, host.shm_free_bytes())
    if rings_bytes(config) <= free:
        return config, ""
    in_use = {"mm_processor_cache_gb": config.ring_data_bytes, "store_gb": config.store_data_bytes}
    flexible = [name for name, size in in_use.items() if size and origins.get(name) == DEFAULT]
    fixed = sum(size for name, size in in_use.items() if name not in flexible)
    overhead = rings_bytes(config) - sum(in_use.values())
    each = (int((free - fixed) * SHARE) - overhead) // max(1, len(flexible)) // MIB * MIB
    if not flexible or each <= 0:
        return config, ""  # too large in any case: refused later, with the reason
    smaller = msgspec.structs.replace(config, **dict.fromkeys(flexible, each / GIB))
    names = " and ".join(flexible)
    return smaller, f"/dev/shm has room for {free // MIB} MiB: {names} = {each // MIB} MiB (set them, or enlarge it)"
