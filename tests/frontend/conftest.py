from __future__ import annotations

from tests.frontend.fixtures import bench, clock, mode, work

__all__ = ["bench", "clock", "mode", "work"]
