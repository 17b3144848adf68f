"""Sums the seconds that hits have saved: the cost of each record, each time it is found.

The cost of a record is the time that computing it took, as the client said, its claim has measured, or the thread that
processed an item. Hits that readers make by themselves come from their touch logs, which lose some when there are many
at a time: the sums are lower bounds.

A put does not say its modality. That of an encoder output comes from the request for which it is encoded, or loaded;
that of a processed item from each request that uses it; that of an adapter's record from its key.

Invariant: only current records have an entry, and only those whose cost is known.
"""

from __future__ import annotations

from itertools import product
from typing import Literal

from mmcached.cache.store_keys import ITEMS_TENANT
from mmcached.wire.figures import CountsByKey
from mmcached.wire.saved_stats import NO_MODALITY, SavedOfModality, SavedStats
from mmcached.wire.stats import TenantStats
from mmcached.wire.vocabulary import MODALITIES, Modality

Kind = Literal["encoder", "processor", "other"]

_OF_KEYS: dict[str, tuple[Kind, str]] = {
    "encoder": ("encoder", NO_MODALITY),  # of the service; of adapters, where the key has no modality
    "conditioning": ("encoder", NO_MODALITY),  # of diffusers' pipelines
    "processed": ("processor", "image"),  # of Transformers' image processors
    "processed-item": ("processor", NO_MODALITY),  # of vLLM's API servers, and so the next
    "decoded-film": ("processor", "video"),
}
"""Kind and modality by the first part of a key."""
_PLACES = tuple(product(("encoder", "processor", "other"), (*MODALITIES, NO_MODALITY)))
_PLACE = {place: index for index, place in enumerate(_PLACES)}
_BITS = 4
_MASK = (1 << _BITS) - 1
NO_TENANT = "default"
"""The tenant "" on the metrics page."""


class SavedSeconds:
    """The costs of one store's records, by the names that `store_key` gives."""

    def __init__(self) -> None:
        self._us = [0] * len(_PLACES)
        self._name_to_cost: dict[str, int] = {}  # microseconds << _BITS | index of `_PLACES`
        self._by_tenant = CountsByKey(TenantStats)

    def learn(self, name: str, tenant: str, key: str, cost_s: float) -> None:
        """Remember the cost of a record, in place of an earlier one of the name."""
        self._name_to_cost[name] = int(1e6 * cost_s + 0.5) << _BITS | _PLACE[_place_of(tenant, key)]

    def set_modality(self, name: str, modality: Modality) -> None:
        """Remember the modality of a record; one without a cost changes nothing."""
        if (cost := self._name_to_cost.get(name)) is not None:
            kind, _ = _PLACES[cost & _MASK]
            self._name_to_cost[name] = cost & ~_MASK | _PLACE[kind, modality]

    def hit(self, name: str, tenant: str) -> None:
        """Count a hit of a record for a tenant."""
        cost = self._name_to_cost.get(name)
        if cost is None:
            return
        us = cost >> _BITS
        self._us[cost & _MASK] += us
        self._by_tenant.add(tenant or NO_TENANT, saved_us=us)

    def cost_s(self, name: str) -> float:
        """Return the cost of a record in seconds; 0.0: unknown."""
        return (self._name_to_cost.get(name, 0) >> _BITS) / 1e6

    def forget(self, name: str) -> None:
        self._name_to_cost.pop(name, None)

    def clear(self) -> None:
        """Forget all records; the sums stay."""
        self._name_to_cost.clear()

    def by_tenant(self) -> dict[str, TenantStats]:
        return self._by_tenant.stats()

    def stats(self) -> SavedStats:
        us = dict(zip(_PLACES, self._us, strict=True))
        by_modality = {
            modality: SavedOfModality(encoder_us=us["encoder", modality], processor_us=us["processor", modality])
            for modality in (*MODALITIES, NO_MODALITY)
        }
        return SavedStats(**by_modality, other_us=us["other", NO_MODALITY])


def _place_of(tenant: str, key: str) -> tuple[str, str]:
    if tenant == ITEMS_TENANT:
        return "processor", NO_MODALITY
    first, *parts = key.split("/", 3)
    found = _OF_KEYS.get(first) if parts else None
    if found is None:
        return "other", NO_MODALITY
    return (found[0], parts[1]) if first == "encoder" and len(parts) == 3 and parts[1] in MODALITIES else found
