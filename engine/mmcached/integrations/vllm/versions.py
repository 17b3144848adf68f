"""Checks that the installed vLLM is new enough for the connector."""

from __future__ import annotations

import re
from importlib.util import find_spec

LEAST = (0, 30)
"""The first release whose workers report to the scheduler's connector; later ones have only added to it."""


def check_vllm() -> None:
    """Raise ImportError unless vLLM is installed in a release that the connector supports."""
    if find_spec("vllm") is None:
        raise ImportError("mmcached.integrations.vllm needs vLLM, which is not installed here")
    from vllm import __version__

    check_version(__version__)


def check_version(version: str) -> None:
    """Raise ImportError for a release that is too old; a version without numbers is a private build, and passes."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < LEAST:
        least = ".".join(map(str, LEAST))
        raise ImportError(f"mmcached.integrations.vllm needs vLLM {least} or newer, and this is {version}: update vLLM")
