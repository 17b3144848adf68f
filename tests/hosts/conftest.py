"""Leaves out the folders whose host program is not installed here, and notes which versions passed a whole folder."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from scripts.tested_with import note, version_of
from tests.whole_run import BEGAN_AT, passed_folder

HOSTS = (
    "vllm",
    "vllm_omni",
    "sglang",
    "sglang_diffusion",
    "transformers",
    "diffusers",
    "ray",
    "mooncake",
    "dynamo",
    "lmdeploy",
    "ray_serve",
)
PACKAGES = {"ray_serve": ("ray", "vllm"), "sglang_diffusion": ("sglang", "cache_dit")}
"""What must be installed for the tests of a host, if not a package of its name."""
collect_ignore = [host for host in HOSTS if None in map(find_spec, PACKAGES.get(host, (host,)))]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Note a run of one whole folder in which every test passed; `python -m scripts.tested_with` shows the notes."""
    passed = passed_folder(session, exitstatus)
    if passed and passed[0].name in HOSTS:
        host = passed[0].name
        note(host, version=version_of(host), num_passed=len(passed[1]), began_at=BEGAN_AT)
