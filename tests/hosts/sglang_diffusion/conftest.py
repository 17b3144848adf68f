"""A client of a store that lives in a thread of the test."""

from __future__ import annotations

import importlib

importlib.import_module("tests.hosts.sglang_diffusion.stages")  # before tests: SGLang's imports warn, and this hides it

from tests.hosts.transformers.conftest import client

__all__ = ["client"]
