"""Digest of a vision tower's weights, with change detection.

    all bytes of its parameters and buffers ──blake3──> digest, recomputed after a detected change
    detection: address, version and a few bytes of each tensor; each module; tens of microseconds per hundred tensors

Torch counts in-place changes, except changes made through `.data`, as by trainers and adapter merges. Bytes from the
middle of each tensor reveal these too, unless they leave just those bytes unchanged: `is_as_read` reads all bytes.

Buffers count even if no checkpoint has them: `model.to(torch.bfloat16)` rounds frequencies that a loaded model keeps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import torch

from mmcached.shm.store.tensor_bytes import NotCarried
from mmcached.wire.errors import InvalidRequest
from mmcached.worker.encoders.content import Content

NUM_SAMPLED = 32
"""Elements of each tensor that change detection reads."""
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Weights:
    """Tensors of a Transformers model on which its image features depend, as they are now, without those in `others`.

    Attributes:
        digest: of their content and memory format, 64 hex digits.
        modules: all modules involved except the model itself, which may be freed while this object lives.
        configs: of the model and its modules, which determine the attention implementation.

    Raises:
        InvalidRequest: unreadable bytes (a meta tensor, or packed by a quantizer), or a TorchScript module.
    """

    def __init__(self, model: torch.nn.Module, others: frozenset[str]) -> None:
        named = [(name, module) for name, module in model.named_modules() if name.split(".")[0] not in others]
        for path, module in named:
            if isinstance(module, torch.jit.ScriptModule):
                raise InvalidRequest("model", f"{path}: {type(module).__name__}", "must not be TorchScript")
        self.modules = [module for _, module in named if module is not model]
        configs = [module.config for _, module in named if hasattr(module, "config")]
        self.configs = list({id(config): config for config in configs}.values())
        # Each with the dict that holds it, which shows a later replacement.
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
        """Return whether a tensor or module was replaced, or its content has changed."""
        is_same = all(holder.get(name) is value for holder, name, value, _ in self._tensors) and all(
            holder.get(name) is child for holder, name, child in self._links
        )
        return not is_same or self._look() != self._seen

    def is_as_read(self) -> bool:
        """Return whether the tensors still have the content of `digest`; reads all bytes.

        Uses one thread, about 2 GB/s, to leave the process's other threads their cores.
        """
        return self._digest(is_vast=False) == self.digest

    def _look(self) -> Hashable:
        tensors = [value for _, _, value, _ in self._tensors]
        # Inference tensors have no version counter.
        versions = tuple(-1 if value.is_inference() else value._version for value in tensors)
        bytes_of = tuple(torch.cat(each).cpu().numpy().tobytes() for each in self._samples)
        return versions, tuple(value.data_ptr() for value in tensors), bytes_of

    def _digest(self, *, is_vast: bool) -> str:
        content = Content(is_vast=is_vast)
        content.add("classes", self._kinds)
        for _, _, value, path in self._tensors:
            try:
                content.add(path, value)
                if not value.is_contiguous():  # a memory format such as `channels_last` has other kernels
                    content.add(f"{path} strides", list(value.stride()))
            except NotCarried as error:
                raise InvalidRequest("model", f"{path}: {error.found}", str(error)) from error
        return content.hexdigest()


def _check_plain(path: str, value: torch.Tensor) -> None:
    if type(value) not in _PLAIN or value.is_meta:
        found = "on no device" if value.is_meta else type(value).__name__
        raise InvalidRequest("model", f"{path}: {found}", "must be plain tensors in memory")


def _samples(tensors: Iterator[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return, by device, views of some bytes from the middle of each tensor."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for value in tensors:
        if value.numel() and value.is_contiguous():
            flat = value.detach().reshape(-1)
            start = max(0, (len(flat) - NUM_SAMPLED) // 2)
            by_device.setdefault(value.device, []).append(flat[start : start + NUM_SAMPLED].view(torch.uint8))
    return list(by_device.values())
