"""Reads the adapter's settings from the environment: SGLang gives a plugin no arguments.

MMCACHED_SGLANG        parts, separated by commas: embedding_store, engine_cache, processed_inputs; unset: none
MMCACHED_RUN_DIR       the service's run directory; unset: the default of `mmcached serve`
MMCACHED_NAMESPACE     names the weights, instead of the content of the checkpoint
MMCACHED_MAX_SAVE_MB   MiB of embeddings that may wait to be saved; 256
MMCACHED_MAX_PINNED_MB MiB of the store's memory that a CUDA engine pins, where it reads again; 2048; 0: none
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from mmcached.wire.errors import ConfigError

ASKED = "MMCACHED_SGLANG"
RUN_DIR = "MMCACHED_RUN_DIR"
NAMESPACE = "MMCACHED_NAMESPACE"
MAX_SAVE_MB = "MMCACHED_MAX_SAVE_MB"
MAX_PINNED_MB = "MMCACHED_MAX_PINNED_MB"
EMBEDDING_STORE = "embedding_store"
ENGINE_CACHE = "engine_cache"
PROCESSED_INPUTS = "processed_inputs"
PARTS = (EMBEDDING_STORE, ENGINE_CACHE, PROCESSED_INPUTS)


@dataclass(frozen=True, slots=True)
class SglangSettings:
    """The adapter's settings from the environment.

    Attributes:
        asked: The configured parts.
        run_dir: Run directory of the service; None for the default.
        namespace: Name of the weights; empty for the content of the checkpoint.
        max_save_bytes: Bytes of embeddings that may wait to be saved.
        max_pinned_bytes: Bytes of the store's memory that an engine pins.
    """

    asked: frozenset[str] = frozenset()
    run_dir: str | None = None
    namespace: str = ""
    max_save_bytes: int = 256 << 20
    max_pinned_bytes: int = 2048 << 20

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> SglangSettings:
        asked = frozenset(word.strip() for word in environment.get(ASKED, "").split(",")) - {""}
        if asked - set(PARTS):
            limit = f"names of {', '.join(PARTS)}, with a comma between"
            raise ConfigError(ASKED, environment[ASKED], limit)
        return cls(
            asked,
            environment.get(RUN_DIR) or None,
            environment.get(NAMESPACE, "").strip(),
            _bytes_of(environment, MAX_SAVE_MB, 256),
            _bytes_of(environment, MAX_PINNED_MB, 2048),
        )


def _bytes_of(environment: Mapping[str, str], name: str, default_mb: int) -> int:
    megabytes = environment.get(name, str(default_mb))
    if not megabytes.isdecimal():
        raise ConfigError(name, megabytes, "a number of MiB")
    return int(megabytes) << 20
