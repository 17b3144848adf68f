"""Converts vLLM's items and prompt updates to processed items of two records, and back, bit for bit.

    field of an item    "batched" | "flat" | "shared", its settings, its tensors      counts, if small; else pixels
    prompt update       modality, mode, target tokens, new tokens, which of them are placeholders        counts

A prompt update may hold a function that selects placeholders among its tokens. The selected tokens are kept instead;
where a token does not determine the selection, and where a target is a function, the item is `NotPlain` and not shared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from vllm.multimodal.inputs import (
    BaseMultiModalField,
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalFlatField,
    MultiModalKwargsItem,
    MultiModalSharedField,
)
from vllm.multimodal.processing.processor import PromptUpdateDetails, ResolvedPromptUpdate, UpdateMode

from mmcached.integrations.processed_inputs.items import ProcessedItem
from mmcached.shm.store.codec import Record

SMALL_BYTES = 4096
"""A larger field is read by the encoder alone, unless vLLM itself keeps it on the CPU."""
_FIELDS: dict[str, type[BaseMultiModalField]] = {
    "batched": MultiModalBatchedField,
    "flat": MultiModalFlatField,
    "shared": MultiModalSharedField,
}
_KINDS = {kind: name for name, kind in _FIELDS.items()}

Elements = dict[str, MultiModalFieldElem]
Updates = Sequence[ResolvedPromptUpdate]


class NotPlain(Exception):
    """An item has a value that plain values cannot represent."""


class LazyItem(MultiModalKwargsItem):
    """An item whose pixels are loaded on first access; its counts are loaded.

    Args:
        counts: The loaded fields.
        load: Returns the other fields; called once.
        names: Names of the other fields, if they are known: to ask for a name then loads nothing.
    """

    def __init__(self, counts: Elements, load: Callable[[], Elements], names: Iterable[str] | None = None) -> None:
        # Do not call the base's: it would fill `data`.
        self._counts = counts
        self._names = None if names is None else frozenset(names)
        self._load: Callable[[], Elements] | None = load
        self._whole: Elements | None = None

    @property
    def is_loaded(self) -> bool:
        return self._whole is not None

    @property
    def data(self) -> Elements:
        if self._whole is None and self._load is not None:
            self._whole = self._counts | self._load()
            self._load = None  # and with it the lease on the pixels
        return self._whole or {}

    @data.setter
    def data(self, whole: Elements) -> None:
        self._whole = whole

    def __getitem__(self, key: str) -> MultiModalFieldElem:
        return self._counts[key] if key in self._counts else self.data[key]

    def __contains__(self, key: object) -> bool:
        if key in self._counts:
            return True
        return key in (self.data if self._names is None else self._names)

    def __reduce__(self) -> tuple[type[MultiModalKwargsItem], tuple[Elements]]:
        """Pickle a plain item with all its fields: for a worker process, which has no lease."""
        return MultiModalKwargsItem, (dict(self.data),)


def to_processed(item: MultiModalKwargsItem, updates: Updates) -> ProcessedItem:
    """Return an item as two records; `NotPlain` if plain values cannot represent it."""
    counts: Record = {}
    pixels: Record = {}
    for name, element in item.items():
        is_count = element.field.keep_on_cpu or _nbytes(element.data) <= SMALL_BYTES
        (counts if is_count else pixels)[name] = _field_to_plain(element)
    return ProcessedItem({"fields": counts, "updates": [_update_to_plain(each) for each in updates]}, pixels)


def elements_of(fields: Record) -> Elements:
    return {name: MultiModalFieldElem(_data(plain["data"]), _field(plain)) for name, plain in fields.items()}


def updates_of(counts: Record) -> list[ResolvedPromptUpdate]:
    return [
        ResolvedPromptUpdate(
            modality=each["modality"],
            item_idx=each["item"],
            mode=UpdateMode(each["mode"]),
            target=each["target"],
            content=PromptUpdateDetails(_of_runs(*each["runs"]), _chooser(each["chosen"])),
        )
        for each in counts["updates"]
    ]


# ---- fields


def _field_to_plain(element: MultiModalFieldElem) -> dict[str, Any]:
    field = element.field
    if type(field) not in _KINDS:
        raise NotPlain(f"a field of class {type(field).__name__}")
    plain: dict[str, Any] = {"kind": _KINDS[type(field)], "keep_on_cpu": field.keep_on_cpu}
    if isinstance(field, MultiModalFlatField):
        plain |= {"slices": [_slice_to_plain(each) for each in field.slices], "dim": field.dim}
    if isinstance(field, MultiModalSharedField):
        plain["batch_size"] = field.batch_size
    return plain | {"data": _data_to_plain(element.data)}


def _field(plain: Mapping[str, Any]) -> BaseMultiModalField:
    named = {name: plain[name] for name in ("keep_on_cpu", "dim", "batch_size") if name in plain}
    if "slices" in plain:
        named["slices"] = [_slice(each) for each in plain["slices"]]
    return _FIELDS[plain["kind"]](**named)


def _slice_to_plain(part: slice | Sequence[slice]) -> list[Any]:
    if isinstance(part, slice):
        ends = [part.start, part.stop, part.step]
        return [None if end is None else int(end) for end in ends]
    return [_slice_to_plain(each) for each in part]


def _slice(plain: list[Any]) -> Any:
    is_nested = any(isinstance(each, list) for each in plain)
    return [_slice(each) for each in plain] if is_nested else slice(*plain)


def _data_to_plain(data: Any) -> Any:
    if isinstance(data, torch.Tensor):
        if data.device.type != "cpu":
            raise NotPlain(f"a tensor on {data.device}")
        return data
    if data is None or isinstance(data, bool | int | float):
        return data
    if isinstance(data, list | tuple):
        return [_data_to_plain(each) for each in data]
    raise NotPlain(f"data of class {type(data).__name__}")


def _data(plain: Any) -> Any:
    """Return a copy of the data, because vLLM may write into it."""
    if isinstance(plain, torch.Tensor):
        return plain.clone()
    return [_data(each) for each in plain] if isinstance(plain, list) else plain


def item_bytes(item: MultiModalKwargsItem) -> int:
    """Return the size of an item's data in bytes."""
    return sum(_nbytes(element.data) for element in item.values())


