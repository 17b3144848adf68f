"""Rings that do not fit: refused if somebody wants them so, made smaller if nobody has said how large."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcached.cli.config.settings import load_config
from mmcached.cli.serve.shm_room import fitted, noted_bytes, require_room_for, rings_bytes
from mmcached.shm.segment.segment import HostCalls
from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.errors import SegmentError


def host(shm_mib: int, headroom_mib: int | None = None) -> HostCalls:
    headroom = None if headroom_mib is None else headroom_mib * MIB
    return HostCalls(shm_free_bytes=lambda: shm_mib * MIB, headroom_bytes=lambda: headroom)


def loaded(*arguments: str) -> tuple[ServiceConfig, dict[str, str]]:
    found = load_config(file=None, environment={}, arguments=arguments)
    return found.config, found.origins


def test_a_run_directory_that_cannot_be_read_has_no_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor says why it cannot be had."""

    def refused(*values: object, **options: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.glob", refused)
    assert noted_bytes(Path("/somebody/s")) == 0


def test_each_engine_takes_room_beside_the_rings() -> None:
    one, two, three = (rings_bytes(ServiceConfig(data_parallel_size=number)) for number in (1, 2, 3))
    assert two - one == three - two > 0


def test_room_enough_changes_nothing() -> None:
    config, origins = loaded()
    assert fitted(config, origins, host(1024)) == (config, "")
    require_room_for(config, host(1024))


@pytest.mark.parametrize("small", [host(64), host(1024, 64)])
def test_defaults_share_what_there_is(small: HostCalls) -> None:
    config, note = fitted(*loaded(), small)
    assert config.ring_data_bytes == config.store_data_bytes >= 8 * MIB
    assert 2 * rings_bytes(config) < 64 * MIB, "also while a predecessor's are mapped"
    require_room_for(config, small)
    assert f"mm_processor_cache_gb and store_gb = {config.store_data_bytes // MIB} MiB" in note


def test_what_was_asked_for_is_kept_and_the_rest_gives_way() -> None:
    config, note = fitted(*loaded("--store-gb", "32MiB"), host(64))
    assert config.store_data_bytes == 32 * MIB
    assert 8 * MIB <= config.ring_data_bytes < 32 * MIB
    assert "store_gb" not in note


def test_what_was_asked_for_and_does_not_fit_is_refused() -> None:
    config, origins = loaded("--store-gb", "1GiB")
    assert fitted(config, origins, host(64)) == (config, "")
    with pytest.raises(SegmentError, match="/dev/shm has 64 MiB free"):
        require_room_for(config, host(64))
    with pytest.raises(SegmentError, match="may take 64 MiB more memory"):
        require_room_for(config, host(4096, 64))


def test_a_store_alone_has_what_two_rings_would_share() -> None:
    config, note = fitted(*loaded("--workers", "0"), host(64))
    assert config.ring_data_bytes == 0
    assert 16 * MIB < config.store_data_bytes < 32 * MIB
    assert "store_gb = " in note
    assert "mm_processor_cache_gb" not in note


def test_without_rings_nothing_is_needed() -> None:
    config, origins = loaded("--store-gb", "0", "--mm-processor-cache-type", "lru")
    assert rings_bytes(config) == 0
    assert fitted(config, origins, host(0)) == (config, "")
