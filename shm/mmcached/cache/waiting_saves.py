"""Counts the records that wait to be saved in the second level, by tenant, and says whose record goes beyond a limit.

Used at both ends: by the frontend's queue, and by that of the second level's process. A tenant that puts more than the
server accepts loses its own saves, so that those of other tenants are not lost with them.

>>> waiting = WaitingSaves()
>>> for tenant, num_bytes in (("quiet", 60), ("noisy", 10), ("noisy", 10), ("noisy", 10)):
...     waiting.add(tenant, num_bytes)
>>> waiting.tenant_to_drop(max_records=3, max_bytes=100)
'noisy'
>>> waiting.remove("noisy", 10)
>>> print(waiting.tenant_to_drop(max_records=3, max_bytes=100))
None
"""

from __future__ import annotations

from collections import Counter


class WaitingSaves:
    """Number and bytes of the waiting records of each tenant.

    Attributes:
        num_bytes: Bytes of all of them.
    """

    def __init__(self) -> None:
        self._num_records = 0
        self.num_bytes = 0
        self._tenant_to_num = Counter[str]()
        self._tenant_to_bytes = Counter[str]()

    def __len__(self) -> int:
        return self._num_records

    def add(self, tenant: str, num_bytes: int) -> None:
        self._num_records += 1
        self.num_bytes += num_bytes
        self._tenant_to_num[tenant] += 1
        self._tenant_to_bytes[tenant] += num_bytes

    def remove(self, tenant: str, num_bytes: int) -> None:
        self._num_records -= 1
        self.num_bytes -= num_bytes
        self._tenant_to_num[tenant] -= 1
        self._tenant_to_bytes[tenant] -= num_bytes
        if not self._tenant_to_num[tenant]:
            del self._tenant_to_num[tenant], self._tenant_to_bytes[tenant]

    def tenant_to_drop(self, *, max_records: int, max_bytes: int) -> str | None:
        """Return the tenant that has the most of what exceeds its limit, records or bytes; None within both limits."""
        if self._num_records > max_records:
            return max(self._tenant_to_num, key=self._tenant_to_num.__getitem__)
        if self.num_bytes > max_bytes:
            return max(self._tenant_to_bytes, key=self._tenant_to_bytes.__getitem__)
        return None

    def clear(self) -> None:
        self._num_records = self.num_bytes = 0
        self._tenant_to_num.clear()
        self._tenant_to_bytes.clear()
