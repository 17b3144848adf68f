"""Defines and checks the user settings in `ec_connector_extra_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ConnectorSettings:
    """Settings of one engine's connector.

    Attributes:
        run_dir: Run directory of the service; None for the default of `mmcached serve`.
        tenant: Engines share with engines of the same tenant.
        checkpoint: A name for the content of the checkpoint, for checkpoints that are not a folder on this host. By
            default the name is made of the bytes of its files.
        encoder: A name that stands for all that an output depends on, for engines whose images another program encodes.
            The user vouches for it: all engines that share it must compute the same output for an item.
        weights_version: Any text; engines share with engines of the same text. For weights that come from elsewhere.
        only_exact: Share only where a found output equals what this engine would compute, bit for bit: vLLM must be
            batch-invariant (`VLLM_BATCH_INVARIANT=1`, CUDA, no compiled encoder). Otherwise the engine shares nothing.
        share_named_items: Also share items that clients have named (`uuid`); the client vouches for the content.
        single_flight: Have one engine of the host encode a new item while the others wait for it.
        claim_wait_s: How long an engine waits for another engine's encoder.
        max_pinned_mb: Memory of the store that each rank pins with CUDA where outputs are loaded repeatedly; 0 pins
            none, and loads take longer.
        max_waiting_saves_mb: Outputs that may wait to be saved, per engine; further ones are not saved.
        call_timeout_s: The longest that a look-up in a step may wait for a restarted service.
        lease_steps: Number of steps for which a record is kept for ranks whose report is missing.
    """

    run_dir: str | None = None
    tenant: str = ""
    checkpoint: str = ""
    encoder: str = ""
    weights_version: str = ""
    only_exact: bool = False
    share_named_items: bool = False
    single_flight: bool = True
    claim_wait_s: float = 10.0
    max_pinned_mb: float = 2048.0
    max_waiting_saves_mb: float = 1024.0
    call_timeout_s: float = 0.05
    lease_steps: int = 256

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Self:
        """Read a user's settings; ValueError for an unknown one, or a value of the wrong type or range."""
        kinds = {field.name: field.type for field in fields(cls)}
        if unknown := sorted(set(extra) - set(kinds)):
            raise ValueError(
                f"ec_connector_extra_config: unknown setting {unknown[0]!r}; the settings are {', '.join(kinds)}"
            )
        values: dict[str, Any] = {}
        for name, value in extra.items():
            values[name] = float(value) if kinds[name] == "float" and type(value) is int else value
            wanted = str(kinds[name]).split(" | ")
            if not (value is None and "None" in wanted) and type(values[name]).__name__ != wanted[0]:
                raise ValueError(f"ec_connector_extra_config: {name} is {value!r}, and must be {kinds[name]}")
        settings = cls(**values)
        if settings.only_exact and settings.encoder:
            text = "only_exact needs names by content, and encoder replaces them: set one of the two"
            raise ValueError(f"ec_connector_extra_config: {text}")
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
