"""Checks of the second level, made like its process: URL, installed packages, connection, and the process here."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from mmcached.cli.doctor.finding import CheckedHost, Finding
from mmcached.second_level.backend import Backend, BackendError
from mmcached.second_level.urls import epoch_note, make_backend
from mmcached.shm.stats.page import StatsPageReader
from mmcached.shm.stats.service import stats_of
from mmcached.wire.errors import ConfigError
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import RoleName, SecondLevelStats, Trouble

if TYPE_CHECKING:
    from mmcached.second_level.redis.backend import RedisBackend

CALL_S = 3.0
VALUE = bytes(128 << 10)
TTL_S = 10.0
"""Seconds until the trial value expires."""
_ROLE = RoleName("second_level")
_FIXES: Mapping[Trouble, str] = {
    "unreached": "is the server there, and are address, port and network right?",
    "late": "is the server stopped or overloaded, or the network?",
    "denied": "do user and password suffice? docs/fleet.md says which commands are needed",
    "full": "more memory for the server (maxmemory), and maxmemory-policy allkeys-lru",
    "refused": "the server's words say why; is it a replica?",
}


class _Trial(NamedTuple):
    """Result of a trial: times of one put and get, and the server's state.

    Attributes:
        epoch: Epoch of the server.
        when_full: Problem with its behaviour when it is full; empty if there is none.
        version_to_key: Other versions with an epoch there.
    """

    put_s: float
    get_s: float
    epoch: int
    when_full: str
    version_to_key: Mapping[int, str]


def second_level(host: CheckedHost) -> Finding:
    """Check the second level by putting and getting a value; without it every miss is computed, and no data is lost."""
    config = host.config
    if not config.store_l2:
        return Finding("ok", "there is none (store_l2 is not set)")
    try:
        backend = make_backend(config.store_l2)
    except ConfigError as error:
        is_missing = "pip install" in str(error.details["limit"])
        fix = "install it, or serve without --store-l2" if is_missing else "another --store-l2, or MMC_STORE_L2"
        return Finding("problem", str(error), fix)
    circuit = _circuit(host)
    fact = f"{config.shown().store_l2}{circuit}"
    try:
        trial = _try(backend)
    except BackendError as error:
        return Finding("warning", f"{fact}: {error}; until then every miss is computed", _FIXES[error.trouble])
    finally:
        backend.close()
    limit_ms, get_ms = config.limits.l2_timeout_ms, 1000 * trial.get_s
    fact = f"{fact}: {len(VALUE) >> 10} KiB put in {1000 * trial.put_s:.1f} ms, got in {get_ms:.1f} ms"
    if get_ms >= limit_ms:
        fix = "a nearer server, a faster network, or a larger limits.l2_timeout_ms"
        return Finding("warning", f"{fact}; after {limit_ms} ms a fetch is a miss", fix)
    own_epoch = epoch_note(config.store_l2, RunDir(host.run_dir).second_level_epoch).read().epoch
    if 0 < own_epoch < trial.epoch:
        what = f"{fact}; it is not used: another host was flushed after this one"
        return Finding("warning", what, "`mmcached flush`, once the servers of this host are up to date")
    if trial.version_to_key:
        versions = ", ".join(map(str, trial.version_to_key))
        what = (
            f"{fact}; hosts of another mmcached use it too, or did (records of version {versions}): they share nothing"
        )
        fix = f"one version for all hosts, and then delete in the server: {', '.join(trial.version_to_key.values())}"
        return Finding("warning", what, fix)
    if trial.when_full:
        return Finding("warning", f"{fact}; {trial.when_full}", "maxmemory, and maxmemory-policy allkeys-lru")
    if circuit:
        return Finding("warning", f"{fact}; the process here has found it otherwise", "its log says how")
    return Finding("ok", fact)


def _try(backend: Backend) -> _Trial:
    name = secrets.token_hex(32)
    backend.get_heads([name], 1, deadline=time.monotonic() + CALL_S)  # which opens the connection
    began = time.perf_counter()
    backend.put(name, [VALUE], ttl_s=TTL_S, deadline=time.monotonic() + CALL_S)
    put_s = time.perf_counter() - began
    began = time.perf_counter()
    epoch, (found,) = backend.get_many([name], deadline=time.monotonic() + CALL_S)
    get_s = time.perf_counter() - began
    if found is None or isinstance(found, BackendError) or bytes(found) != VALUE:
        raise BackendError("a value was put there, and is not found")
    if find_spec("redis") is not None:
        from mmcached.second_level.redis.backend import RedisBackend

        if isinstance(backend, RedisBackend):
            versions = backend.other_versions(deadline=time.monotonic() + CALL_S)
            return _Trial(put_s, get_s, epoch, _when_full(backend), versions)
    return _Trial(put_s, get_s, epoch, "", {})


def _when_full(backend: RedisBackend) -> str:
    """Return the problem with a server's behaviour when it is full; empty without one, or if unknown."""
    try:
        max_bytes, policy = backend.memory(deadline=time.monotonic() + CALL_S)
    except BackendError:  # this user may not ask
        return ""
    if not max_bytes:
        return "it has no maxmemory, and takes all that there is"
    return f"full, it takes nothing more ({policy})" if policy == "noeviction" else ""


def _circuit(host: CheckedHost) -> str:
    """Return a text if the circuit breaker of the process here is open; empty if it is closed, or no process runs."""
    page = RunDir(host.run_dir).stats_page
    if not page.exists():
        return ""
    with StatsPageReader(page) as reader:
        is_open = stats_of(reader.read(), _ROLE, SecondLevelStats).circuit_open
    return " (circuit open)" if is_open else ""
