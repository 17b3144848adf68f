"""Reports the versions of this command and of the service in a run directory."""

from __future__ import annotations

import contextlib
import http.client
from pathlib import Path
from typing import Any

import msgspec

from mmcached.cli.admin.printing import say
from mmcached.cli.installed import installed_version
from mmcached.wire.errors import ConfigError, ServiceUnavailable
from mmcached.wire.paths import RunDir
from mmcached.wire.version import PROTOCOL_VERSION, VERSION_FIELD

CALL_S = 5.0


class ServiceVersion(msgspec.Struct, frozen=True):
    """The version of the service in a run directory.

    Attributes:
        protocol: Protocol of the last service there; None if there was none.
        package: Package version; "" if no service runs now, or it has another protocol.
    """

    protocol: object
    package: str = ""


def service_version(run_dir: Path) -> ServiceVersion:
    """Read the service's saved configuration, and ask the service if it runs.

    Raises:
        ConfigError: The directory is not private, or its configuration cannot be read.
        ServiceUnavailable: The service is just starting or ending, or does not answer.
    """
    directory = RunDir(run_dir)
    with contextlib.suppress(ServiceUnavailable):
        directory.check()
    try:
        fields = msgspec.json.decode(directory.config.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return ServiceVersion(None)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError("config", str(directory.config), str(error)) from error
    from mmcached.cli.admin.observe import fetch
    from mmcached.cli.serve.seat import supervisor_pid

    protocol = fields.get(VERSION_FIELD)
    if protocol != PROTOCOL_VERSION or supervisor_pid(run_dir) is None:
        return ServiceVersion(protocol)
    try:
        status = msgspec.json.decode(fetch(run_dir, "/status", CALL_S), type=dict[str, Any])
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        reason = str(error) or type(error).__name__
        raise ServiceUnavailable(f"the service in {run_dir} does not report its version: {reason}") from error
    return ServiceVersion(protocol, str(status.get("version", "")))


def print_versions(run_dir: Path) -> None:
    say(f"client: {installed_version()}, protocol {PROTOCOL_VERSION}")
    found = service_version(run_dir)
    if found.protocol is None:
        say(f"service: none has run in {run_dir}")
    elif not found.package:
        say(f"service: none of this version runs in {run_dir}; the last one spoke protocol {found.protocol}")
    else:
        say(f"service: {found.package}, protocol {found.protocol}")
