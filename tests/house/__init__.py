"""Tests of the project's own order: its packages, wheel, layers and checks; and the leak gate of all tests."""

from pathlib import Path

REPOSITORY = Path(__file__).parent.parent.parent
SOURCE_ROOTS = ("shm", "frontend", "engine", "worker")
