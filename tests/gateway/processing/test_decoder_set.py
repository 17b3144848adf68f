"""Decoders that are lent to threads; what a process of them does is said in `test_decoder_pool`."""

from __future__ import annotations

from typing import Any

import pytest

from mmcached.gateway.processing import decoder_set
from mmcached.gateway.processing.decoder_set import DecoderSet
from mmcached.gateway.processing.pool import NotWantedError


class FakeDecoder:
    """Lives, or does not start."""

    def __init__(self, *, is_alive: bool) -> None:
        self.is_alive = is_alive

    def start(self, is_wanted: object) -> None:
        raise OSError("no memory for it")


def test_however_often_a_start_has_failed_the_next_one_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait grows with each, in a host that has room for fewer decoders than threads, but not beyond a float."""
    monkeypatch.setattr(decoder_set.log, "warning", lambda *_, **__: None)
    fakes: Any = [FakeDecoder(is_alive=False), FakeDecoder(is_alive=True)]
    decoders: DecoderSet[Any] = DecoderSet(fakes)
    with decoders.living(lambda: True) as living:
        assert living is fakes[1]
        for _ in range(1100):
            with pytest.raises(NotWantedError), decoders.living(lambda: False):
                pass
