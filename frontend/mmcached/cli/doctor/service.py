"""Checks of the run directory, and of its service: with a real record, and a real item through the engine."""

from __future__ import annotations

import os
import secrets
import stat
import time
from pathlib import Path

import numpy as np

from mmcached.cli.admin.versions import service_version
from mmcached.cli.doctor.finding import CheckedHost, Finding
from mmcached.cli.installed import installed_version
from mmcached.cli.serve.seat import supervisor_pid
from mmcached.cli.watch.readiness import DELETED, probe
from mmcached.client import Client
from mmcached.shm.segment.ring_notes import missing_names
from mmcached.wire.errors import ConfigError, MmcachedError, ServiceUnavailable
from mmcached.wire.paths import RunDir
from mmcached.wire.version import PROTOCOL_VERSION, mismatch

TENANT = "mmcached doctor"
CALL_S = 5.0
_ROWS = 16_384
"""Rows of eight bytes: large enough for a nursery, and to be returned in place."""


def run_directory(host: CheckedHost) -> Finding:
    """Check that the run directory is short, the user's own and closed to others: its contents are trusted."""
    try:
        directory = RunDir(host.run_dir)  # checks its length
        directory.check()
    except ServiceUnavailable:
        place = next(parent for parent in host.run_dir.absolute().parents if parent.exists())
        if not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
            fact = f"{host.run_dir} is not there, and nothing can be made in {place} by uid {os.geteuid()}"
            return Finding("problem", fact, "--run-dir DIR: in a directory of this user")
        fact = f"{host.run_dir} is not there yet: `serve` makes it"
    except ConfigError as error:
        limit = str(error.details["limit"])
        fix = f"chmod 0700 {host.run_dir}" if "0700" in limit else "--run-dir DIR: short, and this user's alone"
        return Finding("problem", str(error), fix)
    else:
        fact = f"{host.run_dir}, {len(os.fsencode(host.run_dir))} bytes long, closed to others"
    for parent in host.run_dir.parents:
        if parent.is_dir() and _is_open(parent):
            fix = "take a run directory below /run/user/UID or /run"
            return Finding("warning", f"{fact}; but others may rename what is in {parent}", fix)
    return Finding("ok", fact)


def versions(host: CheckedHost) -> Finding:
    """Check that client and service have the same version; both must be upgraded together."""
    mine = f"mmcached {installed_version()}, protocol {PROTOCOL_VERSION}"
    theirs = service_version(host.run_dir)
    if theirs.protocol is None:
        return Finding("ok", f"{mine}; no service has run here")
    if theirs.protocol != PROTOCOL_VERSION:
        fix = "install the same mmcached on both sides, and restart the service"
        return Finding("problem", f"{mine}; the service here: {mismatch(theirs.protocol)}", fix)
    return Finding("ok", f"{mine}; the service is {theirs.package}" if theirs.package else f"{mine}, as the last here")


def round_trip(host: CheckedHost) -> Finding:
    """Put a record, find it in place with the same client, and drop it."""
    if (absent := _absent(host)) is not None:
        return absent
    if not host.config.store_data_bytes:
        return Finding("ok", "the service has no store (store_gb = 0)")
    if missing := missing_names(host.run_dir):
        return Finding("problem", DELETED.format(missing[0]), f"mmcached drain --run-dir {host.run_dir}, then serve")
    key, sent = secrets.token_hex(16), np.arange(_ROWS)
    fix = f"mmcached status --run-dir {host.run_dir}; its log says more"
    try:
        with Client(host.run_dir, timeout_s=CALL_S, connect_timeout_s=CALL_S, fail_open=False, name="doctor") as client:
            for name in (f"{key}/first", key):  # the first put makes contact and opens a nursery
                began = time.perf_counter()
                if not client.put(name, {"x": sent}, tenant=TENANT):
                    return Finding("problem", "a record of 128 KiB was not kept", f"larger store_gb; {fix}")
            put_s = time.perf_counter() - began
            began = time.perf_counter()
            hit = client.get(key, tenant=TENANT, tensors="numpy")
            get_s = time.perf_counter() - began
            is_same = hit is not None and np.array_equal(hit.record["x"], sent)
            is_dropped = all(client.drop(each, tenant=TENANT, local=True) for each in (f"{key}/first", key))
    except MmcachedError as error:
        return Finding("problem", f"{error.code}: {error}", fix)
    if not (is_same and is_dropped):
        return Finding("problem", "a record of 128 KiB was kept and not found, or not as it was", fix)
    return Finding("ok", f"128 KiB: put in {1000 * put_s:.1f} ms, got in {1000 * get_s:.1f} ms, dropped")


def engine(host: CheckedHost) -> Finding:
    """Send an item through ring, engine and every worker, as the readiness probe does."""
    if (absent := _absent(host)) is not None:
        return absent
    found = probe(host.run_dir, max(CALL_S, host.config.probe_timeout_s))
    if not found.ready:
        return Finding("problem", found.reason, f"mmcached status --run-dir {host.run_dir}; its log says more")
    return Finding("ok", found.reason)


def _absent(host: CheckedHost) -> Finding | None:
    try:
        is_there = supervisor_pid(host.run_dir) is not None
    except ServiceUnavailable as error:
        return Finding("problem", str(error), "ask again when it has started")
    return None if is_there else Finding("ok", f"not tried: no service in {host.run_dir}")


def _is_open(directory: Path) -> bool:
    """Return whether other users may rename files in a directory."""
    mode = directory.stat().st_mode
    return bool(mode & (stat.S_IWGRP | stat.S_IWOTH)) and not mode & stat.S_ISVTX