def fields_bytes(fields: Record) -> int:
    """Return the size in bytes of the data of an item's fields in a record."""
    return sum(_nbytes(plain["data"]) for plain in fields.values())


def _nbytes(data: Any) -> int:
    if isinstance(data, torch.Tensor):
        return data.nbytes
    return sum(map(_nbytes, data)) if isinstance(data, list | tuple) else 8


# ---- prompt updates


def _update_to_plain(update: ResolvedPromptUpdate) -> dict[str, Any]:
    return {
        "modality": update.modality,
        "item": update.item_idx,
        "mode": update.mode.value,
        "target": _tokens(update.target, "target"),
        "runs": _runs(_tokens(update.content.full, "content")),
        "chosen": _chosen(update.content),
    }


def _tokens(tokens: Any, what: str) -> list[int]:
    if isinstance(tokens, list) and {*map(type, tokens)} <= {int}:
        return tokens
    raise NotPlain(f"a prompt update whose {what} is of class {type(tokens).__name__}")


def _runs(tokens: list[int]) -> list[torch.Tensor]:
    """Return distinct runs of tokens with their lengths: nearly all tokens of an update are equal."""
    runs = [(token, len([*run])) for token, run in itertools.groupby(tokens)]
    return [torch.tensor([run[part] for run in runs], dtype=torch.int64) for part in (0, 1)]


def _of_runs(runs: torch.Tensor, counts: torch.Tensor) -> list[int]:
    tokens: list[int] = []
    for token, count in zip(runs.tolist(), counts.tolist(), strict=True):
        tokens += [token] * count
    return tokens


def _chosen(content: PromptUpdateDetails) -> list[int] | None:
    if content.is_embed is None:
        return None
    pairs = {*zip(content.full, content.is_embed(content.full).tolist(), strict=True)}
    chosen = {token for token, is_chosen in pairs if is_chosen}
    if len(pairs) > len({token for token, _ in pairs}):
        raise NotPlain("a prompt update in which a token is a placeholder at one place and none at another")
    return sorted(chosen)


def _chooser(chosen: Iterable[int] | None) -> Callable[[list[int]], torch.Tensor] | None:
    if chosen is None:
        return None
    tokens = torch.tensor(list(chosen), dtype=torch.int64)
    return lambda full: torch.isin(torch.tensor(full, dtype=torch.int64), tokens)
