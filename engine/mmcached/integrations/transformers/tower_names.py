"""Names the tower of a model by its weights and its code, and reads the weights repeatedly.

A write into a weight can leave no trace. So a thread reads all weights every `READ_AGAIN_S` seconds; if they have
changed, the next call computes a new name, and the records that this process has made since the last reading are
dropped, because their name may have been wrong already.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from mmcached.cache.name_files import note_name
from mmcached.cache.output_names import computing_variables
from mmcached.integrations.transformers.engine_code import EngineCode, has_engine_modules, packages_of
from mmcached.integrations.transformers.forms import dtype_of
from mmcached.integrations.transformers.tower_code import TowerCode, is_run_unchanged
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import InvalidRequest
from mmcached.worker.encoders.computing import autocast_row, device_row, library_row, precision_row, threads_row
from mmcached.worker.encoders.families import Family
from mmcached.worker.encoders.weights import Weights

READ_AGAIN_S = 30.0
"""Time between two readings of all weights."""
MAX_AGE_S = 60.0
"""Age of the last reading from which on a call reads all weights itself, because the thread has not."""
_TOLD_APART_BY_CONTENT = frozenset({"text_config", "architectures", "dtype", "torch_dtype", "transformers_version"})


@dataclass(slots=True)
class ReadTower:
    """A model's tower as it was last read.

    Attributes:
        attention: Names of the attention functions of its configurations.
        dtype: Dtype of its parameters; None if they have several.
        read_at: Start of the last complete reading of the weights that found them unchanged, in monotonic seconds.
    """

    weights: Weights
    code: TowerCode | EngineCode
    attention: list[str]
    dtype: torch.dtype | None
    read_at: float


_KNOWN: weakref.WeakKeyDictionary[torch.nn.Module, dict[Any, ReadTower]] = weakref.WeakKeyDictionary()
"""By model, and by the part of it that an output depends on: several adapters may name one model."""
_WRITTEN: weakref.WeakSet[Weights] = weakref.WeakSet()
"""Weights that were found changed without a trace: records under their name may belong to other weights."""


class TowerNames(Closeable):
    """Names of one model's tower; threads may share it.

    Args:
        run_dir: Run directory of the service, which keeps the rows of names.
        drop: Drops the records with these keys.
        warn: Called with the reason why features are not shared.
    """

    def __init__(
        self,
        model: Any,
        family: Family,
        run_dir: Path,
        *,
        drop: Callable[[Sequence[str]], None],
        warn: Callable[[str], None],
    ) -> None:
        self._model = model
        self._family = family
        self._known = _KNOWN.setdefault(model, {})
        self._part = family.method, family.others
        self._run_dir = run_dir
        self._drop = drop
        self._warn = warn
        self._variables = computing_variables()
        self._lock = threading.RLock()
        self._name: tuple[Any, str] | None = None
        self._made: list[tuple[Weights, str]] = []
        """Keys of the records encoded here since all weights were read, with the weights that name them."""
        self._is_over = threading.Event()
        self._reading = threading.Thread(target=self._read_again, name="mmcached-weights", daemon=True)

    def start(self) -> None:
        """Read all weights, and start the thread that reads them again; InvalidRequest if one cannot be read."""
        self.named(self._model.device)
        self._reading.start()

    def named(self, device: torch.device) -> tuple[str, ReadTower] | None:
        """Return the fingerprint of all that features depend on beside the image, and the tower that it names.

        None if features cannot be shared. InvalidRequest if a weight cannot be read.
        """
        with self._lock:
            tower = self._tower()
            if monotonic() - tower.read_at > MAX_AGE_S and not self.read_weights():
                tower = self._tower()
            if tower.code.obstacle is not None:
                self._warn(tower.code.obstacle)
                return None
            modules = [self._model, *tower.weights.modules]
            if any(module.training for module in modules) or not is_run_unchanged(modules):
                return None
            now = [autocast_row(device.type), device, precision_row(device.type), threads_row(device.type)]
            configs = [dict(config.__dict__) for config in tower.weights.configs]
            state = [tower.weights.digest, tower.code.digest, tower.attention, now, configs]
            if self._name is None or self._name[0] != state:
                self._name = state, self._named_by(tower, device)
            return self._name[1], tower

    def _named_by(self, tower: ReadTower, device: torch.device) -> str:
        rows: dict[str, Any] = {
            "host": "transformers",
            "weights": tower.weights.digest,
            "model": _relevant(_settings_of(self._model)),
            "processor": None,  # the key has the pixels
            "code": tower.code.digest,
            "dtype": autocast_row(device.type),  # that of the weights is in their digest
            "attention": tower.attention,
            "device": device_row(device),
            "threads": threads_row(device.type),
            "libraries": library_row(packages_of(self._model)),
            "variables": self._variables,
            "precision": precision_row(device.type),
            # such towers are bypassed or refused
            **dict.fromkeys(("ranks", "compilation", "quantization", "adapters")),
            "batching": "alone",
        }
        return note_name(self._run_dir, rows)

    def read_weights(self) -> bool:
        """Read all weights now; return whether they are unchanged.

        If they have changed, the next call computes a new fingerprint, and records that this process has encoded since
        the last reading are dropped from the store: their fingerprint may have been wrong already.
        """
        with self._lock:
            tower, num_made, began_at = self._known.get(self._part), len(self._made), monotonic()
        try:
            is_same = tower is not None and tower.weights.is_as_read()
        except (InvalidRequest, RuntimeError):  # the weights have moved to a device from which they cannot be read
            is_same = False
        with self._lock:
            made, self._made = self._made, self._made[num_made:] if is_same else []
            if tower is not None and is_same:
                tower.read_at = began_at
            elif tower is not None:
                _WRITTEN.add(tower.weights)
                if self._known.get(self._part) is tower:
                    del self._known[self._part]
            keys = [key for weights, key in made if weights in _WRITTEN]
        self._drop(keys)
        return is_same

    def note_made(self, keys: list[str], weights: Weights) -> None:
        """Remember keys to be dropped if their fingerprint proves wrong; drop them now if the weights have changed
        already.
        """
        with self._lock:
            is_named_right = self._tower().weights is weights
            if is_named_right:
                self._made += [(weights, key) for key in keys]
        if not is_named_right:
            self._drop(keys)

    def close(self) -> None:
        """End the thread, and read all weights if records were made since. A second call does nothing."""
        self._is_over.set()
        if self._reading.is_alive():
            self._reading.join()
        if self._made:
            self.read_weights()

    def _read_again(self) -> None:
        while not self._is_over.wait(READ_AGAIN_S):
            self.read_weights()

    def _tower(self) -> ReadTower:
        """Return the tower as it is now, reading only changed parts again."""
        tower = self._known.get(self._part)
        if tower is None or tower.weights.is_changed():
            read_at = monotonic()
            weights = Weights(self._model, self._family.others)
        elif tower.code.is_changed(self._model) or tower.attention != _attention_of(tower.weights):
            read_at, weights = tower.read_at, tower.weights
        else:
            return tower
        attention = _attention_of(weights)
        kind = EngineCode if has_engine_modules(self._model) else TowerCode
        code = kind(self._model, self._family.others, self._family.method, attention)
        tower = ReadTower(weights, code, attention, dtype_of(self._model, self._family), read_at)
        self._known[self._part] = tower
        return tower


def _attention_of(weights: Weights) -> list[str]:
    return [str(getattr(config, "_attn_implementation", None)) for config in weights.configs]


def _settings_of(model: Any) -> Any:
    """Return the configuration of a model of Transformers or diffusers as JSON values."""
    config = model.config
    is_of_transformers = hasattr(config, "to_json_string")
    return json.loads(config.to_json_string(use_diff=False) if is_of_transformers else model.to_json_string())


def _relevant(config: Any) -> Any:
    """Return a configuration without its text model, its origin, and settings that other parts of the name cover."""
    if not isinstance(config, dict):
        return config
    return {
        name: _relevant(value)
        for name, value in config.items()
        if name not in _TOLD_APART_BY_CONTENT and not name.startswith("_")
    }
