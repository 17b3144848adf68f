"""Keeps the names of pinned records and the ends of their pins; `RingRecords` protects the records in the ring.

    pin ──> pinned ──its time is over, `unpin`, or the record is dropped, flushed, expired or replaced──> not pinned

A pin belongs to the record, not to the client that has set it, and does not outlive this process.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class _Pin:
    tenant: str
    num_bytes: int
    deadline: float


class PinTable:
    """The pinned records of one store, by `store_key`.

    Attributes:
        num_bytes: Bytes of all of them.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._name_to_pin: dict[str, _Pin] = {}
        self._tenant_to_bytes = Counter[str]()
        self._first_deadline = inf  # at most that of any pin

    def __len__(self) -> int:
        return len(self._name_to_pin)

    def __contains__(self, name: str) -> bool:
        return name in self._name_to_pin

    def bytes_of(self, tenant: str, *, but: str = "") -> int:
        """Return the bytes of a tenant's pinned records without the record `but`."""
        pin = self._name_to_pin.get(but)
        return self._tenant_to_bytes[tenant] - (pin.num_bytes if pin is not None else 0)

    def add(self, name: str, tenant: str, num_bytes: int, deadline: float) -> bool:
        """Pin a record until `deadline`, or until its present one if that is later; return whether the pin is new."""
        self._first_deadline = min(self._first_deadline, deadline)
        if (pin := self._name_to_pin.get(name)) is not None:
            pin.deadline = max(pin.deadline, deadline)
            return False
        self._name_to_pin[name] = _Pin(tenant, num_bytes, deadline)
        self.num_bytes += num_bytes
        self._tenant_to_bytes[tenant] += num_bytes
        return True

    def remove(self, name: str) -> bool:
        """End a pin; return whether there was one."""
        pin = self._name_to_pin.pop(name, None)
        if pin is None:
            return False
        self.num_bytes -= pin.num_bytes
        self._tenant_to_bytes[pin.tenant] -= pin.num_bytes
        if not self._tenant_to_bytes[pin.tenant]:
            del self._tenant_to_bytes[pin.tenant]
        return True

    def overdue(self, now: float) -> list[str]:
        """Return the pins whose time is over; the caller removes them."""
        if now < self._first_deadline:
            return []
        self._first_deadline = min(
            (pin.deadline for pin in self._name_to_pin.values() if pin.deadline > now), default=inf
        )
        return [name for name, pin in self._name_to_pin.items() if pin.deadline <= now]

    def clear(self) -> None:
        self._name_to_pin.clear()
        self._tenant_to_bytes.clear()
        self.num_bytes, self._first_deadline = 0, inf
