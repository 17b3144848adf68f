"""Describes the vision part of a model of LMDeploy: what decides the bits of its features, and their form.

An item of LMDeploy is what its processor has made of a picture, so the processor's settings are in the item's key. All
else is in the name of features.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

import torch

from mmcached.cache.output_names import PACKAGES
from mmcached.client import Client
from mmcached.integrations.identity import OF_PROCESSORS, checkpoint_folder, checkpoint_identity
from mmcached.integrations.record_form import PartForm
from mmcached.integrations.watched_writes import WatchedWrites
from mmcached.wire.errors import ConfigError
from mmcached.worker.encoders.computing import computing_rows
from mmcached.worker.encoders.content import Content

_NOT_OF_THE_TOWER = frozenset({"text_config", "llm_config", "_name_or_path", "transformers_version", "_commit_hash"})


class Tower:
    """The modules that LMDeploy has made for a model's vision part.

    Args:
        model: LMDeploy's `VisionModel`.

    Attributes:
        num_readings: How often the weights were read.

    Raises:
        ConfigError: It has no weights in this process, or not all of them.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.num_readings = 0
        self._modules = dict(_modules(model))
        tensors = list(self._tensors())
        floating = [value for _, value in tensors if value.is_floating_point()]
        if not floating or any(value.device.type == "meta" for _, value in tensors):
            raise ConfigError("model", type(model).__name__, "has weights that are not in this process")
        self._writes = {name: WatchedWrites() for name in self._modules}
        self.device = floating[0].device
        self.dtype = floating[0].dtype

    def read(self) -> str:
        """Return the digest of the weights, and watch for writes from now on."""
        self.num_readings += 1
        for name, module in self._modules.items():
            self._writes[name].begin(module, module.state_dict().keys())
        content = Content(is_vast=True)
        for name, value in self._tensors():
            content.add(name, value.data)
        return content.hexdigest()

    def is_written(self) -> bool:
        """Return whether the weights may have changed since they were read."""
        return any(writes.is_written() for writes in self._writes.values())

    def rows(self, tower: str, client: Client, namespace: str) -> dict[str, Any]:
        """Return all that a feature depends on beside its item, by the rows of `output_names.ROWS`.

        Args:
            tower: Digest of the weights.
            namespace: The operator's name for the checkpoint; empty for the content of its small files.

        Raises:
            OSError: The checkpoint is not on this host, or cannot be read.
        """
        model, config = self._model, self._model.hf_config
        folder = "" if namespace else checkpoint_folder(str(model.model_path))
        files = namespace or checkpoint_identity(folder, client, suffixes=OF_PROCESSORS)
        return {
            "host": "lmdeploy",
            "weights": {"tower": tower},
            "model": {"class": type(model).__qualname__, "config": _plain(config), "files": files},
            "processor": None,  # in the item's key
            "code": {"lmdeploy": metadata.version("lmdeploy")},
            "dtype": str(self.dtype),
            "attention": str(getattr(config, "_attn_implementation", None)),
            "threads": None,  # of no use where `batching` is "any"
            **computing_rows(self.device, PACKAGES),
            "ranks": None,  # the vision part is in one process
            "compilation": None,
            "quantization": str(getattr(config, "quantization_config", None)),
            "adapters": None,  # LMDeploy has none of the vision part
            "batching": "any",
        }

    def form(self, item: Mapping[str, Any]) -> PartForm:
        """Return the form of a feature of an item, of any number of rows if the item does not say it.

        Raises:
            ConfigError: The width of a feature is unknown.
        """
        config = self._model.hf_config
        for text in (getattr(config, "text_config", None), getattr(config, "llm_config", None), config):
            if isinstance(width := getattr(text, "hidden_size", None), int):
                rows = item.get("image_tokens")
                return PartForm((width,), self.dtype, rows if isinstance(rows, int) else None)
        raise ConfigError("hf_config", type(config).__name__, "has no hidden_size")

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for path, module in sorted(self._modules.items()):
            for name, value in sorted(module.state_dict(keep_vars=True).items()):
                yield f"{path}.{name}", value


def _modules(model: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules of a `VisionModel` by name, each once."""
    seen: set[int] = set()
    for name, value in sorted(vars(model).items()):
        if isinstance(value, torch.nn.Module) and id(value) not in seen:
            seen.add(id(value))
            yield name, value


def _plain(config: Any) -> Any:
    found = {name: value for name, value in config.to_dict().items() if name not in _NOT_OF_THE_TOWER}
    return json.loads(json.dumps(found, default=str))
