"""Sums the seconds that hits have saved: the cost of each record, each time it is found.

The cost of a record is the time that computing it took, as the client said or its claim has measured. Hits that readers
make by themselves come from their touch logs, which lose some when there are many at a time: the sums are lower bounds.

Invariant: only current records have an entry, and only those whose cost is known.
"""

from __future__ import annotations

from mmcached.wire.figures import CountsByKey
from mmcached.wire.stats import TenantStats

ENCODER_KEYS = "encoder/"
"""Begin of the keys of encoder outputs, of the service and of adapters."""
NO_TENANT = "default"
"""The tenant "" on the metrics page."""


class SavedSeconds:
    """The costs of one store's records, by the names that `store_key` gives.

    Attributes:
        encoder_us, other_us: Microseconds saved by hits of encoder outputs, and of other records.
    """

    def __init__(self) -> None:
        self.encoder_us = self.other_us = 0
        self._name_to_cost: dict[str, int] = {}  # 2 × microseconds, + 1 for an encoder output
        self._by_tenant = CountsByKey(TenantStats)

    def learn(self, name: str, key: str, cost_s: float) -> None:
        """Remember the cost of a record, in place of an earlier one of the name."""
        self._name_to_cost[name] = 2 * int(1e6 * cost_s + 0.5) + key.startswith(ENCODER_KEYS)

    def hit(self, name: str, tenant: str) -> None:
        """Count a hit of a tenant's record."""
        cost = self._name_to_cost.get(name)
        if cost is None:
            return
        us = cost >> 1
        if cost & 1:
            self.encoder_us += us
        else:
            self.other_us += us
        self._by_tenant.add(tenant or NO_TENANT, saved_us=us)

    def cost_s(self, name: str) -> float:
        """Return the cost of a record in seconds; 0.0: unknown."""
        return (self._name_to_cost.get(name, 0) >> 1) / 1e6

    def forget(self, name: str) -> None:
        self._name_to_cost.pop(name, None)

    def clear(self) -> None:
        """Forget all records; the sums stay."""
        self._name_to_cost.clear()

    def by_tenant(self) -> dict[str, TenantStats]:
        return self._by_tenant.stats()
