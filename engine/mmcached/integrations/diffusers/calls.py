"""Answers calls of encoders: their outputs are found in the store, or computed by one process while others wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from mmcached.client import Client
from mmcached.integrations.transformers.records import find_or_make
from mmcached.wire.closeable import Closeable

_LOG = logging.getLogger(__name__)

Record = Mapping[str, Any]
"""Parts of an output: tensors, or lists of tensors, by name; further plain values."""


class SharedCalls(Closeable):
    """Counts calls of encoders and answers them; threads may share it.

    Args:
        timeout_s: How long to wait for another process that computes an output, before it is computed here.

    Attributes:
        num_calls: Calls of encoders, without bypassed ones.
        num_encoded: Calls computed here; all others were found.
        num_bypassed: Calls that went to the encoder unchanged.
        num_refused: Found records whose form is not the one that the encoder's configuration implies.
    """

    def __init__(self, client: Client, *, timeout_s: float) -> None:
        self.num_calls = self.num_encoded = self.num_bypassed = self.num_refused = 0
        self._client = client
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._said: set[str] = set()

    @property
    def num_hits(self) -> int:
        """Number of calls found, or computed by another process while this one waited."""
        return self.num_calls - self.num_encoded

    def bypass(self) -> None:
        """Count a call that goes to the encoder unchanged."""
        with self._lock:
            self.num_bypassed += 1

    def answer(
        self,
        key: str,
        compute: Callable[[], Any],
        *,
        record: Callable[[Any], Record],
        output: Callable[[Record], Any],
        check: Callable[[object], str | None],
        device: torch.device,
        note_made: Callable[[str], None],
    ) -> Any:
        """Return the output of a call.

        Args:
            compute: Computes the output.
            record: Returns the parts of an output, on their device.
            output: Returns the output that has these parts.
            check: Returns why a record has another form than the call's outputs; None if it fits.
            device: The device of outputs.
            note_made: Called with the key after the output was computed and saved here.
        """
        with self._lock:
            self.num_calls += 1
        made: list[Any] = []

        def make(place: int) -> dict[str, Any]:
            parts = record(compute())
            made.append(output(parts))
            with self._lock:
                self.num_encoded += 1
            in_host = {name: _over(part, torch.Tensor.cpu) for name, part in parts.items()}
            if (reason := check(in_host)) is not None:
                raise _NotShared(reason)
            if not all(each.is_contiguous() for part in parts.values() for each in _tensors(part)):
                raise _NotShared("its tensors are not contiguous")
            return in_host

        def is_right(place: int, found: Any) -> bool:
            reason = check(found)
            if reason is not None:
                with self._lock:
                    self.num_refused += 1
                self.say(f"a record of the store has another form: {reason}")
            return reason is None

        # On another device a record is read in place and copied there; on the CPU the caller may write to its copy.
        view = device.type != "cpu"
        try:
            (found,) = find_or_make(self._client, [key], make, is_right=is_right, view=view, timeout_s=self._timeout_s)
        except _NotShared as error:
            self.say(str(error))
            return made[0]
        if made:
            note_made(key)
            return made[0]
        return output({name: _over(part, lambda each: each.to(device)) for name, part in found.items()})

    def say(self, reason: str) -> None:
        """Log once why outputs are not shared."""
        if reason not in self._said:
            self._said.add(reason)
            _LOG.warning("outputs of an encoder are not shared: %s", reason)


class _NotShared(Exception):
    """An output has another form than expected, so that no process would accept it."""


def _tensors(part: Any) -> list[torch.Tensor]:
    if isinstance(part, list | tuple):
        return [tensor for each in part for tensor in _tensors(each)]
    return [part] if isinstance(part, torch.Tensor) else []


def _over(part: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a part of a record, a tensor or a list of tensors, with each tensor changed."""
    if isinstance(part, list | tuple):
        return [_over(each, change) for each in part]
    return change(part) if isinstance(part, torch.Tensor) else part
