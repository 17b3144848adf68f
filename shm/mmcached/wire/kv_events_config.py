"""The addresses at which engines publish the content of their prefix caches."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mmcached.wire.errors import ConfigError

MAX_PORT = 65_535


class KVEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The publication of an engine's prefix cache; see `mmcached.wire.messages.kv_events`.

    The events reveal prompts. The engine binds to an endpoint: `tcp://HOST:PORT`, with `*` for every interface, serves
    every host that reaches it, so use it only in a private network; "" is a socket in the user's run directory. Of
    several engines, engine i binds to PORT + i, as vLLM's do, or to `ipc://PATH.i`; engine 0 to the endpoint itself.

    `buffer_steps` batches, at most `buffer_mb`, are kept for replay; a reader that is `hwm` batches or `buffer_mb` late
    misses some, and asks for a replay. `use_int_block_hashes` replaces each digest by 64 bits, for readers that expect
    numbers.
    """

    enable_kv_cache_events: bool = False
    endpoint: str = ""
    replay_endpoint: str = ""
    topic: str = ""
    buffer_steps: int = 10_000
    buffer_mb: int = 64
    hwm: int = 10_000
    use_int_block_hashes: bool = False

    def addresses(self, run_dir: Path, engine_index: int = 0) -> tuple[str, str]:
        publish = _of_engine(self.endpoint, engine_index) or f"ipc://{run_dir / f'kv-pub-{engine_index}.sock'}"
        replay = _of_engine(self.replay_endpoint, engine_index) or f"ipc://{run_dir / f'kv-rep-{engine_index}.sock'}"
        return publish, replay

    def check(self, num_engines: int) -> None:
        """Raise `ConfigError` if an endpoint is invalid, or if two engines would bind to one address."""
        fields = ("endpoint", "replay_endpoint") if self.enable_kv_cache_events else ()
        taken: dict[str, str] = {}
        for field in fields:
            endpoint = getattr(self, field)
            if endpoint and not endpoint.startswith(("tcp://", "ipc://")):
                raise ConfigError(f"kv_events.{field}", endpoint, 'must be tcp://HOST:PORT, ipc://PATH, or ""')
            for index in range(num_engines) if _is_of_one(endpoint) else ():
                address = _of_engine(endpoint, index)
                if (port := address.rpartition(":")[2]).isdecimal() and int(port) > MAX_PORT:
                    raise ConfigError(f"kv_events.{field}", endpoint, f"engine {index} has no port {port}")
                if address in taken:
                    limit = f"engine {index} would bind to {address}, as {taken[address]} does: leave more room between"
                    raise ConfigError(f"kv_events.{field}", endpoint, limit)
                taken[address] = f"engine {index}'s {field}"


def _is_of_one(endpoint: str) -> bool:
    """Return whether only one engine can bind to an endpoint; port 0 or `*` is chosen anew for each."""
    return bool(endpoint) and not (endpoint.startswith("tcp://") and endpoint.rpartition(":")[2] in ("0", "*"))


def _of_engine(endpoint: str, index: int) -> str:
    """Return the address of an engine, where engine 0 has this endpoint."""
    if not index or not _is_of_one(endpoint):
        return endpoint
    host, _, port = endpoint.rpartition(":")
    return (
        f"{host}:{int(port) + index}" if endpoint.startswith("tcp://") and port.isdecimal() else f"{endpoint}.{index}"
    )
