"""Whether a master is there, before Mooncake's client waits for it."""

from __future__ import annotations

import socket
import threading

import pytest

from mmcached.second_level.backend import BackendError
from mmcached.second_level.mooncake import master
from mmcached.second_level.mooncake.place import MooncakePlace


def test_one_that_hangs_up_is_at_work() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(20)

        thread = threading.Thread(target=hang_up)
        thread.start()
        assert master.reach(MooncakePlace(f"127.0.0.1:{server.getsockname()[1]}")) == "127.0.0.1"
        thread.join()


def test_one_that_is_silent_or_away_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master, "TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = MooncakePlace(f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(BackendError, match=f"{place.master} is not reached: timed out"):
            master.reach(place)
    with pytest.raises(BackendError, match="refused"):
        master.reach(place)
