"""A message that is lost between two living processes costs one request its deadline, and the ring nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcached.client import Client
from mmcached.wire.errors import DeadlineExceeded
from mmcached.wire.messages.engine import AddRequest
from tests.integration.local_service import LocalService
from tests.integration.processes import eventually
from tests.integration.test_bit_identical import base
from tests.integration.workloads import photo

PROMPT = "what is <image> beside <image>?"
PHOTOS = [photo(0), photo(1)]


@pytest.mark.parametrize("is_last", [True, False], ids=["the last one", "one before another"])
def test_leases_of_a_lost_request_come_back(run_dir: Path, monkeypatch: pytest.MonkeyPatch, is_last: bool) -> None:
    with LocalService(run_dir, base(world_size=1)) as service, Client(run_dir) as client:
        wanted = client.generate(PROMPT, PHOTOS).tokens
        channel = service.frontend._engines
        send, lost = channel.send, list[AddRequest]()

        def lossy(peer: bytes, message: object, payload: object = ()) -> None:
            if isinstance(message, AddRequest) and not lost:
                lost.append(message)
            else:
                send(peer, message, payload)  # type: ignore[arg-type]

        monkeypatch.setattr(channel, "send", lossy)
        with pytest.raises(DeadlineExceeded):
            client.generate(PROMPT, PHOTOS, timeout_s=0.3)
        if not is_last:
            assert client.generate(PROMPT, PHOTOS).tokens == wanted
        eventually(lambda: client.stats().ring.leases, lambda leases: leases == 0, "leases that were lost")
        assert client.stats().ring.lost_leases == 2
        assert client.generate(PROMPT, PHOTOS).tokens == wanted
        service.frontend._ring.check_integrity()  # type: ignore[union-attr]
