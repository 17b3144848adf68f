"""Whose saves are dropped when more wait than the second level takes."""

from __future__ import annotations

import pytest

from mmcached.frontend.store import save_queue
from mmcached.frontend.store.save_queue import SaveQueue
from mmcached.wire.handle import Handle
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages.second_level import Save
from tests.clock import Clock


@pytest.mark.parametrize("limit", ["records", "bytes"])
def test_a_tenant_that_puts_too_much_loses_its_own_saves(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    noisy = [Save("noisy", f"{index}", Handle("s", 1, index, 1, 0, 400_000)) for index in range(5)]
    quiet = Save("quiet", "q", Handle("s", 1, 9, 1, 0, 1 if limit == "bytes" else 500_000))
    monkeypatch.setattr(save_queue, "MAX_WAITING_SAVES", 3 if limit == "records" else 100)
    lost: list[str] = []
    limits = LimitsConfig(max_l2_waiting_mb=1 if limit == "bytes" else 100)
    saves = SaveQueue(limits, clock, on_lost=lost.append)
    for save in (noisy[0], quiet, *noisy[1:]):
        saves.add(save.key, save)
    assert list(saves.take(10)) == ["q", "3", "4"]
    assert (saves.num_dropped, lost, len(saves)) == (3, ["0", "1", "2"], 0)
