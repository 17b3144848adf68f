"""Marks vLLM's hashes of names, so that none is taken for a hash of content.

    item without a name                     hash of the content
    name, no arguments in the request       the name
    name, and arguments in the request      hash of name and arguments   ──> <half of that>-<name>

A name comes from a client (`uuid`), or is vLLM's number of an item that it does not hash. Both may be of other
content in another engine, and only the process that answers HTTP knows which items have names. A name of the form of a
hash counts as one: encoder servers and Dynamo's workers pass hashes of content as names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmcached.integrations.vllm.keys import is_content_hash

Hashes = Mapping[str, Sequence[str]]
"""By modality."""


def mark_hashed_names(module: Any) -> None:
    """Have vLLM's processors mark hashes of names; a second call does nothing.

    Args:
        module: vLLM's module `multimodal.processing.processor`.
    """
    base, inputs = module.BaseMultiModalProcessor, module.ProcessorInputs
    make = base.__init__
    if hasattr(make, "__wrapped__") or hasattr(inputs.get_mm_hashes, "__wrapped__"):
        return
    if not hasattr(base, "_get_mm_hashes"):  # before vLLM 0.32 no model hashes in its own way
        inputs.get_mm_hashes = _marking(inputs.get_mm_hashes, lambda own, *_: own)
        return

    @functools.wraps(make)
    def made(self: Any, *values: Any, **named: Any) -> None:
        make(self, *values, **named)
        self._get_mm_hashes = _marking(self._get_mm_hashes, lambda inputs: inputs)

    base.__init__ = made


def _marking(get_hashes: Callable[..., Hashes], inputs_of: Callable[..., Any]) -> Callable[..., Hashes]:
    @functools.wraps(get_hashes)
    def marking(*values: Any, **named: Any) -> Hashes:
        names = inputs_of(*values).mm_uuid_items or {}
        return {
            modality: [
                _marked(mm_hash, name)
                for mm_hash, name in zip(hashes, names.get(modality) or [None] * len(hashes), strict=True)
            ]
            for modality, hashes in get_hashes(*values, **named).items()
        }

    return marking


def _marked(mm_hash: str, name: str | None) -> str:
    is_of_content = name is None or is_content_hash(name)
    # Half of the hash leaves room for the name, whose end tells vLLM's numbers from names of clients.
    return mm_hash if is_of_content or mm_hash == name else f"{mm_hash[:32]}-{name}"
