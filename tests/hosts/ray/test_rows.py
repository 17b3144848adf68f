"""Each row of `output_names.ROWS` in a service with encoders on Ray: actors whose names differ in one row never encode
for the same service.

Without a cluster: the actors live in this process. What an actor states of its own tower needs Transformers, and is
tested there (`tests/hosts/transformers/test_rows.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
import torch

from mmcached.cache.output_names import ROWS, output_name
from mmcached.integrations.ray import encoder_actor
from mmcached.wire.errors import ServiceUnavailable
from mmcached.worker.encoders import remote
from mmcached.worker.encoders.reference import ReferenceEncoder
from mmcached.worker.encoders.remote import RemoteEncoder
from mmcached.worker.model.encoder import ItemEncoder
from tests.worker.encoders.fake_actors import MODEL, FakeActor, FakeCluster

CPU = torch.device("cpu")
RECORD = {"pixel_values": torch.zeros((1, 12), dtype=torch.uint8), "grid": torch.ones(2, dtype=torch.int64)}
SHARED = dict.fromkeys(ROWS) | {"host": "service", "batching": "alone"}


class NamedEncoder(ReferenceEncoder):
    """A reference encoder whose outputs have the name of some rows."""

    def __init__(self, rows: Mapping[str, Any]) -> None:
        super().__init__(MODEL, ItemEncoder(MODEL, CPU))
        self._named_by = rows

    @property
    def rows(self) -> Any:
        return self._named_by

    @property
    def fingerprint(self) -> str:
        return output_name(self._named_by)


def actor(name: str, rows: Mapping[str, Any]) -> FakeActor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder_actor, "make_encoder", lambda *given: NamedEncoder(rows))
        return FakeActor(name)


@pytest.fixture(autouse=True)
def search_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LOOK_S", 0.001)


@pytest.mark.parametrize("row", ROWS)
def test_an_actor_that_differs_in_a_row_is_not_called(row: str) -> None:
    own, another = (actor(name, SHARED) for name in "ab")
    rows = SHARED | {row: "different"}
    different = actor("c", rows)
    cluster = FakeCluster(own, different, another)
    with closing(RemoteEncoder(cluster, device=CPU, limit_s=60.0, start_timeout_s=60.0)) as encoder:
        assert (encoder.fingerprint, encoder.rows) == (output_name(SHARED), SHARED)
        for _ in range(4):
            encoder.encode(RECORD, 1)
        own.is_dead = another.is_dead = True
        with pytest.raises(ServiceUnavailable):
            encoder.encode(RECORD, 1)
        assert different.calls == []
    with closing(RemoteEncoder(FakeCluster(different), device=CPU, limit_s=60.0, start_timeout_s=60.0)) as encoder:
        assert (encoder.fingerprint, encoder.rows) == (output_name(rows), rows)
