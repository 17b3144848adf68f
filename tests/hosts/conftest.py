"""Leaves out the folders whose host program is not installed here."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [host for host in ("vllm", "sglang", "transformers", "ray", "mooncake") if find_spec(host) is None]
