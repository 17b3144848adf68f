"""Checks the second level as its process uses it: the URL, what it takes, the way there, and what runs here."""

from __future__ import annotations

import secrets
import time
from importlib.util import find_spec
from typing import NamedTuple

from mmcached.cli.doctor.finding import Finding, Host
from mmcached.second_level.backend import Backend, BackendError
from mmcached.second_level.urls import make_backend
from mmcached.shm.stats.page import StatsPageReader
from mmcached.shm.stats.service import stats_of
from mmcached.wire.errors import ConfigError
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import RoleName, SecondLevelStats

CALL_S = 3.0
VALUE = bytes(128 << 10)
TTL_S = 10.0
"""How long the value that is put to try it stays there."""
_ROLE = RoleName("second_level")


class _Trial(NamedTuple):
    """What one value took there and back, and what the server does when it is full, as far as it says so."""

    put_s: float
    get_s: float
    when_full: str


def second_level(host: Host) -> Finding:
    """A value is put there and got back; without one every miss is computed, and nothing is lost but that."""
    config = host.config
    if not config.store_l2:
        return Finding("ok", "there is none (store_l2 is not set)")
    try:
        backend = make_backend(config.store_l2)
    except ConfigError as error:
        is_missing = "pip install" in str(error.details["limit"])
        mend = "install it, or serve without --store-l2" if is_missing else "another --store-l2, or MMC_STORE_L2"
        return Finding("problem", str(error), mend)
    circuit = _circuit(host)
    fact = f"{config.shown().store_l2}{circuit}"
    try:
        trial = _try(backend)
    except BackendError as error:
        mend = "is the server there, and do user and password suffice? docs/fleet.md says for what"
        return Finding("warning", f"{fact}: {error}; until then every miss is computed", mend)
    finally:
        backend.close()
    limit_ms, get_ms = config.limits.l2_timeout_ms, 1000 * trial.get_s
    fact = f"{fact}: {len(VALUE) >> 10} KiB put in {1000 * trial.put_s:.1f} ms, got in {get_ms:.1f} ms"
    if get_ms >= limit_ms:
        mend = "a nearer server, a faster network, or a larger limits.l2_timeout_ms"
        return Finding("warning", f"{fact}; after {limit_ms} ms a fetch is a miss", mend)
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
    _, (found,) = backend.get_many([name], deadline=time.monotonic() + CALL_S)
    get_s = time.perf_counter() - began
    if found is None or isinstance(found, BackendError) or bytes(found) != VALUE:
        raise BackendError("a value was put there, and is not found")
    return _Trial(put_s, get_s, _when_full(backend))


def _when_full(backend: Backend) -> str:
    """Return what is wrong with how a server ends when it is full; empty if nothing is, or it does not say."""
    if find_spec("redis") is None:
        return ""
    from mmcached.second_level.redis.backend import RedisBackend

    if not isinstance(backend, RedisBackend):
        return ""
    try:
        max_bytes, policy = backend.memory(deadline=time.monotonic() + CALL_S)
    except BackendError:  # this user may not ask
        return ""
    if not max_bytes:
        return "it has no maxmemory, and takes all that there is"
    return f"full, it takes nothing more ({policy})" if policy == "noeviction" else ""


def _circuit(host: Host) -> str:
    """Return a word about the circuit of the process that runs here; empty if it is closed, or there is none."""
    page = RunDir(host.run_dir).stats_page
    if not page.exists():
        return ""
    with StatsPageReader(page) as reader:
        is_open = stats_of(reader.read(), _ROLE, SecondLevelStats).circuit_open
    return " (circuit open)" if is_open else ""
