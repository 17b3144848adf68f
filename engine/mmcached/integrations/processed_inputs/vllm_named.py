"""Finds the content of items that clients have named (`uuid`): vLLM's hash of the content, in place of the name.

    request with uuid and data   uuid ──known──> hash of the content │ unknown: hashed here, and bound to the uuid
    request with uuid alone      uuid ──known──> hash of the content │ unknown: vLLM refuses the request

vLLM takes a uuid for the hash of an item, or hashes it with the request's arguments, and does not hash the content. So
a hash alone does not tell whether it was made of content. A binding is one of the store's names of media:
`vllm/MODEL/UUID`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmcached.cache.aliases import CONTENT, content_in, is_digest
from mmcached.client import Client, Hit, InvalidRequest
from mmcached.client.media_names import checked_name
from mmcached.integrations.processed_inputs.item_saver import ItemSaver

_CALL_S = 1.0
_LOG = logging.getLogger("vllm.mmcached")


class NamedItems:
    """The named items of one request at a time. Used by one thread.

    Args:
        saver: Puts bindings, after the items that they name.
        key: Makes the key of an item's counts from the hash of its content.
    """

    def __init__(self, client: Client, saver: ItemSaver[Any], key: Callable[[str], str]) -> None:
        self._client = client
        self._saver = saver
        self._key = key
        self._model = ""
        self._names: dict[str, Callable[[], str] | None] = {}
        self._unbound: dict[str, str] = {}

    def __contains__(self, mm_hash: str) -> bool:
        return mm_hash in self._names

    def note(
        self,
        model: str,
        hashes: Mapping[str, Sequence[str]],
        uuids: Mapping[str, Sequence[str | None]],
        has_data: Callable[[str, int], bool],
        contents: Callable[[], Mapping[str, Sequence[str]]],
    ) -> None:
        """Note the named items of a request before the cache is asked for them. All mappings are by modality.

        Args:
            hashes: As vLLM computes them.
            uuids: What the client gave.
            has_data: Returns whether the request has the data of an item, by modality and index.
            contents: Computes the hashes of the same items without their uuids.
        """
        self._model = model
        all_contents = functools.cache(contents)
        for modality, of_modality in hashes.items():
            given = uuids.get(modality) or [None] * len(of_modality)
            for index, (mm_hash, uuid) in enumerate(zip(of_modality, given, strict=True)):
                if uuid is not None and has_data(modality, index):
                    self._names[mm_hash] = functools.partial(_at, all_contents, modality, index)
                elif uuid is not None:
                    self._names.setdefault(mm_hash, None)

    def has_data(self, name: str) -> bool:
        """Return whether the request has the data of a named item."""
        return self._names[name] is not None

    def content_of(self, name: str) -> tuple[str | None, Hit | None]:
        """Return the hash of a named item's content, None if it is unknown; and the counts of the item, if it is known.

        If the request has the data of an item whose name is not bound, the data are hashed.
        """
        hash_content = self._names[name]
        try:
            queued = self._saver.record_of(checked_name(self._alias(name)))
            if queued is not None and (content := content_in(queued)) is not None:
                return content, self._client.get(self._key(content), view=True, timeout_s=_CALL_S)
            found = self._client.resolve(self._alias(name), self._key, view=True, timeout_s=_CALL_S)
        except InvalidRequest:  # such as a name that is too long
            return None, None
        if found is not None:
            return found.content, found.hit
        if hash_content is None:
            return None, None
        self._unbound[name] = hash_content()
        return self._unbound[name], None

    def is_content(self, name: str, content: str) -> bool:
        """Return whether the data that came with a named item have this hash; True for an item without a name."""
        hash_content = self._names.get(name)
        return hash_content is None or hash_content() == content

    def bind(self, name: str) -> None:
        """Bind a name to the content that was hashed here, if it was not bound, once the item has been put."""
        content = self._unbound.pop(name, None)
        if is_digest(content):
            self._saver.save_record(checked_name(self._alias(name)), {CONTENT: content})

    def forget(self) -> None:
        """Forget the request's items."""
        self._names.clear()
        self._unbound.clear()

    def _alias(self, name: str) -> str:
        return f"vllm/{self._model}/{name}"


def note_named_items(processor: type[Any]) -> None:
    """Have vLLM's `BaseMultiModalProcessor` tell the shared cache of a request's named items, and of its end."""
    process = processor._cached_apply_hf_processor
    if hasattr(process, "__wrapped__"):
        return

    @functools.wraps(process)
    def processing(self: Any, inputs: Any, *values: Any, **options: Any) -> Any:
        cache = inputs.cache if hasattr(inputs, "cache") else self.cache  # the processor's own before vLLM 0.32
        named = getattr(cache, "named", None)
        if named is None:
            return process(self, inputs, *values, **options)
        try:
            uuids = inputs.mm_uuid_items or {}
            if any(uuid is not None for of_modality in uuids.values() for uuid in of_modality or ()):
                bare = replace(inputs, mm_uuid_items=None)
                named.note(
                    self.info.model_id,
                    _hashes(self, inputs),
                    uuids,
                    lambda modality, index: inputs.mm_data_items[modality].get(index) is not None,
                    lambda: _hashes(self, bare),
                )
            return process(self, inputs, *values, **options)
        finally:
            cache.forget_request()  # also after an error, with which other processes would wait for its claims

    processor._cached_apply_hf_processor = processing


def _hashes(processor: Any, inputs: Any) -> Mapping[str, Sequence[str]]:
    """Return the hashes of a request's items, with what a model's own processor adds (since vLLM 0.32)."""
    if not hasattr(processor, "_get_mm_hashes"):
        model = processor.info
        return inputs.get_mm_hashes(model.model_id, model.ctx.get_mm_config().mm_hasher_algorithm)  # type: ignore[no-any-return]
    return processor._get_mm_hashes(inputs)  # type: ignore[no-any-return]


def _at(contents: Callable[[], Mapping[str, Sequence[str]]], modality: str, index: int) -> str:
    return contents()[modality][index]
