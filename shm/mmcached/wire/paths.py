"""The sockets, locks and files in the run directory of one service.

    <run dir>/                 mode 0700, owned by the service's user; locked (flock) by the supervisor for its life
      config.json              the configuration that all roles read
      client.sock              clients  -> frontend
      engine.sock              engines  -> frontend
      workers-<i>.sock         workers  -> engine i
      kv-pub-<i>.sock          KV events of engine i, and kv-rep-<i>.sock for replays of missed ones
      stats.page               counters, one slot per role
      second-level.epoch       the host's epoch of the second level, by fleet; kept when the service ends
      <name>.ring              notes of the frontend's rings, for the next frontend
      http.sock                health and metrics, from the supervisor
      clients/<id>.lock        held by a client for its life; free = the client is dead
      names/<name>.json        what an encoder output's name is made of; written by who computes it

A unix socket path may have 107 bytes, so a run directory must be short.

These files are trusted, so every process calls `RunDir.check` before it opens one: in a private directory of this user
no other user can have created them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from mmcached.wire.errors import ConfigError, ServiceUnavailable
from mmcached.wire.sockets.unix_sockets import listener_at

MAX_SOCKET_PATH_BYTES = 107
_LONGEST_NAME = "workers-999.sock"
RUN_DIR_VARIABLE = "MMC_RUN_DIR"
"""Environment variable with the default run directory."""


def default_run_dir() -> Path:
    """Return `$MMC_RUN_DIR`, else `mmcached` below `$XDG_RUNTIME_DIR` or `/run/user/<uid>`, for root `/run/mmcached`.

    Raises:
        ConfigError: This user has none of these. /tmp is not used: another user could have created a directory there.
    """
    chosen = os.environ.get(RUN_DIR_VARIABLE)
    if chosen:
        return Path(chosen)
    uid = os.geteuid()
    given = os.environ.get("XDG_RUNTIME_DIR")
    bases = [Path(given)] if given else []
    for base in [*bases, Path(f"/run/user/{uid}")]:
        if _is_owned(base, uid):
            return base / "mmcached"
    if uid == 0:
        return Path("/run/mmcached")
    limit = (
        f"the default needs /run/user/{uid}, a directory of this user; name another one: --run-dir DIR, or MMC_RUN_DIR"
    )
    raise ConfigError("run_dir", f"/run/user/{uid}/mmcached", limit)


def _is_owned(path: Path, uid: int) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths inside one run directory. Construction checks the path's length and touches nothing."""

    path: Path

    def __post_init__(self) -> None:
        longest = len(os.fsencode(self.path / _LONGEST_NAME))
        if longest > MAX_SOCKET_PATH_BYTES:
            room = MAX_SOCKET_PATH_BYTES - len(_LONGEST_NAME) - 1
            raise ConfigError("run_dir", str(self.path), f"must have at most {room} bytes (unix socket path limit)")

    def create(self) -> None:
        """Make the directory with mode 0700, or check an existing one; raise ConfigError if it cannot be made."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            pass  # not a directory: `check` raises
        except OSError as error:
            raise ConfigError("run_dir", str(self.path), f"cannot be made: {error.strerror}") from error
        self.check()
        try:
            self.clients.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError("run_dir", str(self.path), f"clients cannot be made: {error.strerror}") from error

    def check(self) -> None:
        """Require that the directory is this user's and closed to others.

        Raises:
            ConfigError: It is not a directory, a link, belongs to another user, or is open to others.
            ServiceUnavailable: It does not exist.
        """
        os.close(self.open())

    def open(self) -> int:
        """Check as `check` does; return a descriptor of the directory, owned by the caller."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            fix = f"start one: mmcached serve --run-dir {self.path}"
            raise ServiceUnavailable(f"no service in {self.path}; {fix}") from None
        except OSError as error:
            reason = error.strerror
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                reason = "must be a directory, not a link to one"
            elif error.errno == errno.EACCES:
                reason = f"{reason}: it belongs to another user, not to uid {os.geteuid()}; run this as that user"
            raise ConfigError("run_dir", str(self.path), str(reason)) from error
        try:
            self._require_private(os.fstat(fd))
        except ConfigError:
            os.close(fd)
            raise
        return fd

    def is_served(self) -> bool:
        """Check as `check` does; return whether a process listens for clients.

        Raises:
            ConfigError: The listener is another user's, started before the directory was closed to others.
        """
        self.check()
        try:
            listener = listener_at(self.path / "client.sock")
        except BlockingIOError:
            return True  # its queue is full, so there is a listener
        if listener is not None and listener.uid != os.geteuid():
            raise ConfigError(
                "run_dir", str(self.path), f"client.sock must be of uid {os.geteuid()}, not {listener.uid}"
            )
        return listener is not None

    def _require_private(self, status: os.stat_result) -> None:
        if status.st_uid != os.geteuid():
            limit = f"belongs to uid {status.st_uid}, and this is uid {os.geteuid()}: run this as that user"
            raise ConfigError("run_dir", str(self.path), limit)
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise ConfigError("run_dir", str(self.path), "must not be open to others: chmod 0700")

    @property
    def config(self) -> Path:
        return self.path / "config.json"

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
    def second_level_epoch(self) -> Path:
        return self.path / "second-level.epoch"

    @property
    def http_socket(self) -> Path:
        return self.path / "http.sock"

    def remove_sockets(self) -> None:
        """Delete the sockets of a former service; only the holder of the directory's lock may."""
        for path in self.path.glob("*.sock"):
            with contextlib.suppress(OSError):
                path.unlink()
