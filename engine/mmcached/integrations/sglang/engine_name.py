"""Computes the name of an SGLang engine's embeddings from the weights that the towers of its ranks have now.

    each rank:  its tower, or its part of it ──all bytes──> digest ──┐
                                                                     ├─ of all ranks ──> name
    where no model is known: content of the checkpoint's files ──────┘

While weights change (an open update, released memory), or one rank cannot read its tower, there is no name.
"""

from __future__ import annotations

import logging
from typing import Any

from mmcached.client import Client
from mmcached.integrations.ranks import merged, of_all
from mmcached.integrations.sglang.identity import namespace
from mmcached.integrations.sglang.settings import ENGINE_CACHE, SglangSettings
from mmcached.integrations.sglang.tower import is_loaded, known_runner, tower_digest

_LOG = logging.getLogger("mmcached.sglang")


class EngineName:
    """The name of an engine's embeddings, as one of its ranks knows it.

    Args:
        group: The process group of the engine's ranks; None for one rank.

    Attributes:
        is_paused: Whether there is no name because weights change, or cannot be read.

    Raises:
        ConfigError: No model is known, and the environment lacks a required setting.
    """

    def __init__(self, settings: SglangSettings, client: Client, group: Any) -> None:
        self.is_paused = False
        self._settings = settings
        self._client = client
        self._group = group
        self._runner = known_runner()
        self._tower: str | None = None
        self._first_towers: Any = None
        self._name = None if self._runner is not None else namespace(ENGINE_CACHE, settings, client)

    def get(self) -> str | None:
        """Return the name, or None while there is none; one rank reads its tower, several have to `agree` before."""
        if self._group is None and self.is_unknown:
            self.agree()
        return self._name

    @property
    def is_unknown(self) -> bool:
        """Whether the name is to be computed: this rank's tower can be read, and was not read since `forget`."""
        is_readable = self._runner is not None and not self.is_paused and is_loaded(self._runner)
        return self._name is None and is_readable

    def forget(self) -> None:
        self._name = self._tower = None

    def read(self) -> None:
        """Read this rank's tower, unless that was done since `forget`."""
        if not self.is_unknown or self._tower is not None:
            return
        try:
            self._tower = tower_digest(self._runner.model)
        except Exception as error:  # whatever a device or a quantiser raises: the engine goes on without sharing
            self._pause(error)

    def agree(self) -> None:
        """Compute the name from the towers of all ranks; collective if there are several. Afterwards it is known, or
        `is_paused` is set.
        """
        self.read()
        towers = [self._tower] if self._group is None else of_all(self._tower, self._group)
        if None in towers:
            self._pause("a rank cannot read its tower")
            return
        found = merged(towers)
        self._first_towers = self._first_towers or found
        try:
            self._name = namespace(
                ENGINE_CACHE, self._settings, self._client, tower=found, is_first=found == self._first_towers
            )
        except Exception as error:  # a file may be missing, or an argument
            self._pause(error)

    def _pause(self, reason: object) -> None:
        if not self.is_paused:
            self.is_paused = True
            _LOG.warning("mmcached: embeddings are not shared, because weights cannot be read: %s", reason)
