"""The run directory: where the sockets, locks and the configuration of one service lie.

    <run dir>/                 mode 0700, owned by the service's user
      supervisor.lock          held by the supervisor for its life
      config.json              the configuration that all roles read
      client.sock              clients  -> frontend
      engine.sock              engines  -> frontend
      workers-<i>.sock         workers  -> engine i
      kv-pub-<i>.sock          KV events of engine i, and on kv-rep-<i>.sock what was missed of them
      stats.page               counters, one slot per role
      http.json                where the health and metrics server listens
      clients/<id>.lock        held by a client for its life; free = the client is dead

A unix socket path may have 107 bytes, so a run directory must be short.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from mmcached.wire.errors import ConfigError

MAX_SOCKET_PATH_BYTES = 107
_LONGEST_NAME = "workers-999.sock"


def default_run_dir() -> Path:
    """`$XDG_RUNTIME_DIR/mmcached`, else `/tmp/mmcached-<uid>`."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "mmcached" if base else Path(f"/tmp/mmcached-{os.getuid()}")


@dataclass(frozen=True, slots=True)
class RunDir:
    """Names inside one run directory. Construction checks the path's length and touches nothing."""

    path: Path

    def __post_init__(self) -> None:
        longest = len(os.fsencode(self.path / _LONGEST_NAME))
        if longest > MAX_SOCKET_PATH_BYTES:
            room = MAX_SOCKET_PATH_BYTES - len(_LONGEST_NAME) - 1
            raise ConfigError("run_dir", str(self.path), f"must have at most {room} bytes (unix socket path limit)")

    def create(self) -> None:
        """Make the directory with mode 0700, or check that an existing one is private and ours.

        Raises:
            ConfigError: it exists but belongs to somebody else or is open to others.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.path.stat()
        if status.st_uid != os.getuid():
            raise ConfigError("run_dir", str(self.path), f"must belong to uid {os.getuid()}, not {status.st_uid}")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise ConfigError("run_dir", str(self.path), "must not be open to others: chmod 0700")
        self.clients.mkdir(mode=0o700, exist_ok=True)

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def supervisor_lock(self) -> Path:
        return self.path / "supervisor.lock"

    @property
    def clients(self) -> Path:
        return self.path / "clients"

    def client_lock(self, client_id: str) -> Path:
        return self.clients / f"{client_id}.lock"

    @property
    def client_address(self) -> str:
        return f"ipc://{self.path / 'client.sock'}"

    @property
    def engine_address(self) -> str:
        return f"ipc://{self.path / 'engine.sock'}"

    def worker_address(self, engine_index: int) -> str:
        return f"ipc://{self.path / f'workers-{engine_index}.sock'}"

    @property
    def stats_page(self) -> Path:
        return self.path / "stats.page"

    @property
    def http_info(self) -> Path:
        return self.path / "http.json"

    def remove_sockets(self) -> None:
        """Delete the sockets of a former service; the caller holds `supervisor_lock`."""
        for path in self.path.glob("*.sock"):
            path.unlink(missing_ok=True)
