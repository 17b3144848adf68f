from __future__ import annotations

from tests.frontend.fixtures import bench, clock, engine, mode, work

__all__ = ["bench", "clock", "engine", "mode", "work"]
