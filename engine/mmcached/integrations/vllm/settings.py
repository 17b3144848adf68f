"""Holds what a user may set in `ec_connector_extra_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one engine's connector.

    Attributes:
        run_dir: of the service; None for the one that `mmcached serve` uses by default.
        tenant: engines share with those of the same tenant.
        checkpoint: a name for the content of the checkpoint, for one that is not a folder on this host. Else the name
            is made of the bytes of its files.
        encoder: a name that stands for all that an output depends on, for engines whose images another program encodes.
            Who sets it vouches for it: all that share it must say the same of an item.
        weights_version: any text; engines share with those that say the same. For weights that come from elsewhere.
        share_named_items: also share items that clients have named (`uuid`): they are what the client says they are.
        single_flight: have one engine of the host encode a new item while the others wait for it.
        claim_wait_s: how long an engine waits for another one's encoder.
        max_pinned_mb: of the store's memory, pinned in each rank with CUDA where outputs are loaded from again; 0: none
            is, and loads take longer.
        max_waiting_saves_mb: outputs that wait to be saved, per engine; what is more is not saved.
        call_timeout_s: the longest that a look-up in a step may wait for the service, after that was restarted.
        lease_steps: for how many steps a record is kept for ranks whose report does not come.
    """

    run_dir: str | None = None
    tenant: str = ""
    checkpoint: str = ""
    encoder: str = ""
    weights_version: str = ""
    share_named_items: bool = False
    single_flight: bool = True
    claim_wait_s: float = 10.0
    max_pinned_mb: float = 2048.0
    max_waiting_saves_mb: float = 1024.0
    call_timeout_s: float = 0.05
    lease_steps: int = 256

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Self:
        """Read a user's settings.

        Raises:
            ValueError: there is no such setting, or it cannot have that value.
        """
        kinds = {field.name: field.type for field in fields(cls)}
        if unknown := sorted(set(extra) - set(kinds)):
            raise ValueError(f"ec_connector_extra_config: there is no {unknown[0]!r}; there are {', '.join(kinds)}")
        values: dict[str, Any] = {}
        for name, value in extra.items():
            values[name] = float(value) if kinds[name] == "float" and type(value) is int else value
            wanted = str(kinds[name]).split(" | ")
            if not (value is None and "None" in wanted) and type(values[name]).__name__ != wanted[0]:
                raise ValueError(f"ec_connector_extra_config: {name} is {value!r}, and must be {kinds[name]}")
        settings = cls(**values)
        for name in ("claim_wait_s", "max_waiting_saves_mb", "call_timeout_s", "lease_steps"):
            if not getattr(settings, name) > 0:
                raise ValueError(f"ec_connector_extra_config: {name} is {getattr(settings, name)}, and must be above 0")
        if not settings.max_pinned_mb >= 0:
            raise ValueError(
                f"ec_connector_extra_config: max_pinned_mb is {settings.max_pinned_mb}, and must be 0 or more"
            )
        return settings

    @property
    def max_pinned_bytes(self) -> int:
        return int(self.max_pinned_mb * MIB)

    @property
    def max_waiting_bytes(self) -> int:
        return int(self.max_waiting_saves_mb * MIB)
