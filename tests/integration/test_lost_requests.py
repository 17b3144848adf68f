"""A message that is lost between two living processes costs one request its deadline, and the store nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcached.client import Client
from mmcached.wire.errors import DeadlineExceeded
from mmcached.wire.messages.engine import AddRequest
from tests.frontend.integrity import check_frontend
from tests.integration.local_service import LocalService
from tests.integration.processes import eventually, leases_of
from tests.integration.test_bit_identical import base
from tests.integration.workloads import photo

PROMPT = "what is <image> beside <image>?"
PHOTOS = [photo(0), photo(1)]


def test_a_request_that_is_lost_leaves_nothing_pinned(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalService(run_dir, base(world_size=1)) as service, Client(run_dir) as client:
        wanted = client.generate(PROMPT, PHOTOS).tokens
        channel = service.gateway._channel
        send, lost = channel.send, list[AddRequest]()

        def lossy(peer: bytes, message: object, payload: object = ()) -> None:
            if isinstance(message, AddRequest):
                lost.append(message)
            else:
                send(peer, message, payload)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(channel, "send", lossy)
            while not lost:  # the deadline may pass before the request is on its way
                with pytest.raises(DeadlineExceeded):
                    client.generate(PROMPT, PHOTOS, timeout_s=0.3)
        eventually(lambda: leases_of(client.stats()), lambda leases: leases == 0, "pins and leases")
        assert client.generate(PROMPT, PHOTOS).tokens == wanted
        check_frontend(service.frontend)
