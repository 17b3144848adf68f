"""A populator that has done its work when it is made, so that a test knows which puts find room."""

from __future__ import annotations

from typing import Any

from mmcached.shm.segment.populate import Advise, Populator, advise


class AtOnce(Populator):
    def __init__(self, *args: Any, advise: Advise = advise, **options: Any) -> None:
        super().__init__(*args, advise=advise, **options)
        self.wait(60)
