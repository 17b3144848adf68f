"""A client of a store that lives in a thread of the test."""

from __future__ import annotations

from tests.hosts.transformers.conftest import client

__all__ = ["client"]
