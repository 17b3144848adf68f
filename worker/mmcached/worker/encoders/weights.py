"""Names the content of a vision tower, and notices when that changes.

    all bytes of its parameters and buffers ──blake3──> digest, computed again when the watch has seen a change
    the watch: each tensor's place, version and a few bytes; each module; in tens of microseconds per hundred tensors

Torch counts in-place changes, but not those made through `.data`, as trainers and merges of adapters do. Bytes from the
middle of each tensor show these too, unless they leave just those bytes as they are: `is_as_read` reads all bytes.

Buffers count even if no checkpoint has them: `model.to(torch.bfloat16)` rounds frequencies that a loaded model keeps.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator
from typing import Any

import torch

from mmcached.shm.store.tensor_bytes import NotCarried
from mmcached.wire.errors import InvalidRequest
from mmcached.worker.encoders.content import Content

NUM_SAMPLED = 32
"""Elements of each tensor that the watch reads."""
_PRECISIONS = [
    (torch.backends.cuda, "matmul"),
    (torch.backends.cudnn, "conv"),
    (torch.backends.mkldnn, "matmul"),
    (torch.backends.mkldnn, "conv"),
]
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Weights:
    """The tensors of a model on which its image features depend, as they are now.

    Args:
        model: of Transformers.
        others: names of its children and parameters that do not matter.
    Attributes:
        digest: of their content, 64 hex digits.
        modules: all that take part, but the model itself, which may die while this is kept.
        configs: of the model and its modules, which say how attention is computed.
    Raises:
        InvalidRequest: a tensor whose bytes cannot be read: on no device, or packed by a quantiser; or a module of
            TorchScript.
    """

    def __init__(self, model: torch.nn.Module, others: frozenset[str]) -> None:
        named = [(name, module) for name, module in model.named_modules() if name.split(".")[0] not in others]
        for path, module in named:
            if isinstance(module, torch.jit.ScriptModule):
                raise InvalidRequest("model", f"{path}: {type(module).__name__}", "modules of Python")
        self.modules = [module for _, module in named if module is not model]
        configs = [module.config for _, module in named if hasattr(module, "config")]
        self.configs = list({id(config): config for config in configs}.values())
        # Each with the dict it is found in: what has been put in its place since is seen there.
        self._links = [
            (module._modules, name, child)
            for _, module in named
            for name, child in module._modules.items()
            if module is not model or name not in others
        ]
        self._tensors = [
            (holder, name, value, f"{path}.{name}")
            for path, module in named
            for holder in (module._parameters, module._buffers)
            for name, value in holder.items()
            if value is not None and (module is not model or name not in others)
        ]
        for _, _, value, path in self._tensors:
            _check_plain(path, value)
        self._samples = _samples(value for _, _, value, _ in self._tensors)
        self._seen = self._look()
        kinds = {type(model), *(type(module) for module in self.modules)}
        self._kinds = sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
        self.digest = self._digest(is_vast=True)

    def is_changed(self) -> bool:
        """Return whether there is another tensor or module now, or other content in one."""
        is_same = all(holder.get(name) is value for holder, name, value, _ in self._tensors) and all(
            holder.get(name) is child for holder, name, child in self._links
        )
        return not is_same or self._look() != self._seen

    def is_as_read(self) -> bool:
        """Return whether the tensors that were read still have the content that `digest` names; reads all bytes.

        One thread reads, about 2 GB/s, so that others of the process are not kept from their work.
        """
        return self._digest(is_vast=False) == self.digest

    def _look(self) -> Hashable:
        tensors = [value for _, _, value, _ in self._tensors]
        # A tensor that was made in inference mode has no version.
        versions = tuple(-1 if value.is_inference() else value._version for value in tensors)
        bytes_of = tuple(torch.cat(each).cpu().numpy().tobytes() for each in self._samples)
        return versions, tuple(value.data_ptr() for value in tensors), bytes_of

    def _digest(self, *, is_vast: bool) -> str:
        content = Content(is_vast=is_vast)
        content.add("classes", self._kinds)
        for _, _, value, path in self._tensors:
            try:
                content.add(path, value)
            except NotCarried as error:
                raise InvalidRequest("model", f"{path}: {error.found}", str(error)) from error
        return content.hexdigest()


def _check_plain(path: str, value: torch.Tensor) -> None:
    if type(value) not in _PLAIN or value.is_meta:
        found = "on no device" if value.is_meta else type(value).__name__
        raise InvalidRequest("model", f"{path}: {found}", "tensors of plain numbers, in memory")


def _samples(tensors: Iterator[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return, by device, views of some bytes of each tensor, from its middle."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for value in tensors:
        if value.numel() and value.is_contiguous():
            flat = value.detach().reshape(-1)
            start = max(0, (len(flat) - NUM_SAMPLED) // 2)
            by_device.setdefault(value.device, []).append(flat[start : start + NUM_SAMPLED].view(torch.uint8))
    return list(by_device.values())


def numeric_settings(device: torch.device) -> list[Any]:
    """Return what else of this process rounds differently: device, precision of products, autocast."""
    kind = device.type
    name = torch.cuda.get_device_name(device) if kind == "cuda" else kind
    autocast = str(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None
    precisions = [operator.attrgetter(f"{operation}.fp32_precision")(backend) for backend, operation in _PRECISIONS]
    # Which nobody has said is the same as said to be exact.
    return [name, autocast, *("ieee" if each == "none" else each for each in precisions)]
